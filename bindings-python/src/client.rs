//! The client.

use std::collections::BTreeMap;

use forelock::{Error, ErrorCode, LockPath, MetricsSnapshot};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arguments::{optional_seconds, text};
use crate::errors::{Change, change_tuple, python_error};
use crate::guard::guarded;
use crate::mutex::Mutex;
use crate::operation::{Operation, Value};
use crate::options::{acquire_timeout as timeout_of, client_options, mutex_options};
use crate::states::States;

/// A session's id, the timeout asked for and the one granted, the tick, the margin and the outage that can be
/// survived, all in seconds, and the warnings.
type Session = (i64, f64, f64, f64, f64, f64, Vec<String>);

/// The engine's client.
#[pyclass(frozen, module = "forelock._native")]
pub(crate) struct Client(forelock::Client);

impl Client {
    /// Every call ends here in a forked child.
    fn not_forked(&self) -> PyResult<()> {
        if self.0.is_forked() {
            let message =
                "this process was forked after the client had started, and has no connection of its own";
            return Err(python_error(Error::new(ErrorCode::Forked, message)));
        }
        Ok(())
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (servers: "str", options: "dict[str, object]"))]
    fn new(servers: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let servers = text("servers", servers)?;
        let options = client_options(options)?;
        guarded(|| forelock::Client::with_options(&servers, options)).map(Self).map_err(python_error)
    }

    fn connect(&self) -> Operation {
        let client = self.0.clone();
        Operation::new(async move { client.connect().await.map(|()| Value::Nothing) })
    }

    #[pyo3(signature = (path: "str"))]
    fn ensure_root(&self, path: &Bound<'_, PyAny>) -> PyResult<Operation> {
        let client = self.0.clone();
        let path = text("path", path)?;
        Ok(Operation::new(async move { client.ensure_root(&path).await.map(Value::Number) }))
    }

    fn close(&self) -> Operation {
        let client = self.0.clone();
        Operation::new(async move { client.close().await.map(|()| Value::Nothing) })
    }

    #[pyo3(signature = (
        path: "str", naming: "str", acquire_timeout_given, acquire_timeout: "float | None", max_hold: "float | None"
    ))]
    fn mutex(
        &self,
        path: &Bound<'_, PyAny>,
        naming: &Bound<'_, PyAny>,
        acquire_timeout_given: bool,
        acquire_timeout: &Bound<'_, PyAny>,
        max_hold: &Bound<'_, PyAny>,
    ) -> PyResult<Mutex> {
        let path = text("path", path)?;
        let acquire_timeout = timeout_of("acquire_timeout", acquire_timeout_given, acquire_timeout)?;
        let max_hold = optional_seconds("max_hold", max_hold)?;
        let options = mutex_options(&text("naming", naming)?, acquire_timeout, max_hold)?;
        guarded(|| self.0.mutex_with(&path, options)).map(Mutex::new).map_err(python_error)
    }

    fn states(&self) -> PyResult<States> {
        self.not_forked()?;
        Ok(States::new(self.0.states()))
    }

    fn state(&self) -> PyResult<Option<Change>> {
        self.not_forked()?;
        Ok(self.0.state().map(change_tuple))
    }

    fn session(&self) -> PyResult<Option<Session>> {
        self.not_forked()?;
        Ok(self.0.session().map(|info| {
            (
                info.id.0,
                info.asked_timeout.as_secs_f64(),
                info.timeout.as_secs_f64(),
                info.tick.as_secs_f64(),
                info.margin.as_secs_f64(),
                info.survivable_outage.as_secs_f64(),
                info.warnings,
            )
        }))
    }

    fn metrics(&self) -> PyResult<BTreeMap<&'static str, u64>> {
        self.not_forked()?;
        Ok(counts(&self.0.metrics()))
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn is_forked(&self) -> bool {
        self.0.is_forked()
    }

    /// The namespace, canonical.
    fn namespace(&self) -> &str {
        &self.0.options().namespace
    }
}

fn counts(metrics: &MetricsSnapshot) -> BTreeMap<&'static str, u64> {
    BTreeMap::from([
        ("acquires", metrics.acquires),
        ("grants", metrics.grants),
        ("timeouts", metrics.timeouts),
        ("releases", metrics.releases),
        ("losses", metrics.losses()),
        ("suspended", metrics.suspended),
        ("sessions_lost", metrics.sessions_lost),
        ("roots_recreated", metrics.roots_recreated),
        ("ids_went_backwards", metrics.ids_went_backwards),
        ("cleanup_pending", metrics.cleanup_pending),
        ("ghosts", metrics.ghosts),
    ])
}

/// The path for a resource of a domain, escaped: `/locks/{domain}/{resource}`.
#[pyfunction]
#[pyo3(signature = (domain: "str", resource: "str"))]
pub(crate) fn lock_path(domain: &Bound<'_, PyAny>, resource: &Bound<'_, PyAny>) -> PyResult<String> {
    LockPath::resource(&text("domain", domain)?, &text("resource", resource)?)
        .map(|path| path.to_string())
        .map_err(python_error)
}
