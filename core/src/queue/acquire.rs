//! One call to acquire a lock: stays in the queue, one after the other, within one deadline and one budget of retries.

use std::sync::Arc;
use std::time::Duration;

use super::OwnerKey;
use super::claim::Janitor;
use super::grant::Grant;
use super::listing::Head;
use super::ticket::Naming;
use crate::client::Core;
use crate::env::Moment;
use crate::error::{Error, ErrorCode, Result};
use crate::path::{self, LockPath};
use crate::session::{Link, RetryBudget, backoff};
use crate::zk::{CreateMode, Created, Reply, ZkError};

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
    pub(crate) spec: Arc<Spec>,
    pub(crate) mode: Mode,
    pub(crate) owner: Option<OwnerKey>,
    /// What is written into the node.
    pub(crate) data: Arc<[u8]>,
    pub(crate) began: Moment,
    pub(crate) deadline: Option<Moment>,
}

/// What is known while waiting, for the message if it was in vain.
#[derive(Default)]
pub(super) struct Progress {
    /// The head of the queue, when it was last looked at.
    pub(super) head: Option<Arc<Head>>,
    pub(super) position: Option<usize>,
    /// When the queue was last looked at.
    pub(super) looked: Moment,
    trouble: Option<ZkError>,
}

/// How one stay in the queue ended.
pub(super) enum Stay {
    Granted(Arc<Grant>),
    NotFree,
    /// Start again at the back of the queue.
    Again,
    /// Start again, after an error that counts against the budget.
    Failed(ZkError),
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
                holder = progress.head.map(|head| match head.who.get().and_then(Option::as_deref) {
                    Some(who) => format!("{who}, node {}", head.name),
                    None => format!("node {}", head.name),
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
