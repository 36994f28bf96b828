//! A fault proxy between a client and a server.
//!
//! It understands ZooKeeper's frames, so it can lose the reply to one particular create, and it writes all it
//! sees into a [`Journal`]. It runs on a thread of its own; its methods may be called from sync and from async
//! code, take effect before they return, and take microseconds.
//!
//! A standing fault (black hole, stall, delay) is set for a [`Flow`] and a [`Scope`]. A black hole is a
//! partition that outlives the connection: its bytes are gone for good. A partition that heals in time is a
//! stall: TCP would send the bytes again.

mod connection;
mod dissect;
mod entry;
mod handle;
mod journal;
mod line;
pub(crate) mod listener;
mod rules;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::wait::lock;
use connection::Connection;
use line::Faults;
use listener::Listeners;
use rules::Rules;

pub use entry::{Direction, Entry, Fate, What};
pub use handle::ProxyHandle;
pub use journal::{Journal, Mark, Records, boot_time_ns};
pub use listener::ReservedPort;
pub use rules::{Ops, Rule, RuleHandle, Then};

/// How a connection is cut. Both sides see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// In order, with a FIN: the receiver reads the end of the stream.
    Eof,
    /// With a RST: the receiver reads an error.
    Rst,
}

/// The directions that a standing fault is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
    /// Both.
    Both,
}

/// The connections that a standing fault is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Those that are open now.
    Current,
    /// Those that will be opened.
    New,
    /// Both.
    All,
}

/// A connection that is open through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionInfo {
    /// Its number, as in the journal.
    pub id: u64,
    /// Its session, 0 before it is known.
    pub session: i64,
}

type Rewrite = (Vec<u8>, Vec<u8>);

/// What the proxy's own thread and its handles share.
struct Shared {
    upstream: Mutex<SocketAddr>,
    opaque: bool,
    patience: Duration,
    /// In opaque traffic to the server, these bytes become those of the same length.
    rewrite: Mutex<Option<Rewrite>>,
    journal: Journal,
    rules: Rules,
    /// What new connections start with, to the server and to the client.
    faults: Mutex<(Faults, Faults)>,
    connections: Mutex<BTreeMap<u64, Arc<Connection>>>,
    connections_changed: Condvar,
    last_id: AtomicU64,
}

impl Shared {
    fn upstream(&self) -> SocketAddr {
        *lock(&self.upstream)
    }

    fn rewrite(&self, bytes: &mut [u8]) {
        if let Some((from, to)) = &*lock(&self.rewrite) {
            let mut at = 0;
            while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from) {
                at += found;
                bytes[at..at + to.len()].copy_from_slice(to);
                at += to.len();
            }
        }
    }

    fn add_connection(&self) -> Arc<Connection> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (to_server, to_client) = *lock(&self.faults);
        let connection = Arc::new(Connection::new(id, self.opaque, to_server, to_client));
        lock(&self.connections).insert(id, connection.clone());
        connection
    }
}

/// Settings of a proxy before its start.
#[derive(Debug, Clone)]
pub struct Builder {
    upstream: SocketAddr,
    ipv6: bool,
    opaque: bool,
    patience: Duration,
    capacity: usize,
}

impl Builder {
    /// Listens on `::1` too, on the same port.
    #[must_use]
    pub fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// Carries bytes that are not a ZooKeeper client's, such as the servers' own links. The journal then knows
    /// only amounts, and rules find nothing. (TLS is recognised without this.)
    #[must_use]
    pub fn opaque(mut self) -> Self {
        self.opaque = true;
        self
    }

    /// For how long a client that has connected is kept waiting while the upstream refuses. Without it the
    /// client sees a reset at once; it cannot be refused any more.
    #[must_use]
    pub fn wait_for_upstream(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How many entries the journal keeps.
    #[must_use]
    pub fn journal_capacity(mut self, entries: usize) -> Self {
        self.capacity = entries;
        self
    }

    /// Starts the proxy on a free port.
    ///
    /// # Errors
    /// When no port could be had.
    pub fn start(self) -> io::Result<FaultProxy> {
        let shared = Arc::new(Shared {
            upstream: Mutex::new(self.upstream),
            opaque: self.opaque,
            patience: self.patience,
            rewrite: Mutex::default(),
            journal: Journal::new(self.capacity),
            rules: Rules::default(),
            faults: Mutex::default(),
            connections: Mutex::default(),
            connections_changed: Condvar::new(),
            last_id: AtomicU64::new(0),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listeners = Arc::new(Listeners::reserve(self.ipv6)?);
        let handle = ProxyHandle { shared: shared.clone(), listeners, runtime: runtime.handle().clone() };
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::Builder::new().name("fault-proxy".to_owned()).spawn(move || {
            let _ = runtime.block_on(stopped);
        })?;
        let proxy = FaultProxy { handle, stop: Some(stop), thread: Some(thread) };
        proxy.accept()?;
        Ok(proxy)
    }
}

/// A running proxy. Dropping it closes its port and all its connections.
///
/// It derefs to its [`ProxyHandle`], which has the methods.
pub struct FaultProxy {
    handle: ProxyHandle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a proxy in front of `upstream`, on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When no port could be had.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::builder(upstream).start()
    }

    /// A proxy with settings.
    #[must_use]
    pub fn builder(upstream: SocketAddr) -> Builder {
        Builder {
            upstream,
            ipv6: false,
            opaque: false,
            patience: Duration::ZERO,
            capacity: Journal::DEFAULT_CAPACITY,
        }
    }

    /// A handle that can be cloned and sent elsewhere. It does not keep the proxy running.
    #[must_use]
    pub fn handle(&self) -> ProxyHandle {
        self.handle.clone()
    }
}

impl std::ops::Deref for FaultProxy {
    type Target = ProxyHandle;

    fn deref(&self) -> &ProxyHandle {
        &self.handle
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
