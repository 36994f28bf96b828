//! Reading the queue: one listing of a root under way at a time, read once and shared by all who wait for it.
//!
//! A crowd that enters a queue, or looks at it after an event, would otherwise list it once for each of its members. Who
//! asks while a listing is under way gets the *next* one: the present one was sent before, and may not show what the
//! asker knows of. Nobody keeps a listing for longer than it takes to decide.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, ready};

use tokio::sync::oneshot;

use super::look::{Listing, committed_children};
use super::ticket::{Guid, Ticket, numbers_are_used_up};
use crate::session::{Hub, Link};
use crate::zk::{Reply, Stat, ZkError};

/// Who stands below a root, in no order.
#[derive(Debug)]
pub(crate) struct Queue {
    /// The root's own stat.
    pub(crate) root: Stat,
    pub(crate) tickets: Vec<Ticket>,
    /// Whether the numbers no longer tell the order.
    pub(crate) used_up: bool,
}

impl Queue {
    pub(crate) fn new(tickets: Vec<Ticket>, root: Stat) -> Self {
        Self { used_up: numbers_are_used_up(&tickets), root, tickets }
    }

    fn read((names, root): Listing) -> Arc<Self> {
        Arc::new(Self::new(names.into_iter().filter_map(Ticket::read).collect(), root))
    }

    /// The contender of this GUID.
    pub(crate) fn find(&self, guid: Guid) -> Option<&Ticket> {
        self.tickets.iter().find(|ticket| ticket.guid == guid)
    }
}

/// How a listing is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum How {
    /// As this server shows it: enough for who knows that it shows his own node, and so everything before it.
    AsSeen,
    /// Behind a committed transaction, so that what is absent is absent.
    Committed,
}

/// What a listing came to; none if there is no such root.
pub(crate) type Answer = Result<Option<Arc<Queue>>, ZkError>;

type Asker = oneshot::Sender<Answer>;

/// Which listing: on which connection, how, and of which root.
type Key = (u64, How, String);

/// Who stands at the head of a queue, for messages; asked once for all who wait behind.
#[derive(Debug)]
pub(crate) struct Head {
    pub(crate) name: String,
    pub(crate) who: OnceLock<Option<String>>,
}

/// The listings of one client that are under way.
pub(crate) struct Listings {
    /// Who waits for the listing after the one that is under way.
    under_way: Mutex<BTreeMap<Key, Vec<Asker>>>,
    heads: Mutex<BTreeMap<String, Weak<Head>>>,
}

impl Listings {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { under_way: Mutex::default(), heads: Mutex::default() })
    }

    fn under_way(&self) -> MutexGuard<'_, BTreeMap<Key, Vec<Asker>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a listing that is sent from now on. If none of its kind is under way, it is on the wire when this returns.
    pub(crate) fn read(self: &Arc<Self>, hub: &Arc<Hub>, link: &Link, root: &str, how: How) -> Reading {
        let key = (link.number, how, root.to_owned());
        let mut under_way = self.under_way();
        if let Some(askers) = under_way.get_mut(&key) {
            let (asker, answer) = oneshot::channel();
            askers.push(asker);
            return Reading(State::Shared(answer));
        }
        under_way.insert(key.clone(), Vec::new());
        drop(under_way);
        let series = Series { listings: self.clone(), hub: hub.clone(), link: link.clone(), key };
        Reading(State::First(series.send(), series))
    }

    /// Who wait for the listing after the one that has just ended. None: no listing of this kind is under way any more.
    fn next_askers(&self, key: &Key) -> Vec<Asker> {
        let mut under_way = self.under_way();
        let askers = under_way.get_mut(key).map(std::mem::take).unwrap_or_default();
        if askers.is_empty() {
            under_way.remove(key);
        }
        askers
    }

    /// The head of a root's queue, and whether nobody has asked yet who it is.
    pub(crate) fn head(&self, root: &str, name: &str) -> (Arc<Head>, bool) {
        /// More than anybody waits for at a time; beyond that, those that are forgotten are cleared away.
        const MANY: usize = 1_024;
        let mut heads = self.heads.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(head) = heads.get(root).and_then(Weak::upgrade)
            && head.name == name
        {
            return (head, false);
        }
        if heads.len() >= MANY {
            heads.retain(|_, head| head.strong_count() > 0);
        }
        let head = Arc::new(Head { name: name.to_owned(), who: OnceLock::new() });
        heads.insert(root.to_owned(), Arc::downgrade(&head));
        (head, true)
    }
}

/// Listings of one kind, one after the other.
struct Series {
    listings: Arc<Listings>,
    hub: Arc<Hub>,
    link: Link,
    key: Key,
}

impl Series {
    fn send(&self) -> Reply<Option<Listing>> {
        let (_, how, root) = &self.key;
        match how {
            How::Committed => committed_children(&self.hub, &self.link, root),
            How::AsSeen => {
                let listed = self.link.connection.children(root);
                Box::pin(async move {
                    match listed.await {
                        Ok(listing) => Ok(Some(listing)),
                        Err(ZkError::NoNode) => Ok(None),
                        Err(error) => Err(error),
                    }
                })
            }
        }
    }

    /// Reads for all who have asked meanwhile, and for those who ask while it does.
    async fn go_on(self, mut askers: Vec<Asker>) {
        while !askers.is_empty() {
            let answer = self.send().await.map(|listing| listing.map(Queue::read));
            for asker in askers {
                // Whoever has gone away needs no answer.
                let _ = asker.send(answer.clone());
            }
            askers = self.listings.next_askers(&self.key);
        }
    }
}

/// Waits for a listing; see [`Listings::read`]. Cancel safe: the others who wait for it, or for the next, get theirs.
pub(crate) struct Reading(State);

enum State {
    First(Reply<Option<Listing>>, Series),
    Shared(oneshot::Receiver<Answer>),
    Done,
}

impl Reading {
    /// Ends the first listing of a series, and lets the series go on for those who wait.
    fn end(&mut self) {
        if let State::First(_, series) = std::mem::replace(&mut self.0, State::Done) {
            let askers = series.listings.next_askers(&series.key);
            if !askers.is_empty() {
                let hub = series.hub.clone();
                hub.env.spawn(series.go_on(askers));
            }
        }
    }
}

impl Future for Reading {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let answer = match &mut self.0 {
            State::First(request, _) => {
                ready!(request.as_mut().poll(cx)).map(|listing| listing.map(Queue::read))
            }
            State::Shared(answer) => match ready!(Pin::new(answer).poll(cx)) {
                Ok(answer) => answer,
                // The engine is being shut down.
                Err(_) => Err(ZkError::ConnectionLost),
            },
            State::Done => return Poll::Pending,
        };
        self.end();
        Poll::Ready(answer)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.end();
    }
}
