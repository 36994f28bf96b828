//! The verbs that agents understand, and what each can be told.
//!
//! To add one: a line here, and a branch in each agent. What an agent does not know it answers with an error, and
//! a scenario says with `needs` which capability a verb or an option asks of an agent.

use super::Verb;

/// What an option's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A duration, sent as milliseconds.
    Duration,
    /// A whole number.
    Number,
    /// A word or a quoted text.
    Text,
    /// Nothing: the option's presence says it.
    Flag,
}

use Kind::{Duration, Flag, Number, Text};

const ACQUIRE: &[(&str, Kind)] =
    &[("timeout", Duration), ("owner", Text), ("naming", Text), ("max-hold", Duration), ("patterns", Text)];

/// What bounds it is the client's operation timeout.
const TRY_ACQUIRE: &[(&str, Kind)] =
    &[("owner", Text), ("naming", Text), ("max-hold", Duration), ("patterns", Text)];

/// Every verb: its name, what follows it in order, and its options.
pub const VERBS: &[Verb] = &[
    Verb {
        name: "connect",
        positional: &[],
        options: &[
            ("session", Duration),
            ("tick", Duration),
            ("connection-timeout", Duration),
            ("acquire-timeout", Duration),
            ("operation-timeout", Duration),
            ("release-timeout", Duration),
            ("close-timeout", Duration),
            ("retry-attempts", Number),
            ("retry-delay", Duration),
            ("namespace", Text),
            ("label", Text),
            ("heartbeat", Text),
            ("lazily", Flag),
        ],
    },
    Verb { name: "ensure-root", positional: &[("path", Text)], options: &[] },
    Verb { name: "acquire", positional: &[("path", Text)], options: ACQUIRE },
    Verb { name: "try-acquire", positional: &[("path", Text)], options: TRY_ACQUIRE },
    Verb { name: "enter-block", positional: &[("path", Text)], options: ACQUIRE },
    Verb { name: "leave-block", positional: &[("path", Text)], options: &[] },
    Verb { name: "throw-in-block", positional: &[("path", Text)], options: &[] },
    Verb { name: "release", positional: &[("path", Text)], options: &[("by", Text)] },
    Verb { name: "hand-over", positional: &[("path", Text)], options: &[("to", Text)] },
    Verb { name: "is-valid", positional: &[("path", Text)], options: &[] },
    Verb { name: "lock-state", positional: &[("path", Text)], options: &[] },
    Verb { name: "verify", positional: &[("path", Text)], options: &[] },
    Verb { name: "ensure", positional: &[("path", Text), ("min", Duration)], options: &[] },
    Verb { name: "await-revocation", positional: &[("path", Text)], options: &[] },
    Verb { name: "supersede", positional: &[("path", Text)], options: &[] },
    Verb { name: "state", positional: &[], options: &[] },
    Verb { name: "listen", positional: &[("do", Text), ("path", Text), ("on", Text)], options: &[] },
    Verb { name: "unblock-listener", positional: &[], options: &[] },
    Verb { name: "cancel", positional: &[], options: &[("label", Text)] },
    Verb { name: "fork-use", positional: &[("path", Text)], options: &[] },
    Verb { name: "stall-runtime", positional: &[("for", Duration)], options: &[] },
    Verb { name: "ping", positional: &[], options: &[] },
    Verb { name: "close", positional: &[], options: &[] },
];

/// The verb with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Verb> {
    VERBS.iter().find(|verb| verb.name == name)
}
