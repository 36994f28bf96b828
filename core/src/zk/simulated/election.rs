//! How leaders come and go.

use std::collections::{BTreeMap, VecDeque};

use rand::Rng;

use super::ensemble::{Leadership, Proposal, Queued, Role};
use super::expiry::Expiry;
use super::network::ServerId;
use super::tree::Overflow;
use super::{Cause, Event, State};

impl State {
    /// Looks whether a leader can be elected, or servers can join the one there is.
    pub fn elect(&mut self) {
        let free = |server: &super::server::Server| {
            server.up && matches!(server.role, Role::Looking) && !server.isolated
        };
        let looking: Vec<_> = (0..self.servers.len()).filter(|s| free(&self.servers[*s])).collect();
        // A lone server of several has nobody to ask; one that is all there is elects itself.
        let Some(leader) = self
            .leader_of(self.term)
            .filter(|leader| self.servers[*leader].up && !self.servers[*leader].isolated)
        else {
            if looking.len() > self.servers.len() / 2 {
                self.start_term(&looking);
            }
            return;
        };
        for server in looking {
            self.join(server, self.servers[leader].term);
        }
        self.retry_queue(leader);
    }

    pub fn start_term(&mut self, servers: &[ServerId]) {
        let old_term = self.term;
        self.term += 1;
        let term = self.term;
        let leader = servers[self.rng.random_range(0..servers.len())];
        let phase = self.rng.random_range(0..self.options.tick);
        self.trace_with(|_| format!("zk{} leads {servers:?} in term {term}", leader + 1));
        for server in servers {
            self.join(*server, term);
        }
        let (now, tick) = (self.now, self.options.tick);
        // A new leader gives every session its whole time again.
        let mut expiry = Expiry::new(tick, phase);
        for (session, timeout) in &self.servers[leader].tree.sessions {
            expiry.track(*session, now, *timeout);
        }
        let first_tick = expiry.next_tick(now);
        self.servers[leader].role = Role::Leader(Box::new(Leadership {
            expiry,
            owners: BTreeMap::new(),
            incoming: VecDeque::new(),
            last_prepared_at: 0,
            queue: VecDeque::new(),
            last_commit_at: 0,
            overflow: Overflow::default(),
            zxid: i64::from(term) << 32,
        }));
        self.schedule_at(first_tick, Event::Expiries { leader, term });
        if self.servers.len() > 1 {
            let wait = self.rng.random_range(0..=tick / 2);
            self.schedule(wait, Event::Pings { leader, term });
        }
        // What the last leader had proposed may have reached those that remain.
        if let Some((of_term, proposals)) = self.survivors.take()
            && of_term == old_term
        {
            for proposal in proposals {
                self.commit(leader, Proposal { cause: Cause::Survived, ..proposal });
            }
        }
    }

    fn join(&mut self, server: ServerId, term: u32) {
        self.servers[server].term = term;
        self.servers[server].role = Role::Follower;
        while self.servers[server].applied < self.log.len() {
            self.apply_next(server);
        }
    }

    /// Stops serving, and looks for a leader.
    pub fn retire(&mut self, server: ServerId) {
        if matches!(self.servers[server].role, Role::Looking) {
            return;
        }
        self.trace_with(|_| format!("zk{} looks for a leader", server + 1));
        self.save_proposals(server);
        self.close_all(server, "the server stopped serving");
        let state = &mut self.servers[server];
        state.role = Role::Looking;
        state.term = 0;
        state.touched.clear();
        state.outgoing = super::server::Outgoing::default();
        self.look_around();
    }

    /// Keeps what may live on of a leader's open proposals: some of those that were sent, in order.
    pub fn save_proposals(&mut self, leader: ServerId) {
        let term = self.servers[leader].term;
        if term != self.term || self.survivors.as_ref().is_some_and(|(of_term, _)| *of_term == term) {
            return;
        }
        let Some(leadership) = self.leadership(leader) else { return };
        let sent = leadership.queue.iter().filter_map(|queued| match queued {
            Queued::Write(proposal, true) => Some(proposal.clone()),
            _ => None,
        });
        let mut sent: Vec<_> = sent.collect();
        let kept = self.rng.random_range(0..=sent.len());
        sent.truncate(kept);
        self.survivors = Some((term, sent));
    }

    /// Schedules an election.
    pub fn look_around(&mut self) {
        let wait = self.options.election.draw(&mut self.rng);
        self.schedule(wait, Event::Elect);
    }

    /// A server finds out that it has lost its leader, or its followers.
    pub fn gives_up(&mut self, server: ServerId, term: u32, stamp: u32) {
        if self.servers[server].term != term || self.partition_stamp != stamp || term == 0 {
            return;
        }
        let lost = match self.leader_of(term) {
            Some(leader) if leader == server => !self.has_quorum(server),
            Some(leader) => !self.linked(server, leader),
            None => true,
        };
        if lost {
            self.retire(server);
        }
    }

    /// Gives the proposals that waited for a quorum another chance.
    pub fn retry_queue(&mut self, leader: ServerId) {
        if !self.has_quorum(leader) {
            return;
        }
        let term = self.servers[leader].term;
        let Some(leadership) = self.leadership(leader) else { return };
        let waiting = leadership.queue.iter().filter(|queued| matches!(queued, Queued::Write(..))).count();
        let at = self.now + self.options.server_latency.draw(&mut self.rng);
        for _ in 0..waiting {
            self.schedule_at(at, Event::Quorum { leader, term });
        }
    }

    /// Whether `server` still leads an old term, or leads without a quorum.
    pub fn is_deposed(&self, server: ServerId) -> bool {
        matches!(self.servers[server].role, Role::Leader(_))
            && (self.servers[server].term != self.term || !self.has_quorum(server))
    }
}
