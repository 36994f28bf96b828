//! Options, from Python's values.

use std::time::Duration;

use forelock::{
    Acl, AclEntry, Authentication, Error, ErrorCode, Heartbeat, MutexOptions, Naming, Options, RetryPolicy,
    SaslDigestMd5, Timeout, TlsConfig,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::python_error;

/// A refusal of an argument.
pub(crate) fn invalid(message: impl Into<String>) -> PyErr {
    python_error(Error::new(ErrorCode::InvalidArgument, message))
}

/// A duration from seconds.
pub(crate) fn seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        let hint = if value == f64::INFINITY { "; for ever is written as None" } else { "" };
        invalid(format!("{name}: {value} is not a number of seconds{hint}"))
    })
}

/// How long an acquire may take: left out, none for ever, or seconds.
pub(crate) fn acquire_timeout(given: bool, value: Option<f64>) -> PyResult<Timeout> {
    match (given, value) {
        (false, _) => Ok(Timeout::Default),
        (true, None) => Ok(Timeout::Never),
        (true, Some(value)) => Ok(Timeout::After(seconds("timeout", value)?)),
    }
}

pub(crate) fn mutex_options(
    naming: &str,
    acquire_timeout: Timeout,
    max_hold: Option<f64>,
) -> PyResult<MutexOptions> {
    let naming = match naming {
        "curator" => Naming::Curator,
        "kazoo" => Naming::Kazoo,
        "epoch" => Naming::Epoch,
        other => return Err(invalid(format!("naming: {other:?} is none of curator, kazoo, epoch"))),
    };
    let max_hold = max_hold.map(|most| seconds("max_hold", most)).transpose()?;
    Ok(MutexOptions { naming, acquire_timeout, max_hold })
}

/// The engine's options from keyword arguments, of which those that are missing keep their defaults.
pub(crate) fn client_options(given: &Bound<'_, PyDict>) -> PyResult<Options> {
    let mut options = Options::default();
    for (name, value) in given {
        let name: String = name.extract()?;
        set(&mut options, &name, &value).map_err(|error| named(given.py(), &name, error))?;
    }
    Ok(options)
}

/// Says which option a value of the wrong type was for.
fn named(py: Python<'_>, name: &str, error: PyErr) -> PyErr {
    if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) {
        return pyo3::exceptions::PyTypeError::new_err(format!("{name}: {}", error.value(py)));
    }
    error
}

fn set(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let duration = || seconds(name, value.extract()?);
    match name {
        "session_timeout" => options.session_timeout = duration()?,
        "connection_timeout" => options.connection_timeout = duration()?,
        "operation_timeout" => options.operation_timeout = duration()?,
        "release_timeout" => options.release_timeout = duration()?,
        "close_timeout" => options.close_timeout = duration()?,
        "acquire_timeout" => {
            options.acquire_timeout = if value.is_none() { None } else { Some(duration()?) };
        }
        "tick" => options.tick = if value.is_none() { None } else { Some(duration()?) },
        "retry" => options.retry = retry(value)?,
        "namespace" => options.namespace = value.extract()?,
        "heartbeat" => options.heartbeat = heartbeat(value.extract()?)?,
        "allow_read_only" => options.allow_read_only = value.extract()?,
        "container_parents" => options.container_parents = value.extract()?,
        "label" => options.label = value.extract()?,
        "program" => options.program = value.extract()?,
        "acl" => options.acl = acl(value)?,
        "auth" => options.auth = authentications(value)?,
        "tls" => options.tls = tls(value)?,
        "sasl" => options.sasl = sasl(value)?,
        other => return Err(invalid(format!("there is no option {other:?}"))),
    }
    Ok(())
}

fn heartbeat(name: String) -> PyResult<Heartbeat> {
    match name.as_str() {
        "session" => Ok(Heartbeat::Session),
        "quorum" => Ok(Heartbeat::Quorum),
        other => Err(invalid(format!("heartbeat: {other:?} is neither session nor quorum"))),
    }
}

fn retry(policy: &Bound<'_, PyAny>) -> PyResult<RetryPolicy> {
    let duration = |name| seconds(name, policy.getattr(name)?.extract()?);
    let attempts = || policy.getattr("attempts")?.extract();
    Ok(match policy.getattr("kind")?.extract::<String>()?.as_str() {
        "exponential" => {
            RetryPolicy::Exponential { base: duration("base")?, cap: duration("cap")?, attempts: attempts()? }
        }
        "times" => RetryPolicy::Times { attempts: attempts()?, delay: duration("delay")? },
        "until_elapsed" => RetryPolicy::UntilElapsed { total: duration("total")?, delay: duration("delay")? },
        "forever" => RetryPolicy::Forever { delay: duration("delay")? },
        "none" => RetryPolicy::None,
        other => return Err(invalid(format!("retry: there is no policy {other:?}"))),
    })
}

fn acl(value: &Bound<'_, PyAny>) -> PyResult<Option<Acl>> {
    if value.is_none() {
        return Ok(None);
    }
    if let Ok(name) = value.extract::<String>() {
        return match name.as_str() {
            "open" => Ok(Some(Acl::Open)),
            "creator" => Ok(Some(Acl::CreatorWritesAllRead)),
            other => Err(invalid(format!("acl: {other:?} is neither open nor creator, nor a list"))),
        };
    }
    let mut entries = Vec::new();
    for entry in value.try_iter()? {
        let entry = entry?;
        entries.push(AclEntry {
            scheme: entry.getattr("scheme")?.extract()?,
            id: entry.getattr("id")?.extract()?,
            permissions: entry.getattr("permissions")?.extract()?,
        });
    }
    Ok(Some(Acl::Entries(entries)))
}

fn authentications(value: &Bound<'_, PyAny>) -> PyResult<Vec<Authentication>> {
    let mut all = Vec::new();
    for one in value.try_iter()? {
        let (scheme, secret): (String, Bound<'_, PyAny>) = one?.extract()?;
        let secret = match secret.extract::<String>() {
            Ok(text) => text.into_bytes(),
            Err(_) => secret.extract::<Vec<u8>>()?,
        };
        all.push(Authentication { scheme, secret });
    }
    Ok(all)
}

fn tls(value: &Bound<'_, PyAny>) -> PyResult<Option<TlsConfig>> {
    if value.is_none() {
        return Ok(None);
    }
    let mut config = TlsConfig::new(value.getattr("ca_pem")?.extract::<String>()?);
    let certificate: Option<String> = value.getattr("certificate_pem")?.extract()?;
    let key: Option<String> = value.getattr("key_pem")?.extract()?;
    config.identity_pem = match (certificate, key) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(invalid("tls: a certificate and its key go together")),
    };
    config.verify_host = value.getattr("verify_host")?.extract()?;
    Ok(Some(config))
}

fn sasl(value: &Bound<'_, PyAny>) -> PyResult<Option<SaslDigestMd5>> {
    if value.is_none() {
        return Ok(None);
    }
    Ok(Some(SaslDigestMd5 {
        username: value.getattr("username")?.extract()?,
        password: value.getattr("password")?.extract()?,
    }))
}
