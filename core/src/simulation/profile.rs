//! What may happen in a schedule.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::chaos::FaultKind;
use crate::options::Mutants;
use crate::queue::Naming;
use crate::session::Heartbeat;

/// What may happen in a schedule. Each schedule draws from it.
#[derive(Clone, Debug)]
pub struct Profile {
    /// What it is called on the command line.
    pub name: &'static str,
    /// How many servers: one of these.
    pub servers: Vec<usize>,
    /// The session timeout and the servers' tick, in milliseconds: one of these.
    pub times: Vec<(u64, u64)>,
    /// The servers' `syncLimit`, in ticks: one of these.
    pub sync_limits: Vec<u32>,
    /// How many processes, with one client each.
    pub processes: RangeInclusive<usize>,
    /// How many users each process has.
    pub users: RangeInclusive<usize>,
    /// How many locks there are.
    pub locks: RangeInclusive<usize>,
    /// How often each user acquires one.
    pub rounds: RangeInclusive<usize>,
    /// For how long things go wrong.
    pub active: Duration,
    /// How many faults.
    pub faults: RangeInclusive<usize>,
    /// The kinds of fault, each as often as it is listed.
    pub kinds: Vec<FaultKind>,
    /// What proves that a session is alive: one of these.
    pub heartbeats: Vec<Heartbeat>,
    /// How lock nodes are named: one of these for each lock.
    pub namings: Vec<Naming>,
    /// For how long locks are held, in milliseconds.
    pub hold: RangeInclusive<u64>,
    /// Whether every acquire waits for ever.
    pub patient: bool,
    /// In which share of `active`, from its beginning, faults may begin.
    pub onset: f64,
    /// How long servers are cut off with their clients, in session timeouts.
    pub partition: RangeInclusive<f64>,
    /// How often the clients know the servers' tick.
    pub tick_known: f64,
    /// Whether some locks' counters are near their end.
    pub old_counters: bool,
    /// How often roots are containers, which the servers remove when they are empty.
    pub containers: f64,
    /// How often a mutex has a `max_hold`.
    pub max_hold: f64,
    /// Planted bugs.
    pub mutants: Mutants,
}

impl Default for Profile {
    /// Everything.
    fn default() -> Self {
        Self {
            name: "all",
            servers: vec![1, 3, 3],
            times: vec![(4_000, 1_000), (6_000, 2_000), (5_000, 500)],
            sync_limits: vec![5, 5, 20],
            processes: 2..=4,
            users: 1..=2,
            locks: 1..=2,
            rounds: 1..=4,
            active: Duration::from_secs(10),
            faults: 0..=5,
            kinds: FaultKind::ALL.to_vec(),
            heartbeats: vec![Heartbeat::Session, Heartbeat::Quorum],
            namings: vec![Naming::Curator, Naming::Curator, Naming::Kazoo, Naming::Epoch],
            hold: 0..=2_500,
            patient: false,
            onset: 1.0,
            partition: 0.3..=2.5,
            tick_known: 0.5,
            old_counters: true,
            containers: 0.15,
            max_hold: 0.1,
            mutants: Mutants::default(),
        }
    }
}

impl Profile {
    /// Every profile, to choose from by name.
    #[must_use]
    pub fn every() -> Vec<Self> {
        vec![
            Self::default(),
            Self::calm(),
            Self::requests(),
            Self::partitions(),
            Self::leases(),
            Self::wires(),
            Self::held_up(),
            Self::lured(),
            Self::operators(),
        ]
    }

    /// Nothing goes wrong but what the users do themselves.
    #[must_use]
    pub fn calm() -> Self {
        Self { name: "calm", faults: 0..=0, rounds: 3..=6, ..Self::default() }
    }

    /// Requests and replies are lost, delayed and refused.
    #[must_use]
    pub fn requests() -> Self {
        use FaultKind::{Arm, Disconnect, ExpireSession, Rates, Throttling};
        Self {
            name: "requests",
            faults: 2..=8,
            kinds: vec![Rates, Rates, Arm, Arm, Arm, Disconnect, ExpireSession, Throttling],
            ..Self::default()
        }
    }

    /// Holders are cut off, frozen, and served by servers that are cut off.
    #[must_use]
    pub fn partitions() -> Self {
        use FaultKind::{
            BlackHole, CrashLeader, Freeze, IsolateFollower, IsolateLeader, Lag, Partition, Stall,
        };
        Self {
            name: "partitions",
            servers: vec![3],
            faults: 1..=3,
            kinds: vec![
                BlackHole,
                Stall,
                Stall,
                Freeze,
                IsolateFollower,
                IsolateFollower,
                IsolateLeader,
                Partition,
                Partition,
                CrashLeader,
                Lag,
            ],
            hold: 0..=12_000,
            active: Duration::from_secs(15),
            ..Self::default()
        }
    }

    /// Servers are cut off with their clients, at moments when the lease rule matters: sessions that are long for
    /// the tick, and followers that go on answering for long.
    #[must_use]
    pub fn leases() -> Self {
        Self {
            name: "leases",
            servers: vec![3],
            times: vec![(10_000, 500), (6_000, 300)],
            sync_limits: vec![30],
            processes: 3..=3,
            users: 1..=1,
            locks: 1..=1,
            rounds: 1..=2,
            faults: 1..=1,
            kinds: vec![FaultKind::Partition, FaultKind::Squeeze],
            namings: vec![Naming::Curator],
            hold: 12_000..=18_000,
            patient: true,
            onset: 0.25,
            partition: 0.9..=1.6,
            tick_known: 1.0,
            old_counters: false,
            containers: 0.0,
            max_hold: 0.0,
            active: Duration::from_secs(20),
            ..Self::default()
        }
    }

    /// As [`leases`](Self::leases), where what the leader sends to a follower, its pings among it, comes late before the
    /// follower is cut off: the case for which a heartbeat takes a second one to count.
    #[must_use]
    pub fn wires() -> Self {
        Self { name: "wires", kinds: vec![FaultKind::StallWire], ..Self::leases() }
    }

    /// What a follower sends to its leader is held up while its clients go elsewhere and come back: creates that were seen
    /// to be absent are applied after all.
    #[must_use]
    pub fn held_up() -> Self {
        use FaultKind::{Disconnect, HoldUp, Rates};
        Self {
            name: "held_up",
            servers: vec![3],
            times: vec![(10_000, 500), (6_000, 500)],
            sync_limits: vec![30],
            processes: 2..=3,
            users: 1..=3,
            rounds: 4..=10,
            faults: 1..=3,
            kinds: vec![HoldUp, HoldUp, HoldUp, Disconnect, Rates],
            hold: 0..=300,
            active: Duration::from_secs(15),
            old_counters: false,
            containers: 0.0,
            ..Self::default()
        }
    }

    /// Clients that hold locks, or wait for them, are left with a leader that was deposed and does not know it: it shows
    /// a tree without their nodes.
    #[must_use]
    pub fn lured() -> Self {
        Self {
            name: "lured",
            servers: vec![3],
            times: vec![(10_000, 500), (6_000, 500)],
            sync_limits: vec![30],
            processes: 2..=3,
            users: 1..=2,
            rounds: 3..=6,
            faults: 1..=2,
            kinds: vec![FaultKind::LureAway],
            hold: 0..=4_000,
            onset: 0.5,
            active: Duration::from_secs(15),
            old_counters: false,
            containers: 0.0,
            ..Self::default()
        }
    }

    /// Somebody deletes lock nodes and roots under the users' hands.
    #[must_use]
    pub fn operators() -> Self {
        use FaultKind::{DeleteNode, DeleteRoot, Disconnect, ExpireSession, Rates};
        Self {
            name: "operators",
            faults: 2..=8,
            kinds: vec![DeleteNode, DeleteNode, DeleteNode, DeleteRoot, ExpireSession, Disconnect, Rates],
            ..Self::default()
        }
    }
}
