//! The native part of Forelock's Python package: the engine's types, its futures, and its log.
//!
//! Thin by intent. What Python sees as a class, a context manager or a coroutine is written in Python, over these
//! types; what a lock is, how it waits and when it is lost is decided in the engine.
//!
//! - `operation` is one future of the engine, driven by a blocked thread or by an event loop.
//! - `wakeups` carries "look again" from the engine's thread to one Python thread.
//! - `logs` carries the engine's events to another.
//! - `uninterrupted` is the way out of a block.
//! - `client`, `mutex`, `held`, `states`, `options` and `errors` translate.

mod arguments;
mod client;
mod errors;
mod guard;
mod held;
mod logs;
mod mutex;
mod operation;
mod options;
mod per_process;
mod states;
mod uninterrupted;
mod wakeups;

/// The engine, for the Python layer of this package alone.
#[pyo3::pymodule(gil_used = true)]
mod _native {
    #[pymodule_export]
    use crate::client::{Client, lock_path};
    #[pymodule_export]
    use crate::errors::{connection_states, every_error, lost_reasons};
    #[pymodule_export]
    use crate::held::HeldLock;
    #[pymodule_export]
    use crate::logs::{next_records, set_log_level, stop_records};
    #[pymodule_export]
    use crate::mutex::Mutex;
    #[pymodule_export]
    use crate::operation::Operation;
    #[pymodule_export]
    use crate::states::States;
    #[pymodule_export]
    use crate::uninterrupted::Uninterrupted;
    #[pymodule_export]
    use crate::wakeups::{next_wakeups, stop_wakeups};

    #[pymodule_init]
    fn init() {
        crate::logs::install();
    }
}
