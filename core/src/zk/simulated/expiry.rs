//! How a leader decides that a session is over.
//!
//! Deadlines are rounded up to the next tick, always to a later one, and the sessions of a tick expire together.

use std::collections::BTreeMap;

use super::Nanos;

#[derive(Clone, Copy, Debug)]
struct Tracked {
    deadline: Nanos,
    closing: bool,
}

/// The leader's view of who is alive.
#[derive(Debug)]
pub(super) struct Expiry {
    tick: Nanos,
    /// Where in time the ticks of this leader lie.
    phase: Nanos,
    sessions: BTreeMap<i64, Tracked>,
}

impl Expiry {
    pub fn new(tick: Nanos, phase: Nanos) -> Self {
        Self { tick, phase: phase % tick, sessions: BTreeMap::new() }
    }

    /// The first tick that is later than `time`.
    pub fn next_tick(&self, time: Nanos) -> Nanos {
        ((time + self.tick - self.phase) / self.tick) * self.tick + self.phase
    }

    pub fn track(&mut self, session: i64, now: Nanos, timeout: Nanos) {
        let deadline = self.next_tick(now + timeout);
        self.sessions.insert(session, Tracked { deadline, closing: false });
    }

    /// Hears of a session. False if it is over or about to be. A shorter timeout brings the deadline forward.
    pub fn touch(&mut self, session: i64, now: Nanos, timeout: Nanos) -> bool {
        let deadline = self.next_tick(now + timeout);
        match self.sessions.get_mut(&session) {
            Some(tracked) if !tracked.closing => {
                tracked.deadline = deadline;
                true
            }
            _ => false,
        }
    }

    pub fn is_alive(&self, session: i64) -> bool {
        self.sessions.get(&session).is_some_and(|tracked| !tracked.closing)
    }

    /// Marks a session as about to be closed. False if it is so already.
    pub fn start_closing(&mut self, session: i64) -> bool {
        match self.sessions.get_mut(&session) {
            Some(tracked) if !tracked.closing => {
                tracked.closing = true;
                true
            }
            _ => false,
        }
    }

    pub fn forget(&mut self, session: i64) {
        self.sessions.remove(&session);
    }

    /// The sessions whose deadline has come.
    pub fn due(&self, now: Nanos) -> Vec<i64> {
        let due = self.sessions.iter().filter(|(_, tracked)| !tracked.closing && tracked.deadline <= now);
        due.map(|(id, _)| *id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_rounded_up_to_a_later_tick() {
        for phase in [0, 3, 9] {
            let mut expiry = Expiry::new(10, phase);
            for now in 100..130 {
                expiry.track(1, now, 40);
                assert!(expiry.due(now + 40).is_empty(), "not before its time: phase {phase}, {now}");
                assert_eq!(expiry.due(now + 50), [1], "within a tick after: phase {phase}, {now}");
                assert_eq!((expiry.next_tick(now) + 10 - phase) % 10, 0);
            }
        }
    }

    #[test]
    fn a_session_that_is_closing_cannot_be_touched() {
        let mut expiry = Expiry::new(10, 0);
        expiry.track(1, 0, 40);
        assert!(expiry.touch(1, 20, 40));
        assert!(expiry.due(50).is_empty());
        assert!(expiry.start_closing(1));
        assert!(!expiry.touch(1, 30, 40));
        assert!(!expiry.is_alive(1));
        assert!(expiry.due(1000).is_empty());
    }
}
