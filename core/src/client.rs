//! The client: one session with ZooKeeper, and the locks made from it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, OnceLock, PoisonError};

use tokio::sync::oneshot;

use crate::connect::ConnectString;
use crate::engine;
use crate::env::Env;
use crate::error::{Error, ErrorCode, Result};
use crate::exit;
use crate::observe::{Event, Events, LogLimit, Metrics, MetricsSnapshot, Roots, Tokens};
use crate::options::Options;
use crate::path::{LockPath, Prefix};
use crate::queue::{Grant, HeldLock, Holders, Janitor, LockState, NodeData, OwnerKey, Spec};
use crate::recipes::{Mutex, MutexOptions};
use crate::session::{self, Hub, SessionInfo, StateChange, States};
use crate::words;
use crate::zk::{Created, Reply, ZkError};

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
    /// Which roots that were made again have been logged.
    recreations: LogLimit,
    /// The largest tokens granted.
    tokens: StdMutex<Tokens>,
    /// Whether it was logged that the ensemble's transaction ids went backwards.
    told_backwards: AtomicBool,
    /// Which calls that failed have been logged.
    refusals: LogLimit,
    /// What each owner holds.
    pub(crate) holders: Holders,
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
            recreations: LogLimit::default(),
            tokens: StdMutex::default(),
            told_backwards: AtomicBool::new(false),
            refusals: LogLimit::default(),
            holders: Holders::default(),
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
    ///
    /// The work is moved there at once: what the caller keeps while thousands of them wait is two channels.
    pub(crate) fn on_engine<T, W>(&self, work: W) -> impl Future<Output = Result<T>> + use<T, W>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let (result, receiver) = oneshot::channel();
        let (keep_going, dropped) = oneshot::channel::<()>();
        // Boxed, since a future that takes another one in keeps room for it twice.
        let mut work = Box::pin(work);
        self.env.spawn(async move {
            tokio::select! {
                biased;
                _ = dropped => {}
                value = &mut work => drop(result.send(value)),
            }
        });
        async move {
            let _keep_going = keep_going;
            receiver.await.map_err(|_| Error::new(ErrorCode::Internal, "the engine dropped the operation"))
        }
    }

    pub(crate) fn fresh_guid(&self) -> crate::queue::Guid {
        let high = u128::from(self.env.chance.next_u64());
        crate::queue::Guid(high << 64 | u128::from(self.env.chance.next_u64()))
    }

    pub(crate) fn node_data(&self, thread: Option<String>) -> NodeData {
        let thread = thread.or_else(|| std::thread::current().name().map(str::to_owned));
        NodeData::here(thread, self.options.program.clone(), self.options.label.clone())
    }

    /// Whether a node on the way to a lock's root may be made. The chroot, and what is above it, is the servers'.
    pub(crate) fn may_make(&self, path: &str) -> bool {
        self.options.create_chroot || path.len() > self.hub.servers.chroot.len()
    }

    /// Has the answer to the first of the parents asked for, right below the chroot, say so when that is not there.
    pub(crate) fn mind_chroot(&self, mut parents: Vec<Reply<Created>>) -> Vec<Reply<Created>> {
        if !self.options.create_chroot && !parents.is_empty() {
            let first = parents.swap_remove(0);
            let chroot = self.hub.servers.chroot.clone();
            parents.push(Box::pin(async move {
                match first.await {
                    Err(ZkError::NoNode) => Err(ZkError::NoChroot(chroot)),
                    other => other,
                }
            }));
        }
        parents
    }

    /// Notes which transaction made a root, and counts when it was made again.
    pub(crate) fn note_root(&self, root: &str, czxid: i64) {
        let before = self.roots.lock().unwrap_or_else(PoisonError::into_inner).seen(root, czxid);
        if let Some(before) = before {
            self.metrics.root_recreated();
            if let Some(held_back) = self.recreations.pass(root, self.env.now()) {
                tracing::warn!(
                    root,
                    before,
                    now = czxid,
                    held_back,
                    "a lock root was deleted and made again"
                );
            }
            let path = self.prefix.for_user(root).to_owned();
            self.hub.events.tell(Event::RootRecreated { path, before, now: czxid });
        }
    }

    /// Notes a grant that is about to be given to the user.
    pub(crate) fn granted(&self, grant: &Arc<Grant>) {
        self.holders.note(grant);
        let number = grant.session.number();
        let before = self.tokens.lock().unwrap_or_else(PoisonError::into_inner).granted(number, grant.token);
        let Some(before) = before else { return };
        let now = grant.token;
        // The czxids that are known of roots are those of the old data.
        *self.roots.lock().unwrap_or_else(PoisonError::into_inner) = Roots::default();
        self.metrics.ids_went_backwards();
        if !self.told_backwards.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                before,
                now,
                "the ensemble's transaction ids went backwards: a token of {before} was granted before, and now one of \
                 {now}. Its data were wiped, or restored from an old copy. Storage that has seen {before} refuses every \
                 new holder, and one that is reset accepts the old ones: once no old holder can write any more, reset \
                 the largest token that it remembers, or fence with a new resource name"
            );
        }
        self.hub.events.tell(Event::TransactionIdsWentBackwards { before, now });
    }

    /// Another handle on what `owner` holds already.
    pub(crate) fn hold_again(self: &Arc<Self>, spec: &Spec, owner: &OwnerKey) -> Result<Option<HeldLock>> {
        let Some(grant) = self.holders.find(&spec.root, owner) else { return Ok(None) };
        if !grant.add_handle() {
            return Ok(None);
        }
        let held = HeldLock::new(self.clone(), grant);
        match held.state() {
            LockState::Held | LockState::Suspect => Ok(Some(held)),
            LockState::Lost(reason) => Err(Error::not_given_up(held.path(), reason)),
            LockState::Released => Ok(None),
        }
    }

    /// Logs that a call about `path` has failed, once a minute for each path and code: who calls again and again, and
    /// fails each time without having asked a server, would otherwise go unnoticed.
    pub(crate) fn refused(&self, path: &str, error: Error) -> Error {
        // In a forked child the locks inside may be held by threads that do not exist here.
        if !self.is_forked()
            && let Some(held_back) = self.refusals.pass(&format!("{} {path}", error.code()), self.env.now())
        {
            tracing::warn!(path, held_back, "{error}");
        }
        error
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
    /// `INVALID_ARGUMENT`, also for a chroot that does not exist; `CONNECTION_LOST`, `NOT_PERMITTED`, `CLOSED`,
    /// `FORKED`.
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
        let servers: Vec<_> = self.core.hub.servers.endpoints.iter().map(ToString::to_string).collect();
        f.debug_struct("Client")
            .field("servers", &servers)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::logged::warnings;
    use crate::recipes::AcquireOptions;
    use crate::zk::simulated::{World, WorldOptions};

    fn simulated(test: impl AsyncFnOnce(&World, Client)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let world = World::new(3, &WorldOptions { servers: 1, ..WorldOptions::default() });
            let env = world.process("a").env();
            let client = Client::in_env("zk1", Options::default(), env).expect("a client");
            test(&world, client).await;
        });
    }

    #[test]
    fn a_root_made_again_and_again_is_counted_each_time_and_logged_once_a_minute() {
        let lines = warnings(|| {
            simulated(async |_, client| {
                let mut events = client.events();
                for czxid in 0..900 {
                    client.core.note_root("/a", czxid);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                client.core.note_root("/b", 1);
                client.core.note_root("/b", 2);
                assert_eq!(client.metrics().roots_recreated, 900);
                assert_eq!(std::iter::from_fn(|| events.try_next()).count(), 900);
            });
        });
        let of = |root: &str| lines.iter().filter(|line| line.contains(&format!("root={root:?}"))).count();
        assert_eq!((of("/a"), of("/b")), (2, 1), "{lines:#?}");
    }

    #[test]
    fn a_loop_that_acquires_what_it_has_lost_is_told_what_to_do_and_logged_once_a_minute() {
        let lines = warnings(|| {
            simulated(async |world, client| {
                let mutex = client.mutex("/a").expect("a path");
                let me = || AcquireOptions { owner: Some(OwnerKey::new("me")), ..AcquireOptions::default() };
                let held = mutex.acquire_with(me()).await.expect("acquired");
                world.operator_delete(&format!("/a/{}", held.node())).expect("deleted");
                held.lost().await;
                for turn in 0..1_000 {
                    let error = mutex.acquire_with(me()).await.expect_err("not given up");
                    assert_eq!(error.code(), ErrorCode::LockLost, "{turn}");
                    assert!(error.message().contains("release the lost handle"), "{error}");
                    assert!(held.ensure(Duration::ZERO).is_err());
                }
                tokio::time::sleep(Duration::from_secs(61)).await;
                mutex.try_acquire_with(me()).await.expect_err("not given up");
                held.release().await.expect_err("lost");
                mutex.acquire_with(me()).await.expect("a new grant").release().await.expect("released");
            });
        });
        let told: Vec<_> = lines.iter().filter(|line| line.contains("LOCK_LOST")).collect();
        assert_eq!(told.len(), 2, "{lines:#?}");
        assert!(told[1].contains("held_back=1999"), "{told:#?}");
    }

    #[test]
    fn a_loop_on_a_closed_client_is_logged_once() {
        let lines = warnings(|| {
            simulated(async |_, client| {
                let mutex = client.mutex("/a").expect("a path");
                client.close().await.expect("closed");
                for _ in 0..1_000 {
                    assert_eq!(mutex.acquire().await.expect_err("closed").code(), ErrorCode::Closed);
                }
            });
        });
        assert_eq!(lines.iter().filter(|line| line.contains("CLOSED")).count(), 1, "{lines:#?}");
    }

    #[test]
    fn transaction_ids_that_go_backwards_are_told_and_warned_about_once() {
        let lines = warnings(|| {
            simulated(async |_, client| {
                let mutex = client.mutex("/a").expect("a path");
                let held = mutex.acquire().await.expect("acquired");
                client.core.granted(held.grant());
                held.release().await.expect("released");
                // As if the sessions before had been granted larger tokens by data that are gone.
                let largest = held.token().0 + 1_000;
                *client.core.tokens.lock().expect("alone") = Tokens::default();
                client.core.tokens.lock().expect("alone").granted(0, largest);
                let mut events = client.events();
                let again = mutex.acquire().await.expect("acquired");
                let told = Event::TransactionIdsWentBackwards { before: largest, now: again.token().0 };
                assert_eq!((events.try_next(), events.try_next()), (Some(told), None));
                assert_eq!(client.metrics().ids_went_backwards, 1);
            });
        });
        assert_eq!(lines.iter().filter(|line| line.contains("went backwards")).count(), 1, "{lines:#?}");
    }

    #[cfg(feature = "stream")]
    #[test]
    fn states_and_events_are_streams() {
        use futures_util::StreamExt;
        simulated(async |_, client| {
            let (states, mut events) = (client.states(), client.events());
            client.connect().await.expect("connected");
            client.core.note_root("/a", 1);
            client.core.note_root("/a", 2);
            let told = Event::RootRecreated { path: "/a".to_owned(), before: 1, now: 2 };
            assert_eq!(StreamExt::next(&mut events).await, Some(told));
            client.close().await.expect("closed");
            let names: Vec<_> = states.map(|change| change.state.as_str()).collect().await;
            assert_eq!(names.first(), Some(&"CONNECTED"));
            assert_eq!(StreamExt::next(&mut events).await, None);
        });
    }
}
