//! The connection states that a user sees, and the pure function that decides them.

use std::fmt;

use crate::zk::SessionId;

/// The state of the connection, in Curator's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// Connected for the first time.
    Connected,
    /// The connection is down. The session may live on; locks are valid until their lease runs out.
    Suspended,
    /// Connected again, to the same session or to a new one.
    Reconnected,
    /// The session can't be relied on any more. Every lock held in it is lost.
    Lost,
    /// Connected to a server in read-only mode, which grants no locks and extends no lease.
    ReadOnly,
}

impl ConnectionState {
    /// Every state, in the order of their declaration.
    pub const ALL: &'static [Self] =
        &[Self::Connected, Self::Suspended, Self::Reconnected, Self::Lost, Self::ReadOnly];

    /// The name that every language uses, such as `SUSPENDED`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Connected => "CONNECTED",
            Self::Suspended => "SUSPENDED",
            Self::Reconnected => "RECONNECTED",
            Self::Lost => "LOST",
            Self::ReadOnly => "READ_ONLY",
        }
    }

    /// Whether requests can be made.
    #[must_use]
    pub const fn is_connected(self) -> bool {
        matches!(self, Self::Connected | Self::Reconnected | Self::ReadOnly)
    }
}

impl fmt::Display for ConnectionState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One change of state, as a listener sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StateChange {
    /// The new state.
    pub state: ConnectionState,
    /// The session that it is about.
    pub session: SessionId,
    /// For RECONNECTED, whether the session is the one from before.
    pub same_session: bool,
}

/// What happened to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionEvent {
    /// A connection is up, attached to this session.
    Attached { session: SessionId, read_only: bool },
    /// The connection went down.
    Disconnected,
    /// The session is over: the server said so, or its lease has run out.
    SessionOver,
}

/// What is known of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// Never connected so far.
    #[default]
    Fresh,
    /// Connected.
    Up(SessionId),
    /// The connection is down, the session may live.
    Down(SessionId),
    /// The last session is over, and there is no new one yet.
    Over,
}

/// Decides what listeners are told, in order, and what is known from then on.
pub(crate) fn transition(known: Knowledge, event: SessionEvent) -> (Knowledge, Vec<StateChange>) {
    use ConnectionState::{Connected, Lost, ReadOnly, Reconnected, Suspended};
    let told = |state, session, same_session| StateChange { state, session, same_session };
    match (known, event) {
        (_, SessionEvent::Attached { session, read_only }) => {
            let mut changes = Vec::new();
            // A connection never changes session without having been lost: say so if nobody has yet.
            let before = match known {
                Knowledge::Up(old) if old != session => {
                    changes.push(told(Suspended, old, true));
                    changes.push(told(Lost, old, true));
                    Knowledge::Over
                }
                Knowledge::Down(old) if old != session => {
                    changes.push(told(Lost, old, true));
                    Knowledge::Over
                }
                other => other,
            };
            let state = match before {
                Knowledge::Up(_) => None,
                _ if read_only => Some(ReadOnly),
                Knowledge::Fresh => Some(Connected),
                Knowledge::Down(_) | Knowledge::Over => Some(Reconnected),
            };
            changes.extend(state.map(|state| told(state, session, matches!(before, Knowledge::Down(_)))));
            (Knowledge::Up(session), changes)
        }
        (Knowledge::Up(session), SessionEvent::Disconnected) => {
            (Knowledge::Down(session), vec![told(Suspended, session, true)])
        }
        (Knowledge::Up(session), SessionEvent::SessionOver) => {
            (Knowledge::Over, vec![told(Suspended, session, true), told(Lost, session, true)])
        }
        (Knowledge::Down(session), SessionEvent::SessionOver) => {
            (Knowledge::Over, vec![told(Lost, session, true)])
        }
        (Knowledge::Fresh | Knowledge::Down(_) | Knowledge::Over, SessionEvent::Disconnected)
        | (Knowledge::Fresh | Knowledge::Over, SessionEvent::SessionOver) => (known, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Table, rows};

    /// Runs each line of `tables/session_states.txt`: events on the left, what listeners are told on the right.
    #[test]
    fn table_of_session_states() {
        let text = include_str!("../../tables/session_states.txt");
        for Table { name, given, expected } in rows(text) {
            let mut known = Knowledge::default();
            let mut told = Vec::new();
            for word in given.split_whitespace() {
                let (next, changes) = transition(known, event(word));
                known = next;
                told.extend(changes.into_iter().map(describe));
            }
            assert_eq!(told.join(" "), expected, "{name}: {given}");
        }
    }

    fn event(word: &str) -> SessionEvent {
        let session = |text: &str| SessionId(text.parse().expect("a session number"));
        match word.split_once(':') {
            Some(("up", id)) => SessionEvent::Attached { session: session(id), read_only: false },
            Some(("readonly", id)) => SessionEvent::Attached { session: session(id), read_only: true },
            _ if word == "down" => SessionEvent::Disconnected,
            _ if word == "over" => SessionEvent::SessionOver,
            _ => panic!("no such event: {word}"),
        }
    }

    fn describe(change: StateChange) -> String {
        let same = match (change.state, change.same_session) {
            (ConnectionState::Reconnected, true) => "=",
            (ConnectionState::Reconnected, false) => "!",
            _ => "",
        };
        format!("{}{same}:{}", change.state, change.session.0)
    }
}
