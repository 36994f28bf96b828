//! How long a language's runtime stood still: measured by a ticker in it, which is late by as much.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::engine;
use crate::env::Moment;

/// The upper bounds of the histogram's buckets, the last of which has none.
const BOUNDS: [Duration; 15] = [
    Duration::from_millis(1),
    Duration::from_millis(2),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// A histogram of the pauses of a runtime.
///
/// A binding has a ticker in its runtime (a Python thread, a timer of Node's event loop, a Java thread) that calls
/// [`tick`](Self::tick) after every [`INTERVAL`](Self::INTERVAL). By how much it is late is how long the runtime
/// had no time for it: a held GIL, a blocked event loop, a safepoint, a machine that is too busy or was suspended.
#[derive(Debug, Default)]
pub struct PauseMeter {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Option<Moment>,
    pauses: Pauses,
}

/// How long a runtime stood still, so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pauses {
    counts: [u64; BOUNDS.len() + 1],
    /// The longest pause.
    pub longest: Duration,
    /// All pauses together.
    pub total: Duration,
}

impl PauseMeter {
    /// How often a ticker ticks.
    pub const INTERVAL: Duration = Duration::from_millis(50);

    /// The upper bounds of the histogram's buckets, in rising order. One more bucket has none.
    #[must_use]
    pub const fn bounds() -> &'static [Duration] {
        &BOUNDS
    }

    /// Notes that the ticker had its turn.
    pub fn tick(&self) {
        self.tick_at(engine::boot_now());
    }

    /// Forgets when the last tick was, for a ticker that starts again.
    pub fn restart(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).last = None;
    }

    /// The pauses so far.
    #[must_use]
    pub fn snapshot(&self) -> Pauses {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).pauses.clone()
    }

    fn tick_at(&self, now: Moment) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = state.last.replace(now) {
            state.pauses.note(now.since(last).saturating_sub(Self::INTERVAL));
        }
    }
}

impl Pauses {
    /// How many ticks were late by no more than each of [`PauseMeter::bounds`] and by more than the one before it;
    /// the last is for those that were later still.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    fn note(&mut self, pause: Duration) {
        let bucket = BOUNDS.partition_point(|bound| *bound < pause);
        self.counts[bucket] += 1;
        self.longest = self.longest.max(pause);
        self.total += pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(ticks: &[u64]) -> Pauses {
        let meter = PauseMeter::default();
        for at in ticks {
            meter.tick_at(Moment::from_nanos(at * 1_000_000));
        }
        meter.snapshot()
    }

    #[test]
    fn a_ticker_on_time_shows_no_pause() {
        let pauses = after(&[1_000, 1_050, 1_100, 1_150]);
        assert_eq!(pauses.counts[0], 3);
        assert_eq!(pauses.longest, Duration::ZERO);
    }

    #[test]
    fn a_late_tick_is_a_pause_of_as_much() {
        let pauses = after(&[1_000, 1_050, 13_100]);
        assert_eq!(pauses.longest, Duration::from_secs(12));
        assert_eq!(pauses.total, Duration::from_secs(12));
        let bucket = PauseMeter::bounds().iter().position(|bound| *bound == Duration::from_secs(30));
        assert_eq!(pauses.counts[bucket.expect("a bound")], 1);
    }

    #[test]
    fn the_last_bucket_takes_what_is_longer_than_every_bound() {
        assert_eq!(after(&[0, 3_600_000]).counts[BOUNDS.len()], 1);
    }

    #[test]
    fn a_ticker_that_starts_again_was_not_late() {
        let meter = PauseMeter::default();
        meter.tick_at(Moment::from_nanos(0));
        meter.restart();
        meter.tick_at(Moment::from_nanos(3_600_000_000_000));
        assert_eq!(meter.snapshot(), Pauses::default());
    }
}
