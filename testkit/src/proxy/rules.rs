//! One-shot rules: what is to happen to the n-th request, reply or event of a kind.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::Cut;
use super::entry::{Entry, What};
use crate::wait::{TimedOut, lock, off_thread};
use crate::wire::{EventKind, Op};

/// What follows when a rule has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// Nothing; the connection goes on.
    Continue,
    /// The connection is cut, after whatever came before on the same line has been delivered.
    Cut(Cut),
}

/// What happens to the frame itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    Drop,
    Hold,
    Pass,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Target {
    Request(Vec<Op>),
    Reply(Vec<Op>),
    Event(EventKind),
}

/// The operations that a rule is about: one, or any of several such as [`Op::CREATES`].
#[derive(Debug, Clone)]
pub struct Ops(Vec<Op>);

impl From<Op> for Ops {
    fn from(op: Op) -> Self {
        Self(vec![op])
    }
}

impl From<Vec<Op>> for Ops {
    fn from(ops: Vec<Op>) -> Self {
        Self(ops)
    }
}

impl<const N: usize> From<[Op; N]> for Ops {
    fn from(ops: [Op; N]) -> Self {
        Self(ops.to_vec())
    }
}

impl FromIterator<Op> for Ops {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Self {
        Self(ops.into_iter().collect())
    }
}

type PathFilter = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// A one-shot rule, to be given to [`ProxyHandle::install`](super::ProxyHandle::install).
///
/// It waits for one frame: by default the first that fits, on any path and any connection.
#[derive(Clone)]
pub struct Rule {
    target: Target,
    action: Action,
    then: Then,
    nth: u32,
    path: Option<PathFilter>,
    connection: Option<u64>,
    session: Option<i64>,
}

impl Rule {
    fn new(target: Target, action: Action) -> Self {
        Self { target, action, then: Then::Continue, nth: 1, path: None, connection: None, session: None }
    }

    /// The request does not reach the server.
    pub fn drop_request(ops: impl Into<Ops>) -> Self {
        Self::new(Target::Request(ops.into().0), Action::Drop)
    }

    /// The request takes effect and its reply does not reach the client.
    pub fn drop_reply(ops: impl Into<Ops>) -> Self {
        Self::new(Target::Reply(ops.into().0), Action::Drop)
    }

    /// The watch event does not reach the client.
    #[must_use]
    pub fn drop_event(kind: EventKind) -> Self {
        Self::new(Target::Event(kind), Action::Drop)
    }

    /// The request, and all that the client of that connection sends after it, is held until
    /// [`resume`](super::ProxyHandle::resume).
    pub fn hold_request(ops: impl Into<Ops>) -> Self {
        Self::new(Target::Request(ops.into().0), Action::Hold)
    }

    /// The reply, and all that the server sends on that connection after it, is held until
    /// [`resume`](super::ProxyHandle::resume).
    pub fn hold_reply(ops: impl Into<Ops>) -> Self {
        Self::new(Target::Reply(ops.into().0), Action::Hold)
    }

    /// The watch event, and all that the server sends on that connection after it, is held until
    /// [`resume`](super::ProxyHandle::resume).
    #[must_use]
    pub fn hold_event(kind: EventKind) -> Self {
        Self::new(Target::Event(kind), Action::Hold)
    }

    /// The request goes through; for waiting for it, or to cut after it.
    pub fn pass_request(ops: impl Into<Ops>) -> Self {
        Self::new(Target::Request(ops.into().0), Action::Pass)
    }

    /// The reply goes through; for waiting for it, or to cut after it.
    pub fn pass_reply(ops: impl Into<Ops>) -> Self {
        Self::new(Target::Reply(ops.into().0), Action::Pass)
    }

    /// What follows. Nothing unless said.
    #[must_use]
    pub fn then(mut self, then: Then) -> Self {
        self.then = then;
        self
    }

    /// The connection is cut afterwards: [`Then::Cut`].
    #[must_use]
    pub fn then_cut(self, how: Cut) -> Self {
        self.then(Then::Cut(how))
    }

    /// Which of the frames that fit it is, counted from 1 and from the installation of the rule.
    #[must_use]
    pub fn nth(mut self, nth: u32) -> Self {
        self.nth = nth.max(1);
        self
    }

    /// Only frames with a path that contains this text. A reply has the path of its request.
    #[must_use]
    pub fn path_contains(self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.path_fits(move |path| path.contains(&text))
    }

    /// Only frames with a path that fits.
    #[must_use]
    pub fn path_fits(mut self, fits: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        self.path = Some(Arc::new(fits));
        self
    }

    /// Only frames of this connection.
    #[must_use]
    pub fn on_connection(mut self, connection: u64) -> Self {
        self.connection = Some(connection);
        self
    }

    /// Only frames of this session.
    #[must_use]
    pub fn on_session(mut self, session: i64) -> Self {
        self.session = Some(session);
        self
    }

    fn fits(&self, connection: u64, session: i64, what: &What) -> bool {
        let path_fits = |paths: &[String]| match &self.path {
            Some(fits) => paths.iter().any(|path| fits(path)),
            None => true,
        };
        let here =
            self.connection.is_none_or(|id| id == connection) && self.session.is_none_or(|id| id == session);
        here && match (&self.target, what) {
            (Target::Request(ops) | Target::Reply(ops), What::Request { op, paths, .. }) => {
                ops.contains(op) && path_fits(paths)
            }
            (Target::Request(ops) | Target::Reply(ops), What::Connect { .. }) => {
                ops.contains(&Op::Connect) && path_fits(&[])
            }
            (Target::Event(wanted), What::Event { kind, path }) => {
                wanted == kind && path_fits(std::slice::from_ref(path))
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, action, then, nth, .. } = self;
        write!(f, "rule to {action:?} the {nth}. {target:?} and then {then:?}")
    }
}

/// An installed rule.
#[derive(Debug)]
pub(super) struct RuleState {
    rule: Rule,
    seen: Mutex<u32>,
    fired: Mutex<Option<Entry>>,
    changed: Condvar,
}

impl RuleState {
    pub(super) fn action(&self) -> Action {
        self.rule.action
    }

    pub(super) fn then(&self) -> Then {
        self.rule.then
    }

    pub(super) fn is_about_reply(&self) -> bool {
        matches!(self.rule.target, Target::Reply(_))
    }

    pub(super) fn fire(&self, entry: Entry) {
        *lock(&self.fired) = Some(entry);
        self.changed.notify_all();
    }
}

/// All installed rules that have not found their frame yet.
#[derive(Debug, Default, Clone)]
pub(super) struct Rules {
    waiting: Arc<Mutex<Vec<Arc<RuleState>>>>,
}

impl Rules {
    pub(super) fn install(&self, rule: Rule) -> RuleHandle {
        let state = Arc::new(RuleState {
            rule,
            seen: Mutex::new(0),
            fired: Mutex::new(None),
            changed: Condvar::new(),
        });
        lock(&self.waiting).push(state.clone());
        RuleHandle { state, rules: self.clone() }
    }

    /// Shows a request or an event to the rules, and takes out the one whose turn it is.
    pub(super) fn take(&self, connection: u64, session: i64, what: &What) -> Option<Arc<RuleState>> {
        let mut waiting = lock(&self.waiting);
        let mut taken = None;
        waiting.retain(|state| {
            if !state.rule.fits(connection, session, what) {
                return true;
            }
            let mut seen = lock(&state.seen);
            *seen += 1;
            if taken.is_none() && *seen >= state.rule.nth {
                taken = Some(state.clone());
                return false;
            }
            true
        });
        taken
    }

    /// Puts back a rule whose reply never came: it takes the next one.
    pub(super) fn put_back(&self, state: Arc<RuleState>) {
        lock(&self.waiting).push(state);
    }
}

/// A rule that was installed. Dropping the handle leaves the rule in place.
#[derive(Debug, Clone)]
pub struct RuleHandle {
    state: Arc<RuleState>,
    rules: Rules,
}

impl RuleHandle {
    /// The frame on which the rule has fired, if it has.
    #[must_use]
    pub fn fired_on(&self) -> Option<Entry> {
        lock(&self.state.fired).clone()
    }

    /// Returns when the rule has fired: when its frame has arrived at the proxy. Dropping the future is safe.
    ///
    /// # Errors
    /// When it has not fired after `deadline`.
    pub async fn fired(&self, deadline: Duration) -> Result<Entry, TimedOut> {
        let handle = self.clone();
        off_thread(move || handle.wait_fired(deadline)).await
    }

    /// [`fired`](Self::fired), blocking the thread.
    ///
    /// # Errors
    /// When it has not fired after `deadline`.
    pub fn wait_fired(&self, deadline: Duration) -> Result<Entry, TimedOut> {
        let start = Instant::now();
        let mut fired = lock(&self.state.fired);
        loop {
            if let Some(entry) = &*fired {
                return Ok(entry.clone());
            }
            let waited = start.elapsed();
            if waited >= deadline {
                return Err(TimedOut { what: format!("{:?}", self.state.rule), waited });
            }
            fired = match self.state.changed.wait_timeout(fired, deadline - waited) {
                Ok((fired, _)) => fired,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Takes the rule away again, unless it has found its frame already.
    pub fn remove(&self) {
        lock(&self.rules.waiting).retain(|state| !Arc::ptr_eq(state, &self.state));
    }
}
