//! Arguments of Python's, each refused by its name when it can't be right.

use std::time::Duration;

use forelock::{Error, ErrorCode};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::python_error;

/// A refusal of an argument.
pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    python_error(Error::new(ErrorCode::InvalidArgument, message))
}

fn wrong_type(name: &str, wanted: &str, value: &Bound<'_, PyAny>) -> PyErr {
    match value.get_type().name() {
        Ok(kind) => PyTypeError::new_err(format!("{name} must be {wanted}, not {kind}")),
        Err(error) => error,
    }
}

/// A text. What UTF-8 can't encode, a lone surrogate, can't be right.
pub(crate) fn text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    let Ok(given) = value.cast::<PyString>() else { return Err(wrong_type(name, "a str", value)) };
    match given.to_str() {
        Ok(text) => Ok(text.to_owned()),
        Err(_) => {
            Err(invalid(format!("{name}: {} is no valid text: it has a lone surrogate", given.repr()?)))
        }
    }
}

/// As [`text`], for what must not be shown.
pub(crate) fn hidden_text(name: &str, value: &Bound<'_, PyString>) -> PyResult<String> {
    let text = value.to_str().map(str::to_owned);
    text.map_err(|_| invalid(format!("{name} is no valid text: it has a lone surrogate")))
}

/// A text, or none for None.
pub(crate) fn optional_text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    if value.is_none() { Ok(None) } else { text(name, value).map(Some) }
}

/// A duration from a number of seconds.
pub(crate) fn seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let Ok(value) = value.extract::<f64>() else {
        return Err(wrong_type(name, "a number of seconds", value));
    };
    Duration::try_from_secs_f64(value).map_err(|_| {
        let hint = if value == f64::INFINITY { "; for ever is written as None" } else { "" };
        invalid(format!("{name}: {value} is not a number of seconds{hint}"))
    })
}

/// A duration from a number of seconds, or none for None.
pub(crate) fn optional_seconds(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<Duration>> {
    if value.is_none() { Ok(None) } else { seconds(name, value).map(Some) }
}
