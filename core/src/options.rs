//! What a client can be told, with the defaults.

use std::time::Duration;

use crate::connect::ConnectString;
use crate::error::{Error, Result};
use crate::path;
use crate::session::{Heartbeat, RetryPolicy};
use crate::words;
use crate::zk::Acl;
#[cfg(feature = "sasl")]
use crate::zk::zookeeper::SaslDigestMd5;
#[cfg(feature = "tls")]
use crate::zk::zookeeper::TlsConfig;
use crate::zk::zookeeper::{Authentication, Config};

/// How a client connects and behaves.
///
/// Set what differs from the defaults:
///
/// ```
/// use std::time::Duration;
/// let options = forelock::Options::default()
///     .with_session_timeout(Duration::from_secs(10))
///     .with_namespace("/services/ledger");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The session timeout to ask for. 30 s.
    pub session_timeout: Duration,
    /// The longest that one attempt to connect may take. 15 s.
    pub connection_timeout: Duration,
    /// When to retry what can be retried. One second, three times, at most 30 s apart.
    pub retry: RetryPolicy,
    /// How long an acquire waits unless told otherwise; none waits for ever. 30 s.
    pub acquire_timeout: Option<Duration>,
    /// The longest that an operation with no deadline of its own may take: try-acquire, verify, ensure_root.
    /// 15 s.
    pub operation_timeout: Duration,
    /// The longest that a release waits for its confirmation before it goes on in the background. 5 s.
    pub release_timeout: Duration,
    /// The longest that `close` waits for the server. 5 s.
    pub close_timeout: Duration,
    /// The path that every path lies below, `/` for none.
    pub namespace: String,
    /// Whether the chroot of the connect string is made if it does not exist. Otherwise its absence is an error, as
    /// with other clients: a chroot with a typing error in it would keep its clients apart from all others, without
    /// a word. A namespace is always made.
    pub create_chroot: bool,
    /// The servers' `tickTime`, if it is known. Reckoned with as 3 s otherwise, and never as more than half the
    /// session timeout.
    pub tick: Option<Duration>,
    /// What a live session sends to prove that it is alive.
    pub heartbeat: Heartbeat,
    /// Whether a server in read-only mode will do while no other can be reached. It grants no locks.
    pub allow_read_only: bool,
    /// Who may do what with the nodes that the engine makes. By default anyone may do anything, or, once
    /// credentials are given, only their identity may write.
    pub acl: Option<Acl>,
    /// Whether missing parents are made as container nodes, which the server removes when they are empty. A
    /// container that goes and comes back starts its numbers and its epoch anew.
    pub container_parents: bool,
    /// Free text that goes into the data of every lock node, to tell who holds it.
    pub label: Option<String>,
    /// The program's name, for the data of every lock node. The name it was started by unless given.
    pub program: Option<String>,
    /// Credentials, such as `digest` with `user:password`.
    pub auth: Vec<Authentication>,
    /// TLS to the servers.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// SASL DIGEST-MD5 authentication.
    #[cfg(feature = "sasl")]
    pub sasl: Option<SaslDigestMd5>,
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) mutants: Mutants,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            session_timeout: Duration::from_secs(30),
            connection_timeout: Duration::from_secs(15),
            retry: RetryPolicy::default(),
            acquire_timeout: Some(Duration::from_secs(30)),
            operation_timeout: Duration::from_secs(15),
            release_timeout: Duration::from_secs(5),
            close_timeout: Duration::from_secs(5),
            namespace: "/".to_owned(),
            create_chroot: false,
            tick: None,
            heartbeat: Heartbeat::default(),
            allow_read_only: false,
            acl: None,
            container_parents: false,
            label: None,
            program: None,
            auth: Vec::new(),
            #[cfg(feature = "tls")]
            tls: None,
            #[cfg(feature = "sasl")]
            sasl: None,
            #[cfg(any(test, feature = "simulation"))]
            mutants: Mutants::default(),
        }
    }
}

/// Planted bugs, each of which the simulator has to find. All off, and absent from a build without the
/// `simulation` feature.
#[cfg(any(test, feature = "simulation"))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(hidden)]
pub struct Mutants {
    /// Wait for the node before the predecessor.
    pub wrong_predecessor: bool,
    /// Take a node of an older session for ours.
    pub skip_owner_check: bool,
    /// Forget a node whose fate is unknown.
    pub forget_cleanup: bool,
    /// Count the latest answered heartbeat itself.
    pub lease_from_latest: bool,
    /// Space the heartbeats of the lease rule from send to send.
    pub lease_send_to_send: bool,
    /// Take the deletion of the head for the grant without the watch on our own node.
    pub head_shortcut_without_own_watch: bool,
    /// Panic in the task that watches over a grant.
    pub monitor_panics: bool,
    /// Take a node that is absent on another server for one that will never be.
    pub absent_is_gone: bool,
    /// Take what a server shows after a `sync` for what a quorum has committed.
    pub trust_sync: bool,
    /// Use one GUID for every create of an acquire.
    pub reuse_guid: bool,
}

/// The longest timeout that makes sense: ZooKeeper counts milliseconds in 31 bits.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

impl Options {
    /// The session timeout to ask for; the server may grant another. 30 s by default.
    #[must_use]
    pub fn with_session_timeout(mut self, timeout: Duration) -> Self {
        self.session_timeout = timeout;
        self
    }

    /// The longest that one attempt to connect may take. 15 s by default.
    #[must_use]
    pub fn with_connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// When to retry what can be retried. After one second, three times, at most 30 s apart by default.
    #[must_use]
    pub fn with_retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
    }

    /// How long an acquire waits unless told otherwise; none waits for ever. 30 s by default.
    #[must_use]
    pub fn with_acquire_timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.acquire_timeout = timeout.into();
        self
    }

    /// The longest that an operation with no deadline of its own may take: try-acquire, verify, ensure_root. 15 s by
    /// default.
    #[must_use]
    pub fn with_operation_timeout(mut self, timeout: Duration) -> Self {
        self.operation_timeout = timeout;
        self
    }

    /// The longest that a release waits for its confirmation before it goes on in the background. 5 s by default.
    #[must_use]
    pub fn with_release_timeout(mut self, timeout: Duration) -> Self {
        self.release_timeout = timeout;
        self
    }

    /// The longest that `close` waits for the server. 5 s by default.
    #[must_use]
    pub fn with_close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// The path that every path lies below. `/` by default, which is none.
    #[must_use]
    pub fn with_namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Whether the chroot of the connect string is made if it does not exist. No by default: then its absence is an
    /// error.
    #[must_use]
    pub fn with_create_chroot(mut self, create: bool) -> Self {
        self.create_chroot = create;
        self
    }

    /// The servers' `tickTime`. None by default: then it is reckoned with as 3 s, but never as more than half the
    /// session timeout.
    #[must_use]
    pub fn with_tick(mut self, tick: impl Into<Option<Duration>>) -> Self {
        self.tick = tick.into();
        self
    }

    /// What a live session sends to prove that it is alive. [`Heartbeat::Session`] by default.
    #[must_use]
    pub fn with_heartbeat(mut self, heartbeat: Heartbeat) -> Self {
        self.heartbeat = heartbeat;
        self
    }

    /// Whether a server in read-only mode will do while no other can be reached. It grants no locks. No by default.
    #[must_use]
    pub fn with_allow_read_only(mut self, allow: bool) -> Self {
        self.allow_read_only = allow;
        self
    }

    /// Who may do what with the nodes that the engine makes. None by default: anyone may do anything, or, once
    /// credentials are given, only their identity may write.
    #[must_use]
    pub fn with_acl(mut self, acl: impl Into<Option<Acl>>) -> Self {
        self.acl = acl.into();
        self
    }

    /// Whether missing parents are made as container nodes, which the server removes when they are empty. No by
    /// default.
    #[must_use]
    pub fn with_container_parents(mut self, container_parents: bool) -> Self {
        self.container_parents = container_parents;
        self
    }

    /// Free text, of at most 512 bytes, that goes into the data of every lock node, to tell who holds it. None by
    /// default.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// The program's name, for the data of every lock node. The name it was started by, by default.
    #[must_use]
    pub fn with_program(mut self, program: impl Into<String>) -> Self {
        self.program = Some(program.into());
        self
    }

    /// One more identity to show to the servers, such as `digest` with `user:password`. None by default.
    #[must_use]
    pub fn with_authentication(mut self, authentication: Authentication) -> Self {
        self.auth.push(authentication);
        self
    }

    /// TLS to the servers. None by default, which is plain TCP.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn with_tls(mut self, tls: impl Into<Option<TlsConfig>>) -> Self {
        self.tls = tls.into();
        self
    }

    /// SASL DIGEST-MD5 authentication. None by default.
    #[cfg(feature = "sasl")]
    #[must_use]
    pub fn with_sasl(mut self, sasl: impl Into<Option<SaslDigestMd5>>) -> Self {
        self.sasl = sasl.into();
        self
    }

    /// Planted bugs, for tests.
    #[cfg(any(test, feature = "simulation"))]
    #[doc(hidden)]
    #[must_use]
    pub fn with_mutants(mut self, mutants: Mutants) -> Self {
        self.mutants = mutants;
        self
    }

    /// Checks the options that can't be right whatever the server says, and makes the namespace canonical.
    pub(crate) fn checked(mut self, servers: &ConnectString) -> Result<Self> {
        for (name, value) in [
            ("session timeout", self.session_timeout),
            ("connection timeout", self.connection_timeout),
            ("operation timeout", self.operation_timeout),
            ("release timeout", self.release_timeout),
            ("close timeout", self.close_timeout),
            ("tick", self.tick.unwrap_or(Duration::from_secs(1))),
        ] {
            check_timeout(name, value)?;
        }
        match self.retry {
            RetryPolicy::Exponential { base, cap, .. } => {
                check_timeout("first retry delay", base)?;
                check_timeout("longest retry delay", cap)?;
            }
            RetryPolicy::Times { delay, .. } | RetryPolicy::Forever { delay } => {
                check_timeout("retry delay", delay)?;
            }
            RetryPolicy::UntilElapsed { total, delay } => {
                check_timeout("time to retry for", total)?;
                check_timeout("retry delay", delay)?;
            }
            RetryPolicy::None => {}
        }
        if servers.endpoints.is_empty() {
            return Err(Error::invalid("no servers to connect to"));
        }
        let namespace = if self.namespace.starts_with('/') || self.namespace.is_empty() {
            format!("/{}", self.namespace)
        } else {
            format!("/{}", self.namespace.trim_start_matches('/'))
        };
        self.namespace = path::canonical(&namespace)
            .map_err(|error| Error::invalid(format!("namespace: {}", error.message())))?;
        if self.label.as_ref().is_some_and(|label| label.len() > 512) {
            return Err(Error::invalid("the label is longer than 512 bytes; it goes into every lock node"));
        }
        if let Some(Acl::Entries(entries)) = &self.acl {
            if entries.is_empty() {
                return Err(Error::invalid("the ACL is empty: nobody could use the nodes"));
            }
            for entry in entries {
                let known = entry.permissions.chars().all(|c| "crwda".contains(c));
                if !known || entry.permissions.is_empty() {
                    return Err(Error::invalid(format!(
                        "permissions {:?} of {}:{} are not letters out of crwda",
                        entry.permissions, entry.scheme, entry.id
                    )));
                }
            }
        }
        Ok(self)
    }

    /// The ACL of the nodes that the engine makes.
    pub(crate) fn node_acl(&self) -> Acl {
        match &self.acl {
            Some(acl) => acl.clone(),
            None if self.has_identity() => Acl::CreatorWritesAllRead,
            None => Acl::Open,
        }
    }

    /// Whether the servers will know us by an identity that an ACL can name.
    fn has_identity(&self) -> bool {
        #[cfg(feature = "sasl")]
        if self.sasl.is_some() {
            return true;
        }
        #[cfg(feature = "tls")]
        if self.tls.as_ref().is_some_and(|tls| tls.identity_pem.is_some()) {
            return true;
        }
        !self.auth.is_empty()
    }

    /// What the adapter for real servers has to know.
    pub(crate) fn adapter_config(&self) -> Config {
        Config {
            authentications: self.auth.clone(),
            #[cfg(feature = "tls")]
            tls: self.tls.clone(),
            #[cfg(feature = "sasl")]
            sasl: self.sasl.clone(),
        }
    }
}

/// A timeout that is zero or longer than ZooKeeper can count is a mistake.
pub(crate) fn check_timeout(name: &str, value: Duration) -> Result<()> {
    if value.is_zero() {
        return Err(Error::invalid(format!("the {name} is zero")));
    }
    if value > LONGEST {
        return Err(Error::invalid(format!(
            "the {name} of {} is longer than {}, the longest that ZooKeeper can count",
            words::duration(value),
            words::duration(LONGEST)
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl FnOnce(&mut Options)) -> Result<Options> {
        let mut options = Options::default();
        change(&mut options);
        options.checked(&ConnectString::parse("zk").expect("servers"))
    }

    #[test]
    fn defaults_of_the_design() {
        let options = Options::default();
        assert_eq!(options.session_timeout, Duration::from_secs(30));
        assert_eq!(options.connection_timeout, Duration::from_secs(15));
        assert_eq!(options.acquire_timeout, Some(Duration::from_secs(30)));
        assert_eq!(
            options.retry,
            RetryPolicy::Exponential {
                base: Duration::from_secs(1),
                cap: Duration::from_secs(30),
                attempts: 3
            }
        );
        assert_eq!(options.node_acl(), Acl::Open);
    }

    #[test]
    fn namespaces_are_made_canonical() {
        for (text, namespace) in [("", "/"), ("/", "/"), ("a", "/a"), ("/a//b/", "/a/b")] {
            let options = checked(|options| options.namespace = text.to_owned()).expect(text);
            assert_eq!(options.namespace, namespace);
        }
        assert!(checked(|options| options.namespace = "/a/../b".to_owned()).is_err());
    }

    #[test]
    fn what_cannot_be_right_is_refused() {
        assert!(checked(|o| o.session_timeout = Duration::ZERO).is_err());
        assert!(checked(|o| o.connection_timeout = Duration::from_secs(1 << 40)).is_err());
        assert!(checked(|o| o.retry = RetryPolicy::Forever { delay: Duration::ZERO }).is_err());
        assert!(checked(|o| o.label = Some("x".repeat(513))).is_err());
        assert!(checked(|o| o.acl = Some(Acl::Entries(Vec::new()))).is_err());
    }
}
