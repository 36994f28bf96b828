//! The queue: ephemeral sequential nodes below a lock root, each contender watching the one in front of it.

mod acquire;
mod claim;
mod decide;
mod ghosts;
mod grant;
mod held;
mod holder;
mod holders;
mod listing;
mod look;
mod stay;
mod ticket;

use std::fmt;

pub(crate) use acquire::{Attempt, Mode, Spec, await_parents, make_parents};
pub(crate) use claim::Janitor;
pub(crate) use grant::Grant;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use grant::Phase;
pub use held::{FencingToken, HeldLock, LockState};
pub(crate) use holder::NodeData;
pub(crate) use holders::Holders;
pub(crate) use ticket::Guid;
pub use ticket::Naming;
#[cfg(any(test, feature = "simulation"))]
pub(crate) use ticket::Ticket;

/// Why a held lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The server said that the session had expired.
    SessionExpired,
    /// The session could not be shown to be alive in time.
    LeaseElapsed,
    /// The lock's node was deleted from outside.
    NodeDeleted,
    /// The lock's root was deleted and made again.
    RootRecreated,
    /// Somebody asked for the lock back, and deleted the node after a grace period.
    Revoked,
    /// Storage has seen a larger token.
    Superseded,
    /// The lock was held for longer than its `max_hold`.
    MaxHold,
    /// The client was closed.
    Closed,
    /// The process was forked, and this is the child.
    Forked,
    /// The engine failed to watch over the lock. Please report it.
    Internal,
}

impl LostReason {
    /// Every reason, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::SessionExpired,
        Self::LeaseElapsed,
        Self::NodeDeleted,
        Self::RootRecreated,
        Self::Revoked,
        Self::Superseded,
        Self::MaxHold,
        Self::Closed,
        Self::Forked,
        Self::Internal,
    ];

    /// The reason's name as every language spells it, such as `lease_elapsed`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SessionExpired => "session_expired",
            Self::LeaseElapsed => "lease_elapsed",
            Self::NodeDeleted => "node_deleted",
            Self::RootRecreated => "root_recreated",
            Self::Revoked => "revoked",
            Self::Superseded => "superseded",
            Self::MaxHold => "max_hold",
            Self::Closed => "closed",
            Self::Forked => "forked",
            Self::Internal => "internal",
        }
    }

    /// The reason in words.
    #[must_use]
    pub const fn explain(self) -> &'static str {
        match self {
            Self::SessionExpired => "the server expired the session (session_expired)",
            Self::LeaseElapsed => "the session could not be shown to be alive in time (lease_elapsed)",
            Self::NodeDeleted => "its node was deleted from outside (node_deleted)",
            Self::RootRecreated => "its root was deleted and made again (root_recreated)",
            Self::Revoked => "it was asked back and taken away (revoked)",
            Self::Superseded => "storage has seen a larger token (superseded)",
            Self::MaxHold => "it was held for longer than allowed (max_hold)",
            Self::Closed => "the client was closed (closed)",
            Self::Forked => "the process was forked and this is the child (forked)",
            Self::Internal => "the engine failed to watch over it: please report this (internal)",
        }
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Who holds a lock, as far as re-entrance and release are concerned: a thread, a task, or any key of yours.
///
/// Within one client, an owner that holds a lock may acquire it again at once, and nobody else may release it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerKey(String);

impl OwnerKey {
    /// An owner known by `key`, which must be unique among the owners of this process.
    #[must_use]
    pub fn new(key: impl Into<String>) -> Self {
        Self(key.into())
    }

    /// The key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for OwnerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
