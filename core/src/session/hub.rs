//! What the supervisor publishes: the present connection, the states, and whether the client is closing.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::lanes::Lanes;
use super::states::{Knowledge, SessionEvent, transition};
use super::{ConnectionState, Session, StateChange};
use crate::connect::ConnectString;
use crate::env::{Env, Moment};
use crate::error::{Error, ErrorCode, Result};
use crate::observe::{Event, Listeners, Metrics, Unread};
use crate::options::Options;
use crate::watched::Watched;
use crate::zk::{Connection, SessionId};

/// A connection that is up, and the session it is attached to.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) session: Arc<Session>,
    pub(crate) connection: Arc<dyn Connection>,
    /// Counts the connections of this client, so that two can be told apart.
    pub(crate) number: u64,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("session", &self.session).field("number", &self.number).finish()
    }
}

impl Link {
    /// Whether locks can be asked for here.
    pub(crate) fn is_writable(&self) -> bool {
        !self.connection.is_read_only() && !self.connection.has_ended() && self.session.is_live()
    }

    /// Waits until the connection has ended. Cancel safe.
    pub(crate) async fn connection_ended(&self) {
        self.connection.ended().await;
    }
}

/// What the present or the last session is like.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// The session's id.
    pub id: SessionId,
    /// The session timeout that was asked for.
    pub asked_timeout: Duration,
    /// The session timeout that the server granted.
    pub timeout: Duration,
    /// The tick that the lease clock reckons with.
    pub tick: Duration,
    /// What is taken off the lease for safety.
    pub margin: Duration,
    /// The longest outage that costs nothing.
    pub survivable_outage: Duration,
    /// What is wrong with the settings, in sentences for people.
    pub warnings: Vec<String>,
}

/// Shared by the supervisor and everything that uses the session.
pub(crate) struct Hub {
    pub(crate) env: Env,
    pub(crate) servers: ConnectString,
    pub(crate) options: Options,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lanes: Lanes,
    link: Watched<Option<Link>>,
    closing: Watched<bool>,
    closed: Watched<bool>,
    /// Why connecting has been given up for good.
    failed: Watched<Option<Error>>,
    /// How often connecting was in vain for now while there was no session, and why: every server in turn refused
    /// us, or there was nothing left to connect with.
    turned_away: Watched<(u64, Option<Error>)>,
    info: Watched<Option<SessionInfo>>,
    /// Why the last try to connect to each server failed.
    troubles: Mutex<VecDeque<(String, String)>>,
    states: Mutex<StateLog>,
    pub(crate) events: Listeners<Event>,
}

#[derive(Default)]
struct StateLog {
    known: Knowledge,
    last: Option<StateChange>,
    listeners: Listeners<StateChange>,
}

impl Hub {
    pub(crate) fn new(
        env: Env,
        servers: ConnectString,
        options: Options,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            env,
            servers,
            options,
            metrics,
            lanes: Lanes::new(),
            link: Watched::new(None),
            closing: Watched::new(false),
            closed: Watched::new(false),
            failed: Watched::new(None),
            turned_away: Watched::new((0, None)),
            info: Watched::new(None),
            troubles: Mutex::default(),
            states: Mutex::default(),
            events: Listeners::default(),
        })
    }

    // For the supervisor.

    pub(super) fn publish_link(&self, link: Option<Link>) {
        self.link.set(link);
    }

    pub(super) fn publish_info(&self, info: SessionInfo) {
        self.info.set(Some(info));
    }

    /// Tells every listener, in order, what follows from `event`.
    pub(super) fn tell(&self, event: SessionEvent) {
        let mut log = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, changes) = transition(log.known, event);
        log.known = known;
        for &change in &changes {
            self.metrics.state(change.state);
            log.last = Some(change);
            log.listeners.tell(change);
        }
        drop(log);
        for change in changes {
            tracing::info!(state = %change.state, session = %change.session, "connection state");
        }
    }

    pub(super) fn fail(&self, error: Error) {
        tracing::error!(%error, "connecting has been given up");
        self.failed.set(Some(error));
    }

    /// Fails what waits for a connection now. What comes later waits for the next round of attempts.
    pub(super) fn turn_away(&self, error: Error) {
        let (code, why) = (error.code(), error.message().to_owned());
        let mut news = false;
        self.turned_away.update(|(rounds, last)| {
            *rounds += 1;
            news = last.replace(error).is_none_or(|before| before.code() != code);
            true
        });
        if news {
            tracing::error!(%code, "connecting is in vain for now: {why}; trying on");
            if code == ErrorCode::NotPermitted {
                self.events.tell(Event::CredentialsRefused { why });
            }
        }
    }

    pub(crate) fn finish_closing(&self) {
        let log = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        log.listeners.close();
        drop(log);
        self.events.close();
        self.closed.set(true);
    }

    pub(super) fn note_trouble(&self, server: String, why: String) {
        const KEPT: usize = 8;
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        troubles.retain(|(known, _)| *known != server);
        if troubles.len() == KEPT {
            troubles.pop_front();
        }
        troubles.push_back((server, why));
    }

    pub(super) fn forget_troubles(&self) {
        self.turned_away.update(|(_, last)| {
            *last = None;
            false
        });
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    // For everyone.

    /// The present connection, if there is one.
    pub(crate) fn link(&self) -> Option<Link> {
        self.link.get()
    }

    /// Waits for a connection that fits. Cancel safe.
    ///
    /// # Errors
    /// When the client is closing, when every server refuses our credentials or there is nothing left to connect
    /// with, and when our own settings can't be right.
    pub(crate) async fn wait_link(&self, fits: impl Fn(&Link) -> bool) -> Result<Link> {
        let fits = &fits;
        let found = |link: &Option<Link>| link.as_ref().is_some_and(fits);
        let (so_far, _) = self.turned_away.get();
        tokio::select! {
            biased;
            () = self.closing() => Err(Error::closed()),
            error = self.failed.wait_until(Option::is_some) => Err(error.unwrap_or_else(Error::closed)),
            link = self.link.wait_until(found) => link.ok_or_else(Error::closed),
            (_, error) = self.turned_away.wait_until(|(rounds, _)| *rounds > so_far) => {
                Err(error.unwrap_or_else(Error::closed))
            }
        }
    }

    /// Asks the supervisor to close the session and to end.
    pub(crate) fn start_closing(&self) {
        self.closing.update(|closing| !std::mem::replace(closing, true));
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.get()
    }

    /// Waits until the client is to be closed. Cancel safe.
    pub(crate) async fn closing(&self) {
        self.closing.wait_until(|closing| *closing).await;
    }

    /// Waits until the client is closed. Cancel safe.
    pub(crate) async fn closed(&self) {
        self.closed.wait_until(|closed| *closed).await;
    }

    pub(crate) fn info(&self) -> Option<SessionInfo> {
        self.info.get()
    }

    pub(crate) fn state(&self) -> Option<StateChange> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    pub(crate) fn listen(&self) -> States {
        States(self.states.lock().unwrap_or_else(PoisonError::into_inner).listeners.listen())
    }

    /// Why there is no connection, in words for an error message.
    pub(crate) fn why_disconnected(&self) -> String {
        let troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        if troubles.is_empty() {
            let servers: Vec<_> = self.servers.endpoints.iter().map(ToString::to_string).collect();
            return format!("no connection to ZooKeeper at {}", servers.join(","));
        }
        let each: Vec<_> = troubles.iter().map(|(server, why)| by_server(server, why)).collect();
        format!("no connection to ZooKeeper ({})", each.join("; "))
    }

    /// Runs `operation` on a connection, again after errors that can be retried, within `budget` and `deadline`.
    ///
    /// For operations that may be applied twice without harm.
    pub(crate) async fn with_retry<T, F>(
        &self,
        doing: &str,
        deadline: Moment,
        operation: impl Fn(Link) -> F,
    ) -> Result<T>
    where
        F: Future<Output = Result<T, crate::zk::ZkError>>,
    {
        let mut budget = super::RetryBudget::new(self.options.retry);
        let work = async {
            loop {
                let link = self.wait_link(Link::is_writable).await?;
                let error = match operation(link).await {
                    Ok(done) => return Ok(done),
                    Err(error) => error,
                };
                let delay = if error.can_retry() || error.outcome_unknown() {
                    budget.failed(self.env.now(), self.env.fraction())
                } else {
                    None
                };
                let Some(delay) = delay else { return Err(Error::from_zk(&error, doing)) };
                self.env.sleep(delay).await;
            }
        };
        tokio::select! {
            biased;
            () = self.closing() => Err(Error::closed()),
            result = work => result,
            () = self.env.sleep_until(Some(deadline)) => {
                Err(Error::new(ErrorCode::ConnectionLost, format!("{doing}: {}", self.why_disconnected())))
            }
        }
    }
}

/// What is wrong with a server, with its name in front, once.
pub(super) fn by_server(server: &str, why: &str) -> String {
    if why.starts_with(server) { why.to_owned() } else { format!("{server}: {why}") }
}

/// The changes of the connection's state, from the moment of listening on; every one, in order.
///
/// The stream ends when the client is closed. A listener that is slow holds nobody up: what it has not read yet is kept
/// for it, with about 32 bytes for each change. One that has left 100,000 unread is told no more: its stream ends after
/// those, and [`has_overrun`](Self::has_overrun) says so. What is seen never has a gap.
///
/// With the feature `stream` it is a `futures_core::Stream`.
pub struct States(Unread<StateChange>);

impl States {
    /// A stream that has ended.
    pub(crate) fn ended() -> Self {
        Self(Unread::ended())
    }

    /// The next change, or none once the client is closed. Cancel safe.
    pub async fn next(&mut self) -> Option<StateChange> {
        self.0.next().await
    }

    /// The next change that has happened already, without waiting.
    pub fn try_next(&mut self) -> Option<StateChange> {
        self.0.try_next()
    }

    /// Whether the stream ends early because too much of it was left unread.
    #[must_use]
    pub fn has_overrun(&self) -> bool {
        self.0.has_overrun()
    }

    /// Waits for the next change to `state`, passing over others. Cancel safe, but what was passed over is gone.
    pub async fn wait_for(&mut self, state: ConnectionState) -> Option<StateChange> {
        while let Some(change) = self.next().await {
            if change.state == state {
                return Some(change);
            }
        }
        None
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for States {
    type Item = StateChange;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("States").field("unread", &self.0.len()).finish_non_exhaustive()
    }
}
