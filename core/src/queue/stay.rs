//! One stay in the queue: enter it, decide, wait for the predecessor to go, and look again where that is needed.

use std::sync::Arc;
use std::time::Duration;

use super::acquire::{Attempt, Mode, Progress, Stay, await_parents, make_parents};
use super::claim::{Claim, OwnEvent};
use super::decide::{Decision, decide};
use super::grant::{self, Grant, Terms};
use super::holder::describe;
use super::listing::{How, Queue};
use super::ticket::{Guid, Naming, Ticket};
use crate::error::{Error, ErrorCode, Result};
use crate::path;
use crate::session::{Link, Pass, backoff};
use crate::zk::{CreateMode, Created, Watch, WatchEvent, ZkError};

/// The first delay before the same is tried again on the same connection.
const FIRST_DELAY: Duration = Duration::from_millis(5);
/// The longest such delay.
const LONGEST_DELAY: Duration = Duration::from_millis(500);

/// A place in the queue, while it lasts.
struct Place {
    link: Link,
    claim: Claim,
    guid: Guid,
    /// Which transaction made the node, once that is known.
    czxid: Option<i64>,
    /// Which transaction made the root, when the queue was last looked at.
    epoch: i64,
    /// Behind whom it is, once that is known.
    line: Option<Line>,
    /// How often this place was looked for in vain on the present connection.
    tries: u32,
}

/// Whom a waiter waits for.
struct Line {
    /// The name of the predecessor.
    ahead: String,
    /// Whether the predecessor is the head of the queue, so that its deletion is the grant.
    ahead_is_head: bool,
}

/// How entering the queue went.
enum Entry {
    /// The node stands.
    In(Arc<Queue>),
    /// The node may or may not stand. The error is that of the create, if it is the create that failed.
    Unsure(Option<ZkError>),
    /// The node was not made.
    Out(ZkError),
}

/// What a look at the queue led to.
enum Look {
    Hold,
    Behind(Line),
    /// The node is gone.
    Missing,
    Failed(ZkError),
}

/// What waiting led to.
enum Next {
    Ours,
    ListAgain,
    /// The connection ended, or may have: look for the node on the next one.
    ComeBack,
    /// The node is gone: to the back of the queue.
    StartAgain,
    Refused(ZkError),
}

impl Next {
    /// After a request that failed: on to the next connection, or the end of the acquire.
    fn refused(error: ZkError) -> Self {
        if error.outcome_unknown() || error.can_retry() { Self::ComeBack } else { Self::Refused(error) }
    }
}

/// What a look for the node on another connection came to.
enum Back {
    /// The place is as it was: set the watches anew.
    Known,
    /// The node stands, among these.
    In(Arc<Queue>),
    /// There is no such node, as far as the committed transactions tell.
    NotFound,
    /// The place is lost: the node was deleted, or its session is over.
    Out,
}

impl Attempt {
    /// Enters the queue and stays until the lock is granted, or until the attempt has to start again at the back.
    pub(super) async fn stay(&self, progress: &mut Progress, reused: &mut Option<Guid>) -> Result<Stay> {
        let (link, pass) = self.admission().await?;
        let mut pass = Some(pass);
        let guid = self.fresh_guid(reused);
        // Boxed, here and below, is what is over when the waiting begins: thousands may wait at a time, and each would keep
        // the room.
        let epoch = match Box::pin(self.epoch_for_name(&link)).await {
            Ok(epoch) => epoch,
            Err(error) => return Ok(Stay::Failed(error)),
        };
        let claim = self.claim(&link, guid);
        let mut place = Place { claim, link, guid, czxid: None, epoch, line: None, tries: 0 };
        let mut unsure = None;
        let mut queue = match Box::pin(self.enter(&mut place, epoch, reused)).await? {
            Entry::In(queue) => Some(queue),
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
            let next = match queue.take() {
                None if place.line.is_none() => Next::ComeBack,
                None => self.stand(&mut place, &mut pass, progress).await,
                Some(queue) => {
                    unsure = None;
                    if self.spec.naming == Naming::Epoch && queue.root.czxid != epoch {
                        // The root was made again before the node was: its name tells the wrong epoch.
                        return Ok(Stay::Again);
                    }
                    match Box::pin(self.look(&mut place, queue, progress)).await? {
                        Look::Hold => Next::Ours,
                        Look::Behind(_) if self.mode == Mode::Try => return Ok(Stay::NotFree),
                        Look::Behind(line) => {
                            place.line = Some(line);
                            continue;
                        }
                        Look::Missing => return Ok(Stay::Again),
                        Look::Failed(error) => Next::refused(error),
                    }
                }
            };
            match next {
                Next::Ours => return Ok(self.grant(place).map_or(Stay::Again, Stay::Granted)),
                Next::ListAgain => {
                    if pass.is_none() {
                        pass = Some(self.core.hub.lanes.enter().await);
                    }
                    match self.janitor.read_queue(&place.link, &self.spec.root, How::AsSeen).await {
                        Ok(Some(fresh)) => queue = Some(fresh),
                        Ok(None) => return Ok(Stay::Again),
                        Err(error) if error.outcome_unknown() || error.can_retry() => place.line = None,
                        Err(error) => return Err(Error::from_zk(&error, "reading the queue")),
                    }
                }
                Next::ComeBack => match Box::pin(self.come_back(&mut place, &mut pass)).await? {
                    Back::Known => {}
                    Back::In(found) => queue = Some(found),
                    Back::NotFound => {
                        place.claim.not_found(&place.link);
                        // The create was not applied so far: that counts as a failure, not as a turn in the queue.
                        return Ok(unsure.map_or(Stay::Again, Stay::Failed));
                    }
                    Back::Out => return Ok(unsure.map_or(Stay::Again, Stay::Failed)),
                },
                Next::StartAgain => return Ok(Stay::Again),
                Next::Refused(error) => return Err(Error::from_zk(&error, "watching the predecessor")),
            }
        }
    }

    /// Waits for a connection that can write, and for a turn to use it.
    async fn admission(&self) -> Result<(Link, Pass<'_>)> {
        loop {
            self.core.hub.wait_link(Link::is_writable).await?;
            let pass = self.core.hub.lanes.enter().await;
            if let Some(link) = self.core.hub.link().filter(Link::is_writable) {
                return Ok((link, pass));
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

    /// The root's czxid, where the node's name has to tell it; zero where it does not.
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
                self.core.env.sleep(FIRST_DELAY).await;
            }
            made = make_parents(&self.core, link, &self.spec.root);
        }
    }

    /// Makes the node and lists the queue, in one round trip; in a second one after making the parents, where
    /// they are missing.
    async fn enter(&self, place: &mut Place, epoch: i64, reused: &mut Option<Guid>) -> Result<Entry> {
        let mut parents = Vec::new();
        let mut without_root = 0;
        loop {
            let node = path::join(&self.spec.root, &self.spec.naming.prefix(place.guid, epoch));
            let created = place.link.connection.create(
                &node,
                &self.data,
                CreateMode::EphemeralSequential,
                &self.core.options.node_acl(),
            );
            let listed = self.janitor.read_queue(&place.link, &self.spec.root, How::AsSeen);
            let refused = await_parents(std::mem::take(&mut parents)).await;
            match created.await {
                Ok(Created { name, stat }) => {
                    place.claim.made(name);
                    place.czxid = (stat.czxid > 0).then_some(stat.czxid);
                    return Ok(match listed.await {
                        Ok(Some(queue)) => Entry::In(queue),
                        Ok(None) | Err(_) => Entry::Unsure(None),
                    });
                }
                Err(ZkError::NoNode) => {
                    if let Err(error) = refused {
                        return Ok(Entry::Out(error));
                    }
                    without_root += 1;
                    if without_root > 2 {
                        // Somebody keeps deleting the root: do not race with them at full speed.
                        self.core.env.sleep(FIRST_DELAY).await;
                    }
                    parents = make_parents(&self.core, &place.link, &self.spec.root);
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

    /// Decides what a look at the queue means.
    async fn look(&self, place: &mut Place, queue: Arc<Queue>, progress: &mut Progress) -> Result<Look> {
        self.core.note_root(&self.spec.root, queue.root.czxid);
        self.refuse_mixture(place.guid, &queue)?;
        place.epoch = queue.root.czxid;
        let decision = match self.decide(place.guid, &queue) {
            Decision::NeedCzxids => match self.read_czxids(&place.link, place.guid, &queue).await {
                Ok(read) => self.decide(place.guid, &read),
                Err(error) => return Ok(Look::Failed(error)),
            },
            decision => decision,
        };
        Ok(match decision {
            Decision::Hold => Look::Hold,
            // Every czxid has been read: the latter does not come about.
            Decision::Missing | Decision::NeedCzxids => Look::Missing,
            Decision::Wait { ahead, ahead_is_head, position, head } => {
                progress.position = Some(position);
                progress.looked = self.core.env.now();
                let (head, unknown) = self.janitor.head(&self.spec.root, &head);
                // Who holds the lock, for the message if it comes to that. The predecessor tells if it is the head.
                if unknown && head.name != ahead && self.mode == Mode::Wait {
                    let asked = place.link.connection.get_data(&path::join(&self.spec.root, &head.name));
                    let head = head.clone();
                    self.core.env.spawn(async move {
                        if let Ok((data, _)) = asked.await {
                            let _ = head.who.set(describe(&data));
                        }
                    });
                }
                progress.head = Some(head);
                Look::Behind(Line { ahead, ahead_is_head })
            }
        })
    }

    fn decide(&self, me: Guid, queue: &Queue) -> Decision {
        #[cfg(any(test, feature = "simulation"))]
        if self.core.options.mutants.wrong_predecessor {
            return super::decide::decide_skipping_one(me, queue);
        }
        decide(me, queue)
    }

    /// Reads which transaction made each contender. Those that have gone meanwhile are left out.
    async fn read_czxids(&self, link: &Link, me: Guid, queue: &Queue) -> Result<Queue, ZkError> {
        let mut tickets = queue.tickets.clone();
        // The own node last: if it is there then, it was when the others were found gone.
        tickets.sort_by_key(|ticket| ticket.guid == me);
        let asked: Vec<_> = tickets
            .into_iter()
            .map(|ticket| {
                let stat = link.connection.exists(&path::join(&self.spec.root, &ticket.name));
                (ticket, stat)
            })
            .collect();
        let mut read = Vec::with_capacity(asked.len());
        for (mut ticket, stat) in asked {
            if let Some(stat) = stat.await? {
                ticket.czxid = Some(stat.czxid);
                read.push(ticket);
            }
        }
        // That some have gone does not make the numbers tell the order again: others may have come.
        Ok(Queue { used_up: true, ..Queue::new(read, queue.root) })
    }

    /// Names with the epoch and names without are never both below one root: whoever comes second is refused. Those
    /// who stand there already are not disturbed.
    fn refuse_mixture(&self, me: Guid, queue: &Queue) -> Result<()> {
        let Some(mine) = queue.find(me) else { return Ok(()) };
        let tells_epoch = |ticket: &Ticket| ticket.naming == Naming::Epoch;
        let other =
            |ticket: &&Ticket| tells_epoch(ticket) != tells_epoch(mine) && ticket.sequence < mine.sequence;
        match queue.tickets.iter().find(other) {
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

    /// Sets the watches, and waits until something happens to the predecessor, or to the own node.
    async fn stand(&self, place: &mut Place, pass: &mut Option<Pass<'_>>, progress: &Progress) -> Next {
        let Some(line) = &place.line else { return Next::ListAgain };
        let ahead_is_head = line.ahead_is_head;
        // The own watch first: if it has not fired when the predecessor goes, the node stands.
        if !place.claim.is_armed() && !self.leaves_own_watch_out() {
            place.claim.arm(&place.link);
        }
        let watching = place.link.connection.watch_data(&path::join(&self.spec.root, &line.ahead));
        while place.claim.is_armed() && !place.claim.is_surely_armed() {
            match place.claim.own_event().await {
                OwnEvent::Armed { czxid, .. } => place.czxid = Some(czxid),
                OwnEvent::Changed => place.claim.arm(&place.link),
                OwnEvent::NotOurs | OwnEvent::Gone => return Next::StartAgain,
                OwnEvent::ConnectionEnded => return Next::ComeBack,
                OwnEvent::Refused(error) => return Next::refused(error),
            }
        }
        let mut watch = match watching.await {
            Ok((data, _, watch)) => {
                if let Some(head) = progress.head.as_ref().filter(|head| head.name == line.ahead) {
                    let _ = head.who.set(describe(&data));
                }
                watch
            }
            Err(ZkError::NoNode) => return Next::ListAgain,
            Err(error) => return Next::refused(error),
        };
        place.tries = 0;
        // From here on there is nothing to send: let others in.
        *pass = None;
        self.wait_in_line(place, &mut watch, ahead_is_head).await
    }

    /// Waits until something happens to the predecessor, or to the own node.
    async fn wait_in_line(&self, place: &mut Place, predecessor: &mut Watch, ahead_is_head: bool) -> Next {
        loop {
            let event = tokio::select! {
                biased;
                own = place.claim.own_event() => Err(own),
                _ = place.link.session.ended() => return Next::ComeBack,
                event = predecessor.fired() => Ok(event),
            };
            match event {
                Err(OwnEvent::Changed) => place.claim.arm(&place.link),
                Err(OwnEvent::Armed { .. }) => {}
                Err(OwnEvent::NotOurs | OwnEvent::Gone) => return Next::StartAgain,
                Err(OwnEvent::Refused(error)) => return Next::refused(error),
                Err(OwnEvent::ConnectionEnded) | Ok(WatchEvent::ConnectionEnded) => return Next::ComeBack,
                Ok(WatchEvent::Deleted) if ahead_is_head && self.own_node_stands(place) => {
                    return Next::Ours;
                }
                Ok(_) => return Next::ListAgain,
            }
        }
    }

    /// Whether the own watch was set on this connection before the predecessor went, and has not fired.
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

    /// After the connection was lost, or when the outcome of the create is unknown: looks for the node on the next
    /// connection, unless its name and the predecessor's are known. Then the two watches tell.
    async fn come_back<'a>(&'a self, place: &mut Place, pass: &mut Option<Pass<'a>>) -> Result<Back> {
        loop {
            // Nobody keeps others from entering while there is no connection.
            *pass = None;
            if place.link.is_writable() {
                if place.tries > 0 {
                    self.core.env.sleep(backoff(FIRST_DELAY, LONGEST_DELAY, place.tries)).await;
                }
                place.tries += 1;
                *pass = Some(self.core.hub.lanes.enter().await);
            } else {
                let (link, admitted) = self.admission().await?;
                (place.link, *pass, place.tries) = (link, Some(admitted), 0);
            }
            if !place.claim.is_of(&place.link.session) {
                return Ok(Back::Out);
            }
            if place.claim.name().is_some() && place.line.is_some() {
                place.claim.arm(&place.link);
                return Ok(Back::Known);
            }
            let found = match self.janitor.read_queue(&place.link, &self.spec.root, How::Committed).await {
                Ok(found) => found,
                Err(error) if error.outcome_unknown() || error.can_retry() => continue,
                Err(error) => return Err(Error::from_zk(&error, "reading the queue")),
            };
            let own = found.as_ref().and_then(|queue| queue.find(place.guid));
            let (Some(own), Some(queue)) = (own, &found) else { return Ok(Back::NotFound) };
            place.claim.made(own.name.clone());
            place.claim.arm(&place.link);
            match place.claim.own_event().await {
                OwnEvent::Armed { czxid, .. } => {
                    place.czxid = Some(czxid);
                    return Ok(Back::In(queue.clone()));
                }
                OwnEvent::NotOurs | OwnEvent::Gone => return Ok(Back::Out),
                OwnEvent::Refused(error) if !error.can_retry() => {
                    return Err(Error::from_zk(&error, "watching the own node"));
                }
                OwnEvent::Changed | OwnEvent::ConnectionEnded | OwnEvent::Refused(_) => {}
            }
        }
    }

    /// Makes the grant, and sets its keeper on. None if the lease is over already.
    fn grant(&self, place: Place) -> Option<Arc<Grant>> {
        if !place.link.session.is_live() {
            return None;
        }
        let name = place.claim.name()?.to_owned();
        let sequence = Ticket::parse(&name)?.sequence;
        let now = self.core.env.now();
        let terms = Terms {
            path: self.spec.path.clone(),
            node: path::join(&self.spec.root, &name),
            token: place.czxid?,
            epoch: place.epoch,
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
