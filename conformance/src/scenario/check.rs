//! Claims: terms, and what is claimed of them.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::parse::{duration, range};
use super::words::Word;

/// A value that a scenario can speak of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// A number.
    Number(i64),
    /// A name given with `let`.
    Name(String),
    /// The fencing token of an actor's latest grant.
    Token(String),
    /// The root's epoch in an actor's latest grant.
    Epoch(String),
    /// The number of the node in an actor's latest grant.
    Sequence(String),
    /// An actor's session, as its last state told.
    Session(String),
    /// Requests of an actor since the start or its last `net mark`: of one kind, or all but heartbeats.
    Requests(String, Option<String>),
    /// Watch events that reached an actor since the start or its last `net mark`.
    Events(String),
}

/// A moment that a scenario can speak of, on CLOCK_BOOTTIME as the one concerned read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    /// What happened: a result (`held`), a loss (`lost`), a state (`LOST`), or what was done (`killed`, `net`).
    pub what: String,
    /// Whom it happened to.
    pub actor: String,
    /// Further words: the verb for `started` and `ended`, a path for the others.
    pub detail: Option<String>,
}

/// How two numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `=`
    Equal,
    /// `!=`
    Different,
    /// `>=`
    AtLeast,
    /// `>`
    Greater,
}

impl Comparison {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "<" => Self::Less,
            "<=" => Self::AtMost,
            "=" => Self::Equal,
            "!=" => Self::Different,
            ">=" => Self::AtLeast,
            ">" => Self::Greater,
            _ => return None,
        })
    }

    /// Whether it holds between two numbers.
    #[must_use]
    pub fn holds(self, a: i64, b: i64) -> bool {
        match self {
            Self::Less => a < b,
            Self::AtMost => a <= b,
            Self::Equal => a == b,
            Self::Different => a != b,
            Self::AtLeast => a >= b,
            Self::Greater => a > b,
        }
    }
}

/// A claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// One number compares to another.
    Compare(Term, Comparison, Term),
    /// One moment is before another.
    Before(Moment, Moment),
    /// One moment comes so long after another.
    After(Moment, RangeInclusive<Duration>, Moment),
    /// An actor's last operation of a kind took so long, by its own clock.
    Elapsed(Moment, RangeInclusive<Duration>),
}

impl Check {
    /// Reads the words after `check`.
    pub(super) fn parse(words: &[Word]) -> Result<Self, String> {
        let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        match texts[..] {
            [a, "before", b] => Ok(Self::Before(Moment::parse(a)?, Moment::parse(b)?)),
            [a, "within", limits, "after", b] => {
                Ok(Self::After(Moment::parse(a)?, range(limits)?, Moment::parse(b)?))
            }
            [a, "within", limits] if a.starts_with("elapsed(") => {
                let of = Moment::parse(a)?;
                if of.detail.is_none() {
                    return Err("elapsed wants an actor and a verb: elapsed(a acquire)".to_owned());
                }
                Ok(Self::Elapsed(of, range(limits)?))
            }
            [a, comparison, b] => match Comparison::parse(comparison) {
                Some(comparison) => Ok(Self::Compare(Term::parse(a)?, comparison, Term::parse(b)?)),
                None => Err(format!("`{comparison}` compares nothing: < <= = != >= > before within")),
            },
            _ => Err(
                "a check is `TERM OP TERM`, `MOMENT before MOMENT`, `MOMENT within A..B after MOMENT` or \
                      `elapsed(ACTOR VERB) within A..B`"
                    .to_owned(),
            ),
        }
    }

    /// The actors that it is about.
    pub(super) fn actors(&self) -> Vec<&str> {
        match self {
            Self::Compare(a, _, b) => a.actor().into_iter().chain(b.actor()).collect(),
            Self::Before(a, b) | Self::After(a, _, b) => vec![&a.actor, &b.actor],
            Self::Elapsed(a, _) => vec![&a.actor],
        }
    }
}

/// Reads `name(word word)`.
fn application(text: &str) -> Option<(&str, Vec<&str>)> {
    let (name, rest) = text.split_once('(')?;
    Some((name, rest.strip_suffix(')')?.split_whitespace().collect()))
}

impl Term {
    /// Reads a term.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if let Ok(number) = text.parse() {
            return Ok(Self::Number(number));
        }
        if let Ok(duration) = duration(text) {
            return Ok(Self::Number(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)));
        }
        let Some((name, args)) = application(text) else {
            let plain = !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
            return if plain { Ok(Self::Name(text.to_owned())) } else { Err(format!("`{text}` is no term")) };
        };
        let one = || match args[..] {
            [actor] => Ok(actor.to_owned()),
            _ => Err(format!("{name} wants one actor: {name}(a)")),
        };
        match name {
            "token" => Ok(Self::Token(one()?)),
            "epoch" => Ok(Self::Epoch(one()?)),
            "sequence" => Ok(Self::Sequence(one()?)),
            "session" => Ok(Self::Session(one()?)),
            "events" => Ok(Self::Events(one()?)),
            "requests" => match args[..] {
                [actor] => Ok(Self::Requests(actor.to_owned(), None)),
                [actor, kind] => {
                    super::parse::operations(kind)?;
                    Ok(Self::Requests(actor.to_owned(), Some(kind.to_owned())))
                }
                _ => Err("requests wants an actor and perhaps a kind: requests(a create)".to_owned()),
            },
            _ => Err(format!("`{name}` is no term: token epoch sequence session requests events")),
        }
    }

    fn actor(&self) -> Option<&str> {
        match self {
            Self::Number(_) | Self::Name(_) => None,
            Self::Token(a)
            | Self::Epoch(a)
            | Self::Sequence(a)
            | Self::Session(a)
            | Self::Requests(a, _)
            | Self::Events(a) => Some(a),
        }
    }
}

impl Moment {
    fn parse(text: &str) -> Result<Self, String> {
        let (what, args) =
            application(text).ok_or_else(|| format!("`{text}` is no moment, such as held(b)"))?;
        let (actor, detail) = match args[..] {
            [actor] => (actor, None),
            [actor, detail] => (actor, Some(detail.to_owned())),
            _ => return Err(format!("{what} wants an actor: {what}(a)")),
        };
        Ok(Self { what: what.to_owned(), actor: actor.to_owned(), detail })
    }
}
