//! Real ZooKeepers: one, or an ensemble whose links can be cut.
//!
//! Every server is a process of its own with its data in a temporary folder. Both are gone when their handle is
//! dropped or the process that started them ends, however it ends (data that a killed process leaves behind is
//! removed by the next one).

mod counter;
mod ensemble;
mod four_letter;
mod jars;
mod process;
mod scratch;
mod zookeeper;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use ensemble::{Ensemble, EnsembleBuilder};
pub use four_letter::Mode;
pub use jars::fetch;
pub use zookeeper::{Builder, ZooKeeper};

/// A version of ZooKeeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Version {
    /// 3.8.6
    V3_8_6,
    /// 3.9.5
    #[default]
    V3_9_5,
}

impl Version {
    /// All versions that tests run against.
    pub const ALL: [Version; 2] = [Version::V3_9_5, Version::V3_8_6];

    /// The version as text.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V3_8_6 => "3.8.6",
            Version::V3_9_5 => "3.9.5",
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Version {
    type Err = ServerError;

    fn from_str(text: &str) -> Result<Self, ServerError> {
        let known = Version::ALL.into_iter().find(|version| version.as_str() == text);
        known.ok_or_else(|| ServerError::UnknownVersion(text.to_owned()))
    }
}

/// Why a server did not do what it was asked to.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// No such version is prepared here.
    #[error("ZooKeeper {0:?} is not among the versions used here")]
    UnknownVersion(String),
    /// The jars could not be had.
    #[error("the jars could not be fetched: {0}")]
    Fetch(String),
    /// A file, a port or a process could not be had.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What went wrong.
        source: std::io::Error,
    },
    /// The process has ended by itself.
    #[error("the server has ended ({status}); the end of its log:\n{log}")]
    Ended {
        /// Its exit status.
        status: String,
        /// The last lines of its log.
        log: String,
    },
    /// It did not become what was waited for in time.
    #[error("the server was not {what} after {waited:?}; the end of its log:\n{log}")]
    NotInTime {
        /// What it should have become.
        what: String,
        /// How long that was waited for.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },
    /// It does not run.
    #[error("the server does not run")]
    NotRunning,
    /// Its data are not as expected.
    #[error("the server's data: {0}")]
    Data(String),
}

impl ServerError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}
