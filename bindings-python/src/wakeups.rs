//! How the engine's thread says "look again" to Python without ever waiting for it.
//!
//! A waker puts the Python callable that it stands for into a queue. One Python thread takes them out and calls
//! them. So the engine's thread never takes the GIL, and no thread of ours has to be attached at interpreter
//! exit.

use std::mem;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Wake, Waker};

use pyo3::prelude::*;

use crate::per_process::PerProcess;

static QUEUE: PerProcess<Queue> = PerProcess::new();

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    woken: Vec<Py<PyAny>>,
    stopped: bool,
}

/// Calls a Python callable, once, after the future that it was given to has made progress.
struct Wakeup(Mutex<Option<Py<PyAny>>>);

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        let Some(callable) = self.0.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let queue = QUEUE.get();
        queue.state.lock().unwrap_or_else(PoisonError::into_inner).woken.push(callable);
        queue.filled.notify_one();
    }
}

/// A waker for which `callable` is called on the wakeup thread.
pub(crate) fn waker(callable: Py<PyAny>) -> Waker {
    Waker::from(Arc::new(Wakeup(Mutex::new(Some(callable)))))
}

/// Waits for wakeups and returns what is to be called; none once stopped. For the wakeup thread alone.
#[pyfunction]
pub(crate) fn next_wakeups(py: Python<'_>) -> Option<Vec<Py<PyAny>>> {
    py.detach(|| {
        let queue = QUEUE.get();
        let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.woken.is_empty() && !state.stopped {
            state = queue.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.stopped { None } else { Some(mem::take(&mut state.woken)) }
    })
}

/// Ends the wakeup thread, for interpreter exit.
#[pyfunction]
pub(crate) fn stop_wakeups() {
    let queue = QUEUE.get();
    queue.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
    queue.filled.notify_all();
}
