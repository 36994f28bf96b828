//! The adapter for real servers: the only folder that names the client crate.
//!
//! The crate is used for the wire protocol and for nothing above it. It would reconnect, declare expiry and
//! re-arm watches by itself, in ways that cost sessions; so each of its clients is held down to one TCP
//! connection, and is taken apart the moment that connection ends.
//!
//! - `connector` tries a host's addresses and makes the connection.
//! - `names` keeps the addresses of the hosts.
//! - `knock` finds out what is wrong with a server that could not be attached to, and `tls` what with its TLS.
//! - `link` runs the crate's task, hands on replies and watch events, and ends it all together.
//! - `connection` translates the port's operations into the crate's.
//! - `convert` translates errors, stats and access-control lists.
//! - `config` holds what identifies us to the servers, and them to us.
//! - `socket` sets the one socket option that the crate leaves out.

mod config;
mod connection;
mod connector;
mod convert;
mod knock;
mod link;
mod names;
mod socket;
#[cfg(feature = "tls")]
mod tls;

#[cfg(feature = "sasl")]
pub use config::SaslDigestMd5;
#[cfg(feature = "tls")]
pub use config::TlsConfig;
pub use config::{Authentication, Config};
pub use connector::ZooKeeperConnector;
