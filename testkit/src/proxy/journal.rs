//! What passed the proxy, and when.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::entry::{Direction, Entry, Fate, What};
use crate::wait::{TimedOut, lock, off_thread};
use crate::wire::Op;

/// A place in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark(u64);

impl Mark {
    /// The place just after `entry`.
    #[must_use]
    pub fn after(entry: &Entry) -> Self {
        Self(entry.seq + 1)
    }
}

/// The journal of a proxy. Clones share it.
///
/// It keeps the newest entries up to its capacity, [`Journal::DEFAULT_CAPACITY`] unless stated at the start of
/// the proxy, and never lets a test overlook that it has forgotten the older ones: see [`since`](Self::since).
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    ring: Mutex<Ring>,
    changed: Condvar,
}

struct Ring {
    entries: VecDeque<Entry>,
    next: u64,
    capacity: usize,
}

impl Ring {
    fn first(&self) -> u64 {
        self.next - self.entries.len() as u64
    }

    fn from(&self, mark: Mark) -> impl Iterator<Item = &Entry> {
        let first = self.first();
        assert!(
            mark.0 >= first,
            "the journal has forgotten entries {} to {first}: raise its capacity",
            mark.0
        );
        self.entries.iter().skip(usize::try_from(mark.0 - first).unwrap_or(usize::MAX))
    }
}

impl Journal {
    /// How many entries a journal keeps unless told otherwise (about 20 MB when full).
    pub const DEFAULT_CAPACITY: usize = 65_536;

    pub(super) fn new(capacity: usize) -> Self {
        let ring = Ring { entries: VecDeque::new(), next: 0, capacity: capacity.max(1) };
        Self { inner: Arc::new(Inner { ring: Mutex::new(ring), changed: Condvar::new() }) }
    }

    pub(super) fn record(
        &self,
        connection: u64,
        session: i64,
        direction: Direction,
        what: What,
        fate: Fate,
    ) -> Entry {
        let (at, boot_ns) = (Instant::now(), boot_time_ns());
        let mut ring = lock(&self.inner.ring);
        let entry = Entry { seq: ring.next, at, boot_ns, connection, session, direction, what, fate };
        ring.next += 1;
        if ring.entries.len() == ring.capacity {
            ring.entries.pop_front();
        }
        ring.entries.push_back(entry.clone());
        self.inner.changed.notify_all();
        entry
    }

    pub(super) fn settle(&self, entries: &[u64], fate: Fate) {
        let mut ring = lock(&self.inner.ring);
        let first = ring.first();
        for seq in entries {
            let index = seq.checked_sub(first).and_then(|index| usize::try_from(index).ok());
            if let Some(entry) = index.and_then(|index| ring.entries.get_mut(index)) {
                entry.fate = fate;
            }
        }
        self.inner.changed.notify_all();
    }

    /// The present end.
    #[must_use]
    pub fn mark(&self) -> Mark {
        Mark(lock(&self.inner.ring).next)
    }

    /// All entries from `mark` on.
    ///
    /// # Panics
    /// When entries from there on have been forgotten: an assertion about them would prove nothing.
    #[must_use]
    pub fn since(&self, mark: Mark) -> Records {
        Records { entries: lock(&self.inner.ring).from(mark).cloned().collect() }
    }

    /// All entries from the start of the proxy on. Panics as [`since`](Self::since) does.
    #[must_use]
    pub fn all(&self) -> Records {
        self.since(Mark(0))
    }

    /// Blocks until an entry from `since` on fits, and returns the first that does.
    ///
    /// An entry is looked at again when it is delivered, so the predicate may ask for that.
    ///
    /// # Errors
    /// When none has come after `deadline`; the message shows the latest entries.
    ///
    /// # Panics
    /// As [`since`](Self::since) does.
    pub fn wait_for(
        &self,
        since: Mark,
        deadline: Duration,
        fits: impl Fn(&Entry) -> bool,
    ) -> Result<Entry, TimedOut> {
        self.wait_until(since, deadline, |entries| {
            entries.iter().find(|entry| fits(entry)).map(|&entry| entry.clone())
        })
    }

    /// Blocks until `answer` gets something out of the entries from `since` on; `wait_for` for questions about
    /// several entries.
    ///
    /// # Errors
    /// When there is no answer after `deadline`.
    ///
    /// # Panics
    /// As [`since`](Self::since) does.
    pub fn wait_until<T>(
        &self,
        since: Mark,
        deadline: Duration,
        answer: impl Fn(&[&Entry]) -> Option<T>,
    ) -> Result<T, TimedOut> {
        let start = Instant::now();
        let mut ring = lock(&self.inner.ring);
        loop {
            let entries: Vec<&Entry> = ring.from(since).collect();
            if let Some(answer) = answer(&entries) {
                return Ok(answer);
            }
            let waited = start.elapsed();
            if waited >= deadline {
                let latest = entries.iter().rev().take(20).rev();
                let latest: Vec<String> = latest.map(|entry| format!("\n  {entry}")).collect();
                let what =
                    format!("an entry in the journal; the latest of {}:{}", entries.len(), latest.concat());
                return Err(TimedOut { what, waited });
            }
            ring = match self.inner.changed.wait_timeout(ring, deadline - waited) {
                Ok((ring, _)) => ring,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// [`wait_for`](Self::wait_for) as a future. Dropping it is safe.
    ///
    /// # Errors
    /// As `wait_for`.
    pub async fn until(
        &self,
        since: Mark,
        deadline: Duration,
        fits: impl Fn(&Entry) -> bool + Send + 'static,
    ) -> Result<Entry, TimedOut> {
        let journal = self.clone();
        off_thread(move || journal.wait_for(since, deadline, fits)).await
    }
}

/// A stretch of the journal, in order of arrival. Behaves as a slice of entries.
#[derive(Debug, Clone, Default)]
pub struct Records {
    entries: Vec<Entry>,
}

impl Deref for Records {
    type Target = [Entry];

    fn deref(&self) -> &[Entry] {
        &self.entries
    }
}

impl fmt::Display for Records {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entries.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl Records {
    /// How many requests of this type there are.
    #[must_use]
    pub fn count(&self, op: Op) -> usize {
        self.iter().filter(|entry| entry.is_request_of(op)).count()
    }

    /// The requests.
    pub fn requests(&self) -> impl Iterator<Item = &Entry> {
        self.iter().filter(|entry| entry.is_request())
    }

    /// The replies.
    pub fn replies(&self) -> impl Iterator<Item = &Entry> {
        self.iter().filter(|entry| entry.is_reply())
    }

    /// The watch events.
    pub fn events(&self) -> impl Iterator<Item = &Entry> {
        self.iter().filter(|entry| entry.event().is_some())
    }

    /// The entries that fit.
    #[must_use]
    pub fn filter(&self, fits: impl Fn(&Entry) -> bool) -> Records {
        Records { entries: self.iter().filter(|entry| fits(entry)).cloned().collect() }
    }

    /// Whether, on some connection, a request of type `a` and one of type `b` were both seen before the reply
    /// to either.
    #[must_use]
    pub fn in_flight_together(&self, a: Op, b: Op) -> bool {
        let answered_at = |request: &Entry| {
            let reply = self.iter().find(|entry| {
                let same = entry.connection == request.connection && entry.xid() == request.xid();
                same && entry.seq > request.seq && entry.is_reply()
            });
            reply.map_or(u64::MAX, |reply| reply.seq)
        };
        self.requests().filter(|entry| entry.op() == Some(a)).any(|first| {
            let mut others = self.requests().filter(|entry| entry.op() == Some(b) && entry.seq != first.seq);
            others.any(|other| {
                let both = first.seq.max(other.seq);
                first.connection == other.connection && both < answered_at(first) && both < answered_at(other)
            })
        })
    }
}

/// CLOCK_BOOTTIME: goes on while the machine is suspended, and is one clock for all its processes.
#[must_use]
pub fn boot_time_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of our own; with a valid clock id the call cannot fail.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(time.tv_sec) * 1_000_000_000 + part(time.tv_nsec)
}
