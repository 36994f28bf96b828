//! Ghosts: creates of unknown outcome that were nowhere to be found, and may be applied all the same.
//!
//! A create may be held up in the server that it was sent to, or between that server and the leader, while the client
//! goes on to another server and sees that there is no such node. The leader holds a request against the owner of its
//! session only when it takes the request up, and the owner changes at once when a re-validation arrives, which may
//! overtake the create. So when the client comes back to the first server, or when an attempt to do so that it had given
//! up long ago comes through, the create is applied. The node belongs to a session that lives, and everyone would wait
//! for it until that session ends.
//!
//! So what was not found is looked for again: on every later connection of its session, and from time to time while one
//! connection lasts, since a re-validation that comes late may leave it untouched. What is found is deleted. A ghost is
//! given up after a look through the server that the create was sent to, where the look comes behind the create; or
//! with its session.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::listing::{How, Listings};
use super::ticket::Guid;
use crate::observe::Gauge;
use crate::path;
use crate::session::{Hub, Link, Session};
use crate::zk::ZkError;

/// How long after one look the next one comes, on the same connection; twice as long each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// From where a create was sent, which says what it takes to be sure of its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    link: u64,
    server: Option<Arc<str>>,
}

impl Sender {
    pub(crate) fn of(link: &Link) -> Self {
        Self { link: link.number, server: link.connection.server().map(Arc::from) }
    }

    /// Whether a look through `link` comes behind what was sent from here: on the same connection it does, and through
    /// the same server, which closes an older connection of the session before it serves a new one.
    pub(crate) fn is_behind(&self, link: &Link) -> bool {
        self.link == link.number
            || self.server.as_deref().is_some_and(|server| link.connection.server() == Some(server))
    }
}

/// A create that was not found.
struct Ghost {
    session: Arc<Session>,
    root: String,
    guid: Guid,
    sender: Sender,
    _counted: Gauge,
}

/// The ghosts of one client.
pub(crate) struct Ghosts {
    hub: Arc<Hub>,
    listings: Arc<Listings>,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    ghosts: Vec<Ghost>,
    /// Whether somebody looks for them.
    hunted: bool,
}

impl Ghosts {
    pub(crate) fn new(hub: Arc<Hub>, listings: Arc<Listings>) -> Arc<Self> {
        Arc::new(Self { hub, listings, known: Mutex::default() })
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Goes on looking for a node that a look through `link` has not found.
    pub(crate) fn add(
        self: &Arc<Self>,
        session: Arc<Session>,
        root: String,
        guid: Guid,
        sender: Sender,
        link: &Link,
    ) {
        tracing::debug!(
            root,
            ?guid,
            "a node that may have been made was not found; looking for it again later"
        );
        let ghost = Ghost { session, root, guid, sender, _counted: self.hub.metrics.ghost() };
        let mut known = self.known();
        known.ghosts.push(ghost);
        if !std::mem::replace(&mut known.hunted, true) {
            let (ghosts, looked_on) = (self.clone(), link.number);
            self.hub.env.spawn(async move { ghosts.hunt(looked_on).await });
        }
    }

    /// Looks for the ghosts until there are none.
    async fn hunt(self: Arc<Self>, mut looked_on: u64) {
        let mut pause = FIRST_PAUSE;
        while let Some(session) = self.session_of_oldest() {
            let next = self.hub.wait_link(|link| link.number != looked_on && link.is_writable());
            let link = tokio::select! {
                biased;
                _ = session.ended() => continue,
                link = next => {
                    pause = FIRST_PAUSE;
                    link.ok()
                }
                () = self.hub.env.sleep(pause) => {
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    match self.hub.link() {
                        Some(link) if link.is_writable() => Some(link),
                        _ => continue,
                    }
                }
            };
            let Some(link) = link else {
                // There will be no other connection, and so no other look: the nodes end with their session.
                *self.known() = Known::default();
                return;
            };
            looked_on = link.number;
            for (root, guids) in self.by_root(&link.session) {
                if let Err(error) = self.look(&link, &root, &guids).await {
                    tracing::debug!(root, %error, "could not look for nodes that may have been made");
                }
            }
        }
    }

    /// Forgets the ghosts of sessions that are over. The session of the oldest one left; the hunt ends if there is none.
    fn session_of_oldest(&self) -> Option<Arc<Session>> {
        let mut known = self.known();
        known.ghosts.retain(|ghost| ghost.session.is_live());
        known.hunted = !known.ghosts.is_empty();
        known.ghosts.first().map(|ghost| ghost.session.clone())
    }

    fn by_root(&self, session: &Arc<Session>) -> BTreeMap<String, BTreeSet<Guid>> {
        let mut roots: BTreeMap<String, BTreeSet<Guid>> = BTreeMap::new();
        for ghost in self.known().ghosts.iter().filter(|ghost| Arc::ptr_eq(&ghost.session, session)) {
            roots.entry(ghost.root.clone()).or_default().insert(ghost.guid);
        }
        roots
    }

    /// Looks for these ghosts below one root: deletes what it finds, and gives up what can come no more.
    async fn look(&self, link: &Link, root: &str, guids: &BTreeSet<Guid>) -> Result<(), ZkError> {
        let queue = self.listings.read(&self.hub, link, root, How::Committed).await?;
        let tickets = queue.iter().flat_map(|queue| &queue.tickets);
        let mut found = BTreeMap::new();
        for ticket in tickets.filter(|ticket| guids.contains(&ticket.guid)) {
            found.insert(ticket.guid, link.connection.delete(&path::join(root, &ticket.name), None));
        }
        self.known().ghosts.retain(|ghost| {
            let absent =
                ghost.root == root && guids.contains(&ghost.guid) && !found.contains_key(&ghost.guid);
            !(absent && Arc::ptr_eq(&ghost.session, &link.session) && ghost.sender.is_behind(link))
        });
        for (guid, deleted) in found {
            match deleted.await {
                Ok(()) | Err(ZkError::NoNode) => {
                    tracing::warn!(
                        root,
                        ?guid,
                        "a lock node whose create had been given up came to be, and was deleted"
                    );
                    self.known().ghosts.retain(|ghost| ghost.guid != guid);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
