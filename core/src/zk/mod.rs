//! The port: the dozen ZooKeeper operations that the engine stands on.
//!
//! Two adapters implement it. [`zookeeper`] speaks to real servers and is the only folder that names the client
//! crate; [`simulated`] is a deterministic tree with faults, for tests. One contract suite holds both to the
//! same behaviour.
//!
//! A [`Connection`] is *one TCP connection*. It never reconnects: when it ends, every request in flight ends
//! in [`ZkError::ConnectionLost`], every watch fires [`WatchEvent::ConnectionEnded`], and a new connection is
//! made with [`Connector::connect`], to the same session or to a new one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::env::BoxFuture;

#[cfg(any(test, feature = "simulation"))]
pub mod simulated;
pub mod zookeeper;

/// The answer to a request.
///
/// The request is put on the wire, in the order of the calls, when the method is *called*; the future only
/// waits for the reply. Dropping the future does not take the request back.
pub type Reply<T> = BoxFuture<Result<T, ZkError>>;

/// Makes connections.
pub trait Connector: Send + Sync + 'static {
    /// Opens one TCP connection to `request.endpoint` and attaches it to a session, within
    /// `request.connect_timeout`. Dropping the future gives up the attempt.
    fn connect(&self, request: ConnectRequest) -> BoxFuture<Result<Arc<dyn Connection>, ConnectError>>;
}

/// One try to connect.
#[derive(Clone, Debug)]
pub struct ConnectRequest {
    /// The server to try.
    pub endpoint: Endpoint,
    /// The session to attach to, or none to make a new one.
    pub session: Option<SessionCredentials>,
    /// The session timeout to ask for.
    pub session_timeout: Duration,
    /// How long the whole attempt may take, name resolution and handshake included.
    pub connect_timeout: Duration,
    /// Whether a server in read-only mode will do. Only for a new session.
    pub read_only: bool,
}

/// A server's host name or address, and port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// A host name, an IPv4 address, or an IPv6 address without brackets.
    pub host: String,
    /// The client port.
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// The number by which a server knows a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub i64);

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:x}", self.0)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What attaches a new connection to a session. The password never appears in `Debug`.
#[derive(Clone)]
pub struct SessionCredentials {
    /// The session's id.
    pub id: SessionId,
    /// The password that the server gave with it.
    pub password: Vec<u8>,
    /// What the adapter needs besides, opaque to the engine.
    pub(crate) opaque: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

impl fmt::Debug for SessionCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionCredentials").field("id", &self.id).finish_non_exhaustive()
    }
}

/// One TCP connection, attached to one session.
pub trait Connection: Send + Sync + 'static {
    /// What attaches another connection to the same session.
    fn credentials(&self) -> SessionCredentials;

    /// The address of the server at the other end, to tell whether two connections lead to the same one; none if that
    /// can't be told.
    fn server(&self) -> Option<&str>;

    /// The session timeout that the server granted.
    fn session_timeout(&self) -> Duration;

    /// Whether the server is in read-only mode. Such a session is local to it and can't be re-attached.
    fn is_read_only(&self) -> bool;

    /// Creates a node. For a sequential mode the server appends its counter to `path`.
    fn create(&self, path: &str, data: &[u8], mode: CreateMode, acl: &Acl) -> Reply<Created>;

    /// Deletes a node, whatever its version if `version` is none.
    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()>;

    /// Reads a node.
    fn get_data(&self, path: &str) -> Reply<(Vec<u8>, Stat)>;

    /// Reads a node and watches it for change and deletion. A node that is not there leaves no watch.
    fn watch_data(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)>;

    /// Replaces a node's data, whatever its version if `version` is none.
    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat>;

    /// A node's stat, or none if it is not there.
    fn exists(&self, path: &str) -> Reply<Option<Stat>>;

    /// A node's stat, and a watch for its creation, change or deletion.
    fn watch_exists(&self, path: &str) -> Reply<(Option<Stat>, Watch)>;

    /// The names of a node's children, in no order, and the node's own stat.
    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)>;

    /// As [`children`](Self::children), and a watch for children that come or go, and for the node's deletion.
    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)>;

    /// Waits until the server has caught up with the leader.
    fn sync(&self, path: &str) -> Reply<()>;

    /// Commits all of `operations`, or none. An answer of `Ok` proves a quorum.
    fn multi(&self, operations: Vec<Operation>) -> Reply<()>;

    /// Resolves when the connection has ended, for whatever reason; at once if it has ended already.
    fn ended(&self) -> BoxFuture<EndReason>;

    /// Whether the connection has ended.
    fn has_ended(&self) -> bool;

    /// Ends the session, and with it the connection. `Ok` means that the server has confirmed it.
    fn close(&self) -> Reply<()>;

    /// Drops the TCP connection now and leaves the session as it is.
    fn abort(&self);
}

/// Why a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// The network or the server ended it.
    Disconnected(String),
    /// The server says that the session has expired.
    SessionExpired,
    /// The server refuses our credentials.
    AuthFailed,
    /// We ended it, by [`Connection::close`] or [`Connection::abort`].
    Closed,
}

/// How long a node lives, and whether the server numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateMode {
    /// Lives until it is deleted.
    Persistent,
    /// Lives until it is deleted, or is removed by the server some time after its last child went.
    Container,
    /// Lives as long as the session that made it.
    Ephemeral,
    /// As `Ephemeral`, with the parent's counter appended to the name.
    EphemeralSequential,
}

/// What the server says of a node it has just made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The node's name as the server made it: the last element of its path.
    pub name: String,
    /// The node's stat.
    pub stat: Stat,
}

/// The part of a node's stat that the engine reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stat {
    /// The transaction that created the node.
    pub czxid: i64,
    /// The transaction that last changed its data.
    pub mzxid: i64,
    /// The transaction that last changed its children.
    pub pzxid: i64,
    /// How often its data was changed.
    pub version: i32,
    /// How often its children were changed.
    pub cversion: i32,
    /// The session that owns it, or 0 for a persistent node.
    pub ephemeral_owner: i64,
    /// The length of its data in bytes.
    pub data_length: i32,
    /// How many children it has.
    pub num_children: i32,
    /// Milliseconds since 1970 on the server's clock when it was created.
    pub ctime: i64,
}

/// One part of a [`Connection::multi`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The node is there, and at `version` if one is given.
    Check { path: String, version: Option<i32> },
    /// Create a node.
    Create { path: String, data: Vec<u8>, mode: CreateMode, acl: Acl },
    /// Replace a node's data.
    SetData { path: String, data: Vec<u8>, version: Option<i32> },
    /// Delete a node.
    Delete { path: String, version: Option<i32> },
}

/// Who may do what with a node.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Acl {
    /// Anyone may do anything.
    #[default]
    Open,
    /// Whoever made it may do anything, everyone else may read.
    CreatorWritesAllRead,
    /// As listed.
    Entries(Vec<AclEntry>),
}

/// One line of an access-control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclEntry {
    /// `world`, `auth`, `digest`, `ip`, `sasl` or `x509`.
    pub scheme: String,
    /// Who, in the terms of the scheme.
    pub id: String,
    /// The rights, as letters out of `crwda` (create, read, write, delete, admin).
    pub permissions: String,
}

/// A one-shot watch. Dropping it takes it off the server, unless it has fired.
pub struct Watch {
    fired: BoxFuture<WatchEvent>,
    done: bool,
}

impl Watch {
    /// A watch that fires when `fired` resolves. Dropping `fired` must take the watch off the server.
    #[must_use]
    pub fn new(fired: BoxFuture<WatchEvent>) -> Self {
        Self { fired, done: false }
    }

    /// Waits until the watch fires. Cancel safe. Once it has fired, waits for ever.
    pub async fn fired(&mut self) -> WatchEvent {
        if self.done {
            return std::future::pending().await;
        }
        let event = (&mut self.fired).await;
        self.done = true;
        event
    }

    /// What has happened so far, without waiting.
    pub fn try_fired(&mut self) -> Option<WatchEvent> {
        use futures_util::FutureExt;
        self.fired().now_or_never()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("done", &self.done).finish_non_exhaustive()
    }
}

/// What a watch saw. Events of one connection arrive in the order in which the server applied them, and
/// before the reply to any request that could already see the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchEvent {
    /// The node was created.
    Created,
    /// The node was deleted.
    Deleted,
    /// The node's data changed.
    DataChanged,
    /// A child came or went.
    ChildrenChanged,
    /// The connection ended: the watch is gone, and says nothing about the node.
    ConnectionEnded,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ZkError {
    /// There is no such node.
    #[error("no such node")]
    NoNode,
    /// There is such a node already.
    #[error("the node exists already")]
    NodeExists,
    /// The node has children.
    #[error("the node has children")]
    NotEmpty,
    /// The node has another version.
    #[error("the node has another version")]
    BadVersion,
    /// Ephemeral nodes have no children.
    #[error("the parent is ephemeral and can't have children")]
    NoChildrenForEphemerals,
    /// Our identity does not have the right.
    #[error("not permitted by the node's ACL")]
    NoAuth,
    /// The ACL is empty, or names an identity that we have not shown.
    #[error("the ACL is not valid for this session's credentials")]
    InvalidAcl,
    /// The server is in read-only mode.
    #[error("the server is in read-only mode")]
    NotReadOnly,
    /// The server refuses for now; it can be tried again.
    #[error("the server is overloaded and refused the request")]
    Throttled,
    /// A quota is used up.
    #[error("a quota on the path is used up")]
    QuotaExceeded,
    /// The session has expired. The outcome of a write in flight is unknown, but nothing of it can last.
    #[error("the session has expired")]
    SessionExpired,
    /// The server refuses our credentials.
    #[error("the server refused the credentials")]
    AuthFailed,
    /// The connection ended: the request may or may not have been applied.
    #[error("the connection was lost; the outcome is unknown")]
    ConnectionLost,
    /// The connect string's chroot is not there, and is not to be made.
    #[error(
        "the chroot {0} of the connect string does not exist; check its spelling, or have it made with create_chroot"
    )]
    NoChroot(String),
    /// The request was not sent: the arguments can't be right.
    #[error("bad arguments: {0}")]
    BadArguments(String),
    /// The server's settings do not allow the request, which was not applied.
    #[error("the server refused the request: {0}")]
    Refused(String),
    /// The server answered with an error that has no meaning here.
    #[error("unexpected answer: {0}")]
    Unexpected(String),
}

impl ZkError {
    /// Whether the request may have been applied although it failed.
    #[must_use]
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, Self::ConnectionLost | Self::SessionExpired | Self::Unexpected(_))
    }

    /// Whether trying again can help.
    #[must_use]
    pub fn can_retry(&self) -> bool {
        matches!(self, Self::ConnectionLost | Self::Throttled | Self::NotReadOnly)
    }
}

/// Why a try to connect failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The host name has no address.
    #[error("the host name does not resolve: {0}")]
    Unresolvable(String),
    /// Nobody answered, or the handshake failed.
    #[error("{0}")]
    Unreachable(String),
    /// The session is over.
    #[error("the session has expired")]
    SessionExpired,
    /// The server refuses our credentials, or would have us go without the ones that we want to show. With the
    /// server and the reason.
    #[error("{0}")]
    AuthFailed(String),
    /// The options can't be right, whatever the server.
    #[error("{0}")]
    BadOptions(String),
    /// There is no file descriptor left for a connection.
    #[error("{0}")]
    OutOfResources(String),
}
