//! The held lock: what a grant gives to the user.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::grant::{Grant, Phase};
use super::{LostReason, OwnerKey};
use crate::client::Core;
use crate::error::{Error, ErrorCode, Result};
use crate::session::Link;
use crate::zk::{Operation, ZkError};

/// A number that grows with every grant of a lock: the czxid of its node.
///
/// Give it to whatever the lock guards, and let that refuse what is *smaller* than the largest it has seen: then
/// a holder that was stopped at the wrong moment can do no harm, however late it wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(pub i64);

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

/// How a held lock stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockState {
    /// Held, and the connection is up.
    Held,
    /// Held, and the connection is down: good until the lease runs out.
    Suspect,
    /// Lost.
    Lost(LostReason),
    /// Given back.
    Released,
}

/// A lock that was granted: one turn at holding it.
///
/// It is held until it is released, dropped, or lost, and never comes back to life after that. Re-entrant
/// acquires give further handles on the same grant; the last one to go frees the lock.
///
/// Dropping it releases the lock in the background. [`release`](Self::release) does the same and says whether
/// the lock was lost in the meantime.
///
/// Its methods may be called from any thread and in any async runtime.
#[must_use = "dropping a held lock releases it at once"]
pub struct HeldLock {
    core: Arc<Core>,
    grant: Arc<Grant>,
    released: AtomicBool,
}

impl HeldLock {
    /// A handle on a grant, which must have been counted already.
    pub(crate) fn new(core: Arc<Core>, grant: Arc<Grant>) -> Self {
        Self { core, grant, released: AtomicBool::new(false) }
    }

    pub(crate) fn grant(&self) -> &Arc<Grant> {
        &self.grant
    }

    fn phase(&self) -> Phase {
        if self.core.is_forked() {
            return Phase::Lost(LostReason::Forked);
        }
        if self.released.load(Ordering::Acquire) {
            return match self.grant.phase(self.core.env.now()) {
                Phase::Held => Phase::Released,
                other => other,
            };
        }
        self.grant.phase(self.core.env.now())
    }

    /// The fencing token. It grows with every grant on this path for as long as the ensemble keeps its data.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        FencingToken(self.grant.token)
    }

    /// The czxid of the lock's root: changes when the root is deleted and made again.
    #[must_use]
    pub fn epoch(&self) -> i64 {
        self.grant.epoch
    }

    /// The number that the server gave to the lock's node. With the epoch and the token it never repeats.
    #[must_use]
    pub fn sequence(&self) -> i32 {
        self.grant.sequence
    }

    /// The path of the lock, without the namespace.
    #[must_use]
    pub fn path(&self) -> &str {
        self.grant.path.as_str()
    }

    /// The name of the lock's node below its path.
    #[must_use]
    pub fn node(&self) -> &str {
        self.grant.node.rsplit('/').next().unwrap_or(&self.grant.node)
    }

    /// How long the acquire waited.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.grant.waited
    }

    /// Whether this is still the lock's holder, as far as anyone can know without asking: reads the clock and
    /// nothing else, in well under a microsecond.
    ///
    /// The first call after the process was stopped, or the machine suspended, gives the right answer. While the
    /// connection is down it stays true until the lease runs out; once false, it is false for ever.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.phase() == Phase::Held
    }

    /// How much longer the lock is good if nothing more is heard from ZooKeeper; zero once it is not.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.phase() == Phase::Held { self.grant.remaining(self.core.env.now()) } else { Duration::ZERO }
    }

    /// Makes sure that the lock is good for at least `min` from now on, by the clock alone.
    ///
    /// # Errors
    /// `LOCK_LOST` if it is no longer held; `LEASE_TOO_SHORT` if it is, but not for `min` unless the connection
    /// comes back.
    pub fn ensure(&self, min: Duration) -> Result<()> {
        self.check(min).map_err(|error| self.core.refused(self.path(), error))
    }

    fn check(&self, min: Duration) -> Result<()> {
        match self.phase() {
            Phase::Held => {}
            Phase::Lost(reason) => return Err(Error::lock_lost(self.path(), reason)),
            Phase::Released => return Err(self.released_error()),
        }
        let left = self.remaining();
        if left >= min {
            return Ok(());
        }
        Err(Error::new(
            ErrorCode::LeaseTooShort,
            format!(
                "the lock is good for another {:.3} s, and {:.3} s were asked for",
                left.as_secs_f64(),
                min.as_secs_f64()
            ),
        )
        .at(self.path()))
    }

    fn released_error(&self) -> Error {
        Error::new(ErrorCode::LockLost, "the lock was released").at(self.path())
    }

    /// How the lock stands.
    #[must_use]
    pub fn state(&self) -> LockState {
        match self.phase() {
            // The keeper may not have noticed yet that the connection is gone, when those who listen to the states
            // have been told.
            Phase::Held if self.grant.is_suspect() || self.core.hub.link().is_none() => LockState::Suspect,
            Phase::Held => LockState::Held,
            Phase::Lost(reason) => LockState::Lost(reason),
            Phase::Released => LockState::Released,
        }
    }

    /// Asks ZooKeeper whether the lock is still ours: a committed check of our own node, which only a quorum can
    /// answer. Takes one round trip; at most the client's `operation_timeout`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// `LOCK_LOST` if it is not; `CONNECTION_LOST` if nobody could be asked, which says nothing either way.
    pub async fn verify(&self) -> Result<()> {
        self.ensure(Duration::ZERO)?;
        let core = self.core.clone();
        let grant = self.grant.clone();
        self.core
            .on_engine(async move {
                let deadline = core.env.now().plus(core.options.operation_timeout);
                let ask = core.hub.with_retry("verifying the lock", deadline, |link: Link| {
                    let same = Arc::ptr_eq(&link.session, &grant.session);
                    let check = Operation::Check { path: grant.node.clone(), version: None };
                    let answer = same.then(|| link.connection.multi(vec![check]));
                    async move {
                        match answer {
                            None => Ok(false),
                            Some(answer) => match answer.await {
                                Ok(()) => Ok(true),
                                Err(ZkError::NoNode) => Ok(false),
                                Err(error) => Err(error),
                            },
                        }
                    }
                });
                let there = tokio::select! {
                    biased;
                    reason = grant.left() => {
                        return Err(match reason {
                            Some(reason) => Error::lock_lost(grant.path.as_str(), reason),
                            None => Error::new(ErrorCode::LockLost, "the lock was released").at(grant.path.as_str()),
                        });
                    }
                    there = ask => there.map_err(|error| error.at(grant.path.as_str()))?,
                };
                if there {
                    grant.looked_at();
                } else {
                    grant.lose(grant.session.over().map_or(LostReason::NodeDeleted, LostReason::from));
                }
                match grant.phase(core.env.now()) {
                    Phase::Held => Ok(()),
                    Phase::Lost(reason) => Err(Error::lock_lost(grant.path.as_str(), reason)),
                    Phase::Released => {
                        Err(Error::new(ErrorCode::LockLost, "the lock was released").at(grant.path.as_str()))
                    }
                }
            })
            .await?
    }

    /// Waits until the lock is lost, and says why; none once its last handle has been released. Cancel safe.
    ///
    /// The future does not keep the lock: it may outlive this handle, and ends when the last one has gone.
    pub fn lost(&self) -> impl Future<Output = Option<LostReason>> + Send + use<> {
        let forked = self.core.is_forked();
        let grant = self.grant.clone();
        async move { if forked { Some(LostReason::Forked) } else { grant.left().await } }
    }

    /// Whether somebody asks for the lock back.
    #[must_use]
    pub fn is_revocation_asked(&self) -> bool {
        self.grant.is_revocation_asked()
    }

    /// Waits until somebody asks for the lock back. Cancel safe. Waits for ever if nobody does.
    ///
    /// Like that of [`lost`](Self::lost), the future does not keep the lock.
    pub fn revocation_asked(&self) -> impl Future<Output = ()> + Send + use<> {
        let grant = self.grant.clone();
        async move { grant.revocation_asked().await }
    }

    /// Storage has refused our token as smaller than one it has seen: the lock is lost to us.
    pub fn mark_superseded(&self) {
        self.grant.lose(LostReason::Superseded);
    }

    /// Who may release the lock; none if anyone who has a handle may.
    #[must_use]
    pub fn owner(&self) -> Option<OwnerKey> {
        self.grant.owner()
    }

    /// Hands the lock over to another owner, who may release it and acquire it again from now on; to none, and
    /// anyone who has a handle may release it.
    ///
    /// # Errors
    /// `LOCK_LOST` if it is no longer held.
    pub fn hand_over(&self, to: Option<OwnerKey>) -> Result<()> {
        self.ensure(Duration::ZERO)?;
        // Another thread may give this handle up meanwhile: until we are done, one more holds the grant.
        if !self.grant.add_handle() {
            return Err(self.released_error());
        }
        self.core.holders.hand_over(&self.grant, to);
        self.let_go();
        Ok(())
    }

    /// Releases the lock, or this handle on it if there are others.
    ///
    /// The lock is released locally at once. Then this waits until the server has confirmed it, but no longer
    /// than the client's `release_timeout`; what is not done by then goes on in the background. A second call
    /// does nothing. Cancel safe: the release goes on.
    ///
    /// # Errors
    /// `LOCK_LOST` if it was lost before: what was done under it may have met another holder. `NOT_PERMITTED` if the
    /// server refuses to have the node removed: then the lock stays taken until the session ends.
    pub async fn release(&self) -> Result<()> {
        if self.core.is_forked() {
            return Err(Error::forked().at(self.path()));
        }
        if self.released.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let phase = self.grant.phase(self.core.env.now());
        if self.let_go() && phase == Phase::Held {
            let core = self.core.clone();
            let grant = self.grant.clone();
            let confirmed = self.core.on_engine(async move {
                tokio::select! {
                    biased;
                    () = grant.confirmed_gone() => Ok(()),
                    error = grant.refused_removal() => Err(error),
                    () = core.env.sleep(core.options.release_timeout) => {
                        tracing::warn!(path = %grant.path, "release not confirmed yet; it goes on in the background");
                        Ok(())
                    }
                }
            });
            // A client that closed meanwhile has ended the session, and the lock with it.
            confirmed.await.unwrap_or(Ok(()))?;
        }
        match phase {
            Phase::Lost(reason) => Err(Error::lock_lost(self.path(), reason)),
            Phase::Held | Phase::Released => Ok(()),
        }
    }

    /// As [`release`](Self::release), on behalf of `who`.
    ///
    /// # Errors
    /// `NOT_OWNER` if the lock belongs to another owner; it stays held.
    pub async fn release_as(&self, who: Option<&OwnerKey>) -> Result<()> {
        self.check_owner(who)?;
        self.release().await
    }

    /// Makes sure that `who` may release the lock.
    ///
    /// # Errors
    /// `NOT_OWNER` if the lock belongs to another owner.
    pub fn check_owner(&self, who: Option<&OwnerKey>) -> Result<()> {
        match self.grant.owner() {
            Some(owner) if Some(&owner) != who && !self.released.load(Ordering::Acquire) => {
                let by =
                    who.map_or_else(|| "by a caller without an owner".to_owned(), |who| format!("by {who}"));
                let error = Error::new(
                    ErrorCode::NotOwner,
                    format!("the lock belongs to {owner} and can't be released {by}"),
                );
                Err(self.core.refused(self.path(), error.at(self.path())))
            }
            _ => Ok(()),
        }
    }

    /// Gives this handle up. Whether it was the last.
    fn let_go(&self) -> bool {
        let last = self.grant.drop_handle();
        if last {
            self.core.holders.forget(&self.grant);
            self.grant.release();
        }
        last
    }
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        // In a forked child the locks inside may be held by threads that do not exist here, and the node is the
        // parent's.
        if !self.core.is_forked() && !self.released.swap(true, Ordering::AcqRel) {
            self.let_go();
        }
    }
}

impl fmt::Debug for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HeldLock")
            .field("path", &self.path())
            .field("node", &self.node())
            .field("token", &self.token().0)
            .field("epoch", &self.epoch())
            .field("state", &self.state())
            .field("remaining", &self.remaining())
            .field("owner", &if self.core.is_forked() { None } else { self.owner() })
            .finish_non_exhaustive()
    }
}
