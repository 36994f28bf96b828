//! Scenarios: what they consist of, and how they are read.

mod check;
mod parse;
pub mod verbs;
pub mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forelock_testkit::{Cut, EventKind, Flow, Op, Version};
use serde_json::{Map, Value};

pub use check::{Check, Comparison, Moment, Term};
pub(crate) use parse::operations;
pub use parse::{parse, read_folder};

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What must hold, in a sentence.
    pub name: String,
    /// Where it stands.
    pub file: PathBuf,
    /// The line of its name.
    pub line: usize,
    /// The server that it runs on.
    pub server: ServerSettings,
    /// The versions that it runs on, one after the other.
    pub versions: Vec<Version>,
    /// The actors, in the order of their appearance.
    pub actors: Vec<String>,
    /// Actors that are always played by the same agent, such as a peer of ours.
    pub peers: BTreeMap<String, String>,
    /// Capabilities that each agent (the peers aside) must have.
    pub needs: BTreeSet<String>,
    /// Agents that can't play it, and why.
    pub skips: BTreeMap<String, String>,
    /// Whether two of our own may hold at once for a moment here, and why.
    pub may_overlap: Option<String>,
    /// Whether mixtures of agents play it too.
    pub mixed: bool,
    /// What happens.
    pub steps: Vec<Step>,
}

impl Scenario {
    /// Whether it does something to the server that others would feel.
    #[must_use]
    pub fn wants_own_server(&self) -> bool {
        let touches =
            |step: &Step| matches!(step.action, Action::Server(_) | Action::Zk(ZkVerb::Counter { .. }));
        self.steps.iter().any(touches)
    }

    /// The actors that any language may play.
    pub fn cast(&self) -> impl Iterator<Item = &str> {
        self.actors.iter().map(String::as_str).filter(|actor| !self.peers.contains_key(*actor))
    }
}

/// What the server is like.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerSettings {
    /// Its `tickTime`.
    pub tick: Duration,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self { tick: Duration::from_millis(200) }
    }
}

/// One line of a scenario.
#[derive(Clone, Debug)]
pub struct Step {
    /// Where it stands.
    pub line: usize,
    /// How it is written.
    pub text: String,
    /// How often it is done.
    pub times: u32,
    /// What is done.
    pub action: Action,
    /// What must come of it.
    pub expect: Option<Expectation>,
}

/// What must come of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The results that will do.
    pub any_of: Vec<String>,
    /// How long it may take, by the clock of the one who did it.
    pub within: Option<RangeInclusive<Duration>>,
}

/// What a step does.
#[derive(Clone, Debug)]
pub enum Action {
    /// An actor does something.
    Call(Call),
    /// An actor's operation, begun with `&`, ends.
    Await { actor: String, label: Option<String> },
    /// An actor is told of a loss.
    AwaitLost { actor: String, path: String },
    /// How often an actor was told that a lock is lost.
    LostCount { actor: String, path: String },
    /// An actor sees a state, after those that were awaited before.
    AwaitState { actor: String, state: String },
    /// The states that an actor has seen.
    States { actor: String },
    /// What a listener that uses the client has to say.
    AwaitListener { actor: String },
    /// How often an actor ran the body of a block.
    Bodies { actor: String },
    /// An actor's process is killed, frozen, thawed, or interrupted as by Ctrl-C.
    Process { actor: String, what: ProcessVerb },
    /// The network between an actor and the server.
    Net { actor: String, what: NetVerb },
    /// The server.
    Server(ServerVerb),
    /// The tree, as an independent client sees and changes it.
    Zk(ZkVerb),
    /// A claim about what has happened.
    Check(Check),
    /// Remembers a value under a name.
    Let { name: String, term: Term },
}

/// A verb that agents understand.
#[derive(Debug)]
pub struct Verb {
    /// Its name.
    pub name: &'static str,
    /// What follows it, in order.
    pub positional: &'static [(&'static str, verbs::Kind)],
    /// What may follow in any order, each after its name.
    pub options: &'static [(&'static str, verbs::Kind)],
}

/// Something that an actor is told to do.
#[derive(Clone, Debug)]
pub struct Call {
    /// Who.
    pub actor: String,
    /// What.
    pub verb: &'static str,
    /// How, as sent to the agent.
    pub args: Map<String, Value>,
    /// Whether the scenario goes on meanwhile.
    pub background: bool,
    /// The name by which the operation is awaited or cancelled.
    pub label: Option<String>,
}

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessVerb {
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Freeze,
    /// SIGCONT.
    Thaw,
    /// SIGINT.
    Interrupt,
    /// It is told to end, and must do so in order.
    Exit,
}

/// What is done to the network.
#[derive(Clone, Debug)]
pub enum NetVerb {
    /// Connections end, and new ones are refused, until `restore`.
    Cut(Cut),
    /// Connections end, once.
    Drop(Cut),
    /// All bytes vanish, on new connections too.
    BlackHole(Flow),
    /// All bytes are held, on new connections too.
    Stall(Flow),
    /// What is held goes on.
    Resume,
    /// New connections are refused.
    Refuse,
    /// Everything is well again.
    Restore,
    /// Everything takes so long each way.
    Delay(Duration),
    /// Something happens to one frame.
    Rule(RuleVerb),
    /// Waits until the last rule has found its frame.
    AwaitRule,
    /// Requests and events are counted from here on.
    Mark,
}

/// What happens to which frame.
#[derive(Clone, Debug)]
pub struct RuleVerb {
    /// What happens to it.
    pub fate: RuleFate,
    /// Which it is among those that fit, from 1.
    pub nth: u32,
    /// Text that its path contains.
    pub path: Option<String>,
    /// How the connection is cut afterwards, if it is.
    pub then: Option<Cut>,
}

/// What happens to a frame.
#[derive(Clone, Debug)]
pub enum RuleFate {
    /// The request does not arrive.
    DropRequest(Vec<Op>),
    /// The reply does not arrive.
    DropReply(Vec<Op>),
    /// The request, and all after it, is held.
    HoldRequest(Vec<Op>),
    /// The reply, and all after it, is held.
    HoldReply(Vec<Op>),
    /// The event does not arrive.
    DropEvent(EventKind),
    /// The event, and all after it, is held.
    HoldEvent(EventKind),
}

/// What is done to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerVerb {
    /// SIGTERM.
    Stop,
    /// Starts what was stopped or killed.
    Start,
    /// Both.
    Restart,
    /// SIGKILL.
    Kill,
    /// SIGSTOP.
    Pause,
    /// SIGCONT.
    Resume,
    /// Starts anew without data.
    Wipe,
}

/// What the independent client does or asks.
#[derive(Clone, Debug)]
pub enum ZkVerb {
    /// Removes an actor's node.
    DeleteNode { path: String, of: String },
    /// Removes a node and all below it.
    DeleteTree(String),
    /// Makes a persistent node, and all above it.
    Create(String),
    /// Writes an actor's node.
    SetData { path: String, of: String, data: String },
    /// Ends an actor's session, as its expiry would.
    EndSession(String),
    /// Sets the counter that children of a node are numbered by.
    Counter { path: String, next: i32 },
    /// How many children a node has; waits until it fits.
    Children(String),
    /// How many watches the server keeps at and below a path; waits until it fits.
    Watches(String),
    /// Waits until an actor's node is gone.
    Gone { path: String, of: String },
    /// An actor's node has data that contain a text.
    DataContains { path: String, of: String, text: String },
    /// Whether a node exists; waits until it fits.
    Exists(String),
}

/// What is wrong with a scenario file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The file.
    pub file: PathBuf,
    /// The line, from 1.
    pub line: usize,
    /// What is wrong.
    pub message: String,
}

impl ParseError {
    fn new(file: &Path, line: usize, message: impl Into<String>) -> Self {
        Self { file: file.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.message)
    }
}

impl std::error::Error for ParseError {}
