//! A TLS handshake of our own, only to say what is wrong with the one that failed.

use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, ClientConnection, Error, RootCertStore, StreamOwned,
};

use super::config::TlsConfig;
use super::knock::{self, Answer};

/// What a handshake starts from.
pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    host: String,
}

/// What a handshake came to.
pub(super) enum Look {
    /// It failed, and this is why.
    Says(String),
    /// It succeeded, and this came of what was asked then.
    Answer(Answer),
    /// What answered is no TLS, or nothing did.
    NoTls,
}

impl Handshake {
    /// None for options that the crate can use and we can't.
    pub(super) fn new(tls: &TlsConfig, host: &str) -> Option<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(tls.ca_pem.as_bytes()).flatten() {
            let _ = roots.add(certificate);
        }
        let lists = CertificateRevocationListDer::pem_slice_iter(tls.ca_pem.as_bytes()).flatten();
        let verifier = WebPkiServerVerifier::builder(roots.into()).with_crls(lists).build().ok()?;
        let builder = ClientConfig::builder().with_webpki_verifier(verifier);
        let config = match &tls.identity_pem {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).flatten().collect();
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).ok()?;
                builder.with_client_auth_cert(chain, key).ok()?
            }
        };
        Some(Self { config: Arc::new(config), host: host.to_owned() })
    }

    pub(super) fn look(&self, stream: TcpStream) -> Look {
        let name = ServerName::try_from(self.host.clone()).map_err(io::Error::other);
        let connection =
            name.and_then(|name| ClientConnection::new(self.config.clone(), name).map_err(io::Error::other));
        let Ok(connection) = connection else { return Look::NoTls };
        // A server looks at our certificate only after we have taken its own, so its refusal comes with the answer.
        let mut stream = StreamOwned::new(connection, stream);
        match knock::heard(&mut stream) {
            Ok(answer) => Look::Answer(answer),
            Err(error) => match tls_error(&error) {
                None if !stream.conn.is_handshaking() => Look::Answer(Answer::Closed),
                Some(Error::InvalidMessage(_)) | None => Look::NoTls,
                Some(error) => Look::Says(explain(error, &self.host)),
            },
        }
    }
}

/// Whether TLS is spoken at the other end, by whomever.
pub(super) fn speaks_tls(mut stream: TcpStream) -> bool {
    let config = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let name = ServerName::try_from("zookeeper").map_err(io::Error::other);
    let connection =
        name.and_then(|name| ClientConnection::new(Arc::new(config), name).map_err(io::Error::other));
    let Ok(mut connection) = connection else { return false };
    while connection.is_handshaking() {
        match connection.complete_io(&mut stream) {
            Ok(_) => {}
            // We trust nobody, so whoever shows a certificate fails; but no other can.
            Err(error) => return !matches!(tls_error(&error), Some(Error::InvalidMessage(_)) | None),
        }
    }
    true
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref().and_then(|inner| inner.downcast_ref())
}

/// What is wrong, and what to change.
fn explain(error: &Error, host: &str) -> String {
    match error {
        Error::InvalidCertificate(reason) => match reason {
            // The latter when an authority of the same name has another key.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                "the server's certificate is signed by none of the CA \
                certificates in tls (ca_pem): add the authority of the servers to them"
                    .to_owned()
            }
            CertificateError::NotValidForName => wrong_name(host, ""),
            CertificateError::NotValidForNameContext { presented, .. } => {
                wrong_name(host, &format!(" but for {}", presented.join(", ")))
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the server's certificate has expired: renew it there, or set this machine's clock".to_owned()
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the server's certificate is not valid yet: set this machine's clock or the server's"
                    .to_owned()
            }
            CertificateError::Revoked => "the server's certificate has been revoked".to_owned(),
            other => format!("the server's certificate can't be accepted: {other}"),
        },
        Error::AlertReceived(
            alert @ (AlertDescription::CertificateRequired
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateRevoked
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied),
        ) => format!(
            "the server refuses the client's certificate, or the lack of one ({alert:?}): set a certificate and \
             key in tls that its trust store knows"
        ),
        Error::PeerIncompatible(why) => {
            format!(
                "the server has no TLS version or cipher in common with us ({why:?}); see its ssl settings"
            )
        }
        other => format!("the TLS handshake failed: {other}"),
    }
}

fn wrong_name(host: &str, but_for: &str) -> String {
    format!(
        "the server's certificate is not for {host}{but_for}: connect by a name that it has, or leave names \
         unchecked (verify_host)"
    )
}
