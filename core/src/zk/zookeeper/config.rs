//! How to identify ourselves to the servers, and them to us.

use std::fmt;

#[cfg(feature = "tls")]
use crate::zk::ConnectError;

/// How to speak to the servers.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The identities to show on every connection, in this order.
    pub authentications: Vec<Authentication>,
    /// TLS, or none for plain TCP.
    #[cfg(feature = "tls")]
    pub tls: Option<TlsConfig>,
    /// SASL DIGEST-MD5 authentication.
    #[cfg(feature = "sasl")]
    pub sasl: Option<SaslDigestMd5>,
}

impl Config {
    /// What we show of ourselves, without the secrets.
    pub(super) fn identities(&self) -> Vec<String> {
        let all = self.authentications.iter().map(|one| format!("scheme {}", one.scheme));
        #[cfg(feature = "sasl")]
        let all = all.chain(self.sasl.iter().map(|sasl| format!("SASL user {:?}", sasl.username)));
        all.collect()
    }
}

/// An identity in ZooKeeper's own scheme, as with `addauth`. The secret never appears in `Debug`.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Authentication {
    /// The scheme, `digest` for instance.
    pub scheme: String,
    /// What proves it: `user:password` for `digest`.
    pub secret: Vec<u8>,
}

impl Authentication {
    /// An identity under any scheme, and what proves it.
    #[must_use]
    pub fn new(scheme: impl Into<String>, secret: impl Into<Vec<u8>>) -> Self {
        Self { scheme: scheme.into(), secret: secret.into() }
    }

    /// A user with a password, under the `digest` scheme.
    #[must_use]
    pub fn digest(user: &str, password: &str) -> Self {
        Self { scheme: "digest".to_owned(), secret: format!("{user}:{password}").into_bytes() }
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authentication").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// TLS to the servers. The key never appears in `Debug`.
#[cfg(feature = "tls")]
#[derive(Clone)]
#[non_exhaustive]
pub struct TlsConfig {
    /// The certificates that the servers' own must be signed by, in PEM; revocation lists among them count.
    pub ca_pem: String,
    /// Our own certificate chain and its private key, in PEM, where the servers ask for one.
    pub identity_pem: Option<(String, String)>,
    /// Whether the server's certificate must be for the host name that we connect to. Without this check,
    /// whoever holds any certificate of the same authority can pose as a server.
    pub verify_host: bool,
}

#[cfg(feature = "tls")]
impl TlsConfig {
    /// TLS that trusts the certificates in `ca_pem`, and checks host names.
    #[must_use]
    pub fn new(ca_pem: impl Into<String>) -> Self {
        Self { ca_pem: ca_pem.into(), identity_pem: None, verify_host: true }
    }

    /// Our own certificate chain and its private key, in PEM. None by default, for servers that ask for none.
    #[must_use]
    pub fn with_identity(mut self, certificate_pem: impl Into<String>, key_pem: impl Into<String>) -> Self {
        self.identity_pem = Some((certificate_pem.into(), key_pem.into()));
        self
    }

    /// Whether the server's certificate must be for the host name that we connect to. Yes by default.
    #[must_use]
    pub fn with_verify_host(mut self, verify: bool) -> Self {
        self.verify_host = verify;
        self
    }

    /// The crate's form of it.
    pub(super) fn to_options(&self) -> Result<zookeeper_client::TlsOptions, ConnectError> {
        use zookeeper_client::{TlsCa, TlsCerts, TlsIdentity, TlsOptions};

        let bad = |what: &str, error: zookeeper_client::Error| {
            ConnectError::BadOptions(format!("the {what} can't be used for TLS: {error}"))
        };
        let ca = TlsCa::from_pem(&self.ca_pem).map_err(|error| bad("CA certificates", error))?;
        let mut certs = TlsCerts::builder().with_ca(ca);
        if let Some((certificate, key)) = &self.identity_pem {
            // The crate takes any text for a chain of no certificates, until it has to connect.
            if !certificate.contains("-----BEGIN CERTIFICATE-----") {
                return Err(ConnectError::BadOptions(
                    "there is no client certificate in the PEM text".to_owned(),
                ));
            }
            let identity = TlsIdentity::from_pem(certificate, key);
            certs = certs.with_identity(identity.map_err(|error| bad("client certificate and key", error))?);
        }
        let certs = certs.build().map_err(|error| bad("certificates", error))?;
        let options = TlsOptions::new().with_certs(certs);
        if self.verify_host {
            return Ok(options);
        }
        // SAFETY: nothing in memory depends on it; the crate marks the option so that it is written down.
        Ok(unsafe { options.with_no_hostname_verification() })
    }
}

#[cfg(feature = "tls")]
impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsConfig")
            .field("identity", &self.identity_pem.is_some())
            .field("verify_host", &self.verify_host)
            .finish_non_exhaustive()
    }
}

/// A user with a password, by SASL DIGEST-MD5. The password never appears in `Debug`.
#[cfg(feature = "sasl")]
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SaslDigestMd5 {
    /// The user's name.
    pub username: String,
    /// The user's password.
    pub password: String,
}

#[cfg(feature = "sasl")]
impl SaslDigestMd5 {
    /// A user with a password.
    #[must_use]
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: username.into(), password: password.into() }
    }

    /// The crate's form of it.
    pub(super) fn to_options(&self) -> zookeeper_client::SaslOptions {
        zookeeper_client::SaslOptions::digest_md5(self.username.clone(), self.password.clone()).into()
    }
}

#[cfg(feature = "sasl")]
impl fmt::Debug for SaslDigestMd5 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SaslDigestMd5").field("username", &self.username).finish_non_exhaustive()
    }
}
