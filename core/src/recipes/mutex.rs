//! The mutex: one holder at a time, first come first served.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Core;
use crate::env::Moment;
use crate::error::{Error, ErrorCode, Result};
use crate::options::check_timeout;
use crate::path::LockPath;
use crate::queue::{Attempt, HeldLock, Mode, Naming, OwnerKey, Spec};

/// How long an acquire may take, connecting and clean-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Timeout {
    /// As long as the mutex, or else the client, says.
    #[default]
    Default,
    /// At most so long.
    After(Duration),
    /// For ever. Written down, never a default.
    Never,
}

impl From<Duration> for Timeout {
    fn from(timeout: Duration) -> Self {
        Self::After(timeout)
    }
}

/// What a mutex can be told.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct MutexOptions {
    /// How the lock nodes are named. Curator's way by default.
    pub naming: Naming,
    /// How long an acquire waits unless told otherwise. As the client says by default.
    pub acquire_timeout: Timeout,
    /// The longest that the lock may be held: then it is given up, and the holder told. No limit by default, so
    /// that a process that hangs keeps its locks for as long as its session lives.
    pub max_hold: Option<Duration>,
}

impl MutexOptions {
    /// How the lock nodes are named. Curator's way by default.
    #[must_use]
    pub fn with_naming(mut self, naming: Naming) -> Self {
        self.naming = naming;
        self
    }

    /// How long an acquire waits unless told otherwise: a `Duration`, or a [`Timeout`]. As the client says by default.
    #[must_use]
    pub fn with_acquire_timeout(mut self, timeout: impl Into<Timeout>) -> Self {
        self.acquire_timeout = timeout.into();
        self
    }

    /// The longest that the lock may be held. No limit by default.
    #[must_use]
    pub fn with_max_hold(mut self, most: impl Into<Option<Duration>>) -> Self {
        self.max_hold = most.into();
        self
    }
}

/// What one acquire can be told.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct AcquireOptions {
    /// How long to wait.
    pub timeout: Timeout,
    /// Who acquires. An owner that holds the lock already gets another handle at once; one that is still waiting for
    /// it, and asks a second time meanwhile, waits twice. Without an owner there is no re-entrance.
    pub owner: Option<OwnerKey>,
    /// The thread or task that acquires, for the node's data. This thread's name by default.
    pub thread: Option<String>,
}

impl AcquireOptions {
    /// How long to wait: a `Duration`, or a [`Timeout`]. As the mutex, or else the client, says by default.
    #[must_use]
    pub fn with_timeout(mut self, timeout: impl Into<Timeout>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Who acquires. Nobody in particular by default: then there is no re-entrance.
    #[must_use]
    pub fn with_owner(mut self, owner: impl Into<Option<OwnerKey>>) -> Self {
        self.owner = owner.into();
        self
    }

    /// The thread or task that acquires, for the node's data. This thread's name by default.
    #[must_use]
    pub fn with_thread(mut self, thread: impl Into<Option<String>>) -> Self {
        self.thread = thread.into();
        self
    }
}

/// A mutual-exclusion lock at one path.
///
/// Cheap to make and to clone; making one touches no server. Waiters are served first come, first served, and
/// each watches only the one in front of it.
///
/// ```no_run
/// # async fn example() -> Result<(), forelock::Error> {
/// let client = forelock::Client::new("localhost:2181")?;
/// let held = client.mutex("/locks/order/123")?.acquire().await?;
/// // … write, and give held.token() to the storage …
/// held.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Mutex {
    core: Arc<Core>,
    spec: Arc<Spec>,
    acquire_timeout: Option<Duration>,
}

impl Mutex {
    pub(crate) fn new(core: Arc<Core>, path: &str, options: MutexOptions) -> Result<Self> {
        let path = LockPath::parse(path)?;
        if let Some(max_hold) = options.max_hold {
            check_timeout("max_hold", max_hold)?;
        }
        let acquire_timeout = match options.acquire_timeout {
            Timeout::Default => core.options.acquire_timeout,
            Timeout::After(timeout) => Some(timeout),
            Timeout::Never => None,
        };
        let spec = Arc::new(Spec {
            root: core.prefix.on_server(&path),
            path,
            naming: options.naming,
            max_hold: options.max_hold,
        });
        Ok(Self { core, spec, acquire_timeout })
    }

    /// The path of the lock, canonical and without the namespace.
    #[must_use]
    pub fn path(&self) -> &str {
        self.spec.path.as_str()
    }

    /// Acquires the lock within the default timeout (30 s unless the mutex or the client says otherwise).
    ///
    /// Cancel safe: dropping the future takes our node out of the queue, in the background if need be.
    ///
    /// # Errors
    /// `TIMED_OUT` when the deadline passes; `NOT_PERMITTED`, `CONFLICT`, `CONNECTION_LOST`, `CLOSED`, `FORKED`.
    pub async fn acquire(&self) -> Result<HeldLock> {
        self.acquire_with(AcquireOptions::default()).await
    }

    /// As [`acquire`](Self::acquire), within `timeout`.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<HeldLock> {
        self.acquire_with(AcquireOptions::default().with_timeout(timeout)).await
    }

    /// As [`acquire`](Self::acquire), for an owner or with a timeout of its own.
    ///
    /// # Errors
    /// As for [`acquire`](Self::acquire), and `LOCK_LOST` when the owner holds the lock already and has lost
    /// it: leave the block that lost it, or release the lost handle, before the next acquire.
    pub async fn acquire_with(&self, options: AcquireOptions) -> Result<HeldLock> {
        match self.attempt(Mode::Wait, options).await? {
            Some(held) => Ok(held),
            // Only a try gives up because the lock is not free.
            None => Err(Error::new(ErrorCode::Internal, "an acquire gave up waiting").at(self.path())),
        }
    }

    /// Acquires the lock if it is free; none if it is not. Takes one round trip when the path exists, and never
    /// longer than the client's `operation_timeout`.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// `CONNECTION_LOST` if ZooKeeper could not be asked; otherwise as for [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Option<HeldLock>> {
        self.try_acquire_with(AcquireOptions::default()).await
    }

    /// As [`try_acquire`](Self::try_acquire), for an owner. A timeout given here bounds the time that asking may
    /// take.
    ///
    /// # Errors
    /// As for [`try_acquire`](Self::try_acquire).
    pub async fn try_acquire_with(&self, options: AcquireOptions) -> Result<Option<HeldLock>> {
        self.attempt(Mode::Try, options).await
    }

    /// Acquires the lock, runs `body`, and releases the lock.
    ///
    /// # Errors
    /// The body's error, if it fails. Otherwise that of the acquire, or `LOCK_LOST` if the lock was lost before
    /// the body had ended.
    pub async fn with<T, E>(&self, body: impl AsyncFnOnce(&HeldLock) -> Result<T, E>) -> Result<T, E>
    where
        E: From<Error>,
    {
        let held = self.acquire().await?;
        let result = body(&held).await;
        let released = held.release().await;
        let value = result?;
        released?;
        Ok(value)
    }

    async fn attempt(&self, mode: Mode, options: AcquireOptions) -> Result<Option<HeldLock>> {
        self.try_attempt(mode, options).await.map_err(|error| match error.code() {
            // Whoever tries again has waited first, or has asked a server.
            ErrorCode::TimedOut | ErrorCode::ConnectionLost => error,
            _ => self.core.refused(self.path(), error),
        })
    }

    async fn try_attempt(&self, mode: Mode, options: AcquireOptions) -> Result<Option<HeldLock>> {
        let core = &self.core;
        core.enter()?;
        let AcquireOptions { timeout, owner, thread } = options;
        if let Some(owner) = &owner
            && let Some(held) = core.hold_again(&self.spec, owner)?
        {
            return Ok(Some(held));
        }
        core.metrics.acquire();
        let began = core.env.now();
        let deadline = self.deadline(mode, timeout, began);
        let data: Arc<[u8]> = core.node_data(thread).encode().into();
        loop {
            let attempt = Attempt {
                core: core.clone(),
                janitor: core.janitor.clone(),
                spec: self.spec.clone(),
                mode,
                owner: owner.clone(),
                data: data.clone(),
                began,
                deadline,
            };
            let core = core.clone();
            let granted = self
                .core
                .on_engine(async move {
                    Ok::<_, Error>(attempt.run().await?.map(|grant| HeldLock::new(core, grant)))
                })
                .await??;
            let Some(held) = granted else { return Ok(None) };
            // The lease may have run out on the way here.
            if held.is_valid() {
                self.core.granted(held.grant());
                return Ok(Some(held));
            }
        }
    }

    fn deadline(&self, mode: Mode, timeout: Timeout, began: Moment) -> Option<Moment> {
        let most = match (mode, timeout) {
            (_, Timeout::After(timeout)) => Some(timeout),
            (Mode::Try, Timeout::Default | Timeout::Never) => Some(self.core.options.operation_timeout),
            (Mode::Wait, Timeout::Default) => self.acquire_timeout,
            (Mode::Wait, Timeout::Never) => None,
        };
        most.map(|most| began.plus(most))
    }
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("path", &self.path())
            .field("naming", &self.spec.naming)
            .field("acquire_timeout", &self.acquire_timeout)
            .field("max_hold", &self.spec.max_hold)
            .finish_non_exhaustive()
    }
}
