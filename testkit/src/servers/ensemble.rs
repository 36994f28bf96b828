//! Several servers that elect a leader, with links between them that can be cut.
//!
//! A server's own configuration names its real addresses for itself and a proxy's for each of the others, so
//! every connection between two servers passes a proxy that belongs to the one that dials. No privileges are
//! needed.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use super::zookeeper::{Membership, START_DEADLINE};
use super::{Builder, Mode, ServerError, ZooKeeper};
use crate::proxy::listener::ReservedPort;
use crate::proxy::{FaultProxy, Flow, ProxyHandle, Scope};
use crate::wait::{TimedOut, poll_until};

/// Settings of an ensemble before its start.
#[derive(Debug, Clone)]
pub struct EnsembleBuilder {
    size: usize,
    direct: bool,
    init_limit: u32,
    sync_limit: u32,
    server: Builder,
}

impl EnsembleBuilder {
    /// How many servers; 3 unless said.
    #[must_use]
    pub fn size(mut self, size: usize) -> Self {
        self.size = size;
        self
    }

    /// The settings of every server.
    #[must_use]
    pub fn server(mut self, settings: Builder) -> Self {
        self.server = settings;
        self
    }

    /// `initLimit` in ticks: how long joining a leader may take; 50 unless said.
    #[must_use]
    pub fn init_limit(mut self, ticks: u32) -> Self {
        self.init_limit = ticks;
        self
    }

    /// `syncLimit` in ticks: how long a leader and a follower wait for each other; 5 unless said.
    #[must_use]
    pub fn sync_limit(mut self, ticks: u32) -> Self {
        self.sync_limit = ticks;
        self
    }

    /// Connects the servers directly, without proxies. Links can then not be cut.
    #[must_use]
    pub fn direct_links(mut self) -> Self {
        self.direct = true;
        self
    }

    /// Starts the ensemble and returns when every server serves. Blocks for a second or two.
    ///
    /// # Errors
    /// When a server does not serve in time.
    pub fn start(self) -> Result<Ensemble, ServerError> {
        let reserve = || ReservedPort::new(false).map_err(ServerError::io("reserving a port"));
        let ports: Vec<[ReservedPort; 3]> = (0..self.size)
            .map(|_| Ok([reserve()?, reserve()?, reserve()?]))
            .collect::<Result<_, ServerError>>()?;
        let mut links = Vec::new();
        if !self.direct {
            for from in 0..self.size {
                for (to, [_, quorum, election]) in ports.iter().enumerate().filter(|(to, _)| *to != from) {
                    links.push(Link { from, to, quorum: proxy(quorum)?, election: proxy(election)? });
                }
            }
        }
        for link in &links {
            // A server with a larger id hangs up on one with a smaller id and dials back to the address that
            // the other has sent: this must be a proxy's too.
            let back = links.iter().find(|back| (back.from, back.to) == (link.to, link.from));
            if let Some(back) = back {
                link.election.rewrite(back.election.upstream(), back.election.addr());
            }
        }
        let settings = self
            .server
            .config("initLimit", &self.init_limit.to_string())
            .config("syncLimit", &self.sync_limit.to_string());
        let views: Vec<String> = (0..self.size).map(|me| view(me, &ports, &links)).collect();
        let (mut servers, mut reserved) = (Vec::new(), Vec::new());
        for ((me, servers_lines), [client, quorum, election]) in views.into_iter().enumerate().zip(ports) {
            let membership = Membership { id: me + 1, servers: servers_lines };
            servers.push(settings.clone().prepare(Some(&membership), client)?);
            reserved.push((quorum, election));
        }
        let ensemble = Ensemble { servers, links, _reserved: reserved };
        ensemble.servers.iter().try_for_each(ZooKeeper::launch)?;
        ensemble.servers.iter().try_for_each(|server| server.wait_until_serving(START_DEADLINE))?;
        Ok(ensemble)
    }
}

fn proxy(port: &ReservedPort) -> Result<FaultProxy, ServerError> {
    let upstream = local(port.port());
    FaultProxy::builder(upstream)
        .opaque()
        .wait_for_upstream(LEADER_PATIENCE)
        .journal_capacity(LINK_JOURNAL)
        .start()
        .map_err(ServerError::io("starting a proxy between two servers"))
}

/// A follower may dial before its leader listens, and takes a reset for the end of the election.
const LEADER_PATIENCE: Duration = Duration::from_secs(3);

/// Links carry a few frames each tick whatever happens, and tests ask about the latest.
const LINK_JOURNAL: usize = 4096;

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The `server.N` lines as `me` is to see them.
fn view(me: usize, ports: &[[ReservedPort; 3]], links: &[Link]) -> String {
    let mut lines = String::new();
    for (id, [client, quorum, election]) in ports.iter().enumerate() {
        let link = links.iter().find(|link| link.from == me && link.to == id);
        let (quorum, election) = match link {
            Some(link) => (link.quorum.port(), link.election.port()),
            None => (quorum.port(), election.port()),
        };
        let (id, client) = (id + 1, client.port());
        let _ = writeln!(lines, "server.{id}=127.0.0.1:{quorum}:{election}:participant;127.0.0.1:{client}");
    }
    lines
}

/// What one server dials to reach another.
struct Link {
    from: usize,
    to: usize,
    quorum: FaultProxy,
    election: FaultProxy,
}

impl Link {
    fn joins(&self, a: usize, b: usize) -> bool {
        (self.from, self.to) == (a, b) || (self.from, self.to) == (b, a)
    }

    fn cut(&self) {
        self.quorum.stall(Flow::Both, Scope::All);
        self.election.stall(Flow::Both, Scope::All);
    }

    fn heal(&self) {
        self.quorum.resume(Flow::Both);
        self.election.resume(Flow::Both);
    }
}

/// A running ensemble. Servers are counted from 0; number `i` has the id `i + 1` in ZooKeeper.
///
/// A cut is silent, as a partition is: no byte passes, and nobody is told. When it heals, what was sent in the
/// meantime arrives, as TCP would have it. For other faults take the proxies from [`link`](Self::link).
pub struct Ensemble {
    // First, so that the servers have ended when their links and ports go.
    servers: Vec<ZooKeeper>,
    links: Vec<Link>,
    _reserved: Vec<(ReservedPort, ReservedPort)>,
}

impl Ensemble {
    /// An ensemble with settings.
    #[must_use]
    pub fn builder() -> EnsembleBuilder {
        EnsembleBuilder { size: 3, direct: false, init_limit: 50, sync_limit: 5, server: Builder::default() }
    }

    /// One server.
    ///
    /// # Panics
    /// When there is no such server.
    #[must_use]
    pub fn server(&self, i: usize) -> &ZooKeeper {
        &self.servers[i]
    }

    /// All servers.
    #[must_use]
    pub fn servers(&self) -> &[ZooKeeper] {
        &self.servers
    }

    /// All servers' client addresses, separated by commas.
    #[must_use]
    pub fn connect_string(&self) -> String {
        self.servers.iter().map(ZooKeeper::connect_string).collect::<Vec<_>>().join(",")
    }

    /// What each server is at the moment; `None` when it does not serve. During a partition there may be two
    /// leaders.
    #[must_use]
    pub fn modes(&self) -> Vec<Option<Mode>> {
        self.servers.iter().map(ZooKeeper::mode).collect()
    }

    /// The leader, when there is exactly one.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        let leaders = self.all(Mode::Leader);
        (leaders.len() == 1).then(|| leaders[0])
    }

    /// The followers.
    #[must_use]
    pub fn followers(&self) -> Vec<usize> {
        self.all(Mode::Follower)
    }

    fn all(&self, mode: Mode) -> Vec<usize> {
        let modes = self.modes().into_iter().enumerate();
        modes.filter(|(_, other)| *other == Some(mode)).map(|(i, _)| i).collect()
    }

    /// Blocks until what the servers are fits.
    ///
    /// # Errors
    /// When it does not after `deadline`; the message says what they were.
    pub fn wait_modes(
        &self,
        deadline: Duration,
        fit: impl Fn(&[Option<Mode>]) -> bool,
    ) -> Result<Vec<Option<Mode>>, TimedOut> {
        let what = || format!("the servers to become something else than {:?}", self.modes());
        poll_until(what, deadline, || Some(self.modes()).filter(|modes| fit(modes)))
    }

    /// Blocks until every server serves and exactly one leads, and returns that one.
    ///
    /// # Errors
    /// When that is not so after `deadline`.
    pub fn wait_healthy(&self, deadline: Duration) -> Result<usize, TimedOut> {
        let leads = |mode: &Option<Mode>| *mode == Some(Mode::Leader);
        let modes = self.wait_modes(deadline, |modes| {
            let serving = modes.iter().all(|mode| matches!(mode, Some(Mode::Leader | Mode::Follower)));
            serving && modes.iter().filter(|mode| leads(mode)).count() == 1
        })?;
        Ok(modes.iter().position(leads).unwrap_or_default())
    }

    /// Starts a server that was stopped or killed, and returns when it serves. (Stop it with
    /// [`ZooKeeper::stop`] or [`ZooKeeper::kill`].)
    ///
    /// # Errors
    /// When it does not serve in time.
    pub fn restart(&self, i: usize) -> Result<(), ServerError> {
        self.servers[i].restart()
    }

    /// Cuts a server off from all others. Its clients stay connected to it.
    pub fn isolate(&self, i: usize) {
        self.links.iter().filter(|link| link.from == i || link.to == i).for_each(Link::cut);
    }

    /// Heals all links of a server.
    pub fn heal(&self, i: usize) {
        self.links.iter().filter(|link| link.from == i || link.to == i).for_each(Link::heal);
    }

    /// Cuts the link between two servers, whoever of them has dialled.
    pub fn cut_link(&self, i: usize, j: usize) {
        self.links.iter().filter(|link| link.joins(i, j)).for_each(Link::cut);
    }

    /// Heals the link between two servers.
    pub fn heal_link(&self, i: usize, j: usize) {
        self.links.iter().filter(|link| link.joins(i, j)).for_each(Link::heal);
    }

    /// The proxies on what `from` dials to reach `to`: the quorum port, which followers dial at their leader,
    /// and the election port. `None` when the links are direct.
    #[must_use]
    pub fn link(&self, from: usize, to: usize) -> Option<(&ProxyHandle, &ProxyHandle)> {
        let link = self.links.iter().find(|link| (link.from, link.to) == (from, to))?;
        Some((&link.quorum, &link.election))
    }
}
