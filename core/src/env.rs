//! What the engine needs from the world besides ZooKeeper: a clock, a place to run tasks, and chance.
//!
//! The engine takes all three from an [`Env`], so that the same code runs on a real machine and, unchanged,
//! in a deterministic simulation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::zk::Connector;

/// A future that owns everything it needs.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// A point on the lease clock: nanoseconds on a clock that goes on while the machine is suspended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The moment so many nanoseconds after the clock's own zero.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's own zero.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time from `earlier` to this moment, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Moment) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The moment `by` later, capped at the end of time.
    #[must_use]
    pub fn plus(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The moment `by` earlier, or the clock's zero.
    #[must_use]
    pub fn minus(self, by: Duration) -> Moment {
        Moment(self.0.saturating_sub(u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// Reads the lease clock.
pub trait Clock: Send + Sync + 'static {
    /// The present moment. Goes on while the process is stopped and while the machine is suspended.
    fn now(&self) -> Moment;
}

/// Runs tasks to their end, on a thread that never enters a language runtime.
pub trait Spawner: Send + Sync + 'static {
    /// Starts `task`. It must be polled inside a tokio runtime with timers.
    fn spawn(&self, task: BoxFuture<()>);

    /// Makes sure that tasks can be run.
    ///
    /// # Errors
    /// `FORKED` in a child of the process whose thread it is; `OUT_OF_RESOURCES` if there can be no thread.
    fn ready(&self) -> crate::error::Result<()> {
        Ok(())
    }

    /// Whether its tasks end with the process, so that clients have to be closed before that.
    fn ends_with_process(&self) -> bool {
        false
    }
}

/// Where chance comes from: back-off jitter, choice of host, and the GUIDs of lock nodes.
pub trait Chance: Send + Sync + 'static {
    /// A random number, uniform over all 64-bit values.
    fn next_u64(&self) -> u64;
}

/// The world as the engine sees it.
#[derive(Clone)]
pub struct Env {
    /// The lease clock.
    pub clock: Arc<dyn Clock>,
    /// Where tasks run.
    pub spawner: Arc<dyn Spawner>,
    /// Where chance comes from.
    pub chance: Arc<dyn Chance>,
    /// How to reach a ZooKeeper server.
    pub connector: Arc<dyn Connector>,
}

impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").field("now", &self.now()).finish_non_exhaustive()
    }
}

impl Env {
    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Starts a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.spawner.spawn(Box::pin(task));
    }

    /// Sleeps until `deadline` on the lease clock; for ever when there is none.
    ///
    /// tokio's timers stop while the machine is suspended and the lease clock does not, so the clock is read
    /// again at each wake-up.
    pub async fn sleep_until(&self, deadline: Option<Moment>) {
        let Some(deadline) = deadline else { return std::future::pending().await };
        loop {
            let left = deadline.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Sleeps for `duration` on the lease clock.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(Some(self.now().plus(duration))).await;
    }

    /// A random fraction, from zero up to and without one.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        const BITS: u32 = 53;
        (self.chance.next_u64() >> (64 - BITS)) as f64 / (1_u64 << BITS) as f64
    }
}
