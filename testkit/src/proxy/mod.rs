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
mod journal;
mod line;
pub(crate) mod listener;
mod rules;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use crate::wait::lock;
use connection::Connection;
use line::Faults;
use listener::Listeners;
use rules::Rules;

pub use journal::{Direction, Entry, Fate, Journal, Mark, Records, What, boot_time_ns};
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

/// Controls a proxy. Cheap to clone.
///
/// After the end of the proxy its methods do nothing.
#[derive(Clone)]
pub struct ProxyHandle {
    shared: Arc<Shared>,
    listeners: Arc<Listeners>,
    runtime: tokio::runtime::Handle,
}

impl ProxyHandle {
    /// Where clients connect: 127.0.0.1 and the port, which stays the same for the proxy's life and is nobody
    /// else's while the proxy refuses.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// The same on `::1`, if asked for at the start.
    #[must_use]
    pub fn addr_v6(&self) -> Option<SocketAddr> {
        self.listeners.has_ipv6().then(|| (Ipv6Addr::LOCALHOST, self.port()).into())
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.listeners.port()
    }

    /// [`addr`](Self::addr) as text, for a client's list of servers.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.addr().to_string()
    }

    /// Where new connections are carried to.
    #[must_use]
    pub fn upstream(&self) -> SocketAddr {
        self.shared.upstream()
    }

    /// Carries new connections to another server. Those that are open stay where they are.
    pub fn set_upstream(&self, upstream: SocketAddr) {
        *lock(&self.shared.upstream) = upstream;
    }

    /// What has passed so far.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.shared.journal.clone()
    }

    /// Closes the port: whoever connects is refused. Open connections go on.
    pub fn refuse(&self) {
        self.listeners.close(&self.runtime);
    }

    /// Opens the port again.
    ///
    /// # Errors
    /// When the port cannot be listened on.
    pub fn accept(&self) -> io::Result<()> {
        self.listeners.open(&self.runtime, &self.shared)
    }

    /// Swallows all bytes in these directions. Connections are still accepted, and their ends are not
    /// passed on.
    pub fn blackhole(&self, flow: Flow, scope: Scope) {
        self.change(flow, scope, |faults| faults.swallow = true);
    }

    /// Holds all bytes in these directions, in order, until [`resume`](Self::resume).
    pub fn stall(&self, flow: Flow, scope: Scope) {
        self.change(flow, scope, |faults| faults.stall = true);
    }

    /// Ends stalls, on all connections: what was held is delivered at once, in order. Also ends what a rule
    /// has held.
    pub fn resume(&self, flow: Flow) {
        self.change(flow, Scope::All, |faults| faults.stall = false);
    }

    /// Makes everything travel for so long, each way. A latency and not a limit: what is sent together arrives
    /// together. Timers have a millisecond's grain and wake late rather than early.
    pub fn delay(&self, to_server: Duration, to_client: Duration, scope: Scope) {
        self.change(Flow::ToServer, scope, move |faults| faults.delay = to_server);
        self.change(Flow::ToClient, scope, move |faults| faults.delay = to_client);
    }

    /// Ends all standing faults and opens the port. What was held is delivered; what was swallowed is gone.
    /// Rules stay.
    ///
    /// # Errors
    /// When the port cannot be listened on.
    pub fn restore(&self) -> io::Result<()> {
        self.change(Flow::Both, Scope::All, |faults| *faults = Faults::default());
        self.accept()
    }

    /// Cuts all open connections, and returns when that is done. What was on its way is lost. Says how many
    /// there were.
    pub fn cut(&self, how: Cut) -> usize {
        self.cut_where(how, |_| true)
    }

    /// Cuts the connections of one session.
    pub fn cut_session(&self, session: i64, how: Cut) -> usize {
        self.cut_where(how, |connection| connection.session == session)
    }

    /// Cuts one connection.
    pub fn cut_connection(&self, id: u64, how: Cut) -> usize {
        self.cut_where(how, |connection| connection.id == id)
    }

    fn cut_where(&self, how: Cut, chosen: impl Fn(&ConnectionInfo) -> bool) -> usize {
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut connections = lock(&self.shared.connections);
        let cut: Vec<Arc<Connection>> =
            connections.values().filter(|connection| chosen(&info(connection))).cloned().collect();
        cut.iter().for_each(|connection| connection.request_cut(how));
        while cut.iter().any(|connection| connections.contains_key(&connection.id)) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            connections = match self.shared.connections_changed.wait_timeout(connections, left) {
                Ok((connections, _)) => connections,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
        cut.len()
    }

    /// The connections that are open now, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionInfo> {
        lock(&self.shared.connections).values().map(|connection| info(connection)).collect()
    }

    /// Puts a rule in place.
    pub fn install(&self, rule: Rule) -> RuleHandle {
        self.shared.rules.install(rule)
    }

    /// From now on replaces one address by another of the same length in what opaque clients send.
    pub(crate) fn rewrite(&self, from: SocketAddr, to: SocketAddr) {
        let (from, to) = (from.to_string().into_bytes(), to.to_string().into_bytes());
        debug_assert_eq!(from.len(), to.len());
        *lock(&self.shared.rewrite) = Some((from, to));
    }

    /// Changes faults on the proxy's own thread, between two frames, so that none is handed over after the
    /// return that should not be.
    fn change(&self, flow: Flow, scope: Scope, change: impl Fn(&mut Faults) + Send + 'static) {
        let shared = self.shared.clone();
        on_thread(&self.runtime, async move {
            // The list of connections is held so that no connection is missed in between.
            let connections = lock(&shared.connections);
            if scope != Scope::Current {
                let mut new = lock(&shared.faults);
                if flow != Flow::ToClient {
                    change(&mut new.0);
                }
                if flow != Flow::ToServer {
                    change(&mut new.1);
                }
            }
            if scope != Scope::New {
                for connection in connections.values() {
                    if flow != Flow::ToClient {
                        connection.to_server.change(&change);
                    }
                    if flow != Flow::ToServer {
                        connection.to_client.change(&change);
                    }
                }
            }
        });
    }
}

fn info(connection: &Connection) -> ConnectionInfo {
    ConnectionInfo { id: connection.id, session: connection.session.load(Ordering::Relaxed) }
}

/// Runs `work` on the proxy's thread and waits for it. That thread never waits for a caller.
fn on_thread(runtime: &tokio::runtime::Handle, work: impl Future<Output = ()> + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    runtime.spawn(async move {
        work.await;
        drop(done);
    });
    let _ = wait.recv();
}
