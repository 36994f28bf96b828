//! A value that others wait on.
//!
//! Those who wait are woken in the order in which they came. tokio's `watch` channel picks the order by chance, and a
//! schedule of the simulator would not replay.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A value that others wait on.
pub(crate) struct Watched<T> {
    inner: Mutex<Inner<T>>,
}

struct Inner<T> {
    value: T,
    next: u64,
    waiting: BTreeMap<u64, Waker>,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: Mutex::new(Inner { value, next: 0, waiting: BTreeMap::new() }) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the value and wakes everyone who waits.
    pub(crate) fn set(&self, value: T) {
        let mut before = None;
        self.update(|known| {
            before = Some(std::mem::replace(known, value));
            true
        });
        // Dropped outside the lock: there is no telling what it does.
        drop(before);
    }

    /// Changes the value in place, and wakes everyone who waits if `change` says that it did. Returns that.
    pub(crate) fn update(&self, change: impl FnOnce(&mut T) -> bool) -> bool {
        let mut inner = self.inner();
        let changed = change(&mut inner.value);
        let woken = if changed { std::mem::take(&mut inner.waiting) } else { BTreeMap::new() };
        drop(inner);
        woken.into_values().for_each(Waker::wake);
        changed
    }
}

impl<T: Clone> Watched<T> {
    /// The value at this moment.
    pub(crate) fn get(&self) -> T {
        self.inner().value.clone()
    }

    /// Waits until the value is as wanted: at once if it is so already. Cancel safe.
    pub(crate) fn wait_until<F>(&self, wanted: F) -> Waiting<'_, T, F>
    where
        F: Fn(&T) -> bool,
    {
        Waiting { watched: self, wanted, place: None }
    }
}

impl<T: fmt::Debug> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner().value.fmt(f)
    }
}

/// Waits for a value; see [`Watched::wait_until`].
pub(crate) struct Waiting<'a, T, F> {
    watched: &'a Watched<T>,
    wanted: F,
    place: Option<u64>,
}

impl<T: Clone, F: Fn(&T) -> bool + Unpin> Future for Waiting<'_, T, F> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let mut inner = self.watched.inner();
        let place = match self.place {
            Some(place) if inner.waiting.contains_key(&place) => place,
            _ => {
                inner.next += 1;
                inner.next
            }
        };
        // Before the value is looked at, so that no change is missed.
        let before = inner.waiting.insert(place, cx.waker().clone());
        let value = inner.value.clone();
        drop(inner);
        drop(before);
        self.place = Some(place);
        // Outside the lock, since it may look at anything.
        if (self.wanted)(&value) { Poll::Ready(value) } else { Poll::Pending }
    }
}

impl<T, F> Drop for Waiting<'_, T, F> {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            let waker = self.watched.inner().waiting.remove(&place);
            drop(waker);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use std::sync::Arc;

    #[test]
    fn waits_until_the_value_is_as_wanted() {
        let watched = Watched::new(1);
        let mut waiting = Box::pin(watched.wait_until(|value| *value > 2));
        assert_eq!((&mut waiting).now_or_never(), None);
        watched.set(2);
        assert_eq!((&mut waiting).now_or_never(), None);
        assert!(watched.update(|value| {
            *value += 1;
            true
        }));
        assert_eq!(waiting.now_or_never(), Some(3));
        assert_eq!(watched.get(), 3);
        assert!(watched.inner().waiting.is_empty());
    }

    #[test]
    fn those_who_wait_are_woken_in_the_order_in_which_they_came() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let watched = Arc::new(Watched::new(false));
            let order = Arc::new(Mutex::new(Vec::new()));
            let tasks: Vec<_> = (0..50)
                .map(|number| {
                    let (watched, order) = (watched.clone(), order.clone());
                    tokio::spawn(async move {
                        watched.wait_until(|go| *go).await;
                        order.lock().expect("alone").push(number);
                    })
                })
                .collect();
            tokio::task::yield_now().await;
            watched.set(true);
            for task in tasks {
                task.await.expect("no panic");
            }
            assert_eq!(*order.lock().expect("alone"), (0..50).collect::<Vec<_>>());
        });
    }
}
