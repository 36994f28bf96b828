//! Options, from Python's values.

use std::time::Duration;

use forelock::{
    Acl, AclEntry, Authentication, Heartbeat, MutexOptions, Naming, Options, RetryPolicy, SaslDigestMd5,
    Timeout, TlsConfig,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::arguments::{hidden_text, invalid, optional_seconds, optional_text, seconds, text};

/// How long an acquire may take: left out, none for ever, or seconds.
pub(crate) fn acquire_timeout(name: &str, given: bool, value: &Bound<'_, PyAny>) -> PyResult<Timeout> {
    if !given {
        return Ok(Timeout::Default);
    }
    Ok(optional_seconds(name, value)?.map_or(Timeout::Never, Timeout::After))
}

pub(crate) fn mutex_options(
    naming: &str,
    acquire_timeout: Timeout,
    max_hold: Option<Duration>,
) -> PyResult<MutexOptions> {
    let naming = match naming {
        "curator" => Naming::Curator,
        "kazoo" => Naming::Kazoo,
        "epoch" => Naming::Epoch,
        other => return Err(invalid(format!("naming: {other:?} is none of curator, kazoo, epoch"))),
    };
    Ok(MutexOptions::default()
        .with_naming(naming)
        .with_acquire_timeout(acquire_timeout)
        .with_max_hold(max_hold))
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
        let message = error.value(py).to_string();
        if !message.starts_with(name) {
            return pyo3::exceptions::PyTypeError::new_err(format!("{name}: {message}"));
        }
    }
    error
}

fn set(options: &mut Options, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
    let duration = || seconds(name, value);
    match name {
        "session_timeout" => options.session_timeout = duration()?,
        "connection_timeout" => options.connection_timeout = duration()?,
        "operation_timeout" => options.operation_timeout = duration()?,
        "release_timeout" => options.release_timeout = duration()?,
        "close_timeout" => options.close_timeout = duration()?,
        "acquire_timeout" => options.acquire_timeout = optional_seconds(name, value)?,
        "tick" => options.tick = optional_seconds(name, value)?,
        "retry" => options.retry = retry(value)?,
        "namespace" => options.namespace = text(name, value)?,
        "create_chroot" => options.create_chroot = value.extract()?,
        "heartbeat" => options.heartbeat = heartbeat(&text(name, value)?)?,
        "allow_read_only" => options.allow_read_only = value.extract()?,
        "container_parents" => options.container_parents = value.extract()?,
        "label" => options.label = optional_text(name, value)?,
        "program" => options.program = optional_text(name, value)?,
        "acl" => options.acl = acl(value)?,
        "auth" => options.auth = authentications(value)?,
        "tls" => options.tls = tls(value)?,
        "sasl" => options.sasl = sasl(value)?,
        other => return Err(invalid(format!("there is no option {other:?}"))),
    }
    Ok(())
}

fn heartbeat(name: &str) -> PyResult<Heartbeat> {
    match name {
        "session" => Ok(Heartbeat::Session),
        "quorum" => Ok(Heartbeat::Quorum),
        other => Err(invalid(format!("heartbeat: {other:?} is neither session nor quorum"))),
    }
}

fn retry(policy: &Bound<'_, PyAny>) -> PyResult<RetryPolicy> {
    let duration = |name| seconds(&format!("retry: {name}"), &policy.getattr(name)?);
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
    if value.is_instance_of::<PyString>() {
        return match text("acl", value)?.as_str() {
            "open" => Ok(Some(Acl::Open)),
            "creator" => Ok(Some(Acl::CreatorWritesAllRead)),
            other => Err(invalid(format!("acl: {other:?} is neither open nor creator, nor a list"))),
        };
    }
    let mut entries = Vec::new();
    for entry in value.try_iter()? {
        let entry = entry?;
        entries.push(AclEntry {
            scheme: text("acl: scheme", &entry.getattr("scheme")?)?,
            id: text("acl: id", &entry.getattr("id")?)?,
            permissions: text("acl: permissions", &entry.getattr("permissions")?)?,
        });
    }
    Ok(Some(Acl::Entries(entries)))
}

fn authentications(value: &Bound<'_, PyAny>) -> PyResult<Vec<Authentication>> {
    let mut all = Vec::new();
    for one in value.try_iter()? {
        let (scheme, secret): (Bound<'_, PyAny>, Bound<'_, PyAny>) = one?.extract()?;
        let scheme = text("auth: scheme", &scheme)?;
        let secret = match secret.cast::<PyString>() {
            Ok(secret) => hidden_text("auth: secret", secret)?.into_bytes(),
            Err(_) => secret.extract::<Vec<u8>>()?,
        };
        all.push(Authentication::new(scheme, secret));
    }
    Ok(all)
}

fn tls(value: &Bound<'_, PyAny>) -> PyResult<Option<TlsConfig>> {
    if value.is_none() {
        return Ok(None);
    }
    let mut config = TlsConfig::new(text("tls: ca_pem", &value.getattr("ca_pem")?)?);
    let certificate = optional_text("tls: certificate_pem", &value.getattr("certificate_pem")?)?;
    let key = match value.getattr("key_pem")? {
        key if key.is_none() => None,
        key => Some(hidden_text("tls: key_pem", key.cast::<PyString>()?)?),
    };
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
    let username = text("sasl: username", &value.getattr("username")?)?;
    let password = hidden_text("sasl: password", value.getattr("password")?.cast::<PyString>()?)?;
    Ok(Some(SaslDigestMd5::new(username, password)))
}
