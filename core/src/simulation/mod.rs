//! The simulator: the engine, unchanged, in a [world](crate::zk::simulated) where things go wrong.
//!
//! One *schedule* follows from a seed and a [`Profile`]: a few processes with a client each, users that acquire,
//! hold, release, cancel and die, and faults of every kind. After every step the promises of a held lock are
//! checked; at the end everything must have come to rest with nothing left over. A schedule that breaks a promise is
//! run again with its trace written, which changes nothing else.
//!
//! The parts: [`profile`] says what may happen; [`workload`] is the users; [`chaos`] is the faults; [`checker`] is the
//! promises.

mod chaos;
mod checker;
mod profile;
mod schedule;
mod workload;

use std::collections::BTreeMap;

pub use chaos::FaultKind;
pub use profile::Profile;

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Violation {
    /// The seed of the schedule.
    pub seed: u64,
    /// Which promise, and how.
    pub what: String,
    /// What had happened until then.
    pub trace: Vec<String>,
}

/// What came of one schedule, or of many.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Schedules run.
    pub schedules: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Virtual time, in milliseconds.
    pub millis: u64,
    /// Locks granted.
    pub grants: u64,
    /// Acquires that ended without a grant.
    pub refusals: u64,
    /// Acquires that were cancelled.
    pub cancelled: u64,
    /// Grants lost, by reason.
    pub losses: BTreeMap<&'static str, u64>,
    /// Faults, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Two valid holders at once where the promise makes an exception.
    pub excused_overlaps: u64,
    /// The promises that were broken: at most one for each schedule.
    pub violations: Vec<Violation>,
    /// What happened, where that was asked for.
    pub trace: Vec<String>,
}

impl Outcome {
    /// Adds what came of other schedules.
    pub fn add(&mut self, other: Outcome) {
        self.schedules += other.schedules;
        self.steps += other.steps;
        self.millis += other.millis;
        self.grants += other.grants;
        self.refusals += other.refusals;
        self.cancelled += other.cancelled;
        self.excused_overlaps += other.excused_overlaps;
        for (reason, count) in other.losses {
            *self.losses.entry(reason).or_default() += count;
        }
        for (kind, count) in other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        self.violations.extend(other.violations);
    }
}

/// How many lines of a failing schedule are kept.
const TRACE: usize = 4_000;

/// Runs the schedule of `seed`. When it breaks a promise, runs it again for its trace.
///
/// # Panics
/// When a runtime cannot be made.
#[must_use]
pub fn run_schedule(seed: u64, profile: &Profile) -> Outcome {
    let outcome = schedule::run(seed, profile, 0);
    if outcome.violations.is_empty() { outcome } else { trace_schedule(seed, profile) }
}

/// Runs the schedule of `seed` and keeps its trace, in the violation if there is one.
///
/// # Panics
/// When a runtime cannot be made.
#[must_use]
pub fn trace_schedule(seed: u64, profile: &Profile) -> Outcome {
    schedule::run(seed, profile, TRACE)
}

/// Runs the schedules of all `seeds`, and stops after `most` violations.
///
/// # Panics
/// When a runtime cannot be made.
#[must_use]
pub fn run_schedules(seeds: impl IntoIterator<Item = u64>, profile: &Profile, most: usize) -> Outcome {
    let mut total = Outcome::default();
    for seed in seeds {
        total.add(run_schedule(seed, profile));
        if total.violations.len() >= most {
            break;
        }
    }
    total
}
