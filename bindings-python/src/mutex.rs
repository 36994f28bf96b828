//! The mutex.

use forelock::{AcquireOptions, OwnerKey};
use pyo3::prelude::*;

use crate::operation::{Operation, Value};
use crate::options::acquire_timeout;

/// The engine's mutex.
#[pyclass(frozen, module = "forelock._native")]
pub(crate) struct Mutex(forelock::Mutex);

impl Mutex {
    pub(crate) fn new(mutex: forelock::Mutex) -> Self {
        Self(mutex)
    }
}

#[pymethods]
impl Mutex {
    fn path(&self) -> &str {
        self.0.path()
    }

    #[pyo3(signature = (timeout_given, timeout, owner, thread))]
    fn acquire(
        &self,
        timeout_given: bool,
        timeout: Option<f64>,
        owner: Option<String>,
        thread: Option<String>,
    ) -> PyResult<Operation> {
        let mutex = self.0.clone();
        let timeout = acquire_timeout(timeout_given, timeout)?;
        let options = AcquireOptions { timeout, owner: owner.map(OwnerKey::new), thread };
        Ok(Operation::new(
            async move { mutex.acquire_with(options).await.map(|held| Value::Lock(Some(held))) },
        ))
    }

    #[pyo3(signature = (owner, thread))]
    fn try_acquire(&self, owner: Option<String>, thread: Option<String>) -> Operation {
        let mutex = self.0.clone();
        let owner = owner.map(OwnerKey::new);
        let options = AcquireOptions { owner, thread, ..AcquireOptions::default() };
        Operation::new(async move { mutex.try_acquire_with(options).await.map(Value::Lock) })
    }
}
