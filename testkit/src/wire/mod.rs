//! ZooKeeper's wire format, as much of it as the proxy and the observer need.
//!
//! Every frame is a 4-byte length and a body. The first frame of a client is a ConnectRequest and the first of
//! a server a ConnectResponse; after that each request starts with `xid, type` and each reply with
//! `xid, zxid, err`.

mod jute;
mod op;

pub use jute::{Malformed, Reader, Stat, Writer};
pub use op::{EventKind, Op, UnknownOp};

/// The xid of a watch event.
pub const XID_EVENT: i32 = -1;
/// The xid of a ping.
pub const XID_PING: i32 = -2;
/// The xid of an authentication packet.
pub const XID_AUTH: i32 = -4;
/// The xid of a request that sets watches anew after a reconnect.
pub const XID_SET_WATCHES: i32 = -8;

/// The largest body that counts as a frame. What claims to be larger is something else: TLS, or a four-letter
/// word.
pub const MAX_FRAME: usize = 64 << 20;

/// Error codes in replies that tests ask about.
pub mod code {
    /// No error.
    pub const OK: i32 = 0;
    /// The connection ended with the outcome unknown (never sent by a server).
    pub const CONNECTION_LOSS: i32 = -4;
    /// The node does not exist.
    pub const NO_NODE: i32 = -101;
    /// The version does not match.
    pub const BAD_VERSION: i32 = -103;
    /// The node exists already.
    pub const NODE_EXISTS: i32 = -110;
    /// The node has children.
    pub const NOT_EMPTY: i32 = -111;
    /// The session has expired.
    pub const SESSION_EXPIRED: i32 = -112;
    /// The session is served by another server now.
    pub const SESSION_MOVED: i32 = -118;
}
