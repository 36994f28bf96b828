//! What keeps a panic, and a fork, from doing harm on the way between the engine and Python.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use forelock::{Error, ErrorCode, Result};

/// Runs `work`, and makes an error of a panic.
///
/// # Errors
/// Those of `work`, and `INTERNAL` for a panic.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Err(Error::new(ErrorCode::Internal, format!("the engine panicked: {text}")))
    })
}

/// A value of the engine that is left alone when it is dropped in a forked child: its locks may be held by
/// threads that do not exist there. A panic in its drop ends here.
pub(crate) struct Engine<T> {
    value: ManuallyDrop<T>,
    pid: u32,
}

impl<T> Engine<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), pid: std::process::id() }
    }

    pub(crate) fn into_inner(self) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: the drop that would take the value again does not run.
        unsafe { ManuallyDrop::take(&mut this.value) }
    }
}

impl<T> Deref for Engine<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Engine<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T> Drop for Engine<T> {
    fn drop(&mut self) {
        if self.pid != std::process::id() {
            return;
        }
        // SAFETY: this is the drop, so the value is taken once and not used after.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        if catch_unwind(AssertUnwindSafe(move || drop(value))).is_err() {
            tracing::error!("the engine panicked in a drop");
        }
    }
}
