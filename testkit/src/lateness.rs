//! How late the machine itself is.
//!
//! On a machine that is busy with other things a thread may wait long for a processor after its timer has fired.
//! That says nothing about what is tested here, so upper limits are extended by it: a few threads do nothing but
//! sleep for a moment and note how late they woke.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::proxy::boot_time_ns;
use crate::wait::lock;

/// How long a probe sleeps at a time.
const NAP: Duration = Duration::from_millis(4);
/// Being late by less is normal.
const NORMAL: Duration = Duration::from_millis(3);
/// What is noted is kept for so long.
const KEPT: Duration = Duration::from_secs(120);
/// How often, between a timer and the user's code, one thread wakes another: the engine's, the runtime's, the
/// user's own.
const HANDS: u32 = 3;

/// A probe was to wake at one moment, and woke at another.
#[derive(Clone, Copy)]
struct Late {
    due: u64,
    woke: u64,
}

impl Late {
    fn by(self) -> Duration {
        Duration::from_nanos(self.woke.saturating_sub(self.due))
    }
}

struct Probes {
    noted: Mutex<VecDeque<Late>>,
    /// When each probe is to wake next. One that is overdue has not noted it yet.
    due: Vec<AtomicU64>,
}

/// Watches how late the machine is, for as long as it lives.
pub struct Lateness {
    probes: Arc<Probes>,
}

impl Lateness {
    /// Starts watching.
    #[must_use]
    pub fn watch() -> Self {
        let count = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        let first = boot_time_ns() + nanos(NAP);
        let due = (0..count).map(|_| AtomicU64::new(first)).collect();
        let probes = Arc::new(Probes { noted: Mutex::default(), due });
        for index in 0..count {
            let probes = Arc::downgrade(&probes);
            std::thread::spawn(move || probe(&probes, index));
        }
        Self { probes }
    }

    /// By how much whatever has happened since the start may have been late, without anybody's fault.
    #[must_use]
    pub fn so_far(&self) -> Duration {
        self.between(0, u64::MAX)
    }

    /// By how much whatever happened between two moments of [`boot_time_ns`] may have been late, without anybody's
    /// fault.
    #[must_use]
    pub fn between(&self, from: u64, to: u64) -> Duration {
        let woke = boot_time_ns();
        let overdue = self.probes.due.iter().map(|due| Late { due: due.load(Ordering::Relaxed), woke });
        let noted = lock(&self.probes.noted);
        let meanwhile =
            noted.iter().copied().chain(overdue).filter(|late| late.due <= to && late.woke >= from);
        let longest = meanwhile.map(Late::by).filter(|late| *late > NORMAL).max();
        longest.unwrap_or_default() * HANDS
    }
}

fn probe(probes: &Weak<Probes>, index: usize) {
    let mut due = boot_time_ns() + nanos(NAP);
    loop {
        std::thread::sleep(NAP);
        let Some(probes) = probes.upgrade() else { return };
        let woke = boot_time_ns();
        let late = Late { due, woke };
        if late.by() > NORMAL {
            let mut noted = lock(&probes.noted);
            noted.push_back(late);
            let oldest = woke.saturating_sub(nanos(KEPT));
            while noted.front().is_some_and(|late| late.woke < oldest) {
                noted.pop_front();
            }
        }
        due = boot_time_ns() + nanos(NAP);
        probes.due[index].store(due, Ordering::Relaxed);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(late: &[Late]) -> Lateness {
        Lateness { probes: Arc::new(Probes { noted: Mutex::new(late.to_vec().into()), due: Vec::new() }) }
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn the_longest_that_overlaps_counts_for_every_hand() {
        let lateness = noted(&[
            Late { due: 100 * MS, woke: 110 * MS },
            Late { due: 200 * MS, woke: 250 * MS },
            Late { due: 300 * MS, woke: 302 * MS },
        ]);
        assert_eq!(lateness.between(0, 99 * MS), Duration::ZERO);
        assert_eq!(lateness.between(105 * MS, 120 * MS), Duration::from_millis(30));
        assert_eq!(lateness.between(0, 220 * MS), Duration::from_millis(150));
        assert_eq!(lateness.between(260 * MS, u64::MAX), Duration::ZERO, "what is normal is not late");
        assert_eq!(lateness.so_far(), Duration::from_millis(150));
    }

    #[test]
    fn a_probe_that_has_not_woken_yet_counts_too() {
        let now = boot_time_ns();
        let due = vec![AtomicU64::new(now - 20 * MS)];
        let lateness = Lateness { probes: Arc::new(Probes { noted: Mutex::default(), due }) };
        assert!(lateness.between(now - 10 * MS, now) >= Duration::from_millis(60));
    }
}
