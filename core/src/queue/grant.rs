//! A grant: one turn at holding a lock. A keeper task watches over it until it is released or lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::claim::{Claim, OwnEvent};
use super::ticket::Ticket;
use super::{LostReason, OwnerKey};
use crate::env::Moment;
use crate::error::Error;
use crate::path::{self, LockPath};
use crate::session::{Hub, Link, Session, SessionEnd};
use crate::watched::Watched;
use crate::zk::{Reply, Stat, ZkError};
use futures_util::FutureExt;
use tokio::sync::oneshot;

/// How long a lock is held before its node is watched. A lock that is released sooner costs one request less; a node
/// deleted from outside within that time is noticed when the watch is set.
const OWN_WATCH_DELAY: Duration = Duration::from_millis(5);
/// How long to wait before asking again for a watch that the server would not set.
const REFUSED_DELAY: Duration = Duration::from_millis(200);
/// The longest such delay.
const LONGEST_REFUSED_DELAY: Duration = Duration::from_secs(10);

/// How a grant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Held,
    Lost(LostReason),
    Released,
}

/// One grant, shared by its handles, its keeper, and the client's register of re-entrant holders.
pub(crate) struct Grant {
    pub(crate) path: LockPath,
    /// The path of the lock node on the server.
    pub(crate) node: String,
    pub(crate) token: i64,
    pub(crate) epoch: i64,
    pub(crate) sequence: i32,
    pub(crate) session: Arc<Session>,
    pub(crate) waited: Duration,
    phase: Watched<Phase>,
    /// Whether the connection is down, or up again with our node not yet looked at.
    suspect: AtomicBool,
    /// Whether somebody asks for the lock back.
    revocation: Watched<bool>,
    /// Whether the node is confirmed gone.
    gone: Watched<bool>,
    /// Why the node can't be removed, if the server refuses that.
    stuck: Watched<Option<Error>>,
    owner: Mutex<Option<OwnerKey>>,
    handles: AtomicUsize,
    /// When the lease ends even if the session lives on.
    hold_until: Option<Moment>,
}

/// What a grant begins with.
pub(crate) struct Terms {
    pub(crate) path: LockPath,
    pub(crate) node: String,
    pub(crate) token: i64,
    pub(crate) epoch: i64,
    pub(crate) sequence: i32,
    pub(crate) owner: Option<OwnerKey>,
    pub(crate) waited: Duration,
    pub(crate) max_hold: Option<Duration>,
}

impl Grant {
    pub(crate) fn new(terms: Terms, session: Arc<Session>, now: Moment) -> Arc<Self> {
        let Terms { path, node, token, epoch, sequence, owner, waited, max_hold } = terms;
        Arc::new(Self {
            path,
            node,
            token,
            epoch,
            sequence,
            session,
            waited,
            phase: Watched::new(Phase::Held),
            suspect: AtomicBool::new(false),
            revocation: Watched::new(false),
            gone: Watched::new(false),
            stuck: Watched::new(None),
            owner: Mutex::new(owner),
            handles: AtomicUsize::new(1),
            hold_until: max_hold.map(|most| now.plus(most)),
        })
    }

    /// How the grant stands at `now`. Once the lease has run out it is lost, whether or not anybody has noticed.
    pub(crate) fn phase(&self, now: Moment) -> Phase {
        let phase = self.phase.get();
        if phase != Phase::Held {
            return phase;
        }
        if let Some(end) = self.session.over() {
            self.lose(end.into());
        } else if self.hold_until.is_some_and(|until| now >= until) {
            self.lose(LostReason::MaxHold);
        }
        self.phase.get()
    }

    /// Whether the grant is good at `now`. Unlike [`phase`](Self::phase) it changes nothing, so that a simulation can
    /// look without lending a hand.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn looks_valid(&self, now: Moment) -> bool {
        self.phase.get() == Phase::Held
            && self.session.looks_live(now)
            && self.hold_until.is_none_or(|until| now < until)
    }

    /// How the grant stands as far as its waiters have been told.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn known_phase(&self) -> Phase {
        self.phase.get()
    }

    /// Whether whoever waits for the loss or the release has been told.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn has_been_told(&self) -> bool {
        self.phase.get() != Phase::Held
    }

    /// How much longer the grant is good without hearing from the server.
    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        if self.phase(now) != Phase::Held {
            return Duration::ZERO;
        }
        let lease = self.session.remaining();
        self.hold_until.map_or(lease, |until| lease.min(until.since(now)))
    }

    /// The grant is lost, if it is still held.
    pub(crate) fn lose(&self, reason: LostReason) {
        self.leave(Phase::Lost(reason));
    }

    /// The grant is given back, if it is still held.
    pub(crate) fn release(&self) {
        self.leave(Phase::Released);
    }

    fn leave(&self, to: Phase) {
        self.phase.update(|phase| {
            let held = *phase == Phase::Held;
            if held {
                *phase = to;
            }
            held
        });
    }

    /// Waits until the grant is no longer held: why it was lost, or none if it was released. Cancel safe.
    pub(crate) async fn left(&self) -> Option<LostReason> {
        match self.phase.wait_until(|phase| *phase != Phase::Held).await {
            Phase::Lost(reason) => Some(reason),
            Phase::Held | Phase::Released => None,
        }
    }

    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Acquire)
    }

    /// Our node was found where it belongs, on the present connection.
    pub(crate) fn looked_at(&self) {
        self.suspect.store(false, Ordering::Release);
    }

    /// Waits until somebody asks for the lock back. Cancel safe.
    pub(crate) async fn revocation_asked(&self) {
        self.revocation.wait_until(|asked| *asked).await;
    }

    pub(crate) fn is_revocation_asked(&self) -> bool {
        self.revocation.get()
    }

    /// Waits until the node is confirmed gone, or its session is. Cancel safe.
    pub(crate) async fn confirmed_gone(&self) {
        self.gone.wait_until(|gone| *gone).await;
    }

    /// Waits until the server has refused to have the node removed, and says what to do about it. Cancel safe.
    pub(crate) async fn refused_removal(&self) -> Error {
        match self.stuck.wait_until(Option::is_some).await {
            Some(error) => error,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn owner(&self) -> Option<OwnerKey> {
        self.owner.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_owner(&self, owner: Option<OwnerKey>) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = owner;
    }

    /// Adds a handle, unless the last one has gone already.
    pub(crate) fn add_handle(&self) -> bool {
        self.handles
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |count| (count > 0).then_some(count + 1))
            .is_ok()
    }

    /// Takes a handle away. Whether it was the last.
    pub(crate) fn drop_handle(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

impl From<SessionEnd> for LostReason {
    fn from(end: SessionEnd) -> Self {
        match end {
            SessionEnd::Expired => Self::SessionExpired,
            SessionEnd::LeaseElapsed => Self::LeaseElapsed,
            SessionEnd::Closed => Self::Closed,
        }
    }
}

/// Watches over a grant, and removes its node when it is over.
pub(crate) async fn keep(hub: Arc<Hub>, grant: Arc<Grant>, mut claim: Claim, link: Link) {
    let guard = Guard(&grant);
    let deleted = watch_over(&hub, &grant, &mut claim, link).await;
    drop(guard);
    match grant.phase.get() {
        Phase::Lost(reason) => {
            tracing::warn!(path = %grant.path, token = grant.token, %reason, "lock lost");
            hub.metrics.loss(reason);
        }
        Phase::Released | Phase::Held => hub.metrics.release(),
    }
    if deleted {
        claim.settle();
    } else {
        let (tell, refused) = oneshot::channel();
        let mut removal = Box::pin(claim.remove(tell));
        tokio::select! {
            biased;
            () = &mut removal => {}
            Ok(error) = refused => {
                let stuck = why_stuck(&hub, &grant, &error).await;
                grant.stuck.set(Some(stuck));
                removal.await;
            }
        }
    }
    grant.gone.set(true);
}

/// Sees to it that nobody believes in a grant that nobody watches over. Dropped before the claim, which removes the node.
struct Guard<'a>(&'a Grant);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.0.phase.get() == Phase::Held {
            tracing::error!(path = %self.0.path, token = self.0.token,
                "a lock was given up, because the task that watched over it has failed: please report this");
            self.0.lose(LostReason::Internal);
        }
    }
}

/// What to tell whoever released a lock whose node the server will not have removed.
async fn why_stuck(hub: &Hub, grant: &Grant, error: &ZkError) -> Error {
    let waiting = match hub.link() {
        Some(link) => {
            let listed = link.connection.children(path::parent(&grant.node));
            // Only for the message: not worth waiting for longer than a slow network takes.
            tokio::select! {
                listed = listed => listed.ok(),
                () = hub.env.sleep(Duration::from_millis(500)) => None,
            }
        }
        None => None,
    };
    let others = waiting.map(|(names, _)| names.iter().filter(|name| Ticket::parse(name).is_some()).count());
    let others = match others.map(|count| count.saturating_sub(1)) {
        Some(0) => "nobody waits for it now, and whoever comes will".to_owned(),
        Some(1) => "one other waits for it".to_owned(),
        Some(count) => format!("{count} others wait for it"),
        None => "others may wait for it".to_owned(),
    };
    Error::new(
        Error::from_zk(error, "").code(),
        format!(
            "the lock node can't be removed: {error}; it stays taken until this client is closed or its session ends, and \
             {others}: grant this client's identity the right to delete (d) on the lock's path, or close the client"
        ),
    )
    .at(grant.path.as_str())
}

/// Returns when the grant is no longer held, and whether the node is known to be gone.
async fn watch_over(hub: &Hub, grant: &Grant, claim: &mut Claim, mut link: Link) -> bool {
    let mut look = None;
    let mut refusals = 0;
    // When to ask for a watch: after a moment where there is none yet, and again where the server would not set it.
    let mut ask_again = (!claim.is_armed()).then(|| hub.env.now().plus(OWN_WATCH_DELAY));
    loop {
        let event = tokio::select! {
            biased;
            _ = grant.left() => return false,
            end = grant.session.ended() => {
                grant.lose(end.into());
                return false;
            }
            event = claim.own_event() => event,
            () = link.connection_ended() => OwnEvent::ConnectionEnded,
            () = hub.env.sleep_until(ask_again) => OwnEvent::Changed,
            () = hub.env.sleep_until(grant.hold_until) => {
                grant.lose(LostReason::MaxHold);
                return false;
            }
        };
        ask_again = None;
        match event {
            OwnEvent::Armed { revoked, .. } => {
                #[cfg(any(test, feature = "simulation"))]
                assert!(!hub.options.mutants.monitor_panics, "planted");
                refusals = 0;
                grant.looked_at();
                if revoked {
                    grant.revocation.set(true);
                }
            }
            OwnEvent::Changed => claim.arm(&link),
            OwnEvent::Refused(error) => {
                if refusals == 0 {
                    tracing::warn!(path = %grant.path, %error, "our own lock node can't be watched");
                }
                let delay = crate::session::backoff(REFUSED_DELAY, LONGEST_REFUSED_DELAY, refusals);
                refusals += 1;
                ask_again = Some(hub.env.now().plus(delay));
            }
            OwnEvent::NotOurs | OwnEvent::Gone => {
                grant.lose(why_gone(grant, look));
                return true;
            }
            OwnEvent::ConnectionEnded => {
                grant.suspect.store(true, Ordering::Release);
                let Some(next) = next_link(hub, grant, link.number).await else { return false };
                look = Some(look_again(&next, grant, claim));
                link = next;
            }
        }
    }
}

/// Waits for the next connection to the same session. None when the grant is no longer held.
async fn next_link(hub: &Hub, grant: &Grant, old: u64) -> Option<Link> {
    let next = hub.wait_link(|link| link.number != old && Arc::ptr_eq(&link.session, &grant.session));
    tokio::select! {
        biased;
        _ = grant.left() => None,
        end = grant.session.ended() => {
            grant.lose(end.into());
            None
        }
        () = hub.env.sleep_until(grant.hold_until) => {
            grant.lose(LostReason::MaxHold);
            None
        }
        link = next => match link {
            Ok(link) => Some(link),
            // There will be no other connection. The session ends with the client, or with its lease.
            Err(_) => {
                tokio::select! {
                    biased;
                    _ = grant.left() => {}
                    end = grant.session.ended() => grant.lose(end.into()),
                }
                None
            }
        },
    }
}

/// On a new connection: asks for our node, and watches it; and for its root, which is answered before that.
fn look_again(link: &Link, grant: &Grant, claim: &mut Claim) -> Reply<Option<Stat>> {
    let root = link.connection.exists(path::parent(&grant.node));
    claim.arm(link);
    root
}

/// Why our node is gone: taken back, with its whole root, or deleted alone. That the root was made again counts
/// only when it was found after a reconnect; before, the deletion itself was seen.
fn why_gone(grant: &Grant, look: Option<Reply<Option<Stat>>>) -> LostReason {
    if grant.is_revocation_asked() {
        return LostReason::Revoked;
    }
    match look.and_then(FutureExt::now_or_never) {
        Some(Ok(Some(stat))) if stat.czxid != grant.epoch => LostReason::RootRecreated,
        Some(Ok(None)) => LostReason::RootRecreated,
        _ => LostReason::NodeDeleted,
    }
}
