//! How many requests a client lets be under way, so that a crowd of acquires can't keep the heartbeats waiting.
//!
//! Requests travel on one stream, and the engine has one thread: whatever is ahead of a heartbeat, on the wire or among the
//! tasks that can run, delays it. So no more than a few hundred users of a client send requests at a time. Those who enter
//! a queue, or look at it again, take turns in one lane; releases and clean-up in another, which lets others in. Both
//! are first come, first served. Heartbeats wait for nobody.

use tokio::sync::{Semaphore, SemaphorePermit};

/// How many users of a lane may have requests under way. Enough to keep a server busy over a round trip of tens of
/// milliseconds; few enough to be answered within a fraction of the shortest session.
const WIDTH: usize = 256;

/// The lanes of one client.
pub(crate) struct Lanes {
    entering: Semaphore,
    leaving: Semaphore,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        Self { entering: Semaphore::new(WIDTH), leaving: Semaphore::new(WIDTH) }
    }

    /// Waits for a turn to enter a queue or to look at it. The turn ends when what is returned is dropped. Cancel safe.
    pub(crate) async fn enter(&self) -> Pass<'_> {
        pass(&self.entering).await
    }

    /// Waits for a turn to remove a node. The turn ends when what is returned is dropped. Cancel safe.
    pub(crate) async fn leave(&self) -> Pass<'_> {
        pass(&self.leaving).await
    }
}

/// A turn in a lane, held for as long as requests are under way.
pub(crate) struct Pass<'a>(#[expect(dead_code, reason = "held for its drop")] SemaphorePermit<'a>);

async fn pass(lane: &Semaphore) -> Pass<'_> {
    match lane.acquire().await {
        Ok(permit) => Pass(permit),
        // The lanes are never closed.
        Err(_) => std::future::pending().await,
    }
}
