//! What a test can do to the world, and what it can see of it.

use std::ops::Bound;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::ensemble::Role;
use super::network::ServerId;
use super::tree::{Write, parent_of};
use super::{Cause, Event, Span, State, World, nanos};
use crate::zk::{Acl, CreateMode, Operation, Stat, ZkError};

/// What goes wrong with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestFault {
    /// Lost before the server sees it; the stream ends.
    LostEof,
    /// Lost before the server sees it; the connection is reset.
    LostReset,
    /// Lost, and everything after it, and nobody says so.
    LostSilently,
    /// Applied, and the stream ends in place of the reply.
    ReplyLostEof,
    /// Applied, and the connection is reset in place of the reply.
    ReplyLostReset,
    /// Applied, and nothing is ever heard again.
    ReplyLostSilently,
    /// Takes so much longer, and holds up what is sent after it.
    Delayed(Duration),
    /// Refused by a server that is overloaded.
    Throttled,
}

/// Which request a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Whichever comes next.
    Any,
    /// A creation.
    Create,
    /// A deletion.
    Delete,
    /// A change of data, or a multi.
    OtherWrite,
    /// A read, with or without a watch.
    Read,
    /// A sync.
    Sync,
    /// The end of the session.
    Close,
}

/// How often chance brings a fault on a request, as shares of 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestRates {
    /// Lost before the server sees it.
    pub lost: f64,
    /// Applied, with the reply lost.
    pub reply_lost: f64,
    /// Delayed by up to `max_delay`.
    pub delayed: f64,
    /// The longest delay.
    pub max_delay: Duration,
    /// Refused as overloaded.
    pub throttled: f64,
}

impl RequestRates {
    pub(super) fn draw(&self, rng: &mut SmallRng) -> Option<RequestFault> {
        let total = self.lost + self.reply_lost + self.delayed + self.throttled;
        if total <= 0.0 {
            return None;
        }
        let mut dice: f64 = rng.random();
        let mut hit = |share: f64| {
            let hit = dice < share;
            dice -= share;
            hit
        };
        if hit(self.lost) {
            let kinds = [RequestFault::LostEof, RequestFault::LostReset, RequestFault::LostSilently];
            Some(kinds[rng.random_range(0..kinds.len())])
        } else if hit(self.reply_lost) {
            let kinds =
                [RequestFault::ReplyLostEof, RequestFault::ReplyLostReset, RequestFault::ReplyLostSilently];
            Some(kinds[rng.random_range(0..kinds.len())])
        } else if hit(self.delayed) {
            Some(RequestFault::Delayed(Duration::from_nanos(rng.random_range(0..=nanos(self.max_delay)))))
        } else if hit(self.throttled) {
            Some(RequestFault::Throttled)
        } else {
            None
        }
    }
}

/// What happens to those who knock at a server's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// They come in.
    Open,
    /// The connection is refused.
    Refusing,
    /// There is no route to the host.
    NoRoute,
    /// The host name has no address.
    Unresolvable,
}

/// How soon servers find out that they have lost each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// At once, as when connections are reset.
    Fast,
    /// After `syncLimit` ticks, as when packets vanish.
    Slow,
}

impl State {
    fn stamp(&self) -> u32 {
        self.partition_stamp
    }

    fn will_give_up(&mut self, server: ServerId, after: u64) {
        let (term, stamp) = (self.servers[server].term, self.stamp());
        self.schedule(after, Event::GivesUp { server, term, stamp });
    }

    /// When `server` has cut itself off or died, how soon the others of its term find out.
    fn others_find_out(&mut self, server: ServerId, detection: Detection) {
        let term = self.servers[server].term;
        let limit = self.options.tick * u64::from(self.options.sync_limit);
        for other in 0..self.servers.len() {
            if other == server || self.servers[other].term != term {
                continue;
            }
            let after = match detection {
                Detection::Fast => self.rng.random_range(0..=50_000_000),
                Detection::Slow => limit - self.rng.random_range(0..=self.options.tick / 2),
            };
            self.will_give_up(other, after);
        }
    }

    fn isolate(&mut self, server: ServerId, detection: Detection) {
        self.trace(|| format!("zk{} is cut off from the other servers, found out {detection:?}", server + 1));
        self.save_proposals(server);
        self.servers[server].isolated = true;
        let tick = self.options.tick;
        let limit = tick * u64::from(self.options.sync_limit);
        let after = match self.servers[server].role {
            // A leader counts whole ticks, and looks only at every other ping.
            Role::Leader(_) => limit + self.rng.random_range(0..=tick),
            Role::Follower => limit - self.rng.random_range(0..=tick / 2),
            Role::Looking => return,
        };
        self.others_find_out(server, detection);
        self.will_give_up(server, after);
    }

    fn rejoin(&mut self) {
        self.trace(|| "all servers can reach each other".to_string());
        for server in &mut self.servers {
            server.isolated = false;
        }
        self.partition_stamp += 1;
        let leads = |server: &super::server::Server| matches!(server.role, Role::Leader(_));
        for server in 0..self.servers.len() {
            if !leads(&self.servers[server]) {
                continue;
            }
            if self.servers[server].term == self.term {
                self.survivors = None;
                self.retry_queue(server);
            } else {
                self.will_give_up(server, 1_000_000);
            }
        }
        for server in 0..self.servers.len() {
            self.will_give_up(server, 2_000_000);
        }
        self.flush_wires();
        self.look_around();
    }

    fn crash(&mut self, server: ServerId) {
        if !self.servers[server].up {
            return;
        }
        self.trace(|| format!("zk{} crashes", server + 1));
        self.save_proposals(server);
        self.others_find_out(server, Detection::Fast);
        self.close_all(server, "the server went away");
        let count = self.servers.len();
        for other in 0..count {
            self.wires[server * count + other] = super::Wire::default();
            self.wires[other * count + server] = super::Wire::default();
        }
        let crashed = &mut self.servers[server];
        crashed.up = false;
        crashed.role = Role::Looking;
        crashed.term = 0;
        crashed.touched.clear();
        crashed.outgoing = super::server::Outgoing::default();
    }

    fn start(&mut self, server: ServerId) {
        if !self.servers[server].up {
            self.trace(|| format!("zk{} starts", server + 1));
            self.servers[server].up = true;
            self.look_around();
        }
    }
}

/// Faults of servers, and what an operator does.
impl World {
    /// What happens to those who connect to `server`.
    pub fn set_door(&self, server: usize, door: Door) {
        self.shared.with(|state| state.servers[server].door = door);
    }

    /// Lets `server` refuse a share of all requests as overloaded.
    pub fn set_throttling(&self, server: usize, share: f64) {
        self.shared.with(|state| state.servers[server].throttling = share);
    }

    /// How much longer commits and pings of the leader take to `server`.
    pub fn set_lag(&self, server: usize, lag: Span) {
        self.shared.with(|state| state.servers[server].lag = lag);
    }

    /// Holds up what server `from` sends to server `to`, and nothing else, or delivers it all at once. Neither of them
    /// takes it for a failure.
    pub fn stall_wire(&self, from: usize, to: usize, stalled: bool) {
        self.shared.with(|state| {
            state.trace(|| format!("wire zk{} -> zk{} stalled: {stalled}", from + 1, to + 1));
            let wire = from * state.servers.len() + to;
            state.wires[wire].stalled = stalled;
            state.flush_wires();
        });
    }

    /// Cuts a server off from the other servers; its clients still reach it. A follower goes on to answer reads and
    /// pings for `syncLimit` ticks. A leader is deposed: it answers syncs too, for a tick more, and the others
    /// elect a new one when they have found out. [`rejoin`](Self::rejoin) ends it.
    pub fn isolate(&self, server: usize, detection: Detection) {
        self.shared.with(|state| state.isolate(server, detection));
    }

    /// Lets all servers reach each other again.
    pub fn rejoin(&self) {
        self.shared.with(State::rejoin);
    }

    /// Stops a server at once.
    pub fn crash(&self, server: usize) {
        self.shared.with(|state| state.crash(server));
    }

    /// Starts a server that was stopped.
    pub fn start(&self, server: usize) {
        self.shared.with(|state| state.start(server));
    }

    /// The server that leads the majority, if one does.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        self.shared.with(|state| state.current_leader())
    }

    /// Whether `server` takes itself for a leader and is none.
    #[must_use]
    pub fn is_deposed(&self, server: usize) -> bool {
        self.shared.with(|state| state.is_deposed(server))
    }

    /// Ends a session now, as an operator can. Nothing happens while there is no leader.
    pub fn expire_session(&self, session: i64) {
        self.shared.with(|state| {
            if let Some(leader) = state.current_leader() {
                state.expire(leader, session, Cause::Operator);
            }
        });
    }

    /// Makes a persistent node, as an operator does.
    ///
    /// # Errors
    ///
    /// What the server says; [`ZkError::ConnectionLost`] while there is no leader. So with the others.
    pub fn operator_create(&self, path: &str, data: &[u8]) -> Result<(), ZkError> {
        let operation = Operation::Create {
            path: path.into(),
            data: data.into(),
            mode: CreateMode::Persistent,
            acl: Acl::Open,
        };
        self.operator(Write::One(operation))
    }

    /// Deletes a node, as an operator does.
    ///
    /// # Errors
    ///
    /// As with [`operator_create`](Self::operator_create).
    pub fn operator_delete(&self, path: &str) -> Result<(), ZkError> {
        self.operator(Write::One(Operation::Delete { path: path.into(), version: None }))
    }

    /// Deletes a node and all below it, the deepest first.
    ///
    /// # Errors
    ///
    /// As with [`operator_create`](Self::operator_create).
    pub fn operator_delete_all(&self, path: &str) -> Result<(), ZkError> {
        for child in self.children(path) {
            self.operator_delete_all(&format!("{}/{child}", path.trim_end_matches('/')))?;
        }
        self.operator_delete(path)
    }

    /// Replaces a node's data, as an operator does.
    ///
    /// # Errors
    ///
    /// As with [`operator_create`](Self::operator_create).
    pub fn operator_set_data(&self, path: &str, data: &[u8]) -> Result<(), ZkError> {
        self.operator(Write::One(Operation::SetData { path: path.into(), data: data.into(), version: None }))
    }

    /// Puts a node's child counter where it would be after so many creations, unless it is beyond that. No real
    /// operator can.
    ///
    /// # Errors
    ///
    /// As with [`operator_create`](Self::operator_create).
    pub fn force_counter(&self, path: &str, value: i32) -> Result<(), ZkError> {
        self.operator(Write::ForceCounter { path: path.into(), value })
    }

    fn operator(&self, write: Write) -> Result<(), ZkError> {
        self.shared.with(|state| state.write_as(Cause::Operator, write))
    }

    /// A node's data and stat as the leader, or the last one, has them.
    #[must_use]
    pub fn node(&self, path: &str) -> Option<(Vec<u8>, Stat)> {
        self.with_tree(|tree| tree.get(path).map(|node| (node.data.clone(), node.stat())))
    }

    /// The names of a node's children, in the order of the alphabet.
    #[must_use]
    pub fn children(&self, path: &str) -> Vec<String> {
        let names = |node: &super::tree::Node| node.children.iter().map(ToString::to_string).collect();
        self.with_tree(|tree| tree.get(path).map(names).unwrap_or_default())
    }

    /// A node's children with the transactions that created them, oldest first.
    #[must_use]
    pub fn children_by_age(&self, path: &str) -> Vec<(i64, String)> {
        self.with_tree(|tree| {
            let below = tree
                .nodes
                .range::<str, _>((Bound::Included(path), Bound::Unbounded))
                .take_while(|(p, _)| p.starts_with(path));
            let children = below.filter(|(p, _)| p.len() > path.len() && parent_of(p) == path);
            let mut children: Vec<_> = children
                .map(|(p, node)| (node.czxid, p.rsplit('/').next().unwrap_or_default().to_string()))
                .collect();
            children.sort();
            children
        })
    }

    /// The sessions that are not over.
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        self.with_tree(|tree| tree.sessions.keys().copied().collect())
    }

    /// The watches that all servers keep, with their paths.
    #[must_use]
    pub fn watches(&self) -> Vec<String> {
        self.shared.with(|state| {
            let of = |server: &super::server::Server| {
                server.watches.paths().map(|(path, conn)| format!("{path} (c{conn})")).collect::<Vec<_>>()
            };
            state.servers.iter().flat_map(of).collect()
        })
    }

    /// How many watches all servers keep.
    #[must_use]
    pub fn watch_count(&self) -> usize {
        self.shared.with(|state| state.servers.iter().map(|server| server.watches.len()).sum())
    }

    fn with_tree<R>(&self, look: impl FnOnce(&super::tree::Tree) -> R) -> R {
        self.shared.with(|state| {
            // The log is the truth; of the servers, the one that has applied most of it stands for it.
            let best = (0..state.servers.len()).max_by_key(|s| state.servers[*s].applied).unwrap_or(0);
            look(&state.servers[best].tree)
        })
    }
}
