//! The supervisor: one task that owns the connection of a client.
//!
//! It attaches to the session, keeps the lease going with heartbeats, and starts again when the connection ends. A session whose lease has run out is over, whatever the server says: it is re-attached only
//! to be closed, beside the making of a new one.

use std::sync::Arc;
use std::time::Duration;

use super::beat::beat;
use super::connect::{Attached, Dialer, FIRST_DELAY, Live, Stopped, try_connect};
use super::hosts::Hosts;
use super::hub::{Hub, Link, SessionInfo};
use super::lease::{self, LeaseClock};
use super::retry::{backoff, jittered};
use super::states::SessionEvent;
use super::{Heartbeat, Session, SessionEnd};
use crate::env::Moment;
use crate::error::{Error, ErrorCode};
use crate::words;
use crate::zk::{ConnectError, EndReason, ZkError};

/// The longest delay between two tries to close a session that is over.
const LONGEST_REAP_DELAY: Duration = Duration::from_secs(10);
/// Starts the supervisor of `hub`.
pub(crate) fn start(hub: &Arc<Hub>) {
    let supervisor =
        Supervisor { dialer: Dialer::new(hub.clone()), hub: hub.clone(), current: None, links: 0 };
    let guard = Guard(hub.clone());
    hub.env.spawn(async move {
        supervisor.run().await;
        drop(guard);
    });
}

struct Supervisor {
    hub: Arc<Hub>,
    dialer: Dialer,
    current: Option<Current>,
    links: u64,
}

/// The session that lives, and its clock.
struct Current {
    session: Arc<Session>,
    lease: LeaseClock,
}

/// What the supervisor does next: how connecting, or serving a connection, has ended.
enum Step {
    Closing,
    SessionOver(SessionEnd),
    Attached(Attached),
    Disconnected,
    Failed(Error),
}

/// Sees to it that nobody waits for a supervisor that is no more, however it ended.
struct Guard(Arc<Hub>);

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Error::new(ErrorCode::Internal, "the session's supervisor has failed"));
            if let Some(link) = self.0.link() {
                link.session.finish(SessionEnd::Closed);
            }
            self.0.finish_closing();
        }
    }
}

impl Supervisor {
    async fn run(mut self) {
        let mut step = self.connect_step().await;
        loop {
            step = match step {
                Step::Attached(attached) => match self.take(attached) {
                    Some(link) => {
                        let began = self.hub.env.now();
                        let ended = self.serve_step(&link).await;
                        self.hub.publish_link(None);
                        self.dialer.lasted(self.hub.env.now().since(began));
                        match ended {
                            Step::Closing => return self.close(Some(link)).await,
                            Step::SessionOver(end) => self.session_over(end, Some(link)),
                            Step::Failed(error) => return self.fail(error),
                            Step::Disconnected => self.disconnected(&link),
                            // A server that grants locks was found while we were with a read-only one.
                            Step::Attached(better) => {
                                self.disconnected(&link);
                                step = Step::Attached(better);
                                continue;
                            }
                        }
                        self.connect_step().await
                    }
                    None => self.connect_step().await,
                },
                Step::Closing => return self.close(None).await,
                Step::SessionOver(end) => {
                    self.session_over(end, None);
                    self.connect_step().await
                }
                Step::Failed(error) => return self.fail(error),
                Step::Disconnected => self.connect_step().await,
            }
        }
    }

    fn disconnected(&mut self, link: &Link) {
        link.connection.abort();
        self.hub.tell(SessionEvent::Disconnected);
        if link.connection.is_read_only() {
            // Such a session is local to its server: there is nothing to re-attach.
            self.session_over(SessionEnd::Expired, None);
        }
    }

    /// Connects, unless the session is over before that.
    async fn connect_step(&mut self) -> Step {
        let hub = self.hub.clone();
        let session = self.current.as_ref().map(|current| current.session.clone());
        let live = self.current.as_ref().map(|current| Live {
            credentials: current.session.credentials.clone(),
            slack: current.lease.slack(),
        });
        let lease_over = async {
            match &session {
                Some(session) => lease_over(&hub, session).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = hub.closing() => Step::Closing,
            end = lease_over => Step::SessionOver(end),
            attached = self.dialer.attach(live.as_ref()) => match attached {
                Ok(attached) => Step::Attached(attached),
                Err(Stopped::SessionExpired) => Step::SessionOver(SessionEnd::Expired),
                Err(Stopped::Failed(error)) => Step::Failed(error),
            },
        }
    }

    /// Takes over a connection that has just been attached. None if its lease is over already.
    fn take(&mut self, Attached { connection, sent }: Attached) -> Option<Link> {
        let hub = &self.hub;
        let now = hub.env.now();
        let granted = connection.session_timeout();
        let asked = hub.options.session_timeout;
        let tick = lease::choose_tick(hub.options.tick, asked, granted);
        let credentials = connection.credentials();
        if self.current.as_ref().is_some_and(|current| current.session.id() != credentials.id) {
            self.session_over(SessionEnd::Expired, None);
        }
        let hub = &self.hub;
        match &mut self.current {
            Some(current) => {
                current.lease.attached(sent, now, granted, tick.tick);
                if !current.session.set_deadline(current.lease.deadline()) {
                    connection.abort();
                    return None;
                }
            }
            None => {
                let mut lease = LeaseClock::start(lease_rule(&hub.options), sent, now, granted, tick.tick);
                if hub.options.heartbeat == Heartbeat::Quorum {
                    lease = lease.for_quorum();
                }
                // A read-only server grants nothing that a lease could be about.
                let deadline =
                    if connection.is_read_only() { Moment::from_nanos(u64::MAX) } else { lease.deadline() };
                let session = Session::new(credentials, hub.env.clock.clone(), deadline);
                self.current = Some(Current { session, lease });
            }
        }
        let current = self.current.as_ref()?;
        let info = session_info(current, asked, tick.warning);
        if hub.info().as_ref() != Some(&info) {
            tracing::info!(
                "session {} with a timeout of {}, which survives an outage of {}",
                info.id,
                words::duration(info.timeout),
                words::duration(info.survivable_outage)
            );
            for warning in &info.warnings {
                tracing::warn!(session = %info.id, "{warning}");
            }
            hub.publish_info(info);
        }
        self.links += 1;
        let link = Link { session: current.session.clone(), connection, number: self.links };
        hub.forget_troubles();
        hub.tell(SessionEvent::Attached {
            session: link.session.id(),
            read_only: link.connection.is_read_only(),
        });
        hub.publish_link(Some(link.clone()));
        Some(link)
    }

    /// Keeps the lease going until the connection ends.
    async fn serve_step(&mut self, link: &Link) -> Step {
        let hub = self.hub.clone();
        let Some(current) = &mut self.current else { return Step::Disconnected };
        tokio::select! {
            biased;
            () = hub.closing() => Step::Closing,
            end = lease_over(&hub, &link.session) => Step::SessionOver(end),
            reason = link.connection.ended() => match reason {
                EndReason::SessionExpired => Step::SessionOver(SessionEnd::Expired),
                EndReason::AuthFailed => {
                    // The next server may think otherwise.
                    lost(&hub, "the server refuses the credentials that it took before");
                    Step::Disconnected
                }
                EndReason::Disconnected(why) => {
                    lost(&hub, &why);
                    Step::Disconnected
                }
                EndReason::Closed => Step::Disconnected,
            },
            better = self.dialer.seek_writable(), if link.connection.is_read_only() => Step::Attached(better),
            why = beat(&hub, link, &mut current.lease) => {
                lost(&hub, why);
                Step::Disconnected
            }
        }
    }

    /// Ends the present session for us, tells everyone, and sees to its end on the server in the background.
    fn session_over(&mut self, why: SessionEnd, link: Option<Link>) {
        let Some(current) = self.current.take() else { return };
        let end = current.session.finish(why);
        self.hub.metrics.session_lost();
        self.hub.tell(SessionEvent::SessionOver);
        match end {
            SessionEnd::Expired => {
                if let Some(link) = link {
                    link.connection.abort();
                }
                current.session.confirm_gone();
            }
            SessionEnd::LeaseElapsed | SessionEnd::Closed => {
                let hub = self.hub.clone();
                self.hub.env.spawn(reap(hub, current.session, link, current.lease.timeout()));
            }
        }
    }

    fn fail(mut self, error: Error) {
        self.hub.fail(error);
        self.session_over(SessionEnd::Closed, None);
        let hub = self.hub.clone();
        self.hub.env.spawn(async move {
            hub.closing().await;
            hub.finish_closing();
        });
    }

    /// Closes the session: at once when there is a connection, else in the background.
    async fn close(mut self, link: Option<Link>) {
        let hub = self.hub.clone();
        if let Some(current) = self.current.take() {
            current.session.finish(SessionEnd::Closed);
            let rest = reap(hub.clone(), current.session.clone(), link, current.lease.timeout());
            let mut rest = Box::pin(rest);
            let done = tokio::select! {
                biased;
                () = &mut rest => true,
                () = hub.env.sleep(hub.options.close_timeout.min(current.lease.timeout())) => false,
            };
            if !done {
                tracing::warn!(session = %current.session.id(), "the server did not confirm the end of the session in time");
                hub.env.spawn(rest);
            }
        }
        hub.finish_closing();
    }
}

/// Waits until the session is over, by its lease or by what others found out. Cancel safe.
async fn lease_over(hub: &Hub, session: &Session) -> SessionEnd {
    loop {
        let deadline = session.deadline();
        tokio::select! {
            biased;
            end = session.ended() => return end,
            () = hub.env.sleep_until(Some(deadline)) => {
                // The deadline may have moved while we slept.
                if let Some(end) = session.over() {
                    return end;
                }
            }
        }
    }
}

/// Says why a connection was lost, to the log and to whoever fails for want of one.
fn lost(hub: &Hub, why: &str) {
    tracing::info!("connection lost: {why}; connecting again");
    hub.note_trouble("last connection".to_owned(), why.to_owned());
}

/// Closes a session that is over, so that its nodes go at once instead of when it expires. Returns when the
/// server has confirmed it, or when the session must have expired after the client was closed.
async fn reap(hub: Arc<Hub>, session: Arc<Session>, link: Option<Link>, timeout: Duration) {
    if let Some(link) = link {
        let confirmed = tokio::select! {
            biased;
            reply = link.connection.close() => reply.is_ok(),
            () = hub.env.sleep((timeout / 3).min(hub.options.close_timeout)) => false,
        };
        link.connection.abort();
        if confirmed {
            return session.confirm_gone();
        }
    }
    let mut hosts = Hosts::shuffled(&hub);
    let mut tries = 0;
    let attempt = hub.options.connection_timeout.min((timeout / 3).max(Duration::from_millis(250)));
    let mut abandoned = std::pin::pin!(async {
        hub.closing().await;
        hub.env.sleep(timeout).await;
    });
    loop {
        // An attempt is never given up halfway: it would leave the session attached anew, for another timeout.
        match try_connect(&hub, &hosts.next(), Some(session.credentials.clone()), attempt).await {
            Err(ConnectError::SessionExpired) => break,
            Err(error) => tracing::debug!(session = %session.id(), %error, "session not closed yet"),
            Ok(connection) => {
                let reply = tokio::select! {
                    biased;
                    reply = connection.close() => reply,
                    () = hub.env.sleep(attempt) => Err(ZkError::ConnectionLost),
                };
                connection.abort();
                if matches!(reply, Ok(()) | Err(ZkError::SessionExpired)) {
                    break;
                }
            }
        }
        let delay = jittered(backoff(FIRST_DELAY, LONGEST_REAP_DELAY, tries), hub.env.fraction());
        tries += 1;
        tokio::select! {
            biased;
            () = &mut abandoned => {
                // Nobody is left to wait for a confirmation, and the server expires the session by itself.
                tracing::debug!(session = %session.id(), "session left to expire");
                break;
            }
            () = hub.env.sleep(delay) => {}
        }
    }
    session.confirm_gone();
}

fn session_info(current: &Current, asked: Duration, tick_warning: Option<String>) -> SessionInfo {
    let lease = &current.lease;
    let timeout = lease.timeout();
    let survivable_outage = lease.survivable_outage();
    let mut warnings = Vec::new();
    if timeout != asked {
        let setting = if timeout < asked { "maxSessionTimeout" } else { "minSessionTimeout" };
        warnings.push(format!(
            "a session timeout of {} was asked for, and the server granted {}: change its {setting} (by default \
             {} times its tickTime) to allow it",
            words::duration(asked),
            words::duration(timeout),
            if timeout < asked { 20 } else { 2 }
        ));
    }
    warnings.extend(tick_warning);
    if survivable_outage < timeout / 3 {
        warnings.push(format!(
            "an outage of only {} can be survived with a session timeout of {} and a tick of {}: ask for a longer \
             timeout, or set the tick if the servers' tickTime is shorter",
            words::duration(survivable_outage),
            words::duration(timeout),
            words::duration(lease.tick())
        ));
    }
    SessionInfo {
        id: current.session.id(),
        asked_timeout: asked,
        timeout,
        tick: lease.tick(),
        margin: lease.margin(),
        survivable_outage,
        warnings,
    }
}

fn lease_rule(options: &crate::options::Options) -> lease::Rule {
    #[cfg(any(test, feature = "simulation"))]
    if options.mutants.lease_from_latest {
        return lease::Rule::Latest;
    } else if options.mutants.lease_send_to_send {
        return lease::Rule::SendToSend;
    }
    let _ = options;
    lease::Rule::OneTick
}
