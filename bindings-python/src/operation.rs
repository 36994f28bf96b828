//! One future of the engine, as Python drives it: from a thread that blocks, or from an event loop.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use forelock::{Error, ErrorCode, LostReason, Result, StateChange};
use pyo3::prelude::*;

use crate::arguments::optional_seconds;
use crate::errors::{change_tuple, python_error};
use crate::guard::{Engine, guarded};
use crate::held::HeldLock;
use crate::wakeups;

/// How often the main thread looks for signals while it waits: how long Ctrl-C may take to be noticed.
const SIGNALS: Duration = Duration::from_millis(50);

/// What a future of the engine ends with.
pub(crate) enum Value {
    Nothing,
    Number(i64),
    Lock(Option<forelock::HeldLock>),
    Reason(Option<LostReason>),
    Change(Option<StateChange>),
}

impl Value {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Self::Nothing | Self::Lock(None) | Self::Reason(None) | Self::Change(None) => Ok(py.None()),
            Self::Number(number) => Ok(number.into_pyobject(py)?.into_any().unbind()),
            Self::Lock(Some(lock)) => Ok(Py::new(py, HeldLock::new(lock))?.into_any()),
            Self::Reason(Some(reason)) => Ok(reason.as_str().into_pyobject(py)?.into_any().unbind()),
            Self::Change(Some(change)) => Ok(change_tuple(change).into_pyobject(py)?.into_any().unbind()),
        }
    }
}

type BoxFuture = Pin<Box<dyn Future<Output = Result<Value>> + Send>>;

enum Slot {
    /// Not finished, and nobody waits.
    Pending(Engine<BoxFuture>),
    /// A thread waits and has the future.
    Waiting,
    /// Finished, and the value not taken yet.
    Ready(Engine<Result<Value>>),
    /// The value was taken, or the operation cancelled.
    Over,
}

/// An operation of the engine that has been asked for. It begins when it is first waited for or polled.
///
/// Dropping or cancelling it cancels the operation; a lock that was granted at that moment is released.
#[pyclass(frozen, module = "forelock._native")]
pub(crate) struct Operation(Mutex<Slot>);

impl Operation {
    pub(crate) fn new(future: impl Future<Output = Result<Value>> + Send + 'static) -> Self {
        Self(Mutex::new(Slot::Pending(Engine::new(Box::pin(future)))))
    }

    fn slot(&self) -> MutexGuard<'_, Slot> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Operation {
    /// Waits until the operation has finished, at most for `timeout` seconds; whether it has.
    ///
    /// Other threads run meanwhile. On the main thread signal handlers run too, and an exception from one, such
    /// as KeyboardInterrupt, cancels the operation.
    #[pyo3(signature = (timeout: "float | None" = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<&Bound<'_, PyAny>>) -> PyResult<bool> {
        let until = match timeout {
            Some(timeout) => optional_seconds("timeout", timeout)?,
            None => None,
        };
        let until = until.and_then(|timeout| Instant::now().checked_add(timeout));
        let before = mem::replace(&mut *self.slot(), Slot::Waiting);
        let mut future = match before {
            Slot::Pending(future) => future,
            other => {
                let ready = matches!(other, Slot::Ready(_));
                *self.slot() = other;
                return if ready { Ok(true) } else { Err(misused()) };
            }
        };
        let pid = std::process::id();
        // Signals are the main thread's alone. Which thread that is need not be asked for a short wait.
        let mut looks_for_signals = None;
        loop {
            let next_look = (looks_for_signals != Some(false)).then(|| Instant::now() + SIGNALS);
            let pause = [until, next_look].into_iter().flatten().min();
            let finished = py.detach(|| drive(&mut future, pause));
            if let Some(result) = finished {
                *self.slot() = Slot::Ready(Engine::new(result));
                return Ok(true);
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                *self.slot() = Slot::Pending(future);
                return Ok(false);
            }
            let signal = py.check_signals();
            let forked = pid != std::process::id();
            if signal.is_err() || forked {
                *self.slot() = Slot::Over;
                drop(future);
                signal?;
                // A signal handler forked, and this is the child: nobody will ever answer here.
                return Err(python_error(Error::new(
                    ErrorCode::Forked,
                    "this process was forked while it waited",
                )));
            }
            if looks_for_signals.is_none() {
                looks_for_signals = Some(is_main_thread(py)?);
            }
        }
    }

    /// Waits until the operation has finished, and returns or raises what it ended with.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.wait(py, None)?;
        self.take(py)
    }

    /// Whether the operation has finished. If not, `wake` is called once it is worth asking again: on the wakeup
    /// thread, and at most once.
    fn poll(&self, wake: Py<PyAny>) -> PyResult<bool> {
        let mut slot = self.slot();
        match &mut *slot {
            Slot::Pending(future) => {
                let waker = wakeups::waker(wake);
                let Poll::Ready(result) = poll_guarded(future, &waker) else { return Ok(false) };
                *slot = Slot::Ready(Engine::new(result));
                Ok(true)
            }
            Slot::Ready(_) => Ok(true),
            Slot::Waiting | Slot::Over => Err(misused()),
        }
    }

    /// Returns or raises what the operation has ended with. Once.
    fn take(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let mut slot = self.slot();
        let Slot::Ready(_) = &*slot else { return Err(misused()) };
        let Slot::Ready(result) = mem::replace(&mut *slot, Slot::Over) else { return Err(misused()) };
        drop(slot);
        result.into_inner().map_err(python_error)?.into_python(py)
    }

    /// Cancels the operation, and gives up what it has ended with. Does nothing while a thread waits in it.
    fn cancel(&self) {
        let mut slot = self.slot();
        if matches!(&*slot, Slot::Waiting) {
            return;
        }
        let old = mem::replace(&mut *slot, Slot::Over);
        drop(slot);
        drop(old);
    }
}

fn misused() -> PyErr {
    python_error(Error::new(ErrorCode::Internal, "the operation is over, or another thread waits in it"))
}

fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    let threading = py.import("threading")?;
    let main = threading.call_method0("main_thread")?.getattr("ident")?;
    threading.call_method0("get_ident")?.eq(main)
}

/// Polls `future` on this thread until it is ready, at most until `until`.
fn drive(future: &mut Engine<BoxFuture>, until: Option<Instant>) -> Option<Result<Value>> {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    loop {
        if let Poll::Ready(result) = poll_guarded(future, &waker) {
            return Some(result);
        }
        match until {
            None => thread::park(),
            Some(until) => {
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                thread::park_timeout(left);
            }
        }
    }
}

fn poll_guarded(future: &mut Engine<BoxFuture>, waker: &Waker) -> Poll<Result<Value>> {
    let polled = guarded(|| Ok(future.as_mut().poll(&mut Context::from_waker(waker))));
    polled.unwrap_or_else(|error| Poll::Ready(Err(error)))
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
