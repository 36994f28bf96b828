//! One direction of one connection: a line on which frames travel in order, with the faults that are on it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::Cut;
use crate::wait::lock;

/// The standing faults of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Faults {
    /// Whatever reaches the end of the line disappears. The end of the stream waits.
    pub swallow: bool,
    /// Nothing leaves the line; it keeps what it has and takes what comes.
    pub stall: bool,
    /// How long everything travels.
    pub delay: Duration,
}

/// What travels.
#[derive(Debug)]
pub(super) enum Load {
    /// Bytes, and their entry in the journal.
    Bytes(Vec<u8>, u64),
    /// The sender has closed its end.
    Eof,
    /// The sender's end was reset.
    Reset,
    /// The connection is to end, here and on the other line, whatever else is the matter.
    Cut(Cut),
    /// The line is to stall from here on.
    Stall,
}

/// What the end of the line is to do next.
#[derive(Debug)]
pub(super) enum Next {
    /// Write these bytes, of these entries.
    Write(Vec<u8>, Vec<u64>),
    /// These entries have disappeared.
    Swallowed(Vec<u64>),
    /// Close the writing end.
    Eof,
    /// End the connection.
    Cut(Cut),
    /// Look again when something changes, or at this time.
    Wait(Option<Instant>),
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    queue: VecDeque<(Instant, Load)>,
}

#[derive(Debug, Default)]
pub(super) struct Line {
    state: Mutex<State>,
    changed: Notify,
}

impl Line {
    pub(super) fn new(faults: Faults) -> Self {
        Self { state: Mutex::new(State { faults, queue: VecDeque::new() }), changed: Notify::new() }
    }

    /// Puts something on the line.
    pub(super) fn push(&self, load: Load) {
        lock(&self.state).queue.push_back((Instant::now(), load));
        self.changed.notify_one();
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut Faults)) {
        change(&mut lock(&self.state).faults);
        self.changed.notify_one();
    }

    /// Returns when [`next`](Self::next) may have another answer.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes from the line what is due at `now`. Bytes that are due together are written together, so frames
    /// that were sent together arrive together.
    pub(super) fn next(&self, now: Instant) -> Next {
        let mut state = lock(&self.state);
        let State { faults, queue } = &mut *state;
        let (mut bytes, mut entries) = (Vec::new(), Vec::new());
        while let Some((arrived, load)) = queue.front_mut() {
            if faults.stall {
                break;
            }
            let due = *arrived + faults.delay;
            if due > now {
                if entries.is_empty() {
                    return Next::Wait(Some(due));
                }
                break;
            }
            match load {
                Load::Bytes(more, entry) => {
                    entries.push(*entry);
                    bytes.append(more);
                    queue.pop_front();
                }
                Load::Stall => {
                    faults.stall = true;
                    queue.pop_front();
                }
                _ if !entries.is_empty() => break,
                Load::Cut(how) => return Next::Cut(*how),
                Load::Eof | Load::Reset if faults.swallow => break,
                Load::Reset => return Next::Cut(Cut::Rst),
                Load::Eof => {
                    queue.pop_front();
                    return Next::Eof;
                }
            }
        }
        match (entries.is_empty(), faults.swallow) {
            (true, _) => Next::Wait(None),
            (false, true) => Next::Swallowed(entries),
            (false, false) => Next::Write(bytes, entries),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn written(next: Next) -> Vec<u64> {
        match next {
            Next::Write(_, entries) => entries,
            other => panic!("not written: {other:?}"),
        }
    }

    #[test]
    fn a_delay_is_a_latency_and_not_a_limit() {
        let line = Line::new(Faults { delay: 20 * MS, ..Faults::default() });
        let start = Instant::now();
        (0..3).for_each(|entry| line.push(Load::Bytes(vec![0], entry)));
        assert!(matches!(line.next(start), Next::Wait(Some(_))));
        assert_eq!(written(line.next(start + 40 * MS)), [0, 1, 2]);
    }

    #[test]
    fn a_stall_keeps_the_order_and_a_hold_starts_one() {
        let line = Line::default();
        line.push(Load::Bytes(vec![0], 0));
        line.push(Load::Stall);
        line.push(Load::Bytes(vec![1], 1));
        line.push(Load::Eof);
        let now = Instant::now() + MS;
        assert_eq!(written(line.next(now)), [0]);
        assert!(matches!(line.next(now), Next::Wait(None)));
        line.change(|faults| faults.stall = false);
        assert_eq!(written(line.next(now)), [1]);
        assert!(matches!(line.next(now), Next::Eof));
    }

    #[test]
    fn a_black_hole_takes_bytes_and_keeps_the_end_of_the_stream() {
        let line = Line::new(Faults { swallow: true, ..Faults::default() });
        line.push(Load::Bytes(vec![0], 0));
        line.push(Load::Eof);
        let now = Instant::now() + MS;
        assert!(matches!(line.next(now), Next::Swallowed(entries) if entries == [0]));
        assert!(matches!(line.next(now), Next::Wait(None)));
        line.change(|faults| faults.swallow = false);
        assert!(matches!(line.next(now), Next::Eof));
    }
}
