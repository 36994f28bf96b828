//! Sessions: one supervisor owns the connection, a lease clock says until when the session can be relied on,
//! and listeners are told of every change of state.

mod beat;
mod connect;
mod hosts;
mod hub;
mod lanes;
mod lease;
mod retry;
mod states;
mod supervisor;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::env::{Clock, Moment};
use crate::watched::Watched;
use crate::zk::{SessionCredentials, SessionId};

pub(crate) use hub::{Hub, Link};
pub use hub::{SessionInfo, States};
pub(crate) use lanes::Pass;
pub use lease::{DEFAULT_TICK, heartbeat_interval, margin, survivable_outage};
pub use retry::RetryPolicy;
pub(crate) use retry::{RetryBudget, backoff};
pub use states::{ConnectionState, StateChange};
pub(crate) use supervisor::start;

/// What a live session sends to prove that it is alive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Heartbeat {
    /// A `sync`, which goes through the leader. A leader that has been deposed and does not know it yet may
    /// answer it: for about `syncLimit` ticks the old holder and a new one may overlap, and only the fencing
    /// token tells them apart.
    #[default]
    Session,
    /// A committed `multi` of one `check`, which only a quorum can answer. It writes to the transaction log
    /// and closes that window.
    Quorum,
}

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEnd {
    /// The server said that it has expired.
    Expired,
    /// The lease ran out unanswered.
    LeaseElapsed,
    /// The client was closed.
    Closed,
}

/// One session. It ends once, and never comes back to life.
pub(crate) struct Session {
    pub(crate) credentials: SessionCredentials,
    /// Counts the sessions of this process: the later one of two has the larger number.
    number: u64,
    clock: Arc<dyn Clock>,
    /// When the lease is over, in nanoseconds on the lease clock.
    deadline: AtomicU64,
    end: Watched<Option<SessionEnd>>,
    /// Whether the server has confirmed that the session is gone, and its ephemeral nodes with it.
    gone: Watched<bool>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("id", &self.id()).field("end", &self.end.get()).finish()
    }
}

impl Session {
    pub(crate) fn new(credentials: SessionCredentials, clock: Arc<dyn Clock>, deadline: Moment) -> Arc<Self> {
        static SESSIONS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            credentials,
            number: SESSIONS.fetch_add(1, Ordering::Relaxed),
            clock,
            deadline: AtomicU64::new(deadline.as_nanos()),
            end: Watched::new(None),
            gone: Watched::new(false),
        })
    }

    pub(crate) fn id(&self) -> SessionId {
        self.credentials.id
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn deadline(&self) -> Moment {
        Moment::from_nanos(self.deadline.load(Ordering::Acquire))
    }

    /// Moves the deadline, unless the lease has run out: then the session is over, whatever the server says.
    /// Returns whether it lives.
    pub(crate) fn set_deadline(&self, deadline: Moment) -> bool {
        if !self.is_live() {
            return false;
        }
        self.deadline.store(deadline.as_nanos(), Ordering::Release);
        true
    }

    /// Whether the session can be relied on at this moment. Reads the clock; once it has said no, it says no
    /// for ever.
    pub(crate) fn is_live(&self) -> bool {
        self.over().is_none()
    }

    /// As [`is_live`](Self::is_live), and changes nothing.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn looks_live(&self, now: Moment) -> bool {
        self.end.get().is_none() && now < self.deadline()
    }

    /// Why the session is over, if it is. Reads the clock.
    pub(crate) fn over(&self) -> Option<SessionEnd> {
        if let Some(end) = self.end.get() {
            return Some(end);
        }
        if self.clock.now() >= self.deadline() {
            return Some(self.finish(SessionEnd::LeaseElapsed));
        }
        None
    }

    /// How much longer the session can be relied on without hearing from the server.
    pub(crate) fn remaining(&self) -> Duration {
        if self.is_live() { self.deadline().since(self.clock.now()) } else { Duration::ZERO }
    }

    /// Ends the session, for the first reason given. Returns that reason.
    pub(crate) fn finish(&self, why: SessionEnd) -> SessionEnd {
        let mut first = why;
        self.end.update(|end| match end {
            Some(already) => {
                first = *already;
                false
            }
            None => {
                *end = Some(why);
                true
            }
        });
        first
    }

    /// Waits until the session is over. Cancel safe.
    pub(crate) async fn ended(&self) -> SessionEnd {
        match self.end.wait_until(Option::is_some).await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    /// The server has confirmed that the session is gone.
    pub(crate) fn confirm_gone(&self) {
        self.gone.set(true);
    }

    /// Waits until the server has confirmed that the session is gone. Cancel safe.
    pub(crate) async fn confirmed_gone(&self) {
        self.gone.wait_until(|gone| *gone).await;
    }
}
