//! What the servers do among themselves: proposals and commits, pings and touch tables.
//!
//! Validation and commit are one step here, taken when a quorum would have answered; that is as the leader's
//! clients see it, since it deals with writes in order. Committed transactions form one log, and every server has
//! applied a prefix of it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::expiry::Expiry;
use super::network::{ConnId, ServerId, ToClient};
use super::tree::{Answer, Change, Overflow, Preparing, Sighting, Write};
use super::{Cause, Event, Nanos, Note, State};
use crate::zk::{WatchEvent, ZkError};

/// The part a server plays.
pub(super) enum Role {
    Looking,
    Follower,
    Leader(Box<Leadership>),
}

/// What only a leader knows.
pub(super) struct Leadership {
    pub expiry: Expiry,
    /// The server through which each session speaks.
    pub owners: BTreeMap<i64, ServerId>,
    /// What its first processor has yet to take up. Who owns a session is decided when a re-validation arrives, and
    /// held against a request only when that is taken up.
    pub incoming: VecDeque<Incoming>,
    /// When the youngest of them will be taken up.
    pub last_prepared_at: Nanos,
    /// Writes that no quorum has answered yet, and syncs behind them.
    pub queue: VecDeque<Queued>,
    pub last_commit_at: Nanos,
    pub overflow: Overflow,
    pub zxid: i64,
}

/// A request that the leader has received and not yet looked at.
pub(super) enum Incoming {
    Write(Proposal),
    Sync(Origin),
}

#[derive(Clone, Debug)]
pub(super) enum Queued {
    /// With whether the proposal has reached other servers.
    Write(Proposal, bool),
    Sync(Origin),
}

/// Who waits for the outcome of a write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    pub server: ServerId,
    pub conn: ConnId,
    pub xid: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Proposal {
    pub origin: Option<Origin>,
    pub session: i64,
    pub write: Write,
    pub cause: Cause,
    /// Whether the session spoke through another server when the leader took it up.
    pub moved: bool,
}

/// From a follower to its leader. A leader's own clients take the same way without the wire.
#[derive(Debug)]
pub(super) enum ToLeader {
    Write { origin: Origin, session: i64, write: Write },
    Sync(Origin),
    Revalidate { server: ServerId, conn: ConnId, session: i64, timeout: Nanos },
    PingAnswer(BTreeMap<i64, Nanos>),
}

/// From a leader to a follower.
#[derive(Debug)]
pub(super) enum ToLearner {
    Commit(usize),
    Synced(Origin),
    Validated { conn: ConnId, session: i64, valid: bool },
    Ping,
}

/// A message between servers.
#[derive(Debug)]
pub(super) enum Message {
    Up(ToLeader),
    Down(ToLearner),
}

/// One direction of the wire between two servers.
#[derive(Default)]
pub(super) struct Wire {
    last: Nanos,
    pub stalled: bool,
    held: Vec<(u32, Message)>,
}

/// A committed transaction.
#[derive(Debug)]
pub(super) struct Entry {
    zxid: i64,
    time: i64,
    changes: Vec<Change>,
    origin: Option<Origin>,
    outcome: Outcome,
    cause: Cause,
}

#[derive(Debug)]
enum Outcome {
    Answer(Answer),
    Refused(ZkError),
    /// The session speaks through another server: the connection is closed, with no answer.
    Moved,
}

impl State {
    // ---- the wires

    fn wire(&self, from: ServerId, to: ServerId) -> usize {
        from * self.servers.len() + to
    }

    pub fn linked(&self, a: ServerId, b: ServerId) -> bool {
        a == b
            || (self.servers[a].up
                && self.servers[b].up
                && !self.servers[a].isolated
                && !self.servers[b].isolated)
    }

    fn send(&mut self, from: ServerId, to: ServerId, message: Message) {
        let term = self.servers[from].term;
        let wire = self.wire(from, to);
        if !self.linked(from, to) || self.wires[wire].stalled {
            self.wires[wire].held.push((term, message));
            return;
        }
        let mut latency = self.options.server_latency.draw(&mut self.rng);
        if matches!(message, Message::Down(_)) {
            latency += self.servers[to].lag.draw(&mut self.rng);
        }
        let at = self.wires[wire].last.max(self.now + latency);
        self.wires[wire].last = at;
        self.schedule_at(at, Event::Between { from, to, term, message });
    }

    pub fn arrives_between(&mut self, from: ServerId, to: ServerId, term: u32, message: Message) {
        if !self.servers[to].up || self.servers[to].term != term || self.servers[from].term != term {
            return;
        }
        // What was sent before a cut arrives in spite of it.
        match message {
            Message::Up(message) => self.leader_receives(to, message),
            Message::Down(message) => self.deliver_to_learner(to, message),
        }
    }

    /// Delivers what is held on every wire that is whole again.
    pub fn flush_wires(&mut self) {
        for from in 0..self.servers.len() {
            for to in 0..self.servers.len() {
                let wire = self.wire(from, to);
                if !self.linked(from, to) || self.wires[wire].stalled {
                    continue;
                }
                let at = self.now + self.options.server_latency.draw(&mut self.rng);
                for (term, message) in std::mem::take(&mut self.wires[wire].held) {
                    self.schedule_at(at, Event::Between { from, to, term, message });
                    self.wires[wire].last = at;
                }
            }
        }
    }

    /// Sends to the leader that `server` follows; a leader follows itself.
    pub fn send_to_leader(&mut self, server: ServerId, message: ToLeader) {
        let term = self.servers[server].term;
        match self.leader_of(term) {
            Some(leader) if leader == server => self.leader_receives(leader, message),
            Some(leader) => self.send(server, leader, Message::Up(message)),
            None => {}
        }
    }

    fn send_to_learner(&mut self, leader: ServerId, learner: ServerId, message: ToLearner) {
        if leader == learner {
            self.deliver_to_learner(learner, message);
        } else {
            self.send(leader, learner, Message::Down(message));
        }
    }

    pub fn leader_of(&self, term: u32) -> Option<ServerId> {
        let leads =
            |server: &super::server::Server| server.term == term && matches!(server.role, Role::Leader(_));
        self.servers.iter().position(leads)
    }

    /// The leader that the majority follows.
    pub fn current_leader(&self) -> Option<ServerId> {
        self.leader_of(self.term).filter(|leader| self.has_quorum(*leader))
    }

    pub fn leadership(&mut self, server: ServerId) -> Option<&mut Leadership> {
        match &mut self.servers[server].role {
            Role::Leader(leadership) => Some(leadership),
            Role::Looking | Role::Follower => None,
        }
    }

    fn followers(&self, leader: ServerId) -> Vec<ServerId> {
        let term = self.servers[leader].term;
        (0..self.servers.len()).filter(|s| *s != leader && self.servers[*s].term == term).collect()
    }

    pub fn has_quorum(&self, leader: ServerId) -> bool {
        let with = self.followers(leader).into_iter().filter(|s| self.linked(leader, *s)).count() + 1;
        with > self.servers.len() / 2
    }

    // ---- what a leader does

    fn leader_receives(&mut self, leader: ServerId, message: ToLeader) {
        match message {
            ToLeader::Write { origin, session, write } => {
                let proposal =
                    Proposal { origin: Some(origin), session, write, cause: Cause::Client, moved: false };
                self.take_in(leader, Incoming::Write(proposal));
            }
            ToLeader::Sync(origin) => self.take_in(leader, Incoming::Sync(origin)),
            ToLeader::Revalidate { server, conn, session, timeout } => {
                let now = self.now;
                let Some(leadership) = self.leadership(leader) else { return };
                let valid = leadership.expiry.touch(session, now, timeout);
                if valid {
                    leadership.owners.insert(session, server);
                }
                self.send_to_learner(leader, server, ToLearner::Validated { conn, session, valid });
            }
            ToLeader::PingAnswer(touched) => {
                let now = self.now;
                let Some(leadership) = self.leadership(leader) else { return };
                for (session, timeout) in touched {
                    leadership.expiry.touch(session, now, timeout);
                }
            }
        }
    }

    /// A server has heard from a session. False if it knows that the session is over.
    pub fn touch(&mut self, server: ServerId, session: i64, timeout: Nanos) -> bool {
        let now = self.now;
        match self.leadership(server) {
            Some(leadership) => leadership.expiry.touch(session, now, timeout),
            None => {
                self.servers[server].touched.insert(session, timeout);
                true
            }
        }
    }

    /// Puts a client's request before the leader's first processor.
    fn take_in(&mut self, leader: ServerId, incoming: Incoming) {
        let wait = self.options.queueing.draw(&mut self.rng);
        let (now, term) = (self.now, self.servers[leader].term);
        let Some(leadership) = self.leadership(leader) else { return };
        if wait == 0 && leadership.incoming.is_empty() {
            return self.prepare(leader, incoming);
        }
        leadership.incoming.push_back(incoming);
        let at = leadership.last_prepared_at.max(now + wait);
        leadership.last_prepared_at = at;
        self.schedule_at(at, Event::Prepare { leader, term });
    }

    pub fn leader_prepares(&mut self, leader: ServerId, term: u32) {
        if self.servers[leader].term != term {
            return;
        }
        let Some(leadership) = self.leadership(leader) else { return };
        if let Some(incoming) = leadership.incoming.pop_front() {
            self.prepare(leader, incoming);
        }
    }

    fn prepare(&mut self, leader: ServerId, incoming: Incoming) {
        match incoming {
            Incoming::Write(proposal) => self.submit(leader, proposal),
            Incoming::Sync(origin) => self.sync(leader, origin),
        }
    }

    /// Sends a client's request to the leader, behind those that the server has yet to send. A leader is its own.
    pub fn forward(&mut self, server: ServerId, message: ToLeader) {
        if matches!(self.servers[server].role, Role::Leader(_)) {
            return self.send_to_leader(server, message);
        }
        let wait = self.options.queueing.draw(&mut self.rng);
        let (now, term) = (self.now, self.servers[server].term);
        let outgoing = &mut self.servers[server].outgoing;
        if wait == 0 && outgoing.queue.is_empty() {
            return self.send_to_leader(server, message);
        }
        outgoing.queue.push_back(message);
        let at = outgoing.last.max(now + wait);
        outgoing.last = at;
        self.schedule_at(at, Event::Forward { follower: server, term });
    }

    pub fn follower_forwards(&mut self, follower: ServerId, term: u32) {
        if self.servers[follower].term != term {
            return;
        }
        if let Some(message) = self.servers[follower].outgoing.queue.pop_front() {
            self.send_to_leader(follower, message);
        }
    }

    /// A sync waits for the writes before it and for nothing else: an old leader answers without a quorum.
    fn sync(&mut self, leader: ServerId, origin: Origin) {
        let session = self.conns[origin.conn].server_side.session;
        let Some(leadership) = self.leadership(leader) else { return };
        // Only what its own clients ask does a leader hold against the owner of their session.
        if origin.server == leader && leadership.owners.get(&session) != Some(&leader) {
            return self.close_server_side(origin.conn, Some("the session has moved"));
        }
        let Some(leadership) = self.leadership(leader) else { return };
        if leadership.queue.is_empty() {
            self.send_to_learner(leader, origin.server, ToLearner::Synced(origin));
        } else {
            leadership.queue.push_back(Queued::Sync(origin));
        }
    }

    fn submit(&mut self, leader: ServerId, mut proposal: Proposal) {
        if let Some(leadership) = self.leadership(leader)
            && let Some(origin) = proposal.origin
        {
            // Decided when the leader takes it up: a re-validation that came after it counts already.
            let owner = leadership.owners.entry(proposal.session).or_insert(origin.server);
            proposal.moved = *owner != origin.server;
        }
        let quorum = self.has_quorum(leader);
        let latency = self.options.commit_latency.draw(&mut self.rng);
        let now = self.now;
        let Some(leadership) = self.leadership(leader) else { return };
        if quorum && latency == 0 && leadership.queue.is_empty() {
            return self.commit(leader, proposal);
        }
        leadership.queue.push_back(Queued::Write(proposal, quorum));
        if quorum {
            let at = leadership.last_commit_at.max(now + latency);
            leadership.last_commit_at = at;
            let term = self.servers[leader].term;
            self.schedule_at(at, Event::Quorum { leader, term });
        }
    }

    /// A quorum has answered the oldest proposal.
    pub fn quorum_answers(&mut self, leader: ServerId, term: u32) {
        if self.servers[leader].term != term || !self.has_quorum(leader) {
            return;
        }
        let Some(leadership) = self.leadership(leader) else { return };
        if let Some(Queued::Write(proposal, _)) = leadership.queue.pop_front() {
            self.commit(leader, proposal);
        }
        while let Some(leadership) = self.leadership(leader)
            && let Some(Queued::Sync(origin)) = leadership.queue.front().cloned()
        {
            leadership.queue.pop_front();
            self.send_to_learner(leader, origin.server, ToLearner::Synced(origin));
        }
    }

    /// Decides on a write and tells every server.
    pub fn commit(&mut self, leader: ServerId, proposal: Proposal) {
        let Proposal { origin, session, write, cause, moved } = proposal;
        let now = self.now;
        let outstanding = self.options.outstanding;
        let super::server::Server { tree, role: Role::Leader(leadership), .. } = &mut self.servers[leader]
        else {
            return;
        };
        leadership.zxid += 1;
        let zxid = leadership.zxid;
        let opens = matches!(write, Write::OpenSession { .. });
        let refusal = match (cause, origin) {
            (Cause::Client | Cause::Survived, Some(_)) if !opens && !leadership.expiry.is_alive(session) => {
                Some(Outcome::Refused(ZkError::SessionExpired))
            }
            (Cause::Client, Some(_)) if moved => Some(Outcome::Moved),
            _ => None,
        };
        let (changes, outcome) = match refusal {
            Some(refusal) => (vec![], refusal),
            None => {
                let overflow = &mut leadership.overflow;
                match tree.prepare(write, Preparing { session, now, outstanding, overflow }) {
                    Ok((changes, answer)) => (changes, Outcome::Answer(answer)),
                    Err(error) => (vec![], Outcome::Refused(error)),
                }
            }
        };
        for change in &changes {
            match change {
                Change::OpenSession { id, timeout } => leadership.expiry.track(*id, now, *timeout),
                Change::CloseSession { id, .. } => {
                    leadership.expiry.forget(*id);
                    leadership.owners.remove(id);
                }
                _ => {}
            }
        }
        self.trace_with(|_| format!("zxid {zxid:x} at zk{}: {changes:?} {outcome:?}", leader + 1));
        let time = 1_700_000_000_000 + i64::try_from(now / 1_000_000).unwrap_or(0);
        self.log.push(Arc::new(Entry { zxid, time, changes, origin, outcome, cause }));
        let length = self.log.len();
        while self.servers[leader].applied < length {
            self.apply_next(leader);
        }
        for follower in self.followers(leader) {
            self.send_to_learner(leader, follower, ToLearner::Commit(length));
        }
    }

    /// Applies the next transaction of the log at `server`: watches first, then the reply.
    pub fn apply_next(&mut self, server: ServerId) {
        let entry = self.log[self.servers[server].applied].clone();
        self.servers[server].applied += 1;
        let first = self.servers[server].applied > self.noted;
        let mut seen: Vec<Sighting> = Vec::new();
        for change in &entry.changes {
            self.servers[server].tree.apply(change, entry.zxid, entry.time, &mut seen);
        }
        for sighting in &seen {
            if first {
                self.note_sighting(sighting, entry.cause);
            }
            for notice in self.servers[server].watches.fire(sighting) {
                let super::watches::Notice { conn, path, event, watches } = notice;
                self.send_down(conn, ToClient::Event { path, event, watches });
            }
        }
        if first {
            self.noted = self.servers[server].applied;
        }
        if let Some(origin) = entry.origin.filter(|origin| origin.server == server) {
            let opened = entry.changes.iter().find_map(|change| match change {
                Change::OpenSession { id, .. } => Some(*id),
                _ => None,
            });
            match (&entry.outcome, opened) {
                (_, Some(session)) => self.attach(origin.conn, session, true),
                (Outcome::Answer(answer), None) => {
                    let body = self.body(server, answer);
                    self.complete(origin.conn, origin.xid, body);
                }
                (Outcome::Refused(error), None) => {
                    self.complete(origin.conn, origin.xid, Err(error.clone()));
                }
                (Outcome::Moved, None) => self.close_server_side(origin.conn, Some("the session has moved")),
            }
        }
        for change in &entry.changes {
            if let Change::CloseSession { id, .. } = change {
                let cause = entry.cause;
                if first {
                    self.note(|_| Note::SessionClosed { session: *id, cause });
                }
                if let Some(conn) = self.servers[server].attached.get(id).copied() {
                    self.close_server_side(conn, Some("the session is over"));
                }
            }
        }
    }

    fn note_sighting(&mut self, sighting: &Sighting, cause: Cause) {
        let Sighting { path, event, czxid } = sighting;
        match event {
            WatchEvent::Created => self.note(|_| Note::Created { path: path.clone(), czxid: *czxid }),
            WatchEvent::Deleted => self.note(|_| Note::Deleted { path: path.clone(), czxid: *czxid, cause }),
            _ => {}
        }
    }

    /// Every half tick a leader asks its followers whom they have heard of.
    pub fn leader_pings(&mut self, leader: ServerId, term: u32) {
        if self.servers[leader].term != term || !matches!(self.servers[leader].role, Role::Leader(_)) {
            return;
        }
        for follower in self.followers(leader) {
            self.send_to_learner(leader, follower, ToLearner::Ping);
        }
        self.schedule(self.options.tick / 2, Event::Pings { leader, term });
    }

    /// At every tick the sessions whose time has come are over.
    pub fn leader_expires(&mut self, leader: ServerId, term: u32) {
        let (now, tick) = (self.now, self.options.tick);
        if self.servers[leader].term != term {
            return;
        }
        let Some(leadership) = self.leadership(leader) else { return };
        for session in leadership.expiry.due(now) {
            self.expire(leader, session, Cause::Expiry);
        }
        self.schedule(tick, Event::Expiries { leader, term });
    }

    pub fn expire(&mut self, leader: ServerId, session: i64, cause: Cause) {
        let Some(leadership) = self.leadership(leader) else { return };
        if leadership.expiry.start_closing(session) {
            self.trace_with(|_| format!("session 0x{session:x} expires at zk{}", leader + 1));
            let write = Write::CloseSession { id: session };
            self.submit(leader, Proposal { origin: None, session, write, cause, moved: false });
        }
    }

    /// Does a write that no client has asked for, at once.
    pub fn write_as(&mut self, cause: Cause, write: Write) -> Result<(), ZkError> {
        let leader = self.current_leader().ok_or(ZkError::ConnectionLost)?;
        self.commit(leader, Proposal { origin: None, session: 0, write, cause, moved: false });
        match self.log.last().map(|entry| &entry.outcome) {
            Some(Outcome::Refused(error)) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Removes containers that have had children and have none left.
    pub fn sweep_containers(&mut self) {
        if let Some(leader) = self.current_leader() {
            let nodes = self.servers[leader].tree.nodes.iter();
            let empty = nodes.filter(|(_, n)| n.container && n.counter > 0 && n.children.is_empty());
            for path in empty.map(|(path, _)| path.to_string()).collect::<Vec<_>>() {
                let delete = crate::zk::Operation::Delete { path, version: None };
                // It may have got a child meanwhile; then it stays.
                let _ = self.write_as(Cause::Server, Write::One(delete));
            }
        }
        self.schedule(self.options.container_sweep, Event::Sweep);
    }
}
