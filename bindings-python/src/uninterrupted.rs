//! The way out of a block, which a signal must not cut off.

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::errors::is_ours;

/// A method that is run again when it is cut off, before the exception that did so goes on.
///
/// Python looks for signals when it enters a function. So a Ctrl-C can come between a block and the first line of
/// an `__exit__` that is written in Python, which then never runs, and the lock stays held. Nothing comes between
/// the block and this. The method must bear being run twice.
#[pyclass(frozen, module = "forelock._native")]
pub(crate) struct Uninterrupted {
    function: Py<PyAny>,
    instance: Option<Py<PyAny>>,
}

#[pymethods]
impl Uninterrupted {
    #[new]
    fn new(function: Py<PyAny>) -> Self {
        Self { function, instance: None }
    }

    fn __get__(&self, py: Python<'_>, instance: Option<Py<PyAny>>, _owner: Option<Py<PyAny>>) -> Self {
        Self { function: self.function.clone_ref(py), instance }
    }

    #[pyo3(signature = (*arguments: "object"))]
    fn __call__(&self, py: Python<'_>, arguments: &Bound<'_, PyTuple>) -> PyResult<Py<PyAny>> {
        let mut all: Vec<Py<PyAny>> = self.instance.iter().map(|instance| instance.clone_ref(py)).collect();
        all.extend(arguments.iter().map(Bound::unbind));
        let all = PyTuple::new(py, all)?;
        let first = self.function.call1(py, &all);
        match &first {
            // Anything but an answer of our own is a signal handler's.
            Err(error) if !is_ours(py, error) => {
                let _ = self.function.call1(py, &all);
            }
            _ => {}
        }
        first
    }
}
