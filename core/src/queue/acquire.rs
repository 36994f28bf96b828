//! The acquire loop: enter the queue, decide, wait for the one in front, and start again where it has to be.

use std::sync::Arc;
use std::time::Duration;

use super::claim::{Claim, Janitor, OwnEvent, own_name};
use super::decide::{Decision, decide};
use super::grant::{self, Grant, Terms};
use super::holder::describe;
use super::look::{Listing, committed_children};
use super::ticket::{Guid, Naming, Ticket};
use super::{NodeData, OwnerKey};
use crate::client::Core;
use crate::env::Moment;
use crate::error::{Error, ErrorCode, Result};
use crate::path::{self, LockPath};
use crate::session::{Link, RetryBudget, backoff};
use crate::zk::{CreateMode, Created, Reply, Watch, WatchEvent, ZkError};

/// A stay in the queue that is shorter than this, and comes to nothing, makes the next one wait a little.
const SHORT_STAY: Duration = Duration::from_secs(1);
/// The first delay after such a stay.
const PUT_BACK_DELAY: Duration = Duration::from_millis(5);
/// The longest delay after such a stay.
const LONGEST_PUT_BACK_DELAY: Duration = Duration::from_millis(500);

/// A lock: where it lies, and how its nodes are named.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    /// The path as the user writes it.
    pub(crate) path: LockPath,
    /// The path on the server.
    pub(crate) root: String,
    pub(crate) naming: Naming,
    pub(crate) max_hold: Option<Duration>,
}

/// Whether to wait for a lock that is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Wait,
    Try,
}

/// One call to acquire a lock.
pub(crate) struct Attempt {
    pub(crate) core: Arc<Core>,
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) spec: Spec,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<OwnerKey>,
    pub(crate) data: NodeData,
    pub(crate) began: Moment,
    pub(crate) deadline: Option<Moment>,
}

/// What is known while waiting, for the message if it was in vain.
#[derive(Default)]
struct Progress {
    /// The name of the node at the head of the queue, and who made it.
    head: Option<(String, Option<String>)>,
    position: Option<usize>,
    /// When the queue was last looked at.
    looked: Moment,
    trouble: Option<ZkError>,
}

/// How one stay in the queue ended.
enum Stay {
    Granted(Arc<Grant>),
    NotFree,
    /// Start again at the back of the queue.
    Again,
    /// Start again, after an error that counts against the budget.
    Failed(ZkError),
}

/// Our place in the queue, while it lasts.
struct Place {
    link: Link,
    claim: Claim,
    guid: Guid,
    /// Which transaction made our node, once that is known.
    czxid: Option<i64>,
}

impl Attempt {
    /// Acquires the lock, within the deadline. None if it was not to wait and the lock is not free.
    ///
    /// Dropped at any point, it leaves a claim behind that removes what it made.
    pub(crate) async fn run(self) -> Result<Option<Arc<Grant>>> {
        let mut progress = Progress::default();
        let result = {
            let work = self.work(&mut progress);
            tokio::select! {
                biased;
                () = self.core.hub.closing() => Some(Err(Error::closed())),
                result = work => Some(result),
                () = self.core.env.sleep_until(self.deadline) => None,
            }
        };
        let waited = self.core.env.now().since(self.began);
        match result {
            Some(Ok(grant)) => Ok(grant),
            Some(Err(error)) => Err(error.at(self.spec.path.as_str()).after(waited)),
            None => Err(self.timed_out(progress, waited)),
        }
    }

    fn timed_out(&self, progress: Progress, waited: Duration) -> Error {
        self.core.metrics.timeout();
        let mut code = ErrorCode::TimedOut;
        let mut holder = None;
        let message = match (progress.position, self.core.hub.link()) {
            (_, None) => {
                if self.mode == Mode::Try {
                    code = ErrorCode::ConnectionLost;
                }
                format!("not granted: {}", self.core.hub.why_disconnected())
            }
            (Some(position), Some(_)) => {
                holder = progress.head.map(|(name, who)| match who {
                    Some(who) => format!("{who}, node {name}"),
                    None => format!("node {name}"),
                });
                let ago = self.core.env.now().since(progress.looked);
                format!(
                    "not granted, with {position} ahead when last looked {:.1} s ago, waiting",
                    ago.as_secs_f64()
                )
            }
            (None, Some(link)) if link.connection.is_read_only() => {
                "not granted: the server is in read-only mode".to_owned()
            }
            (None, Some(_)) => {
                if self.mode == Mode::Try {
                    code = ErrorCode::ConnectionLost;
                }
                let trouble = progress.trouble.map(|error| format!(" (last: {error})")).unwrap_or_default();
                format!("not granted: ZooKeeper did not answer{trouble}")
            }
        };
        Error::new(code, message).at(self.spec.path.as_str()).held_by(holder).after(waited)
    }

    async fn work(&self, progress: &mut Progress) -> Result<Option<Arc<Grant>>> {
        let mut budget = RetryBudget::new(self.core.options.retry);
        let mut reused = None;
        let mut put_back = 0;
        loop {
            progress.position = None;
            let entered = self.core.env.now();
            let error = match self.stay(progress, &mut reused).await? {
                Stay::Granted(grant) => return Ok(Some(grant)),
                Stay::NotFree => return Ok(None),
                Stay::Again => {
                    // Whoever puts us back again and again must not make us flood the servers.
                    put_back = if self.core.env.now().since(entered) < SHORT_STAY { put_back + 1 } else { 0 };
                    if put_back > 1 {
                        self.core
                            .env
                            .sleep(backoff(PUT_BACK_DELAY, LONGEST_PUT_BACK_DELAY, put_back - 2))
                            .await;
                    }
                    continue;
                }
                Stay::Failed(error) => error,
            };
            let delay = if error.can_retry() || error.outcome_unknown() {
                budget.failed(self.core.env.now(), self.core.env.fraction())
            } else {
                None
            };
            let Some(delay) = delay else { return Err(Error::from_zk(&error, "entering the queue")) };
            progress.trouble = Some(error.clone());
            if !matches!(error, ZkError::ConnectionLost | ZkError::SessionExpired) {
                self.core.env.sleep(delay).await;
            }
        }
    }

    /// Enters the queue and stays until it is our turn, or until we have to start again at its back.
    async fn stay(&self, progress: &mut Progress, reused: &mut Option<Guid>) -> Result<Stay> {
        let link = self.core.hub.wait_link(Link::is_writable).await?;
        let guid = self.fresh_guid(reused);
        let epoch = match self.epoch_for_name(&link).await {
            Ok(epoch) => epoch,
            Err(error) => return Ok(Stay::Failed(error)),
        };
        let mut place = Place { claim: self.claim(&link, guid), link, guid, czxid: None };
        let mut unsure = None;
        let mut listing = match self.enter(&mut place, epoch, reused).await? {
            Entry::In(listing) => Some(listing),
            Entry::Unsure(error) => {
                unsure = error;
                None
            }
            Entry::Out(error) => {
                place.claim.settle();
                return Ok(Stay::Failed(error));
            }
        };
        loop {
            let (names, root) = match listing.take() {
                Some(listing) => listing,
                None => match self.come_back(&mut place).await? {
                    Back::In(listing) => listing,
                    Back::NotFound => {
                        place.claim.not_found(&place.link);
                        // The create was not applied so far: that counts as a failure, not as a turn in the queue.
                        return Ok(unsure.map_or(Stay::Again, Stay::Failed));
                    }
                    Back::Out => return Ok(unsure.map_or(Stay::Again, Stay::Failed)),
                },
            };
            unsure = None;
            self.core.note_root(&self.spec.root, root.czxid);
            let tickets = Ticket::parse_all(&names);
            self.refuse_mixture(place.guid, &tickets)?;
            if self.spec.naming == Naming::Epoch && root.czxid != epoch {
                // The root was made again before we came: our name tells the wrong epoch.
                return Ok(Stay::Again);
            }
            match self.wait_turn(&mut place, tickets, progress).await {
                Turn::Ours => {
                    let Some(grant) = self.grant(place, root.czxid) else { return Ok(Stay::Again) };
                    return Ok(Stay::Granted(grant));
                }
                Turn::NotFree => return Ok(Stay::NotFree),
                Turn::ListAgain => match place.link.connection.children(&self.spec.root).await {
                    Ok(fresh) => listing = Some(fresh),
                    Err(ZkError::NoNode) => return Ok(Stay::Again),
                    Err(error) if error.outcome_unknown() || error.can_retry() => {}
                    Err(error) => return Err(Error::from_zk(&error, "reading the queue")),
                },
                Turn::ComeBack => {}
                Turn::StartAgain => return Ok(Stay::Again),
                Turn::Refused(error) => return Err(Error::from_zk(&error, "watching the node in front")),
            }
        }
    }

    fn claim(&self, link: &Link, guid: Guid) -> Claim {
        Claim::new(self.janitor.clone(), link, self.spec.root.clone(), guid)
    }

    fn fresh_guid(&self, reused: &mut Option<Guid>) -> Guid {
        let guid = self.core.fresh_guid();
        #[cfg(any(test, feature = "simulation"))]
        if self.core.options.mutants.reuse_guid {
            return *reused.get_or_insert(guid);
        }
        let _ = reused;
        guid
    }

    /// The root's czxid, where our node's name has to tell it; zero where it does not.
    async fn epoch_for_name(&self, link: &Link) -> Result<i64, ZkError> {
        if self.spec.naming != Naming::Epoch {
            return Ok(0);
        }
        let mut made = Vec::new();
        let mut without_root = 0;
        loop {
            let found = link.connection.exists(&self.spec.root);
            let refused = await_parents(std::mem::take(&mut made)).await;
            if let Some(stat) = found.await? {
                return Ok(stat.czxid);
            }
            refused?;
            without_root += 1;
            if without_root > 2 {
                // Somebody keeps deleting the root: do not race with them at full speed.
                self.core.env.sleep(Duration::from_millis(5)).await;
            }
            made = self.make_parents(link);
        }
    }

    /// Makes our node and lists the queue, in one round trip; in a second one after making the parents, where
    /// they are missing.
    async fn enter(&self, place: &mut Place, epoch: i64, reused: &mut Option<Guid>) -> Result<Entry> {
        let mut parents = Vec::new();
        let mut without_root = 0;
        loop {
            let node = path::join(&self.spec.root, &self.spec.naming.prefix(place.guid, epoch));
            let connection = &place.link.connection;
            let created = connection.create(
                &node,
                &self.data.encode(),
                CreateMode::EphemeralSequential,
                &self.core.options.node_acl(),
            );
            let listed = connection.children(&self.spec.root);
            let refused = await_parents(std::mem::take(&mut parents)).await;
            match created.await {
                Ok(Created { name, stat }) => {
                    place.claim.made(name);
                    place.czxid = (stat.czxid > 0).then_some(stat.czxid);
                    return Ok(match listed.await {
                        Ok(listing) => Entry::In(listing),
                        Err(_) => Entry::Unsure(None),
                    });
                }
                Err(ZkError::NoNode) => {
                    if let Err(error) = refused {
                        return Ok(Entry::Out(error));
                    }
                    without_root += 1;
                    if without_root > 2 {
                        // Somebody keeps deleting the root: do not race with them at full speed.
                        self.core.env.sleep(Duration::from_millis(5)).await;
                    }
                    parents = self.make_parents(&place.link);
                    place.guid = self.fresh_guid(reused);
                    let claim = self.claim(&place.link, place.guid);
                    std::mem::replace(&mut place.claim, claim).settle();
                }
                Err(error) if error.outcome_unknown() => return Ok(Entry::Unsure(Some(error))),
                Err(error) if error.can_retry() => return Ok(Entry::Out(error)),
                Err(error) => return Err(Error::from_zk(&error, "entering the queue")),
            }
        }
    }

    /// Asks for the root and all above it to be made, from the top down, in one go.
    fn make_parents(&self, link: &Link) -> Vec<Reply<Created>> {
        make_parents(&self.core, link, &self.spec.root)
    }

    /// After the connection was lost, or when the outcome of the create is unknown: looks for our node on the
    /// next connection.
    async fn come_back(&self, place: &mut Place) -> Result<Back> {
        let mut budget = 0_u32;
        loop {
            if place.link.connection.has_ended() || !place.link.is_writable() {
                place.link = self.core.hub.wait_link(Link::is_writable).await?;
                if !place.claim.is_of(&place.link.session) {
                    return Ok(Back::Out);
                }
            } else if budget > 0 {
                self.core
                    .env
                    .sleep(backoff(Duration::from_millis(5), Duration::from_millis(500), budget))
                    .await;
            }
            budget += 1;
            let listing = match committed_children(&self.core.hub, &place.link, &self.spec.root).await {
                Ok(Some(listing)) => listing,
                Ok(None) => return Ok(Back::NotFound),
                Err(error) if error.outcome_unknown() || error.can_retry() => continue,
                Err(error) => return Err(Error::from_zk(&error, "reading the queue")),
            };
            let Some(name) = own_name(&listing, place.guid) else { return Ok(Back::NotFound) };
            place.claim.made(name);
            place.claim.arm(&place.link);
            match place.claim.own_event().await {
                OwnEvent::Armed { czxid, .. } => {
                    place.czxid = Some(czxid);
                    return Ok(Back::In(listing));
                }
                OwnEvent::NotOurs | OwnEvent::Gone => return Ok(Back::Out),
                OwnEvent::Refused(error) if !error.can_retry() => {
                    return Err(Error::from_zk(&error, "watching our own node"));
                }
                OwnEvent::Changed | OwnEvent::ConnectionEnded | OwnEvent::Refused(_) => {}
            }
        }
    }

    /// Decides, and waits for the one in front if it is not our turn.
    async fn wait_turn(&self, place: &mut Place, tickets: Vec<Ticket>, progress: &mut Progress) -> Turn {
        let tickets = match self.decide(place.guid, tickets.clone()) {
            Decision::NeedCzxids => match self.read_czxids(place, tickets).await {
                Ok(tickets) => tickets,
                Err(turn) => return turn,
            },
            _ => tickets,
        };
        let (ahead, ahead_is_head) = match self.decide(place.guid, tickets) {
            Decision::Hold => return Turn::Ours,
            Decision::Missing => return Turn::StartAgain,
            // Every czxid has been read: this does not come about.
            Decision::NeedCzxids => return Turn::ListAgain,
            Decision::Wait { ahead, ahead_is_head, position, head } => {
                progress.position = Some(position);
                progress.looked = self.core.env.now();
                if progress.head.as_ref().is_none_or(|(known, _)| *known != head) {
                    progress.head = Some((head, None));
                }
                (ahead, ahead_is_head)
            }
        };
        if self.mode == Mode::Try {
            return Turn::NotFree;
        }
        // Our own watch first: if it has not fired when the one in front goes, our node stands.
        if !place.claim.is_armed() && !self.leaves_own_watch_out() {
            place.claim.arm(&place.link);
        }
        let in_front = place.link.connection.watch_data(&path::join(&self.spec.root, &ahead));
        // Who holds the lock, for the message if it comes to that. The one in front tells if it is the head.
        let at_head = match &progress.head {
            Some((head, None)) if *head != ahead => {
                Some(place.link.connection.get_data(&path::join(&self.spec.root, head)))
            }
            _ => None,
        };
        if place.claim.is_armed() && !place.claim.is_surely_armed() {
            match place.claim.own_event().await {
                OwnEvent::Armed { .. } => {}
                OwnEvent::NotOurs | OwnEvent::Gone => return Turn::StartAgain,
                OwnEvent::Changed | OwnEvent::ConnectionEnded => return Turn::ComeBack,
                OwnEvent::Refused(error) => return Turn::refused(error),
            }
        }
        let mut watch = match in_front.await {
            Ok((data, _, watch)) => {
                if ahead_is_head {
                    progress.head = Some((ahead, describe(&data)));
                }
                watch
            }
            Err(ZkError::NoNode) => return Turn::ListAgain,
            Err(error) => return Turn::refused(error),
        };
        if let (Some(asked), Some((_, who))) = (at_head, &mut progress.head)
            && let Ok((data, _)) = asked.await
        {
            *who = describe(&data);
        }
        self.wait_in_line(place, &mut watch, ahead_is_head).await
    }

    /// Waits until something happens to the one in front, or to us.
    async fn wait_in_line(&self, place: &mut Place, in_front: &mut Watch, in_front_is_head: bool) -> Turn {
        loop {
            let event = tokio::select! {
                biased;
                own = place.claim.own_event() => Err(own),
                _ = place.link.session.ended() => return Turn::ComeBack,
                event = in_front.fired() => Ok(event),
            };
            match event {
                Err(OwnEvent::Changed) => place.claim.arm(&place.link),
                Err(OwnEvent::Armed { .. }) => {}
                Err(OwnEvent::NotOurs | OwnEvent::Gone) => return Turn::StartAgain,
                Err(OwnEvent::Refused(error)) => return Turn::refused(error),
                Err(OwnEvent::ConnectionEnded) | Ok(WatchEvent::ConnectionEnded) => return Turn::ComeBack,
                Ok(WatchEvent::Deleted) if in_front_is_head && self.own_node_stands(place) => {
                    return Turn::Ours;
                }
                Ok(_) => return Turn::ListAgain,
            }
        }
    }

    /// Whether our own watch was set on this connection before the one in front went, and has not fired.
    fn own_node_stands(&self, place: &mut Place) -> bool {
        if self.leaves_own_watch_out() {
            return true;
        }
        place.claim.is_surely_armed()
            && place.claim.own_event_now().is_none()
            && !place.link.connection.has_ended()
            && place.link.session.is_live()
    }

    fn leaves_own_watch_out(&self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        return self.core.options.mutants.head_shortcut_without_own_watch;
        #[cfg(not(any(test, feature = "simulation")))]
        false
    }

    fn decide(&self, me: Guid, tickets: Vec<Ticket>) -> Decision {
        #[cfg(any(test, feature = "simulation"))]
        if self.core.options.mutants.wrong_predecessor {
            return super::decide::decide_skipping(me, tickets, 2);
        }
        decide(me, tickets)
    }

    /// Reads which transaction made each contender. Those that have gone meanwhile are left out.
    async fn read_czxids(&self, place: &mut Place, mut tickets: Vec<Ticket>) -> Result<Vec<Ticket>, Turn> {
        // Our own node last: if it is there then, it was when the others were found gone.
        tickets.sort_by_key(|ticket| ticket.guid == place.guid);
        let asked: Vec<_> = tickets
            .into_iter()
            .map(|ticket| {
                let stat = place.link.connection.exists(&path::join(&self.spec.root, &ticket.name));
                (ticket, stat)
            })
            .collect();
        let mut read = Vec::with_capacity(asked.len());
        for (mut ticket, stat) in asked {
            match stat.await {
                Ok(Some(stat)) => {
                    ticket.czxid = Some(stat.czxid);
                    read.push(ticket);
                }
                Ok(None) => {}
                Err(error) => return Err(Turn::refused(error)),
            }
        }
        Ok(read)
    }

    /// Names with the epoch and names without are never both below one root: whoever comes second is refused. Those
    /// who stand there already are not disturbed.
    fn refuse_mixture(&self, me: Guid, tickets: &[Ticket]) -> Result<()> {
        let Some(mine) = tickets.iter().find(|ticket| ticket.guid == me) else { return Ok(()) };
        let tells_epoch = |ticket: &Ticket| ticket.naming == Naming::Epoch;
        let other =
            |ticket: &&Ticket| tells_epoch(ticket) != tells_epoch(mine) && ticket.sequence < mine.sequence;
        match tickets.iter().find(other) {
            None => Ok(()),
            Some(other) => Err(Error::new(
                ErrorCode::Conflict,
                format!(
                    "the naming {:?} does not go together with {}, which stands below this root",
                    self.spec.naming, other.name
                ),
            )),
        }
    }

    /// Makes the grant, and sets its keeper on. None if the lease is over already.
    fn grant(&self, mut place: Place, epoch: i64) -> Option<Arc<Grant>> {
        if !place.link.session.is_live() {
            return None;
        }
        let name = place.claim.name()?.to_owned();
        let sequence = Ticket::parse(&name)?.sequence;
        if !place.claim.is_armed() && !place.link.connection.has_ended() {
            place.claim.arm(&place.link);
        }
        let now = self.core.env.now();
        let terms = Terms {
            path: self.spec.path.clone(),
            node: path::join(&self.spec.root, &name),
            token: place.czxid?,
            epoch,
            sequence,
            owner: self.owner.clone(),
            waited: now.since(self.began),
            max_hold: self.spec.max_hold,
        };
        let grant = Grant::new(terms, place.link.session.clone(), now);
        self.core.metrics.grant();
        let hub = self.core.hub.clone();
        self.core.env.spawn(grant::keep(hub, grant.clone(), place.claim, place.link));
        Some(grant)
    }
}

/// How entering the queue went.
enum Entry {
    /// Our node stands.
    In(Listing),
    /// Our node may or may not stand. The error is that of the create, if it is the create that failed.
    Unsure(Option<ZkError>),
    /// Our node was not made.
    Out(ZkError),
}

/// What a look for our node on another connection came to.
enum Back {
    /// Our node stands, among these.
    In(Listing),
    /// There is no such node, as far as the committed transactions tell.
    NotFound,
    /// Our place is lost: the node was deleted, or its session is over.
    Out,
}

/// What a look at the queue led to.
enum Turn {
    Ours,
    NotFree,
    ListAgain,
    /// The connection ended, or may have: look for our node on the next one.
    ComeBack,
    /// Our node is gone: to the back of the queue.
    StartAgain,
    Refused(ZkError),
}

impl Turn {
    /// After a request that failed: on to the next connection, or the end of the acquire.
    fn refused(error: ZkError) -> Self {
        if error.outcome_unknown() || error.can_retry() { Self::ComeBack } else { Self::Refused(error) }
    }
}

/// Asks for `path` and all above it to be made, from the top down, in one go: as far up as the chroot, which is not
/// made unless the options say so.
pub(crate) fn make_parents(core: &Core, link: &Link, path: &str) -> Vec<Reply<Created>> {
    let mode = if core.options.container_parents { CreateMode::Container } else { CreateMode::Persistent };
    let acl = core.options.node_acl();
    let missing = path::lineage(path).filter(|ancestor| core.may_make(ancestor));
    let asked = missing.map(|ancestor| link.connection.create(ancestor, &[], mode, &acl)).collect();
    core.mind_chroot(asked)
}

/// Waits for the parents that were asked for. A parent that exists is as good as one that was made, and so is
/// one that we have no right to make, as long as it exists: then the node below it can be made all the same.
pub(crate) async fn await_parents(asked: Vec<Reply<Created>>) -> Result<(), ZkError> {
    let mut refused = Ok(());
    for reply in asked {
        match reply.await {
            Ok(_) | Err(ZkError::NodeExists | ZkError::NoNode) => {}
            Err(error) => refused = Err(error),
        }
    }
    refused
}
