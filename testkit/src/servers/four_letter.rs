//! The four-letter words, and what they say in types.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::{ServerError, ZooKeeper};
use crate::processes;

/// What a server is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It is alone.
    Standalone,
    /// It leads an ensemble.
    Leader,
    /// It follows a leader.
    Follower,
    /// It follows without a vote.
    Observer,
    /// It has lost its ensemble and only answers reads.
    ReadOnly,
}

/// Sends one word and reads the answer, unless the server is silent for 2 s.
pub(super) fn ask_once(server: SocketAddr, word: &str) -> io::Result<String> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&server, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

pub(super) fn mode(srvr: &str) -> Option<Mode> {
    match srvr.lines().find_map(|line| line.strip_prefix("Mode: "))? {
        "standalone" => Some(Mode::Standalone),
        "leader" => Some(Mode::Leader),
        "follower" => Some(Mode::Follower),
        "observer" => Some(Mode::Observer),
        "read-only" => Some(Mode::ReadOnly),
        _ => None,
    }
}

/// A session id as the server prints it, `0x` and hexadecimal digits.
fn session_id(text: &str) -> Option<i64> {
    let digits = text.trim().trim_end_matches(':').strip_prefix("0x")?;
    u64::from_str_radix(digits, 16).ok().map(u64::cast_signed)
}

/// Reads a list of headings, each followed by indented lines.
fn outline(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        match (line.strip_prefix('\t'), groups.last_mut()) {
            (Some(item), Some((_, items))) => items.push(item),
            _ => groups.push((line, Vec::new())),
        }
    }
    groups
}

fn by_path(wchp: &str) -> BTreeMap<String, BTreeSet<i64>> {
    let mut watches = BTreeMap::<String, BTreeSet<i64>>::new();
    for (path, sessions) in outline(wchp) {
        let sessions = sessions.into_iter().filter_map(session_id);
        watches.entry(path.to_owned()).or_default().extend(sessions);
    }
    watches
}

fn by_session(text: &str) -> BTreeMap<i64, BTreeSet<String>> {
    let mut groups = BTreeMap::<i64, BTreeSet<String>>::new();
    for (session, paths) in outline(text) {
        if let Some(session) = session_id(session) {
            groups.entry(session).or_default().extend(paths.into_iter().map(str::to_owned));
        }
    }
    groups
}

/// The two halves of `dump`: sessions, and sessions with ephemeral nodes.
fn halves(dump: &str) -> (&str, &str) {
    dump.split_once("ephemeral nodes dump:").unwrap_or((dump, ""))
}

fn sessions(dump: &str) -> BTreeSet<i64> {
    let groups = outline(halves(dump).0);
    groups.into_iter().flat_map(|(_, sessions)| sessions).filter_map(session_id).collect()
}

impl ZooKeeper {
    /// Sends a four-letter word (`srvr`, `mntr`, `cons`, `dump`, `wchc`, `wchp`, …) and returns the answer.
    ///
    /// # Errors
    /// When the server does not answer: it is stopped, or frozen.
    pub fn four_letter(&self, word: &str) -> Result<String, ServerError> {
        /// One that neither answers nor stands still is only slow, on a busy machine.
        const PATIENCE: Duration = Duration::from_secs(60);
        let asked = Instant::now();
        loop {
            match ask_once(self.client_addr(), word) {
                Err(error) if is_silence(&error) && asked.elapsed() < PATIENCE && !self.is_frozen() => {}
                answer => return answer.map_err(ServerError::io(format!("asking the server for {word}"))),
            }
        }
    }

    fn is_frozen(&self) -> bool {
        self.pid().is_some_and(processes::is_frozen)
    }

    /// What the server is, or `None` when it does not serve (yet, or any more).
    #[must_use]
    pub fn mode(&self) -> Option<Mode> {
        mode(&self.four_letter("srvr").ok()?)
    }

    /// The server's own measurements, by name.
    ///
    /// # Errors
    /// As [`four_letter`](Self::four_letter).
    pub fn measurements(&self) -> Result<BTreeMap<String, String>, ServerError> {
        let text = self.four_letter("mntr")?;
        let pairs = text.lines().filter_map(|line| line.split_once('\t'));
        Ok(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// How many watches this server keeps. A persistent watch counts as one of each kind it covers.
    ///
    /// # Errors
    /// As [`four_letter`](Self::four_letter).
    pub fn watch_count(&self) -> Result<usize, ServerError> {
        let measurements = self.measurements()?;
        let count = measurements.get("zk_watch_count").and_then(|count| count.parse().ok());
        count.ok_or_else(|| ServerError::Data("mntr has no zk_watch_count".to_owned()))
    }

    /// The sessions that watch, by path, data and child watches together. Only this server's own clients.
    ///
    /// # Errors
    /// As [`four_letter`](Self::four_letter).
    pub fn watches_by_path(&self) -> Result<BTreeMap<String, BTreeSet<i64>>, ServerError> {
        Ok(by_path(&self.four_letter("wchp")?))
    }

    /// The watched paths, by session. Only this server's own clients.
    ///
    /// # Errors
    /// As [`four_letter`](Self::four_letter).
    pub fn watches_by_session(&self) -> Result<BTreeMap<i64, BTreeSet<String>>, ServerError> {
        Ok(by_session(&self.four_letter("wchc")?))
    }

    /// The live sessions. Only a leader or a standalone server knows them.
    ///
    /// # Errors
    /// As [`four_letter`](Self::four_letter).
    pub fn sessions(&self) -> Result<BTreeSet<i64>, ServerError> {
        Ok(sessions(&self.four_letter("dump")?))
    }

    /// The ephemeral nodes, by session.
    ///
    /// # Errors
    /// As [`four_letter`](Self::four_letter).
    pub fn ephemerals(&self) -> Result<BTreeMap<i64, BTreeSet<String>>, ServerError> {
        Ok(by_session(halves(&self.four_letter("dump")?).1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dump_is_read_in_its_two_halves() {
        let dump = "SessionTracker dump:\nSession Sets (2)/(1):\n0 expire at Thu Jan 01 00:00:02 UTC 1970:\n\
                    1 expire at Thu Jan 01 00:00:04 UTC 1970:\n\t0x10000a\n\t0xff00000000000001\n\
                    ephemeral nodes dump:\nSessions with Ephemerals (1):\n0x10000a:\n\t/a/b\n\t/c\n\
                    Connections dump:\nConnections Sets (1)/(1):\n1 expire at Thu Jan 01 00:00:04 UTC 1970:\n\
                    \tip: /127.0.0.1:2 sessionId: 0x10000a\n";
        assert_eq!(sessions(dump), BTreeSet::from([0x10_000a, 0xff00_0000_0000_0001_u64.cast_signed()]));
        let paths = BTreeSet::from(["/a/b".to_owned(), "/c".to_owned()]);
        assert_eq!(by_session(halves(dump).1), BTreeMap::from([(0x10_000a, paths)]));
    }

    #[test]
    fn watches_are_read_by_path_and_by_session() {
        assert_eq!(by_path("/a\n\t0x1\n\t0x2\n/b\n\t0x1\n")["/a"], BTreeSet::from([1, 2]));
        assert_eq!(by_session("0x1\n\t/a\n\t/b\n")[&1].len(), 2);
    }
}
