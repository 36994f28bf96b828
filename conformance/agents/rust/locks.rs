//! The locks that the agent holds or has held.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use forelock::{HeldLock, LostReason, OwnerKey};
use forelock_conformance::protocol::Line;
use tokio::sync::oneshot;

use crate::output::{event, say};

/// A handle on a grant.
pub(crate) struct Handle {
    path: String,
    pub(crate) held: HeldLock,
    pub(crate) owner: RefCell<Option<OwnerKey>>,
    pub(crate) released: RefCell<bool>,
}

/// How a block is to end.
pub(crate) enum End {
    Leave,
    Throw,
}

/// A block whose body runs.
pub(crate) struct Block {
    pub(crate) end: oneshot::Sender<End>,
    pub(crate) ended: oneshot::Receiver<Line>,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Locks {
    handles: RefCell<Vec<Rc<Handle>>>,
    blocks: RefCell<HashMap<String, Block>>,
    watched: RefCell<BTreeSet<i64>>,
}

impl Locks {
    /// Keeps a handle, and tells when its grant is lost. Returns what there is to say of it.
    pub(crate) fn keep(&self, path: &str, owner: Option<OwnerKey>, held: HeldLock) -> Line {
        let line = describe(&held);
        let handle = Rc::new(Handle {
            path: path.to_owned(),
            held,
            owner: RefCell::new(owner),
            released: RefCell::new(false),
        });
        self.handles.borrow_mut().push(handle.clone());
        // One for each grant, however many handles there are on it.
        if self.watched.borrow_mut().insert(handle.held.token().0) {
            tokio::task::spawn_local(async move {
                if let Some(reason) = handle.held.lost().await {
                    say(&lost(&handle.path, &handle.held, reason));
                }
            });
        }
        line
    }

    /// The handle that a path stands for: the last that was not released, else the last.
    pub(crate) fn find(&self, path: &str) -> Option<Rc<Handle>> {
        let handles = self.handles.borrow();
        let all = || handles.iter().rev().filter(|handle| handle.path == path);
        all().find(|handle| !*handle.released.borrow()).or_else(|| all().next()).cloned()
    }

    pub(crate) fn enter(&self, path: &str, block: Block) {
        self.blocks.borrow_mut().insert(path.to_owned(), block);
    }

    pub(crate) fn take_block(&self, path: &str) -> Option<Block> {
        self.blocks.borrow_mut().remove(path)
    }
}

/// That a grant is lost, as of now.
pub(crate) fn lost(path: &str, held: &HeldLock, reason: LostReason) -> Line {
    Line {
        path: Some(path.to_owned()),
        reason: Some(reason.as_str().to_owned()),
        token: Some(held.token().0),
        ..event("lost")
    }
}

/// What there is to say of a grant.
pub(crate) fn describe(held: &HeldLock) -> Line {
    Line {
        result: Some("held".to_owned()),
        token: Some(held.token().0),
        epoch: Some(held.epoch()),
        sequence: Some(i64::from(held.sequence())),
        ..Line::default()
    }
}
