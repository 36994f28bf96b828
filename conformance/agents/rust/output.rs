//! What the agent says.

use std::io::Write;

use forelock::{ConnectionState, Error, StateChange};
use forelock_conformance::protocol::Line;
use forelock_testkit::proxy::boot_time_ns;

/// Writes a line to stdout. Nobody may be there any more to read it.
pub(crate) fn say(line: &Line) {
    if let Ok(text) = serde_json::to_string(line) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }
}

/// A result, as of now.
pub(crate) fn result(word: impl Into<String>) -> Line {
    Line { at: Some(boot_time_ns()), result: Some(word.into()), ..Line::default() }
}

/// Why something was not done.
pub(crate) enum Failure {
    /// The engine says so.
    Engine(Error),
    /// A scenario asks for what can't be done; no scenario can expect this.
    Senseless(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

/// Says that a scenario asks for what can't be done.
pub(crate) fn senseless(why: impl Into<String>) -> Failure {
    Failure::Senseless(why.into())
}

/// A result or a failure, as of now.
pub(crate) fn outcome(done: Result<Line, Failure>) -> Line {
    let (code, message) = match done {
        Ok(line) => return line,
        Err(Failure::Engine(error)) => (error.code().as_str(), error.to_string()),
        Err(Failure::Senseless(why)) => ("AGENT", why),
    };
    Line { at: Some(boot_time_ns()), error: Some(code.to_owned()), message: Some(message), ..Line::default() }
}

/// An event, as of now.
pub(crate) fn event(name: &str) -> Line {
    Line { at: Some(boot_time_ns()), event: Some(name.to_owned()), ..Line::default() }
}

/// A change of state, as of now.
pub(crate) fn state(change: StateChange) -> Line {
    let reconnected = change.state == ConnectionState::Reconnected;
    Line {
        state: Some(change.state.as_str().to_owned()),
        session: Some(change.session.0),
        same_session: reconnected.then_some(change.same_session),
        ..event("state")
    }
}
