//! Listeners: each gets everything, in order, and none can hold another up.

use std::sync::{Mutex, PoisonError};

use tokio::sync::mpsc;

/// Those who listen to values of one kind.
pub(crate) struct Listeners<T>(Mutex<Open<T>>);

/// None once nothing more will come.
type Open<T> = Option<Vec<mpsc::UnboundedSender<T>>>;

/// The values from the moment of listening on. What a slow listener has not read yet is kept for it.
pub(crate) struct Stream<T>(mpsc::UnboundedReceiver<T>);

impl<T> Default for Listeners<T> {
    fn default() -> Self {
        Self(Mutex::new(Some(Vec::new())))
    }
}

impl<T: Clone> Listeners<T> {
    pub(crate) fn listen(&self) -> Stream<T> {
        let (sender, receiver) = mpsc::unbounded_channel();
        if let Some(open) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            open.retain(|listener| !listener.is_closed());
            open.push(sender);
        }
        Stream(receiver)
    }

    /// Tells everyone. Listeners that have gone are forgotten.
    pub(crate) fn tell(&self, value: T) {
        if let Some(open) = &mut *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            open.retain(|listener| listener.send(value.clone()).is_ok());
        }
    }

    /// Nothing more will come: every stream ends.
    pub(crate) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

impl<T> Stream<T> {
    /// A stream that has ended.
    pub(crate) fn ended() -> Self {
        Self(mpsc::unbounded_channel().1)
    }

    /// The next value, or none once nothing more will come. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<T> {
        self.0.recv().await
    }

    /// The next value that has come already.
    pub(crate) fn try_next(&mut self) -> Option<T> {
        self.0.try_recv().ok()
    }
}
