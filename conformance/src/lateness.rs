//! How late the machine itself is.
//!
//! On a machine that is busy with other things a thread may wait long for a processor after its timer has fired.
//! That says nothing about what is tested here, so upper limits are extended by it: a few threads do nothing but
//! sleep for a moment and note how late they woke.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use forelock_testkit::proxy::boot_time_ns;

/// How long a probe sleeps at a time.
const NAP: Duration = Duration::from_millis(4);
/// Being late by less is normal.
const NORMAL: Duration = Duration::from_millis(3);
/// What is noted is kept for so long.
const KEPT: Duration = Duration::from_secs(120);
/// How often, between a timer and the user's code, one thread wakes another: the engine's, the runtime's, the
/// user's own.
const HANDS: u32 = 3;

/// When a probe was late, and by how much.
type Notes = Mutex<VecDeque<(u64, Duration)>>;

/// Watches how late the machine is, for as long as it lives.
pub struct Lateness {
    notes: Arc<Notes>,
}

impl Lateness {
    /// Starts watching.
    #[must_use]
    pub fn watch() -> Self {
        let notes = Arc::new(Notes::default());
        let probes = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
        for _ in 0..probes {
            let notes = Arc::downgrade(&notes);
            std::thread::spawn(move || probe(&notes));
        }
        Self { notes }
    }

    /// By how much whatever happened between two moments may have been late, without anybody's fault.
    #[must_use]
    pub fn between(&self, from: u64, to: u64) -> Duration {
        let notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        let late = notes.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, late)| *late);
        late.max().unwrap_or_default() * HANDS
    }
}

fn probe(notes: &Weak<Notes>) {
    loop {
        let asleep = Instant::now();
        std::thread::sleep(NAP);
        let late = asleep.elapsed().saturating_sub(NAP);
        let Some(notes) = notes.upgrade() else { return };
        if late > NORMAL {
            let now = boot_time_ns();
            let mut notes = notes.lock().unwrap_or_else(PoisonError::into_inner);
            notes.push_back((now, late));
            let oldest = now.saturating_sub(u64::try_from(KEPT.as_nanos()).unwrap_or(u64::MAX));
            while notes.front().is_some_and(|(at, _)| *at < oldest) {
                notes.pop_front();
            }
        }
    }
}
