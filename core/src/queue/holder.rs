//! The data of a lock node: who made it, for people who look.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Written into every lock node, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) struct NodeData {
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) program: String,
    /// The thread or task that acquires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) thread: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
}

/// What `break` writes into a node before it deletes it, as Curator does.
pub(crate) const REVOKE_MARK: &[u8] = b"__REVOKE__";

/// The longest piece of somebody else's data that is shown.
const SHOWN: usize = 120;

impl NodeData {
    /// The data of a node that this process makes.
    pub(crate) fn here(thread: Option<String>, program: Option<String>, label: Option<String>) -> Self {
        static HOST: OnceLock<String> = OnceLock::new();
        static PROGRAM: OnceLock<String> = OnceLock::new();
        Self {
            host: HOST.get_or_init(host_name).clone(),
            pid: std::process::id(),
            program: program.unwrap_or_else(|| PROGRAM.get_or_init(program_name).clone()),
            thread,
            label,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        // A struct of strings and a number always serialises.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Says in words who made a node, from its data: ours is JSON, kazoo writes an identifier, Curator an address,
/// and others may have written anything.
pub(crate) fn describe(data: &[u8]) -> Option<String> {
    if let Ok(NodeData { host, pid, program, thread, label }) = serde_json::from_slice(data) {
        let label = label.map(|label| format!(" ({label})")).unwrap_or_default();
        let thread = thread.map(|thread| format!(", {thread}")).unwrap_or_default();
        return Some(shortened(&format!("{program} on {host}, pid {pid}{thread}{label}")));
    }
    let text = String::from_utf8_lossy(data);
    let text = text.trim();
    (!text.is_empty()).then(|| shortened(text))
}

/// At most [`SHOWN`] characters, none of which can disturb a terminal or a log.
fn shortened(text: &str) -> String {
    let mut shown: String =
        text.chars().take(SHOWN).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    if text.chars().nth(SHOWN).is_some() {
        shown.push('…');
    }
    shown
}

/// The name of this machine.
#[cfg(windows)]
fn host_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_else(|_| "unknown".to_owned())
}

/// The name of this machine.
#[cfg(unix)]
fn host_name() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the buffer is ours and one byte longer than what the call is told, so a terminating zero remains.
    let failed = unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) } != 0;
    let length = name.iter().position(|&byte| byte == 0).unwrap_or(0);
    if failed || length == 0 {
        return "unknown".to_owned();
    }
    String::from_utf8_lossy(&name[..length]).into_owned()
}

/// The name of this program: the last element of the path that it was started by.
fn program_name() -> String {
    let first = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&first).file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_data_is_described_in_words() {
        let data = NodeData {
            host: "h1".into(),
            pid: 7,
            program: "ledger".into(),
            thread: Some("main".into()),
            label: Some("month end".into()),
        };
        let text = String::from_utf8(data.encode()).expect("JSON is text");
        assert_eq!(text, r#"{"host":"h1","pid":7,"program":"ledger","thread":"main","label":"month end"}"#);
        assert_eq!(describe(&data.encode()).as_deref(), Some("ledger on h1, pid 7, main (month end)"));
    }

    #[test]
    fn data_of_others_is_shown_safely() {
        assert_eq!(describe(b"192.0.2.7").as_deref(), Some("192.0.2.7"));
        assert_eq!(describe(b""), None);
        assert_eq!(describe(b"a\x1b[31mb").as_deref(), Some("a\u{fffd}[31mb"));
        assert_eq!(describe(br#"{"host": 5}"#).as_deref(), Some(r#"{"host": 5}"#));
        assert!(describe(&[0xff; 5000]).expect("something").chars().count() <= SHOWN + 1);
    }
}
