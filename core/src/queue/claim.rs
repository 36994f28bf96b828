//! Claims: nodes that we may have made. None is forgotten until it is confirmed gone.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::ghosts::{Ghosts, Sender};
use super::holder::REVOKE_MARK;
use super::listing::{Head, How, Listings, Reading};
use super::look::commit_check;
use super::ticket::Guid;
use crate::path;
use crate::session::{Hub, Link, Session};
use crate::zk::{Reply, Stat, Watch, WatchEvent, ZkError};

/// The first delay between two tries to remove a node.
const FIRST_DELAY: Duration = Duration::from_millis(50);
/// The longest delay between two tries to remove a node.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// Sees to it that nodes that are no longer wanted go.
pub(crate) struct Janitor {
    pub(crate) hub: Arc<Hub>,
    ghosts: Arc<Ghosts>,
    listings: Arc<Listings>,
}

impl Janitor {
    pub(crate) fn new(hub: Arc<Hub>) -> Arc<Self> {
        let listings = Listings::new();
        Arc::new(Self { ghosts: Ghosts::new(hub.clone(), listings.clone()), listings, hub })
    }

    /// Asks who stands below `root`, from now on; see [`Listings::read`].
    pub(crate) fn read_queue(&self, link: &Link, root: &str, how: How) -> Reading {
        self.listings.read(&self.hub, link, root, how)
    }

    /// The head of a root's queue, and whether nobody has asked yet who it is.
    pub(crate) fn head(&self, root: &str, name: &str) -> (Arc<Head>, bool) {
        self.listings.head(root, name)
    }

    /// Removes a node, however long it takes, and returns when it is confirmed gone or its session is.
    ///
    /// It counts as pending from the call on, not only from the first poll.
    ///
    /// `refused` is told if the server will not have it removed; it is tried on all the same, since that may change.
    fn remove(
        self: Arc<Self>,
        node: Node,
        refused: Option<oneshot::Sender<ZkError>>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let pending = self.hub.metrics.cleanup();
        async move {
            let _pending = pending;
            let session = node.session.clone();
            tokio::select! {
                biased;
                () = session.confirmed_gone() => {}
                () = self.keep_trying(node, refused) => {}
            }
        }
    }

    /// The node was not found through `link`. That settles it if the look came behind the create.
    fn not_found(&self, node: Node, link: &Link) {
        #[cfg(any(test, feature = "simulation"))]
        if self.hub.options.mutants.absent_is_gone {
            return;
        }
        let Node { session, root, guid, sender, name, .. } = node;
        if name.is_none() && !sender.is_behind(link) {
            self.ghosts.add(session, root, guid, sender, link);
        }
    }

    /// A planted bug: an older session's node counts as ours.
    fn takes_any_owner(&self) -> bool {
        #[cfg(any(test, feature = "simulation"))]
        return self.hub.options.mutants.skip_owner_check;
        #[cfg(not(any(test, feature = "simulation")))]
        false
    }

    async fn keep_trying(&self, mut node: Node, mut refused: Option<oneshot::Sender<ZkError>>) {
        let mut tries = 0;
        let mut warned = false;
        loop {
            let same_session = |link: &Link| Arc::ptr_eq(&link.session, &node.session);
            let Ok(link) = self.hub.wait_link(same_session).await else {
                // There will be no other connection: the end of the session takes the node with it.
                return std::future::pending().await;
            };
            let pass = self.hub.lanes.leave().await;
            let removal = node.try_remove(self, &link).await;
            drop(pass);
            match removal {
                Ok(Removal::Gone) => return,
                Ok(Removal::NotFound) => return self.not_found(node, &link),
                Err(error) if !warned && !error.can_retry() && !error.outcome_unknown() => {
                    warned = true;
                    tracing::warn!(root = %node.root, guid = ?node.guid, %error,
                        "lock node can't be removed; trying on until its session ends");
                    if let Some(refused) = refused.take() {
                        let _ = refused.send(error);
                    }
                }
                Err(error) => {
                    tracing::debug!(root = %node.root, guid = ?node.guid, %error, "lock node not removed yet");
                }
            }
            let delay = crate::session::backoff(FIRST_DELAY, LONGEST_DELAY, tries);
            self.hub.env.sleep(delay).await;
            tries += 1;
        }
    }
}

/// A node that we may have made. Dropping a claim removes the node in the background.
pub(crate) struct Claim {
    janitor: Arc<Janitor>,
    /// None once the claim is settled: nothing of it is left on the server.
    node: Option<Node>,
}

/// What is known of the node.
struct Node {
    session: Arc<Session>,
    /// The path of the lock's root on the server.
    root: String,
    guid: Guid,
    /// From where the create was sent.
    sender: Sender,
    /// The name that the server gave, once it is known that the node was made.
    name: Option<String>,
    own: OwnWatch,
}

/// The watch on our own node.
enum OwnWatch {
    None,
    Arming(Reply<(Vec<u8>, Stat, Watch)>, Link),
    /// The server knows no such node. It may lag behind, or be a leader that was deposed: the quorum is asked.
    Doubted(Reply<bool>),
    Armed(Watch),
}

/// What happened to our own node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OwnEvent {
    /// The watch is set, and the node is there and ours.
    Armed {
        /// Somebody asks for the lock back.
        revoked: bool,
        /// Which transaction made the node.
        czxid: i64,
    },
    /// The node is there, and belongs to another session.
    NotOurs,
    /// The node is gone.
    Gone,
    /// The node is there, and the watch has to be set again.
    Changed,
    /// The connection ended, and with it the watch.
    ConnectionEnded,
    /// The server would not set the watch.
    Refused(ZkError),
}

impl OwnEvent {
    fn failed(error: ZkError) -> Self {
        match error {
            ZkError::ConnectionLost | ZkError::SessionExpired => Self::ConnectionEnded,
            error => Self::Refused(error),
        }
    }
}

impl Claim {
    /// Notes that a node is about to be made. From now on it will be found and removed if it is not wanted.
    pub(crate) fn new(janitor: Arc<Janitor>, link: &Link, root: String, guid: Guid) -> Self {
        let (session, sender) = (link.session.clone(), Sender::of(link));
        let node = Node { session, root, guid, sender, name: None, own: OwnWatch::None };
        Self { janitor, node: Some(node) }
    }

    /// The node was made, with this name.
    pub(crate) fn made(&mut self, name: String) {
        if let Some(node) = &mut self.node {
            node.name = Some(name);
        }
    }

    /// The node's name, if it is known that it was made.
    pub(crate) fn name(&self) -> Option<&str> {
        self.node.as_ref()?.name.as_deref()
    }

    /// Whether the node was, or is to be, made in `session`.
    ///
    /// A node of an older session may stand for a while yet, with our GUID in its name; it is not ours.
    pub(crate) fn is_of(&self, session: &Arc<Session>) -> bool {
        self.janitor.takes_any_owner()
            || self.node.as_ref().is_some_and(|node| Arc::ptr_eq(&node.session, session))
    }

    /// Nothing of the claim is left on the server.
    pub(crate) fn settle(mut self) {
        self.node = None;
    }

    /// The node was looked for through `link`, behind a committed transaction, and not found.
    pub(crate) fn not_found(mut self, link: &Link) {
        if let Some(node) = self.node.take() {
            self.janitor.not_found(node, link);
        }
    }

    /// Removes the node and waits until it is confirmed gone. If dropped before, goes on in the background.
    /// `refused` is told if the server will not have it removed.
    pub(crate) async fn remove(mut self, refused: oneshot::Sender<ZkError>) {
        if let Some(node) = self.node.take() {
            let (done, gone) = oneshot::channel();
            let work = self.janitor.clone().remove(node, Some(refused));
            self.janitor.hub.env.spawn(async move {
                work.await;
                let _ = done.send(());
            });
            let _ = gone.await;
        }
    }

    /// Asks for a watch on our own node. It is on the wire when this returns.
    pub(crate) fn arm(&mut self, link: &Link) {
        if let Some(node) = &mut self.node
            && let Some(name) = &node.name
        {
            let reply = link.connection.watch_data(&path::join(&node.root, name));
            node.own = OwnWatch::Arming(reply, link.clone());
        }
    }

    /// Whether the watch is set, or asked for.
    pub(crate) fn is_armed(&self) -> bool {
        self.node.as_ref().is_some_and(|node| !matches!(node.own, OwnWatch::None))
    }

    /// Whether the watch is known to be set.
    pub(crate) fn is_surely_armed(&self) -> bool {
        self.node.as_ref().is_some_and(|node| matches!(node.own, OwnWatch::Armed(_)))
    }

    /// Waits for the next thing that happens to our own node. Cancel safe. Waits for ever without a watch.
    pub(crate) async fn own_event(&mut self) -> OwnEvent {
        let Some(node) = &mut self.node else { return std::future::pending().await };
        let event = loop {
            match &mut node.own {
                OwnWatch::None => return std::future::pending().await,
                OwnWatch::Arming(reply, link) => match reply.await {
                    Ok((data, stat, watch)) => {
                        if stat.ephemeral_owner == node.session.id().0 || self.janitor.takes_any_owner() {
                            node.own = OwnWatch::Armed(watch);
                            return OwnEvent::Armed { revoked: data == REVOKE_MARK, czxid: stat.czxid };
                        }
                        break OwnEvent::NotOurs;
                    }
                    Err(ZkError::NoNode) => {
                        let path = path::join(&node.root, node.name.as_deref().unwrap_or_default());
                        node.own = OwnWatch::Doubted(commit_check(&self.janitor.hub, link, &path));
                    }
                    Err(error) => break OwnEvent::failed(error),
                },
                OwnWatch::Doubted(answer) => match answer.await {
                    Ok(true) => break OwnEvent::Changed,
                    Ok(false) => break OwnEvent::Gone,
                    Err(error) => break OwnEvent::failed(error),
                },
                OwnWatch::Armed(watch) => match watch.fired().await {
                    WatchEvent::Deleted => break OwnEvent::Gone,
                    WatchEvent::Created | WatchEvent::DataChanged | WatchEvent::ChildrenChanged => {
                        break OwnEvent::Changed;
                    }
                    WatchEvent::ConnectionEnded => break OwnEvent::ConnectionEnded,
                },
            }
        };
        node.own = OwnWatch::None;
        event
    }

    /// What has happened to our own node already, without waiting.
    pub(crate) fn own_event_now(&mut self) -> Option<OwnEvent> {
        use futures_util::FutureExt;
        self.own_event().now_or_never()
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(node) = self.node.take() else { return };
        #[cfg(any(test, feature = "simulation"))]
        if self.janitor.hub.options.mutants.forget_cleanup && node.name.is_none() {
            return;
        }
        let janitor = self.janitor.clone();
        self.janitor.hub.env.spawn(janitor.remove(node, None));
    }
}

/// What came of a try to remove a node.
enum Removal {
    /// The node is gone.
    Gone,
    /// There was no such node, as far as the committed transactions tell.
    NotFound,
}

impl Node {
    /// Removes the node, if it is there.
    async fn try_remove(&mut self, janitor: &Janitor, link: &Link) -> Result<Removal, ZkError> {
        if self.name.is_none() {
            let queue = janitor.read_queue(link, &self.root, How::Committed).await?;
            self.name = queue.and_then(|queue| Some(queue.find(self.guid)?.name.clone()));
        }
        let Some(name) = &self.name else { return Ok(Removal::NotFound) };
        match link.connection.delete(&path::join(&self.root, name), None).await {
            Ok(()) | Err(ZkError::NoNode) => Ok(Removal::Gone),
            Err(error) => Err(error),
        }
    }
}
