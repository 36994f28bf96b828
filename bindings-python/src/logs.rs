//! The engine's events, on their way to Python's `logging`.
//!
//! They wait in a bounded queue for one Python thread, so that a slow handler, or the GIL, never holds the engine
//! up. What does not fit is counted and dropped.

use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::mem;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Level, Metadata, Subscriber};

use crate::per_process::PerProcess;

/// How many records may wait.
const CAPACITY: usize = 4096;

static QUEUE: PerProcess<Queue> = PerProcess::new();
/// Python's number of the lowest level that is passed on.
static LEVEL: AtomicU8 = AtomicU8::new(INFO);

const TRACE: u8 = 5;
const DEBUG: u8 = 10;
const INFO: u8 = 20;
const WARNING: u8 = 30;
const ERROR: u8 = 40;

/// A level by Python's number, and a message.
type Record = (u8, String);

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    filled: Condvar,
}

#[derive(Default)]
struct State {
    records: VecDeque<Record>,
    dropped: usize,
    stopped: bool,
}

/// Takes the engine's events from now on.
pub(crate) fn install() {
    // It fails only when the module is initialised a second time in one process: then it is installed already.
    let _ = tracing::subscriber::set_global_default(ToPython);
}

/// Passes on events at this level and above, by Python's numbers.
#[pyfunction]
pub(crate) fn set_log_level(level: u32) {
    LEVEL.store(u8::try_from(level).unwrap_or(u8::MAX), Ordering::Relaxed);
}

/// Waits for records and returns them as pairs of level and message; none once stopped and empty. For the log
/// thread alone.
#[pyfunction]
pub(crate) fn next_records(py: Python<'_>) -> Option<Vec<Record>> {
    py.detach(|| {
        let queue = QUEUE.get();
        let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.records.is_empty() && !state.stopped {
            state = queue.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let mut records: Vec<_> = state.records.drain(..).collect();
        let dropped = mem::take(&mut state.dropped);
        if dropped > 0 {
            records.push((WARNING, format!("{dropped} messages of the engine did not fit and were dropped")));
        }
        if records.is_empty() { None } else { Some(records) }
    })
}

/// Ends the log thread once the queue is empty, for interpreter exit.
#[pyfunction]
pub(crate) fn stop_records() {
    let queue = QUEUE.get();
    queue.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
    queue.filled.notify_all();
}

const fn python_level(level: Level) -> u8 {
    match level {
        Level::TRACE => TRACE,
        Level::DEBUG => DEBUG,
        Level::INFO => INFO,
        Level::WARN => WARNING,
        Level::ERROR => ERROR,
    }
}

/// The lowest level at which a crate is heard. Those below the engine tell of each connection in their own words, at
/// their own levels, and the engine has told of it already.
fn lowest_of(target: &str) -> u8 {
    let ours = ["forelock", env!("CARGO_CRATE_NAME")];
    if ours.iter().any(|name| target.split("::").next() == Some(name)) { TRACE } else { ERROR }
}

struct ToPython;

impl Subscriber for ToPython {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let level = python_level(*metadata.level());
        metadata.is_event() && level >= LEVEL.load(Ordering::Relaxed).max(lowest_of(metadata.target()))
    }

    fn register_callsite(&self, _: &'static Metadata<'static>) -> tracing::subscriber::Interest {
        // The level may change at any time.
        tracing::subscriber::Interest::sometimes()
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let record = (python_level(*event.metadata().level()), text.finish());
        let queue = QUEUE.get();
        let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stopped {
            return;
        }
        if state.records.len() == CAPACITY {
            state.dropped += 1;
            return;
        }
        state.records.push_back(record);
        queue.filled.notify_one();
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// An event in words: its message, and its fields as `name=value`.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn finish(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing into a string does not fail.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
