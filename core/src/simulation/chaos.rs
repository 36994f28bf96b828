//! The faults of a schedule: which, when, to whom, and when each is healed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::Rng;
use rand::rngs::SmallRng;

use super::Profile;
use super::workload::Program;
use crate::zk::simulated::{Detection, Door, RequestFault, RequestKind, RequestRates, Span, World};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum FaultKind {
    Rates,
    Arm,
    Stall,
    BlackHole,
    Disconnect,
    Door,
    Throttling,
    ExpireSession,
    IsolateFollower,
    IsolateLeader,
    Partition,
    Squeeze,
    StallWire,
    HoldUp,
    LureAway,
    CrashLeader,
    CrashFollower,
    Lag,
    DeleteNode,
    DeleteRoot,
    ForceCounter,
    Freeze,
    Kill,
    CloseClient,
}

impl FaultKind {
    /// Every kind.
    pub const ALL: [FaultKind; 24] = [
        Self::Rates,
        Self::Arm,
        Self::Stall,
        Self::BlackHole,
        Self::Disconnect,
        Self::Door,
        Self::Throttling,
        Self::ExpireSession,
        Self::IsolateFollower,
        Self::IsolateLeader,
        Self::Partition,
        Self::Squeeze,
        Self::StallWire,
        Self::HoldUp,
        Self::LureAway,
        Self::CrashLeader,
        Self::CrashFollower,
        Self::Lag,
        Self::DeleteNode,
        Self::DeleteRoot,
        Self::ForceCounter,
        Self::Freeze,
        Self::Kill,
        Self::CloseClient,
    ];
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What heals a fault.
#[derive(Clone, Copy, Debug)]
enum Healing {
    Rates(usize),
    Links(usize),
    Door(usize),
    Throttling(usize),
    /// Servers reach each other again, and clients all servers.
    Partition,
    Servers,
    /// What is held up goes through, and a moment later its server is cut off with its clients.
    Squeezed {
        index: usize,
        server: usize,
    },
    /// As it says.
    CutOff(usize),
    /// What the leader sent goes through, and a moment later its follower is cut off with its clients.
    Wire {
        leader: usize,
        follower: usize,
    },
    /// A client is left with a leader that was deposed, and does not know it.
    Lured {
        index: usize,
        leader: usize,
    },
    /// The client of a follower whose requests are held up loses its connection, and goes elsewhere.
    HeldUp {
        index: usize,
        follower: usize,
        leader: usize,
    },
    /// What the follower held up goes through, often when its client has come back to it.
    LetThrough {
        index: usize,
        follower: usize,
        leader: usize,
    },
    Start(usize),
    Lag(usize),
    Thaw(usize),
}

enum Action {
    Begin(FaultKind),
    Heal(Healing),
}

/// The faults of one schedule, while it runs.
pub(super) struct Chaos<'a> {
    pub world: &'a World,
    pub programs: &'a [Program],
    pub roots: &'a [String],
    pub servers: usize,
    pub tick: Duration,
    pub timeout: Duration,
    pub rng: SmallRng,
    pub partition: RangeInclusive<f64>,
    pub counts: BTreeMap<FaultKind, u64>,
}

impl Chaos<'_> {
    /// Lets `count` faults happen, and heals them all in the end.
    pub async fn run(&mut self, profile: &Profile, count: usize) {
        let (kinds, active) = (&profile.kinds, profile.active);
        let mut agenda: BTreeMap<(Duration, usize), Action> = BTreeMap::new();
        let whole = u64::try_from(active.mul_f64(profile.onset).as_millis()).unwrap_or(1).max(1);
        for number in 0..count {
            let at = Duration::from_millis(self.rng.random_range(0..whole));
            let kind = kinds[self.rng.random_range(0..kinds.len())];
            agenda.insert((at, number), Action::Begin(kind));
        }
        let mut number = count;
        let began = self.world.now();
        while let Some(((at, _), action)) = agenda.pop_first() {
            let wait = (began + at.min(active)).saturating_sub(self.world.now());
            tokio::time::sleep(wait).await;
            match action {
                Action::Begin(kind) => {
                    if let Some((after, healing)) = self.begin(kind) {
                        number += 1;
                        agenda.insert((at + after, number), Action::Heal(healing));
                    }
                }
                Action::Heal(healing) => {
                    if let Some((after, healing)) = self.heal(healing) {
                        number += 1;
                        agenda.insert((at + after, number), Action::Heal(healing));
                    }
                }
            }
        }
        let wait = (began + active).saturating_sub(self.world.now());
        tokio::time::sleep(wait).await;
        self.heal_all();
    }

    /// Some process; often one that holds a lock, since most promises are about those.
    fn a_program(&mut self) -> usize {
        if self.rng.random_bool(0.5)
            && let Some(holder) = self.a_holder()
        {
            return holder;
        }
        self.rng.random_range(0..self.programs.len())
    }

    fn a_holder(&mut self) -> Option<usize> {
        let holders = self.programs[0].checker.holders();
        let name = holders.get(self.rng.random_range(0..holders.len().max(1)))?;
        self.programs.iter().position(|program| program.process.name() == name)
    }

    fn a_server(&mut self) -> usize {
        self.rng.random_range(0..self.servers)
    }

    fn a_follower(&mut self) -> Option<usize> {
        let leader = self.world.leader()?;
        let followers: Vec<_> = (0..self.servers).filter(|server| *server != leader).collect();
        (!followers.is_empty()).then(|| followers[self.rng.random_range(0..followers.len())])
    }

    /// For how long a fault lasts: often for less than a session, sometimes for more.
    fn a_while(&mut self) -> Duration {
        let longest = match self.rng.random_range(0..4) {
            0 => self.timeout / 20,
            1 => self.timeout / 3,
            2 => self.timeout,
            _ => self.timeout * 5 / 2,
        };
        Duration::from_nanos(self.rng.random_range(1..=longest.as_nanos() as u64))
    }

    /// Lets a fault happen. When and how it is healed, if it has to be; none if it is over, or can't happen now.
    fn begin(&mut self, kind: FaultKind) -> Option<(Duration, Healing)> {
        let world = self.world;
        *self.counts.entry(kind).or_default() += 1;
        world.trace(|| format!("FAULT: {kind}"));
        let after = self.a_while();
        if matches!(kind, FaultKind::Rates | FaultKind::Arm | FaultKind::Throttling) {
            self.programs[0].checker.throttled();
        }
        let healing = match kind {
            FaultKind::Rates => {
                let index = self.a_program();
                let scale = [0.02, 0.1, 0.3][self.rng.random_range(0..3)];
                self.programs[index].process.set_rates(RequestRates {
                    lost: scale,
                    reply_lost: scale,
                    delayed: scale,
                    max_delay: self.timeout / 4,
                    throttled: scale / 2.0,
                });
                Healing::Rates(index)
            }
            FaultKind::Arm => {
                let index = self.a_program();
                for _ in 0..self.rng.random_range(1..3) {
                    let (kind, fault) = self.a_request_fault();
                    self.programs[index].process.arm(kind, fault);
                }
                return None;
            }
            FaultKind::Stall => {
                let index = self.a_program();
                let server = self.rng.random_bool(0.5).then(|| self.a_server());
                let (up, down) = [(true, false), (false, true), (true, true)][self.rng.random_range(0..3)];
                self.programs[index].process.stall(server, up, down);
                Healing::Links(index)
            }
            FaultKind::BlackHole => {
                let index = self.a_program();
                self.programs[index].process.stall(None, true, true);
                return Some((after.max(self.timeout), Healing::Links(index)));
            }
            FaultKind::Disconnect => {
                let index = self.a_program();
                self.programs[index].process.disconnect();
                return None;
            }
            FaultKind::Door => {
                let server = self.a_server();
                let doors = [Door::Refusing, Door::NoRoute, Door::Unresolvable];
                world.set_door(server, doors[self.rng.random_range(0..3)]);
                if self.rng.random_bool(0.5) {
                    self.programs[self.rng.random_range(0..self.programs.len())].process.disconnect();
                }
                Healing::Door(server)
            }
            FaultKind::Throttling => {
                let server = self.a_server();
                world.set_throttling(server, self.rng.random_range(0.1..0.9));
                Healing::Throttling(server)
            }
            FaultKind::ExpireSession => {
                let index = self.a_program();
                if let Some(session) = self.programs[index].client.session() {
                    world.expire_session(session.id.0);
                }
                return None;
            }
            FaultKind::IsolateFollower => {
                let follower = self.a_follower()?;
                world.isolate(follower, Detection::Slow);
                Healing::Servers
            }
            FaultKind::IsolateLeader => {
                let leader = world.leader().filter(|_| self.servers > 1)?;
                self.isolate(leader);
                Healing::Servers
            }
            FaultKind::Partition => {
                let index = self.a_program();
                let server = self.programs[index].process.server().filter(|_| self.servers > 1)?;
                world.leader()?;
                return Some(self.cut_off(server));
            }
            FaultKind::Squeeze => {
                let index = self.a_program();
                let server = self.programs[index].process.server().filter(|_| self.servers > 1)?;
                world.leader()?;
                self.programs[index].process.stall(None, true, false);
                // Long enough for one heartbeat to be held up, and for the next to be due when it goes through.
                let after = self.timeout.mul_f64(self.rng.random_range(0.1..0.45));
                return Some((after, Healing::Squeezed { index, server }));
            }
            FaultKind::StallWire => {
                let leader = world.leader()?;
                let index = self.a_program();
                let follower = self.programs[index].process.server().filter(|server| *server != leader)?;
                world.stall_wire(leader, follower, true);
                return Some((
                    self.timeout.mul_f64(self.rng.random_range(0.1..0.9)),
                    Healing::Wire { leader, follower },
                ));
            }
            FaultKind::HoldUp => {
                let leader = world.leader()?;
                let index = self.a_program();
                let follower = self.programs[index].process.server().filter(|server| *server != leader)?;
                world.stall_wire(follower, leader, true);
                return Some((
                    self.timeout.mul_f64(self.rng.random_range(0.0..0.15)),
                    Healing::HeldUp { index, follower, leader },
                ));
            }
            FaultKind::LureAway => {
                let leader = world.leader().filter(|_| self.servers > 1)?;
                let index = self.a_program();
                world.isolate(leader, Detection::Fast);
                self.programs[0].checker.leader_deposed(leader);
                for program in self.programs {
                    program.process.stall(Some(leader), true, true);
                }
                return Some((
                    self.timeout.mul_f64(self.rng.random_range(0.2..0.7)),
                    Healing::Lured { index, leader },
                ));
            }
            FaultKind::CrashLeader => {
                let leader = world.leader()?;
                world.crash(leader);
                Healing::Start(leader)
            }
            FaultKind::CrashFollower => {
                let follower = self.a_follower()?;
                world.crash(follower);
                Healing::Start(follower)
            }
            FaultKind::Lag => {
                let server = self.a_server();
                // The pings of the leader come by the same way.
                let most = self.tick.mul_f64(self.rng.random_range(0.0..1.5));
                world.set_lag(server, Span::new(Duration::ZERO, most));
                Healing::Lag(server)
            }
            FaultKind::DeleteNode => {
                let root = &self.roots[self.rng.random_range(0..self.roots.len())];
                let children = world.children_by_age(root);
                if !children.is_empty() {
                    let place =
                        if self.rng.random_bool(0.6) { 0 } else { self.rng.random_range(0..children.len()) };
                    // While there is no leader nobody can.
                    let _ = world.operator_delete(&format!("{root}/{}", children[place].1));
                }
                return None;
            }
            FaultKind::DeleteRoot => {
                let root = &self.roots[self.rng.random_range(0..self.roots.len())];
                let deleted = world.operator_delete_all(root);
                if deleted.is_ok() && self.rng.random() {
                    let _ = world.operator_create(root, b"");
                }
                return None;
            }
            FaultKind::ForceCounter => {
                let root = &self.roots[self.rng.random_range(0..self.roots.len())];
                let _ = world.force_counter(root, i32::MAX - self.rng.random_range(0..3));
                return None;
            }
            FaultKind::Freeze => {
                let index = self.a_program();
                self.programs[index].process.freeze();
                Healing::Thaw(index)
            }
            FaultKind::Kill => {
                let index = self.a_program();
                self.programs[index].process.kill();
                return None;
            }
            FaultKind::CloseClient => {
                let program = self.programs[self.rng.random_range(0..self.programs.len())].clone();
                let (process, client) = (program.process.clone(), program.client.clone());
                process.spawn(async move {
                    // Only a forked child cannot.
                    let _ = client.close().await;
                });
                return None;
            }
        };
        Some((after, healing))
    }

    fn isolate(&mut self, server: usize) {
        let leads = self.world.leader() == Some(server);
        let detection = if leads && self.rng.random() { Detection::Fast } else { Detection::Slow };
        self.world.isolate(server, detection);
        if leads {
            self.programs[0].checker.leader_deposed(server);
        }
    }

    /// Cuts a server off from the others together with its clients, for long enough to matter.
    fn cut_off(&mut self, server: usize) -> (Duration, Healing) {
        self.isolate(server);
        for program in self.programs {
            if program.process.server() == Some(server) {
                for other in (0..self.servers).filter(|other| *other != server) {
                    program.process.stall(Some(other), true, true);
                }
            }
        }
        (self.timeout.mul_f64(self.rng.random_range(self.partition.clone())), Healing::Partition)
    }

    fn a_request_fault(&mut self) -> (RequestKind, RequestFault) {
        let kinds = [
            RequestKind::Any,
            RequestKind::Create,
            RequestKind::Create,
            RequestKind::Delete,
            RequestKind::OtherWrite,
            RequestKind::Read,
            RequestKind::Sync,
            RequestKind::Close,
        ];
        let delay = self.a_while();
        let faults = [
            RequestFault::LostEof,
            RequestFault::LostReset,
            RequestFault::LostSilently,
            RequestFault::ReplyLostEof,
            RequestFault::ReplyLostEof,
            RequestFault::ReplyLostReset,
            RequestFault::ReplyLostSilently,
            RequestFault::Delayed(delay),
            RequestFault::Throttled,
        ];
        (kinds[self.rng.random_range(0..kinds.len())], faults[self.rng.random_range(0..faults.len())])
    }

    /// Heals a fault, or takes it a step further.
    fn heal(&mut self, healing: Healing) -> Option<(Duration, Healing)> {
        self.world.trace(|| format!("HEALED: {healing:?}"));
        match healing {
            Healing::Rates(index) => self.programs[index].process.set_rates(RequestRates::default()),
            Healing::Links(index) => self.programs[index].process.release(),
            Healing::Door(server) => self.world.set_door(server, Door::Open),
            Healing::Throttling(server) => self.world.set_throttling(server, 0.0),
            Healing::Servers => self.world.rejoin(),
            Healing::Partition => {
                self.world.rejoin();
                self.programs.iter().for_each(|program| program.process.release());
            }
            Healing::Squeezed { index, server } => {
                self.programs[index].process.release();
                // Often before the next of the leader's pings, which come every half tick.
                let after = self.tick.mul_f64(self.rng.random_range(0.0..0.6));
                return Some((after, Healing::CutOff(server)));
            }
            Healing::Wire { leader, follower } => {
                self.world.stall_wire(leader, follower, false);
                let after = self.tick.mul_f64(self.rng.random_range(0.0..0.1));
                return Some((after, Healing::CutOff(follower)));
            }
            Healing::Lured { index, leader } => {
                let process = &self.programs[index].process;
                process.release();
                for other in (0..self.servers).filter(|other| *other != leader) {
                    process.stall(Some(other), true, true);
                }
                process.disconnect();
                let after = self.timeout.mul_f64(self.rng.random_range(0.1..0.5));
                return Some((after, Healing::Partition));
            }
            Healing::HeldUp { index, follower, leader } => {
                self.programs[index].process.disconnect();
                let after = self.timeout.mul_f64(self.rng.random_range(0.05..0.6));
                return Some((after, Healing::LetThrough { index, follower, leader }));
            }
            Healing::LetThrough { index, follower, leader } => {
                if self.rng.random() {
                    self.programs[index].process.disconnect();
                }
                self.world.stall_wire(follower, leader, false);
            }
            Healing::CutOff(server) => {
                return self.world.leader().map(|_| self.cut_off(server));
            }
            Healing::Start(server) => self.world.start(server),
            Healing::Lag(server) => self.world.set_lag(server, Span::millis(0, 0)),
            Healing::Thaw(index) => {
                let program = &self.programs[index];
                if program.process.is_frozen() {
                    let now = u64::try_from(self.world.now().as_nanos()).unwrap_or(u64::MAX);
                    program.thawed.store(now, Ordering::Relaxed);
                    program.process.thaw();
                }
            }
        }
        None
    }

    fn heal_all(&mut self) {
        for server in 0..self.servers {
            for healing in [
                Healing::Door(server),
                Healing::Throttling(server),
                Healing::Start(server),
                Healing::Lag(server),
            ] {
                self.heal(healing);
            }
        }
        self.heal(Healing::Servers);
        for index in 0..self.programs.len() {
            for healing in [Healing::Rates(index), Healing::Links(index), Healing::Thaw(index)] {
                self.heal(healing);
            }
        }
    }
}
