//! The client: one session with ZooKeeper, and the locks made from it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::connect::ConnectString;
use crate::engine;
use crate::env::Env;
use crate::error::{Error, ErrorCode, Result};
use crate::exit;
use crate::observe::{Event, Events, Metrics, MetricsSnapshot};
use crate::options::Options;
use crate::path::{LockPath, Prefix};
use crate::queue::{Grant, HeldLock, Janitor, NodeData, OwnerKey, Spec};
use crate::recipes::{Mutex, MutexOptions};
use crate::session::{self, Hub, SessionInfo, StateChange, States};
use crate::words;
use crate::zk::ZkError;

/// What all handles of one client share.
pub(crate) struct Core {
    pub(crate) env: Env,
    pub(crate) options: Options,
    pub(crate) hub: Arc<Hub>,
    pub(crate) janitor: Arc<Janitor>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) prefix: Prefix,
    /// The process that started the client, once it is started.
    started_by: OnceLock<u32>,
    /// The czxid of each root, as last seen.
    roots: StdMutex<Roots>,
    /// What each owner holds.
    holders: StdMutex<BTreeMap<(String, OwnerKey), Weak<Grant>>>,
}

/// Which transaction made each root that was seen lately.
#[derive(Default)]
struct Roots {
    czxids: BTreeMap<String, i64>,
    /// In the order in which they were first seen.
    order: VecDeque<String>,
}

impl Roots {
    /// How many are kept in mind: a service may lock a different path for each of its customers.
    const KEPT: usize = 4_096;

    /// Notes which transaction made a root. The one that had made it before, if it was made again since: a czxid
    /// only grows, so a smaller one is an answer that came late.
    fn seen(&mut self, root: &str, czxid: i64) -> Option<i64> {
        if let Some(known) = self.czxids.get_mut(root) {
            let before = *known;
            *known = before.max(czxid);
            return (before < czxid).then_some(before);
        }
        if self.order.len() == Self::KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.czxids.remove(&oldest);
        }
        self.czxids.insert(root.to_owned(), czxid);
        self.order.push_back(root.to_owned());
        None
    }
}

impl Core {
    fn new(env: Env, servers: ConnectString, options: Options) -> Result<Arc<Self>> {
        let options = options.checked(&servers)?;
        let prefix = Prefix::new(&servers.chroot, &options.namespace);
        let metrics = Arc::new(Metrics::default());
        let hub = Hub::new(env.clone(), servers, options.clone(), metrics.clone());
        Ok(Arc::new(Self {
            env,
            options,
            janitor: Janitor::new(hub.clone()),
            hub,
            metrics,
            prefix,
            started_by: OnceLock::new(),
            roots: StdMutex::default(),
            holders: StdMutex::default(),
        }))
    }

    /// Every operation begins here: starts the client if it is the first.
    pub(crate) fn enter(&self) -> Result<()> {
        // Before any lock is touched: in a forked child its owner may not exist.
        if self.is_forked() {
            return Err(Error::forked());
        }
        if self.hub.is_closing() {
            return Err(Error::closed());
        }
        let pid = std::process::id();
        self.env.spawner.ready()?;
        if *self.started_by.get_or_init(|| {
            session::start(&self.hub);
            if self.env.spawner.ends_with_process() {
                exit::close_at_exit(&self.hub);
            }
            pid
        }) != pid
        {
            return Err(Error::forked());
        }
        Ok(())
    }

    /// Whether this is a forked child of the process that started the client.
    pub(crate) fn is_forked(&self) -> bool {
        self.started_by.get().is_some_and(|pid| *pid != std::process::id())
    }

    /// Runs `work` on the engine's thread, whatever runtime the caller is in. Dropping the future drops `work`.
    pub(crate) async fn on_engine<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let (result, receiver) = oneshot::channel();
        let (_keep_going, dropped) = oneshot::channel::<()>();
        self.env.spawn(async move {
            tokio::select! {
                biased;
                _ = dropped => {}
                value = work => drop(result.send(value)),
            }
        });
        receiver.await.map_err(|_| Error::new(ErrorCode::Internal, "the engine dropped the operation"))
    }

    pub(crate) fn fresh_guid(&self) -> crate::queue::Guid {
        let high = u128::from(self.env.chance.next_u64());
        crate::queue::Guid(high << 64 | u128::from(self.env.chance.next_u64()))
    }

    pub(crate) fn node_data(&self, thread: Option<String>) -> NodeData {
        let thread = thread.or_else(|| std::thread::current().name().map(str::to_owned));
        NodeData::here(thread, self.options.program.clone(), self.options.label.clone())
    }

    /// Notes which transaction made a root, and counts when it was made again.
    pub(crate) fn note_root(&self, root: &str, czxid: i64) {
        let before = self.roots.lock().unwrap_or_else(PoisonError::into_inner).seen(root, czxid);
        if let Some(before) = before {
            tracing::warn!(root, before, now = czxid, "a lock root was deleted and made again");
            self.metrics.root_recreated();
            let path = self.prefix.for_user(root).to_owned();
            self.hub.events.tell(Event::RootRecreated { path, before, now: czxid });
        }
    }

    /// Another handle on what `owner` holds already.
    pub(crate) fn hold_again(self: &Arc<Self>, spec: &Spec, owner: &OwnerKey) -> Result<Option<HeldLock>> {
        let holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(grant) = holders.get(&(spec.root.clone(), owner.clone())).and_then(Weak::upgrade) else {
            return Ok(None);
        };
        drop(holders);
        if !grant.add_handle() {
            return Ok(None);
        }
        let held = HeldLock::new(self.clone(), grant);
        held.ensure(Duration::ZERO)?;
        Ok(Some(held))
    }

    /// Notes who holds a grant, for re-entrance.
    pub(crate) fn note_holder(&self, root: &str, grant: &Arc<Grant>) {
        if let Some(owner) = grant.owner() {
            let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
            holders.insert((root.to_owned(), owner), Arc::downgrade(grant));
        }
    }

    /// Forgets who holds a grant.
    pub(crate) fn forget_holder(&self, grant: &Arc<Grant>) {
        let Some(owner) = grant.owner() else { return };
        let key = (crate::path::parent(&grant.node).to_owned(), owner);
        let mut holders = self.holders.lock().unwrap_or_else(PoisonError::into_inner);
        if holders.get(&key).is_some_and(|known| known.as_ptr() == Arc::as_ptr(grant)) {
            holders.remove(&key);
        }
    }

    /// Hands a grant over to another owner.
    pub(crate) fn hand_over(&self, grant: &Arc<Grant>, to: Option<OwnerKey>) {
        self.forget_holder(grant);
        grant.set_owner(to);
        self.note_holder(crate::path::parent(&grant.node), grant);
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        if !self.is_forked() {
            self.hub.start_closing();
        }
    }
}

/// A client of a ZooKeeper ensemble, with one session.
///
/// Cheap to clone; clones share the session. Nothing is connected until the first use. When the last clone and
/// the last held lock are gone, the session is closed in the background; [`close`](Self::close) does so and
/// waits.
#[derive(Clone)]
pub struct Client {
    core: Arc<Core>,
}

impl Client {
    /// A client with the default options.
    ///
    /// `servers` is a connect string, such as `zk1:2181,zk2:2181/services`. Nothing is connected yet: see
    /// [`connect`](Self::connect).
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the connect string can't be right.
    pub fn new(servers: &str) -> Result<Self> {
        Self::with_options(servers, Options::default())
    }

    /// A client with options of its own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the connect string or an option can't be right.
    pub fn with_options(servers: &str, options: Options) -> Result<Self> {
        let env = engine::real_env(&options)?;
        Self::in_env(servers, options, env)
    }

    /// A client in a world of its own, for simulation.
    ///
    /// # Errors
    /// As for [`with_options`](Self::with_options).
    #[doc(hidden)]
    pub fn in_env(servers: &str, options: Options, env: Env) -> Result<Self> {
        Ok(Self { core: Core::new(env, ConnectString::parse(servers)?, options)? })
    }

    /// Connects, unless that is done, and waits until it is: at most for the client's `connection_timeout`.
    ///
    /// There is no need to call this: every operation connects if it has to, within its own deadline. Cancel safe.
    ///
    /// # Errors
    /// `CONNECTION_LOST` naming what is wrong with each server; `NOT_PERMITTED`, `CLOSED`, `FORKED`.
    pub async fn connect(&self) -> Result<()> {
        self.core.enter()?;
        let core = self.core.clone();
        self.core
            .on_engine(async move {
                let timeout = core.options.connection_timeout;
                tokio::select! {
                    biased;
                    link = core.hub.wait_link(|link| link.session.is_live()) => link.map(drop),
                    () = core.env.sleep(timeout) => Err(Error::new(
                        ErrorCode::ConnectionLost,
                        format!("{} within {}", core.hub.why_disconnected(), words::duration(timeout)),
                    )),
                }
            })
            .await?
    }

    /// A mutex at `path`, which is made canonical and lies below the namespace. Touches no server.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the path can't be right.
    pub fn mutex(&self, path: &str) -> Result<Mutex> {
        self.mutex_with(path, MutexOptions::default())
    }

    /// A mutex with options of its own.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` if the path or an option can't be right.
    pub fn mutex_with(&self, path: &str, options: MutexOptions) -> Result<Mutex> {
        Mutex::new(self.core.clone(), path, options)
    }

    /// Makes a lock's root ahead of time, with all above it, and returns its epoch.
    ///
    /// The epoch (the root's czxid) is also written into the root's data, as JSON, if there is no data yet: who
    /// looks at a root that was deleted and made again can tell. Data that is there is left alone.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, `CONNECTION_LOST`, `NOT_PERMITTED`, `CLOSED`, `FORKED`.
    pub async fn ensure_root(&self, path: &str) -> Result<i64> {
        self.core.enter()?;
        let path = LockPath::parse(path)?;
        let core = self.core.clone();
        self.core
            .on_engine(async move {
                let root = core.prefix.on_server(&path);
                let deadline = core.env.now().plus(core.options.operation_timeout);
                let epoch = core.hub.with_retry("making the lock root", deadline, |link| {
                    ensure_root(core.clone(), link, root.clone())
                });
                let epoch = epoch.await.map_err(|error| error.at(path.as_str()))?;
                core.note_root(&root, epoch);
                Ok(epoch)
            })
            .await?
    }

    /// The last change of the connection's state; none before the first connection.
    #[must_use]
    pub fn state(&self) -> Option<StateChange> {
        if self.core.is_forked() { None } else { self.core.hub.state() }
    }

    /// Listens to the changes of the connection's state from now on.
    #[must_use]
    pub fn states(&self) -> States {
        if self.core.is_forked() { States::ended() } else { self.core.hub.listen() }
    }

    /// Listens to what happens besides the connection's states, from now on.
    #[must_use]
    pub fn events(&self) -> Events {
        if self.core.is_forked() { Events::ended() } else { self.core.hub.events.listen().into() }
    }

    /// What the present or the last session is like; none before the first.
    #[must_use]
    pub fn session(&self) -> Option<SessionInfo> {
        if self.core.is_forked() { None } else { self.core.hub.info() }
    }

    /// The counts so far.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.core.metrics.snapshot()
    }

    /// The options in force.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.core.options
    }

    /// Whether [`close`](Self::close) was called.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        !self.core.is_forked() && self.core.hub.is_closing()
    }

    /// Whether this process was forked after the client had started: then every call fails with `FORKED`.
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.core.is_forked()
    }

    /// Closes the session: every lock held in it is lost with the reason `closed`, every acquire under way ends
    /// with `CLOSED`, and the server removes the nodes.
    ///
    /// Waits for the server's answer, but no longer than the client's `close_timeout`. Calling it again does no
    /// harm. Cancel safe: the closing goes on.
    ///
    /// # Errors
    /// `FORKED` in a forked child, whose parent's session is left alone.
    pub async fn close(&self) -> Result<()> {
        if self.core.is_forked() {
            return Err(Error::forked());
        }
        self.core.hub.start_closing();
        if self.core.started_by.get().is_some() {
            self.core.hub.closed().await;
        } else {
            // Nothing was started that could say so.
            self.core.hub.finish_closing();
        }
        Ok(())
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("namespace", &self.core.options.namespace)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

async fn ensure_root(core: Arc<Core>, link: crate::session::Link, root: String) -> Result<i64, ZkError> {
    let connection = &link.connection;
    let made = crate::queue::make_parents(&core, &link, &root);
    let read = connection.get_data(&root);
    let refused = crate::queue::await_parents(made).await;
    let (data, stat) = match read.await {
        Ok(found) => found,
        // What kept us from making it is the better answer.
        Err(ZkError::NoNode) => return Err(refused.err().unwrap_or(ZkError::ConnectionLost)),
        Err(error) => return Err(error),
    };
    if data.is_empty() {
        let epoch = serde_json::json!({ "forelock": { "epoch": stat.czxid } }).to_string();
        match connection.set_data(&root, epoch.as_bytes(), Some(stat.version)).await {
            // Somebody else was first, or the root is not ours to write: the epoch is known all the same.
            Ok(_) | Err(ZkError::BadVersion | ZkError::NoAuth) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(stat.czxid)
}
