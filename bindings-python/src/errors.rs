//! The engine's words in Python: exceptions, reasons and states.

use forelock::{ConnectionState, Error, ErrorCode, LostReason, StateChange};
use pyo3::prelude::*;

/// The exceptions, which are written in Python.
mod python {
    use pyo3::import_exception;

    import_exception!(forelock.errors, AcquireTimeout);
    import_exception!(forelock.errors, ClientClosed);
    import_exception!(forelock.errors, Conflict);
    import_exception!(forelock.errors, ConnectionLost);
    import_exception!(forelock.errors, ForelockError);
    import_exception!(forelock.errors, Forked);
    import_exception!(forelock.errors, InvalidArgument);
    import_exception!(forelock.errors, LeaseTooShort);
    import_exception!(forelock.errors, LockLost);
    import_exception!(forelock.errors, NotAcquired);
    import_exception!(forelock.errors, NotOwner);
    import_exception!(forelock.errors, NotPermitted);
    import_exception!(forelock.errors, OutOfResources);
}

/// The exception for an error of the engine: the one place that knows which code is which class.
pub(crate) fn python_error(error: Error) -> PyErr {
    let message = error.to_string();
    let path = error.path().map(str::to_owned);
    let holder = error.holder().map(str::to_owned);
    let waited = error.waited().map(|waited| waited.as_secs_f64());
    let reason = error.lost_reason().map(LostReason::as_str);
    let arguments = (message, path, holder, waited, reason);
    match error.code() {
        ErrorCode::InvalidArgument => python::InvalidArgument::new_err(arguments),
        ErrorCode::TimedOut => python::AcquireTimeout::new_err(arguments),
        ErrorCode::NotAcquired => python::NotAcquired::new_err(arguments),
        ErrorCode::LockLost => python::LockLost::new_err(arguments),
        ErrorCode::LeaseTooShort => python::LeaseTooShort::new_err(arguments),
        ErrorCode::NotOwner => python::NotOwner::new_err(arguments),
        ErrorCode::ConnectionLost => python::ConnectionLost::new_err(arguments),
        ErrorCode::NotPermitted => python::NotPermitted::new_err(arguments),
        ErrorCode::Conflict => python::Conflict::new_err(arguments),
        ErrorCode::Closed => python::ClientClosed::new_err(arguments),
        ErrorCode::Forked => python::Forked::new_err(arguments),
        ErrorCode::OutOfResources => python::OutOfResources::new_err(arguments),
        // A code that is new in the engine lands here too, and fails the test that looks at each of them.
        ErrorCode::Internal | _ => python::ForelockError::new_err(arguments),
    }
}

/// Whether an exception is one of ours.
pub(crate) fn is_ours(py: Python<'_>, error: &PyErr) -> bool {
    error.is_instance_of::<python::ForelockError>(py)
}

/// One exception for each error code of the engine, with its code: for the test that none is forgotten.
#[pyfunction]
pub(crate) fn every_error(py: Python<'_>) -> Vec<(&'static str, Py<PyAny>)> {
    let exception = |code| python_error(Error::new(code, "an example")).into_value(py).into_any();
    ErrorCode::ALL.iter().map(|&code| (code.as_str(), exception(code))).collect()
}

/// The names of all reasons for a loss, each with its explanation.
#[pyfunction]
pub(crate) fn lost_reasons() -> Vec<(&'static str, &'static str)> {
    LostReason::ALL.iter().map(|reason| (reason.as_str(), reason.explain())).collect()
}

/// The names of all connection states.
#[pyfunction]
pub(crate) fn connection_states() -> Vec<&'static str> {
    ConnectionState::ALL.iter().map(|state| state.as_str()).collect()
}

/// A change of state: the state, the session's id, and whether the session is the one from before.
pub(crate) type Change = (&'static str, i64, bool);

pub(crate) fn change_tuple(change: StateChange) -> Change {
    (change.state.as_str(), change.session.0, change.same_session)
}
