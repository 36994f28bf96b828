//! Waiting for something with a deadline, from sync and from async code.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a wait was for, when it did not come in time.
#[derive(Debug, Clone, thiserror::Error)]
#[error("timed out after {waited:?} waiting for {what}")]
pub struct TimedOut {
    /// What was waited for, with whatever helps to see why it did not come.
    pub what: String,
    /// How long the wait took.
    pub waited: Duration,
}

/// Runs a blocking call on a thread of its own and hands its result to the async caller.
///
/// Needs no particular executor. Dropping the future does not stop the call.
///
/// # Panics
/// When `call` panics.
pub async fn off_thread<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    let (send, receive) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = send.send(call());
    });
    receive.await.expect("the call panicked; its message is above")
}

/// Asks `probe` every few milliseconds until it answers, and at least once.
///
/// For what can only be looked at and does not announce itself.
pub(crate) fn poll_until<T>(
    what: impl FnOnce() -> String,
    deadline: Duration,
    mut probe: impl FnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    const INTERVAL: Duration = Duration::from_millis(5);
    let start = Instant::now();
    loop {
        if let Some(answer) = probe() {
            return Ok(answer);
        }
        let waited = start.elapsed();
        if waited >= deadline {
            return Err(TimedOut { what: what(), waited });
        }
        std::thread::sleep(INTERVAL.min(deadline - waited));
    }
}

/// Locks, also after another thread has panicked while holding the lock: a failing test must still be able to
/// clean up.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
