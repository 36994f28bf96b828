//! What the engine counts, and whom it tells.

mod events;
mod listeners;
mod log_limit;
mod pauses;
mod transactions;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use events::{Event, Events};
pub(crate) use listeners::{Listeners, Unread};
pub(crate) use log_limit::LogLimit;
pub use pauses::{PauseMeter, Pauses};
pub(crate) use transactions::{Roots, Tokens};

use crate::queue::LostReason;
use crate::session::ConnectionState;

/// Counters and gauges of one client. All start at zero and only the gauges go down.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    acquires: AtomicU64,
    grants: AtomicU64,
    timeouts: AtomicU64,
    releases: AtomicU64,
    losses: [AtomicU64; LostReason::ALL.len()],
    suspended: AtomicU64,
    sessions_lost: AtomicU64,
    roots_recreated: AtomicU64,
    ids_went_backwards: AtomicU64,
    cleanup_pending: AtomicU64,
    ghosts: AtomicU64,
}

/// The counts of a client at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MetricsSnapshot {
    /// Acquires begun, try-acquires among them, re-entrant ones not.
    pub acquires: u64,
    /// Locks granted.
    pub grants: u64,
    /// Acquires that ended at their deadline.
    pub timeouts: u64,
    /// Locks released by their holder while they were held.
    pub releases: u64,
    /// How often the connection was suspended.
    pub suspended: u64,
    /// Sessions lost.
    pub sessions_lost: u64,
    /// How often a lock root was found to have been deleted and made again.
    pub roots_recreated: u64,
    /// How often the ensemble's transaction ids, and with them the tokens, were found to have gone backwards.
    pub ids_went_backwards: u64,
    /// A gauge: nodes that are no longer wanted and whose removal is not confirmed yet.
    pub cleanup_pending: u64,
    /// A gauge: creates of unknown outcome that were not found, and are looked for again because they may yet be applied.
    pub ghosts: u64,
    /// Locks lost, by the reason, in the order of [`LostReason::ALL`].
    losses: [u64; LostReason::ALL.len()],
}

impl MetricsSnapshot {
    /// Locks lost, for whatever reason.
    #[must_use]
    pub fn losses(&self) -> u64 {
        self.losses.iter().sum()
    }

    /// Locks lost for this reason.
    #[must_use]
    pub fn losses_for(&self, reason: LostReason) -> u64 {
        self.losses[reason as usize]
    }

    /// Locks lost, for each reason, in the order of [`LostReason::ALL`].
    pub fn losses_by_reason(&self) -> impl Iterator<Item = (LostReason, u64)> + use<> {
        LostReason::ALL.iter().copied().zip(self.losses)
    }
}

fn up(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Something that a gauge counts, until it is dropped.
pub(crate) struct Gauge {
    metrics: Arc<Metrics>,
    which: fn(&Metrics) -> &AtomicU64,
}

impl Gauge {
    fn up(metrics: &Arc<Metrics>, which: fn(&Metrics) -> &AtomicU64) -> Self {
        up(which(metrics));
        Self { metrics: metrics.clone(), which }
    }
}

impl Drop for Gauge {
    fn drop(&mut self) {
        (self.which)(&self.metrics).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Metrics {
    pub(crate) fn acquire(&self) {
        up(&self.acquires);
    }

    pub(crate) fn grant(&self) {
        up(&self.grants);
    }

    pub(crate) fn timeout(&self) {
        up(&self.timeouts);
    }

    pub(crate) fn release(&self) {
        up(&self.releases);
    }

    pub(crate) fn loss(&self, reason: LostReason) {
        up(&self.losses[reason as usize]);
    }

    pub(crate) fn state(&self, state: ConnectionState) {
        if state == ConnectionState::Suspended {
            up(&self.suspended);
        }
    }

    pub(crate) fn session_lost(&self) {
        up(&self.sessions_lost);
    }

    pub(crate) fn root_recreated(&self) {
        up(&self.roots_recreated);
    }

    pub(crate) fn ids_went_backwards(&self) {
        up(&self.ids_went_backwards);
    }

    /// One more clean-up is pending, until what is returned is dropped.
    pub(crate) fn cleanup(self: &Arc<Self>) -> Gauge {
        Gauge::up(self, |metrics| &metrics.cleanup_pending)
    }

    /// One more create is looked for, until what is returned is dropped.
    pub(crate) fn ghost(self: &Arc<Self>) -> Gauge {
        Gauge::up(self, |metrics| &metrics.ghosts)
    }

    pub(crate) fn snapshot(&self) -> MetricsSnapshot {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        MetricsSnapshot {
            acquires: read(&self.acquires),
            grants: read(&self.grants),
            timeouts: read(&self.timeouts),
            releases: read(&self.releases),
            losses: self.losses.each_ref().map(read),
            suspended: read(&self.suspended),
            sessions_lost: read(&self.sessions_lost),
            roots_recreated: read(&self.roots_recreated),
            ids_went_backwards: read(&self.ids_went_backwards),
            cleanup_pending: read(&self.cleanup_pending),
            ghosts: read(&self.ghosts),
        }
    }
}
