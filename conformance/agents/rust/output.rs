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

/// An error of the engine, as of now.
pub(crate) fn error(error: &Error) -> Line {
    failed(error.code().as_str(), error.to_string())
}

/// Something that a scenario can't expect: it asks for what can't be done.
pub(crate) fn senseless(why: impl Into<String>) -> Line {
    failed("AGENT", why)
}

fn failed(code: &str, message: impl Into<String>) -> Line {
    Line {
        at: Some(boot_time_ns()),
        error: Some(code.to_owned()),
        message: Some(message.into()),
        ..Line::default()
    }
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
        same_session: reconnected.then_some(change.same_session),
        ..event("state")
    }
}
