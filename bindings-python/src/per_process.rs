//! State of which every process has its own, a forked child a fresh one.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A value that is made anew in a forked child.
///
/// The parent's copy may be locked there by a thread that does not exist in the child, so the child never looks
/// at it. Old values are not freed: there is one for each process in the line of forks.
pub(crate) struct PerProcess<T> {
    current: AtomicPtr<Entry<T>>,
}

struct Entry<T> {
    pid: u32,
    value: T,
}

impl<T: Default + Sync + 'static> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self { current: AtomicPtr::new(ptr::null_mut()) }
    }

    /// This process's value.
    pub(crate) fn get(&self) -> &'static T {
        let pid = std::process::id();
        loop {
            let current = self.current.load(Ordering::Acquire);
            // SAFETY: a pointer that is not null was leaked below and is never freed.
            if let Some(entry) = unsafe { current.as_ref() }
                && entry.pid == pid
            {
                return &entry.value;
            }
            let fresh = Box::into_raw(Box::new(Entry { pid, value: T::default() }));
            if self.current.compare_exchange(current, fresh, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: nobody else has seen it.
                drop(unsafe { Box::from_raw(fresh) });
            }
        }
    }
}
