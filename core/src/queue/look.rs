//! Looking at the queue in a way that what is absent can be relied on to be absent.
//!
//! A `sync` is not enough for that: a leader that has been deposed and does not know it answers one, and shows a tree
//! without what its successor has committed. So these reads come behind a `multi` of one `check`, on the same
//! connection. Any answer to that, a refusal too, is a committed transaction, and the server shows everything that was
//! committed before it.

use crate::session::{Hub, Link};
use crate::zk::{Operation, Reply, Stat, ZkError};

/// The children of a root, and its own stat.
pub(crate) type Listing = (Vec<String>, Stat);

/// Asks the quorum to commit a transaction that changes nothing. `Ok` says whether `path` was there.
pub(crate) fn commit_check(hub: &Hub, link: &Link, path: &str) -> Reply<bool> {
    #[cfg(any(test, feature = "simulation"))]
    if hub.options.mutants.trust_sync {
        let synced = link.connection.sync(path);
        let found = link.connection.exists(path);
        return Box::pin(async move {
            synced.await?;
            found.await.map(|stat| stat.is_some())
        });
    }
    let _ = hub;
    let answer = link.connection.multi(vec![Operation::Check { path: path.to_owned(), version: None }]);
    Box::pin(async move {
        match answer.await {
            // That a node may not be looked at is an answer of the quorum's as well.
            Ok(()) | Err(ZkError::NoAuth) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(error),
        }
    })
}

/// Lists the children of `root` as they stand after a committed transaction; none if there is no such node.
pub(crate) fn committed_children(hub: &Hub, link: &Link, root: &str) -> Reply<Option<Listing>> {
    let committed = commit_check(hub, link, root);
    let listed = link.connection.children(root);
    Box::pin(async move {
        committed.await?;
        match listed.await {
            Ok(listing) => Ok(Some(listing)),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(error),
        }
    })
}
