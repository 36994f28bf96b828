//! The promises of a held lock, checked after every step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::env::Env;
use crate::queue::{Grant, HeldLock, LostReason, Phase, Ticket};
use crate::session::{ConnectionState, Heartbeat, States};
use crate::zk::WatchEvent;
use crate::zk::simulated::{Cause, Note, SimProcess, Step, World};

/// How much later than promised something may be, since timers and packets take their time.
pub(super) const SLACK: Duration = Duration::from_millis(100);

/// A few round trips of the slowest wire.
const PROMPT: Duration = Duration::from_millis(300);

/// A grant that somebody believes in.
struct Holding {
    process: SimProcess,
    env: Env,
    path: String,
    grant: Arc<Grant>,
    /// When its process was told that its node is gone.
    told: Option<Duration>,
}

/// A lock node that is gone.
struct Deletion {
    cause: Cause,
    root: String,
    /// How many had gone before it.
    number: usize,
}

#[derive(Default)]
struct Known {
    holdings: Vec<Holding>,
    /// The largest token granted on each path.
    tokens: BTreeMap<String, i64>,
    deletions: BTreeMap<i64, Deletion>,
    /// When the queue at each root last changed.
    changed: BTreeMap<String, Duration>,
    roots: BTreeSet<String>,
    /// Roots that were deleted by somebody who may.
    roots_deleted: BTreeSet<String>,
    /// Sessions that a deposed leader has served.
    astray: BTreeSet<i64>,
    /// The server of each session.
    attached: BTreeMap<i64, usize>,
    losses: BTreeMap<&'static str, u64>,
    grants: u64,
    excused: u64,
    /// Whether servers refuse requests as overloaded: then one's own watch may be missing for a while.
    throttled: bool,
    violation: Option<String>,
}

/// Looks on, and notes the first promise that is broken.
pub(super) struct Checker {
    world: Arc<World>,
    heartbeat: Heartbeat,
    /// Whether nothing goes wrong.
    undisturbed: bool,
    known: Mutex<Known>,
    broken: Notify,
}

impl Checker {
    pub fn new(world: Arc<World>, heartbeat: Heartbeat, undisturbed: bool, roots: &[String]) -> Arc<Self> {
        let known = Known { roots: roots.iter().cloned().collect(), ..Known::default() };
        Arc::new(Self { world, heartbeat, undisturbed, known: Mutex::new(known), broken: Notify::new() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a promise is broken, if it is the first.
    pub fn broken(&self, what: impl FnOnce() -> String) {
        let mut known = self.known();
        self.break_promise(&mut known, what());
    }

    fn break_promise(&self, known: &mut Known, what: String) {
        if known.violation.is_none() {
            self.world.trace(|| format!("VIOLATION: {what}"));
            known.violation = Some(what);
            self.broken.notify_one();
        }
    }

    /// Waits for the first broken promise.
    pub async fn first_violation(&self) {
        self.broken.notified().await;
    }

    pub fn take_violation(&self) -> Option<String> {
        self.known().violation.take()
    }

    pub fn counts(&self) -> (u64, u64, BTreeMap<&'static str, u64>) {
        let known = self.known();
        (known.grants, known.excused, known.losses.clone())
    }

    /// The names of the processes that hold something.
    pub fn holders(&self) -> Vec<String> {
        let known = self.known();
        let live = known.holdings.iter().filter(|holding| !holding.grant.has_been_told());
        live.map(|holding| holding.process.name().to_owned()).collect()
    }

    /// Servers begin to refuse requests as overloaded.
    pub fn throttled(&self) {
        self.known().throttled = true;
    }

    /// A leader has been cut off: what its clients hold may overlap, unless a quorum has to answer them.
    pub fn leader_deposed(&self, server: usize) {
        let mut known = self.known();
        let astray: Vec<_> =
            known.attached.iter().filter(|(_, at)| **at == server).map(|(s, _)| *s).collect();
        known.astray.extend(astray);
    }

    /// Somebody has just been given a lock.
    pub fn granted(&self, process: &SimProcess, held: &HeldLock) {
        let grant = held.grant().clone();
        let (path, token) = (held.path().to_owned(), held.token().0);
        self.world.trace(|| format!("{} HOLDS {path} with token {token:x}", process.name()));
        let mut known = self.known();
        known.grants += 1;
        let mine =
            Holding { process: process.clone(), env: process.env(), path: path.clone(), grant, told: None };
        self.check_order(&mut known, &mine);
        self.check_was_head(&mut known, &mine);
        self.check_prompt(&mut known, &mine);
        for index in 0..known.holdings.len() {
            let other = &known.holdings[index];
            if other.path == path && !other.process.is_killed() {
                if let Some(what) = overlap(other, &mine) {
                    self.excuse_or_break(&mut known, index, &mine, what);
                }
                let other = &known.holdings[index];
                if !other.grant.has_been_told()
                    && !other.process.is_frozen()
                    && !other.grant.looks_valid(other.env.now())
                {
                    let what = format!(
                        "{} was given {path} before {}, whose lease is over, was told",
                        process.name(),
                        other.process.name()
                    );
                    self.break_promise(&mut known, what);
                }
            }
        }
        known.holdings.push(mine);
    }

    /// Tokens rise, and nobody who came earlier still stands in the queue.
    fn check_order(&self, known: &mut Known, mine: &Holding) {
        let token = mine.grant.token;
        let largest = known.tokens.get(&mine.path).copied().unwrap_or(i64::MIN);
        // A node that was deleted from outside may have been granted already, with nobody told of either yet.
        let late = known.deletions.contains_key(&token) || known.astray.contains(&mine.grant.session.id().0);
        if token <= largest && !late {
            let what = format!("token {token:x} on {} comes after {largest:x}", mine.path);
            self.break_promise(known, what);
        }
        known.tokens.insert(mine.path.clone(), largest.max(token));
        let earlier = self
            .world
            .children_by_age(&mine.path)
            .into_iter()
            .find(|(czxid, name)| *czxid < token && Ticket::parse(name).is_some());
        if let Some((czxid, name)) = earlier {
            let what = format!(
                "{} was given {} with token {token:x} while {name} of {czxid:x} stood before it",
                mine.process.name(),
                mine.path
            );
            self.break_promise(known, what);
        }
    }

    /// Whoever is granted the lock has been at the head of the queue at some moment.
    fn check_was_head(&self, known: &mut Known, mine: &Holding) {
        let token = mine.grant.token;
        let Some(gone) = known.deletions.get(&token) else { return };
        let outlived = |(_, other): &(&i64, &Deletion)| other.root == gone.root && other.number > gone.number;
        if let Some((czxid, _)) = known.deletions.range(..token).find(outlived) {
            let what = format!(
                "{} was given {} with token {token:x}, whose node went before that of {czxid:x} in front of it",
                mine.process.name(),
                mine.path
            );
            self.break_promise(known, what);
        }
    }

    /// Where nothing goes wrong, a lock is granted as soon as it is free, by an event and not by a timer.
    fn check_prompt(&self, known: &mut Known, mine: &Holding) {
        let Some(changed) = known.changed.get(&mine.path).filter(|_| self.undisturbed) else { return };
        let late = self.world.now() - *changed;
        if late > PROMPT {
            let what =
                format!("{} was given {} only {late:?} after it was free", mine.process.name(), mine.path);
            self.break_promise(known, what);
        }
    }

    /// Two overlap by nature where a node was deleted from outside, until its holder has been told; and where a
    /// deposed leader answers a holder's heartbeats, unless those need a quorum.
    fn excuse_or_break(&self, known: &mut Known, index: usize, mine: &Holding, what: String) {
        let other = &known.holdings[index];
        let outside = |holding: &Holding| {
            known.deletions.get(&holding.grant.token).is_some_and(|d| d.cause == Cause::Operator)
        };
        let astray = |holding: &Holding| known.astray.contains(&holding.grant.session.id().0);
        let excused = outside(other)
            || outside(mine)
            || (self.heartbeat == Heartbeat::Session && (astray(other) || astray(mine)));
        if excused {
            known.excused += 1;
        } else {
            self.break_promise(known, what);
        }
    }

    /// Called after every step of the world.
    pub fn step(&self, step: &Step<'_>) {
        let mut known = self.known();
        for note in step.notes {
            self.take_note(&mut known, note, step.now);
        }
        self.settle(&mut known);
        // Two that did not overlap when the later one was granted never do, since none comes back to life. So it is
        // enough to look at those who have been told by an event and may not have listened.
        let grace = if known.throttled { Duration::from_secs(5) } else { Duration::ZERO };
        for index in 0..known.holdings.len() {
            let holding = &known.holdings[index];
            if holding.told.is_some_and(|told| told + grace < step.now)
                && !holding.process.is_frozen()
                && holding.grant.looks_valid(holding.env.now())
            {
                let what = format!(
                    "{} still holds {} with token {:x} after it was told that its node is gone",
                    holding.process.name(),
                    holding.path,
                    holding.grant.token
                );
                self.break_promise(&mut known, what);
            }
        }
    }

    fn take_note(&self, known: &mut Known, note: &Note, now: Duration) {
        match note {
            Note::Created { path, .. } => {
                known.changed.insert(crate::path::parent(path).to_owned(), now);
            }
            Note::Deleted { path, czxid, cause } => {
                known.changed.insert(crate::path::parent(path).to_owned(), now);
                self.deleted(known, path, *czxid, *cause);
            }
            Note::SessionClosed { session, .. } => {
                known.attached.remove(session);
            }
            Note::Attached { session, server, .. } => {
                known.attached.insert(*session, *server);
                if self.world.is_deposed(*server) {
                    known.astray.insert(*session);
                }
            }
            Note::Told { process, path, event: WatchEvent::Deleted } => {
                for holding in &mut known.holdings {
                    if *holding.process.name() == **process && *holding.grant.node == **path {
                        holding.told.get_or_insert(now);
                    }
                }
            }
            Note::Told { .. } => {}
            Note::Panicked { process, message } => {
                self.break_promise(known, format!("{process} panicked: {message}"));
            }
        }
    }

    fn deleted(&self, known: &mut Known, path: &str, czxid: i64, cause: Cause) {
        if known.roots.contains(path) {
            match cause {
                Cause::Client | Cause::Survived => {
                    self.break_promise(known, format!("a client deleted the lock root {path}"));
                }
                _ => {
                    known.roots_deleted.insert(path.to_owned());
                }
            }
            return;
        }
        let live = known.holdings.iter().find(|holding| {
            holding.grant.token == czxid && !holding.process.is_killed() && !holding.grant.has_been_told()
        });
        if let Some(holding) = live
            && matches!(cause, Cause::Client | Cause::Survived)
        {
            let what = format!("{} deleted {path} while it held it", holding.process.name());
            self.break_promise(known, what);
        }
        let root = crate::path::parent(path).to_owned();
        let number = known.deletions.len();
        known.deletions.insert(czxid, Deletion { cause, root, number });
    }

    /// Forgets the grants that are over, and sees whether the reasons are right.
    fn settle(&self, known: &mut Known) {
        let mut index = 0;
        while index < known.holdings.len() {
            let holding = &known.holdings[index];
            if !holding.process.is_killed() && !holding.grant.has_been_told() {
                index += 1;
                continue;
            }
            let holding = known.holdings.swap_remove(index);
            if let Phase::Lost(reason) = holding.grant.known_phase() {
                self.world.trace(|| {
                    let name = holding.process.name();
                    format!("{name} LOST {} of token {:x}: {reason}", holding.path, holding.grant.token)
                });
                *known.losses.entry(reason.as_str()).or_default() += 1;
                let deletion = known.deletions.get(&holding.grant.token).map(|deletion| deletion.cause);
                let right = match reason {
                    // The server removes the node of an expired session before it ends the connection.
                    LostReason::NodeDeleted => {
                        matches!(deletion, Some(Cause::Operator | Cause::Expiry))
                    }
                    LostReason::RootRecreated => known.roots_deleted.contains(&holding.path),
                    _ => true,
                };
                if !right {
                    let what = format!(
                        "{} lost {} for the wrong reason {reason}; its node was deleted by {deletion:?}",
                        holding.process.name(),
                        holding.path
                    );
                    self.break_promise(known, what);
                }
            }
        }
    }

    /// At the end: what a listener was told about sessions.
    pub fn check_states(&self, name: &str, states: &mut States) {
        let mut lost = BTreeSet::new();
        let mut current = None;
        let mut told = Vec::new();
        while let Some(change) = states.try_next() {
            told.push(format!("{}({})", change.state, change.session));
            let wrong = match change.state {
                ConnectionState::Lost => !lost.insert(change.session) || current != Some(change.session),
                ConnectionState::Connected => current.replace(change.session).is_some(),
                ConnectionState::Reconnected if change.same_session => {
                    current != Some(change.session) || lost.contains(&change.session)
                }
                ConnectionState::Reconnected => current
                    .replace(change.session)
                    .is_none_or(|before| !lost.contains(&before) || before == change.session),
                ConnectionState::Suspended => current != Some(change.session),
                ConnectionState::ReadOnly => true,
            };
            if wrong {
                self.broken(|| format!("{name} was told {}", told.join(" ")));
                return;
            }
        }
    }
}

/// Whether both hold the lock at this moment.
fn overlap(one: &Holding, other: &Holding) -> Option<String> {
    let valid = |holding: &Holding| holding.grant.looks_valid(holding.env.now());
    (valid(one) && valid(other)).then(|| {
        format!(
            "{} (token {:x}, another {:?}) and {} (token {:x}) both hold {}",
            one.process.name(),
            one.grant.token,
            one.grant.remaining(one.env.now()),
            other.process.name(),
            other.grant.token,
            one.path
        )
    })
}
