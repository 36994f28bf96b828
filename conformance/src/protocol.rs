//! The lines between the runner and an agent: one JSON object each, requests on the agent's stdin and the rest on
//! its stdout. The README shows them with examples.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// What the runner asks an agent to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Its number, from 1.
    pub id: u64,
    /// What to do.
    pub verb: String,
    /// How. Durations are whole milliseconds.
    #[serde(default)]
    pub args: Map<String, Value>,
}

impl Request {
    /// An argument that is a text.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.args.get(name)?.as_str()
    }

    /// An argument that is a number or a duration.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.args.get(name)?.as_u64()
    }
}

/// What an agent says. Which fields there are depends on what it is about.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct Line {
    /// The request that is meant; none for events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    /// The request has been read and begun.
    #[serde(skip_serializing_if = "is_false")]
    pub ok: bool,
    /// When the call was made, in nanoseconds on CLOCK_BOOTTIME.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub began: Option<u64>,
    /// When the user's code saw what this is about, in nanoseconds on CLOCK_BOOTTIME.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// What came of it: `held`, `none`, `ok`, `true`, …
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The error's code, `TIMED_OUT` or another, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The error's message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// The grant's fencing token, for grants and for `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<i64>,
    /// The root's epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epoch: Option<i64>,
    /// The number of the grant's node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence: Option<i64>,
    /// Which event this is: `ready`, `state`, `lost`, `body`, `listener`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// The state, for `state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The session that a state is about, as a signed number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<i64>,
    /// Whether the session is the one from before, for `state` RECONNECTED.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub same_session: Option<bool>,
    /// The lock's path, for `lost` and `body`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The reason, for `lost`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The signature that serde wants.
fn is_false(value: &bool) -> bool {
    !value
}

impl Line {
    /// The result or the error, as scenarios write it.
    #[must_use]
    pub fn outcome(&self) -> String {
        match (&self.error, &self.result) {
            (Some(code), _) => format!("error {code}"),
            (None, Some(result)) => result.clone(),
            (None, None) => String::from("nothing"),
        }
    }
}
