//! The controls of a proxy.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connection::Connection;
use super::line::Faults;
use super::listener::Listeners;
use super::{ConnectionInfo, Cut, Flow, Journal, Rule, RuleHandle, Scope, Shared};
use crate::wait::lock;

/// Controls a proxy. Cheap to clone.
///
/// After the end of the proxy its methods do nothing.
#[derive(Clone)]
pub struct ProxyHandle {
    pub(super) shared: Arc<Shared>,
    pub(super) listeners: Arc<Listeners>,
    pub(super) runtime: tokio::runtime::Handle,
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
        let deadline = Instant::now() + Duration::from_secs(30);
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
pub(super) fn on_thread(runtime: &tokio::runtime::Handle, work: impl Future<Output = ()> + Send + 'static) {
    let (done, wait) = std::sync::mpsc::channel::<()>();
    runtime.spawn(async move {
        work.await;
        drop(done);
    });
    let _ = wait.recv();
}
