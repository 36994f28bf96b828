//! Forelock: a distributed lock for ZooKeeper that tells its holder in time.
//!
//! Every waiter watches the one in front of it; every grant carries a fencing token; and when a session can no
//! longer be relied on, its holder is told before anyone else can be granted the lock.
//!
//! ```no_run
//! # async fn example() -> Result<(), forelock::Error> {
//! let client = forelock::Client::new("zk1:2181,zk2:2181,zk3:2181")?;
//! let held = client.mutex("/locks/order/123")?.acquire().await?;
//! // … write, and give held.token() to the storage, which refuses what is smaller than the largest it has seen …
//! held.release().await?;
//! # Ok(()) }
//! ```
//!
//! The engine runs on one thread of its own, whatever runtime its futures are awaited in, and all of them may be
//! dropped at any time.
//!
//! It logs through [`tracing`], under the target `forelock`: one line for each event, at INFO what happens to the
//! connection and the session, at WARN what somebody should look at, at DEBUG every attempt. The crate below it that
//! speaks ZooKeeper's protocol logs each connection a second time, in its own words, under `zookeeper_client`; a
//! filter such as `info,zookeeper_client=error` (the syntax is that of `tracing_subscriber::EnvFilter`) leaves that
//! out.

#![warn(missing_docs)]

mod client;
mod connect;
mod engine;
#[doc(hidden)]
pub mod env;
mod error;
mod exit;
mod limits;
#[cfg(test)]
mod logged;
mod observe;
mod options;
mod path;
mod queue;
mod recipes;
mod session;
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub mod simulation;
#[cfg(test)]
mod tables;
mod watched;
mod words;
#[doc(hidden)]
// It speaks of the simulated adapter, which is not in every build.
#[allow(rustdoc::broken_intra_doc_links)]
pub mod zk;

/// What a lease comes to: for those who choose a session timeout.
pub mod lease {
    pub use crate::session::{DEFAULT_TICK, heartbeat_interval, margin, survivable_outage};
}

pub use client::Client;
pub use connect::ConnectString;
pub use error::{Error, ErrorCode, Result};
pub use observe::{Event, Events, MetricsSnapshot, PauseMeter, Pauses};
#[cfg(any(test, feature = "simulation"))]
#[doc(hidden)]
pub use options::Mutants;
pub use options::Options;
pub use path::LockPath;
pub use queue::{FencingToken, HeldLock, LockState, LostReason, Naming, OwnerKey};
pub use recipes::{AcquireOptions, Mutex, MutexOptions, Timeout};
pub use session::{ConnectionState, Heartbeat, RetryPolicy, SessionInfo, StateChange, States};
pub use zk::zookeeper::Authentication;
#[cfg(feature = "sasl")]
pub use zk::zookeeper::SaslDigestMd5;
#[cfg(feature = "tls")]
pub use zk::zookeeper::TlsConfig;
pub use zk::{Acl, AclEntry, Endpoint, SessionId};
