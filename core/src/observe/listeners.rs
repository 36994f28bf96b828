//! Listeners: each gets everything, in order, and none can hold another up.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(feature = "stream")]
use std::task::{Context, Poll};

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;

/// How many values a listener may leave unread. Its stream ends after that many: what it sees never has a gap.
const MOST_UNREAD: usize = 100_000;

/// Those who listen to values of one kind.
pub(crate) struct Listeners<T>(Mutex<Open<T>>);

/// None once nothing more will come.
type Open<T> = Option<Vec<Listener<T>>>;

struct Listener<T> {
    sender: mpsc::Sender<T>,
    overrun: Arc<AtomicBool>,
}

/// The values from the moment of listening on. What a slow listener has not read yet is kept for it.
pub(crate) struct Unread<T> {
    values: mpsc::Receiver<T>,
    overrun: Arc<AtomicBool>,
}

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl<T: Clone> Listeners<T> {
    pub(crate) fn listen(&self) -> Unread<T> {
        // Takes up room only for what is unread.
        let (sender, values) = mpsc::channel(MOST_UNREAD);
        let overrun = Arc::new(AtomicBool::new(false));
        if let Some(open) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            open.retain(|listener| !listener.sender.is_closed());
            open.push(Listener { sender, overrun: overrun.clone() });
        }
        Unread { values, overrun }
    }

    /// Tells everyone. Listeners that have gone, or have left too much unread, are forgotten.
    pub(crate) fn tell(&self, value: T) {
        let mut overrun = 0;
        if let Some(open) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            open.retain(|listener| match listener.sender.try_send(value.clone()) {
                Ok(()) => true,
                Err(TrySendError::Closed(_)) => false,
                Err(TrySendError::Full(_)) => {
                    listener.overrun.store(true, Ordering::Release);
                    overrun += 1;
                    false
                }
            });
        }
        if overrun > 0 {
            tracing::warn!(
                overrun,
                "a listener has left {MOST_UNREAD} states or events unread, and is told no more: read them, or drop it"
            );
        }
    }

    /// Nothing more will come: every stream ends.
    pub(crate) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<T> Unread<T> {
    /// A stream that has ended.
    pub(crate) fn ended() -> Self {
        Self { values: mpsc::channel(1).1, overrun: Arc::default() }
    }

    /// The next value, or none once nothing more will come. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<T> {
        self.values.recv().await
    }

    /// The next value that has come already.
    pub(crate) fn try_next(&mut self) -> Option<T> {
        self.values.try_recv().ok()
    }

    #[cfg(feature = "stream")]
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.values.poll_recv(cx)
    }

    /// How many values are unread.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Whether so much was left unread that something was not told any more.
    pub(crate) fn has_overrun(&self) -> bool {
        self.overrun.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged::warnings;

    #[test]
    fn a_listener_that_never_reads_is_told_so_much_without_a_gap_and_then_no_more() {
        let lines = warnings(|| {
            let listeners = Listeners::default();
            let (mut lazy, mut eager) = (listeners.listen(), listeners.listen());
            for value in 0..MOST_UNREAD + 10 {
                listeners.tell(value);
                assert_eq!(eager.try_next(), Some(value), "nobody is held up by another");
            }
            assert!(lazy.has_overrun() && !eager.has_overrun());
            assert_eq!(lazy.len(), MOST_UNREAD);
            assert!((0..MOST_UNREAD).all(|value| lazy.try_next() == Some(value)));
            listeners.tell(0);
            assert_eq!(lazy.try_next(), None, "it has ended");
            assert_eq!(eager.try_next(), Some(0));
        });
        assert_eq!(lines.len(), 1, "{lines:#?}");
    }
}
