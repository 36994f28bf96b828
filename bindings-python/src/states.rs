//! Changes of the connection's state.

use std::sync::Arc;

use pyo3::prelude::*;
use tokio::sync::{Mutex, watch};

use crate::guard::Engine;
use crate::operation::{Operation, Value};

/// A stream of the changes of the connection's state.
#[pyclass(frozen, module = "forelock._native")]
pub(crate) struct States {
    stream: Arc<Mutex<Engine<forelock::States>>>,
    closed: watch::Sender<bool>,
}

impl States {
    pub(crate) fn new(states: forelock::States) -> Self {
        Self { stream: Arc::new(Mutex::new(Engine::new(states))), closed: watch::Sender::new(false) }
    }
}

#[pymethods]
impl States {
    /// Ends with the next change, or with none once the client or this stream is closed.
    fn next(&self) -> Operation {
        let stream = self.stream.clone();
        let mut closed = self.closed.subscribe();
        Operation::new(async move {
            let next = async { stream.lock().await.next().await };
            let change = tokio::select! {
                biased;
                _ = closed.wait_for(|closed| *closed) => None,
                change = next => change,
            };
            Ok(Value::Change(change))
        })
    }

    /// Ends the stream, for whoever waits in it too.
    fn close(&self) {
        self.closed.send_replace(true);
    }
}
