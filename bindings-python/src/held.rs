//! The held lock.

use std::ffi::CString;
use std::sync::Arc;

use forelock::{LockState, OwnerKey};
use pyo3::exceptions::PyResourceWarning;
use pyo3::prelude::*;

use crate::arguments::{optional_text, seconds};
use crate::errors::python_error;
use crate::guard::{Engine, guarded};
use crate::operation::{Operation, Value};

/// The engine's held lock. Dropping it releases the lock in the background.
#[pyclass(frozen, module = "forelock._native")]
pub(crate) struct HeldLock(Arc<Engine<forelock::HeldLock>>);

impl HeldLock {
    pub(crate) fn new(held: forelock::HeldLock) -> Self {
        Self(Arc::new(Engine::new(held)))
    }
}

/// Says so when a lock is dropped that was not released.
///
/// Here and not in a `__del__`, which would be entered for every lock: a Ctrl-C that came in it would be lost.
impl Drop for HeldLock {
    fn drop(&mut self) {
        if !self.0.is_valid() {
            return;
        }
        let message = format!("{} was dropped, not released (token {})", self.0.path(), self.0.token());
        Python::try_attach(|py| {
            let pending = PyErr::take(py);
            let category = py.get_type::<PyResourceWarning>();
            let warned = CString::new(message).map(|message| PyErr::warn(py, &category, &message, 1));
            if let Ok(Err(error)) = warned {
                // Warnings are errors here, and there is nobody to raise one to.
                error.write_unraisable(py, None);
            }
            if let Some(pending) = pending {
                pending.restore(py);
            }
        });
    }
}

#[pymethods]
impl HeldLock {
    fn token(&self) -> i64 {
        self.0.token().0
    }

    fn epoch(&self) -> i64 {
        self.0.epoch()
    }

    fn sequence(&self) -> i32 {
        self.0.sequence()
    }

    fn path(&self) -> &str {
        self.0.path()
    }

    fn node(&self) -> &str {
        self.0.node()
    }

    fn waited(&self) -> f64 {
        self.0.waited().as_secs_f64()
    }

    fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    fn remaining(&self) -> f64 {
        self.0.remaining().as_secs_f64()
    }

    #[pyo3(signature = (minimum: "float"))]
    fn ensure(&self, minimum: &Bound<'_, PyAny>) -> PyResult<()> {
        let minimum = seconds("min", minimum)?;
        guarded(|| self.0.ensure(minimum)).map_err(python_error)
    }

    /// The state, and the reason if it is lost.
    fn state(&self) -> (&'static str, Option<&'static str>) {
        match self.0.state() {
            LockState::Held => ("held", None),
            LockState::Suspect => ("suspect", None),
            LockState::Lost(reason) => ("lost", Some(reason.as_str())),
            LockState::Released => ("released", None),
        }
    }

    fn verify(&self) -> Operation {
        let held = self.0.clone();
        Operation::new(async move { held.verify().await.map(|()| Value::Nothing) })
    }

    /// Ends with the reason of the loss, or none after the release. Does not keep the lock.
    fn lost(&self) -> Operation {
        let lost = self.0.lost();
        Operation::new(async move { Ok(Value::Reason(lost.await)) })
    }

    fn is_revocation_asked(&self) -> bool {
        self.0.is_revocation_asked()
    }

    /// Ends when somebody asks for the lock back. Does not keep the lock.
    fn revocation_asked(&self) -> Operation {
        let asked = self.0.revocation_asked();
        Operation::new(async move {
            asked.await;
            Ok(Value::Nothing)
        })
    }

    fn mark_superseded(&self) {
        self.0.mark_superseded();
    }

    fn owner(&self) -> Option<String> {
        self.0.owner().map(|owner| owner.as_str().to_owned())
    }

    #[pyo3(signature = (owner: "str | None"))]
    fn hand_over(&self, owner: &Bound<'_, PyAny>) -> PyResult<()> {
        let owner = optional_text("owner", owner)?;
        guarded(|| self.0.hand_over(owner.map(OwnerKey::new))).map_err(python_error)
    }

    /// Releases the lock on behalf of `owner`.
    #[pyo3(signature = (owner: "str | None"))]
    fn release(&self, owner: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let held = self.0.clone();
        let owner = optional_text("owner", owner)?.map(OwnerKey::new);
        Ok(Operation::new(async move { held.release_as(owner.as_ref()).await.map(|()| Value::Nothing) }))
    }
}
