//! One line of the journal.

use std::fmt;
use std::time::Instant;

use crate::wire::{EventKind, Op};

/// Which way a frame goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// What was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// A client has connected to the proxy.
    Opened,
    /// The server could not be reached for a client that has connected.
    Unreachable,
    /// A client attaches to a session, or asks for a new one with id 0.
    Connect {
        /// The session to attach to.
        session: i64,
        /// The session timeout asked for, in milliseconds.
        timeout_ms: i32,
    },
    /// The server's answer to [`What::Connect`]. Session id 0 or timeout 0 says that the session has expired.
    Connected {
        /// The session.
        session: i64,
        /// The session timeout granted, in milliseconds.
        timeout_ms: i32,
        /// The session's password, with which anyone can end it:
        /// [`Observer::end_session`](crate::Observer::end_session).
        password: Vec<u8>,
    },
    /// A request.
    Request {
        /// Its number on this connection.
        xid: i32,
        /// What it asks for.
        op: Op,
        /// The paths it is about: none, one, or a multi's several.
        paths: Vec<String>,
    },
    /// A reply, with the operation and the paths of its request.
    Reply {
        /// The number of the request.
        xid: i32,
        /// What the request asked for.
        op: Op,
        /// The paths of the request.
        paths: Vec<String>,
        /// The server's last transaction.
        zxid: i64,
        /// The error code, 0 for none.
        err: i32,
        /// The path of the node made, its sequence number included, in replies to creates.
        created: Option<String>,
    },
    /// A watch event.
    Event {
        /// What it says.
        kind: EventKind,
        /// About which node.
        path: String,
    },
    /// Bytes that are no frames, or a frame that could not be read.
    Opaque {
        /// How many bytes.
        length: usize,
    },
    /// The sender has closed its end.
    Eof,
    /// The sender's end was reset or failed.
    Reset,
    /// The connection is over on both sides.
    Closed,
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// On its way: delayed, stalled, or just arrived.
    Underway,
    /// Handed to the receiver at this time.
    Delivered(Instant),
    /// Dropped by a rule.
    Dropped,
    /// Swallowed by a black hole.
    Swallowed,
}

/// One line of the journal.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its number, counted from 0. Entries are in order of arrival at the proxy.
    pub seq: u64,
    /// When it arrived at the proxy.
    pub at: Instant,
    /// The same moment on CLOCK_BOOTTIME, in nanoseconds: comparable between processes of one machine.
    pub boot_ns: u64,
    /// Number of the connection, counted from 1.
    pub connection: u64,
    /// The session, 0 before it is known.
    pub session: i64,
    /// Which way it went.
    pub direction: Direction,
    /// What it was.
    pub what: What,
    /// What became of it so far.
    pub fate: Fate,
}

impl Entry {
    /// The operation of a request or reply, the handshake included.
    #[must_use]
    pub fn op(&self) -> Option<Op> {
        match self.what {
            What::Connect { .. } | What::Connected { .. } => Some(Op::Connect),
            What::Request { op, .. } | What::Reply { op, .. } => Some(op),
            _ => None,
        }
    }

    /// The number of a request or reply.
    #[must_use]
    pub fn xid(&self) -> Option<i32> {
        match self.what {
            What::Request { xid, .. } | What::Reply { xid, .. } => Some(xid),
            _ => None,
        }
    }

    /// The (first) path that a request, reply or event is about.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        match &self.what {
            What::Request { paths, .. } | What::Reply { paths, .. } => paths.first().map(String::as_str),
            What::Event { path, .. } => Some(path),
            _ => None,
        }
    }

    /// The error code of a reply.
    #[must_use]
    pub fn err(&self) -> Option<i32> {
        match self.what {
            What::Reply { err, .. } => Some(err),
            _ => None,
        }
    }

    /// What a watch event says.
    #[must_use]
    pub fn event(&self) -> Option<EventKind> {
        match self.what {
            What::Event { kind, .. } => Some(kind),
            _ => None,
        }
    }

    /// Whether it is a request, the handshake included.
    #[must_use]
    pub fn is_request(&self) -> bool {
        matches!(self.what, What::Request { .. } | What::Connect { .. })
    }

    /// Whether it is a request of this type.
    #[must_use]
    pub fn is_request_of(&self, op: Op) -> bool {
        self.is_request() && self.op() == Some(op)
    }

    /// Whether it is a reply, the handshake included.
    #[must_use]
    pub fn is_reply(&self) -> bool {
        matches!(self.what, What::Reply { .. } | What::Connected { .. })
    }

    /// Whether it is a reply to a request of this type.
    #[must_use]
    pub fn is_reply_to(&self, op: Op) -> bool {
        self.is_reply() && self.op() == Some(op)
    }

    /// Whether it has been handed to the receiver.
    #[must_use]
    pub fn is_delivered(&self) -> bool {
        matches!(self.fate, Fate::Delivered(_))
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.direction {
            Direction::ToServer => "->",
            Direction::ToClient => "<-",
        };
        let Self { seq, boot_ns, connection, session, what, fate, .. } = self;
        let fate = match fate {
            Fate::Delivered(_) => String::new(),
            other => format!(" ({other:?})"),
        };
        write!(
            f,
            "{seq:>5} {:>10.4} s #{connection} {session:#x} {arrow} {what:?}{fate}",
            *boot_ns as f64 / 1e9
        )
    }
}
