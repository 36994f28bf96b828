//! The mutex.

use forelock::{AcquireOptions, OwnerKey};
use pyo3::prelude::*;

use crate::arguments::optional_text;
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

    #[pyo3(signature = (timeout_given, timeout: "float | None", owner: "str | None", thread: "str | None"))]
    fn acquire(
        &self,
        timeout_given: bool,
        timeout: &Bound<'_, PyAny>,
        owner: &Bound<'_, PyAny>,
        thread: &Bound<'_, PyAny>,
    ) -> PyResult<Operation> {
        let mutex = self.0.clone();
        let timeout = acquire_timeout("timeout", timeout_given, timeout)?;
        let owner = optional_text("owner", owner)?.map(OwnerKey::new);
        let options = AcquireOptions::default()
            .with_timeout(timeout)
            .with_owner(owner)
            .with_thread(optional_text("thread", thread)?);
        Ok(Operation::new(
            async move { mutex.acquire_with(options).await.map(|held| Value::Lock(Some(held))) },
        ))
    }

    #[pyo3(signature = (owner: "str | None", thread: "str | None"))]
    fn try_acquire(&self, owner: &Bound<'_, PyAny>, thread: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let mutex = self.0.clone();
        let owner = optional_text("owner", owner)?.map(OwnerKey::new);
        let thread = optional_text("thread", thread)?;
        let options = AcquireOptions::default().with_owner(owner).with_thread(thread);
        Ok(Operation::new(async move { mutex.try_acquire_with(options).await.map(Value::Lock) }))
    }
}
