//! At the normal exit of the process, the sessions of its clients are closed, so that nobody waits for them to expire.
//!
//! Whoever returns from `main` or calls `exit` ends the engine's thread in the middle of its work. So the exit waits,
//! for a bounded time, until the servers have been told.

use std::sync::{Arc, Mutex, Once, PoisonError, Weak, mpsc};
use std::time::Duration;

use crate::session::Hub;

/// The longest that the exit of the process waits.
const BOUND: Duration = Duration::from_secs(2);

/// The process that registered the hook, and its clients.
static CLIENTS: Mutex<(u32, Vec<Weak<Hub>>)> = Mutex::new((0, Vec::new()));

/// Closes this client when the process exits, unless it is gone by then.
pub(crate) fn close_at_exit(hub: &Arc<Hub>) {
    static HOOK: Once = Once::new();
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.0 = std::process::id();
    clients.1.retain(|client| client.strong_count() > 0);
    clients.1.push(Arc::downgrade(hub));
    drop(clients);
    HOOK.call_once(|| {
        // SAFETY: the function is ours and takes nothing. Where there is no room for it, the sessions expire instead.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    // A panic must not unwind into the C library.
    let _ = std::panic::catch_unwind(close_all);
}

fn close_all() {
    // In a forked child the lock may be held by a thread that does not exist here.
    let Ok(mut clients) = CLIENTS.try_lock() else { return };
    let (pid, clients) = std::mem::take(&mut *clients);
    if pid != std::process::id() {
        return;
    }
    let (done, closed) = mpsc::channel::<()>();
    for hub in clients.iter().filter_map(Weak::upgrade) {
        hub.start_closing();
        let done = done.clone();
        let env = hub.env.clone();
        env.spawn(async move {
            hub.closed().await;
            drop(done);
        });
    }
    drop(done);
    // Ends when every client has dropped its end, or the time is up.
    let _ = closed.recv_timeout(BOUND);
}
