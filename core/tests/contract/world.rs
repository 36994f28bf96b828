//! What a case needs: a place to connect to, and a few short ways of saying things.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forelock::zk::{
    Acl, ConnectError, ConnectRequest, Connection, Connector, CreateMode, Created, Endpoint,
    SessionCredentials, SessionId, Watch, WatchEvent, ZkError,
};

/// How long anything may take that is waited for. Nothing waits this long unless it is broken.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A ZooKeeper to hold to the contract.
pub trait World: Send + Sync {
    /// Makes connections to it.
    fn connector(&self) -> Arc<dyn Connector>;

    /// Where it listens, one for each server.
    fn endpoints(&self) -> Vec<Endpoint>;

    /// A host that is there, and does not listen.
    fn dead_endpoint(&self) -> Option<Endpoint>;

    /// A session timeout that it grants as asked, as short as is sensible.
    fn session_timeout(&self) -> Duration;
}

/// A connection, and a directory that no other case uses.
pub struct Place {
    pub connection: Arc<dyn Connection>,
    pub root: String,
}

impl Place {
    pub async fn new(world: &dyn World) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let root = format!("/contract-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let connection = connect(world).await;
        make(&connection, &root, CreateMode::Persistent).await;
        Self { connection, root }
    }

    /// The path of `name` in our directory.
    pub fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    /// Creates `name` in our directory, empty.
    pub async fn make(&self, name: &str, mode: CreateMode) -> Created {
        make(&self.connection, &self.at(name), mode).await
    }

    pub fn session(&self) -> SessionId {
        self.connection.credentials().id
    }
}

pub fn request(world: &dyn World, session: Option<SessionCredentials>) -> ConnectRequest {
    ConnectRequest {
        endpoint: world.endpoints()[0].clone(),
        session,
        session_timeout: world.session_timeout(),
        connect_timeout: PATIENCE,
        read_only: false,
    }
}

pub async fn connect(world: &dyn World) -> Arc<dyn Connection> {
    world.connector().connect(request(world, None)).await.expect("a new session")
}

pub async fn re_attach(
    world: &dyn World,
    session: SessionCredentials,
) -> Result<Arc<dyn Connection>, ConnectError> {
    world.connector().connect(request(world, Some(session))).await
}

pub async fn make(connection: &Arc<dyn Connection>, path: &str, mode: CreateMode) -> Created {
    connection.create(path, b"", mode, &Acl::Open).await.expect("the node can be created")
}

pub async fn present(connection: &Arc<dyn Connection>, path: &str) -> bool {
    connection.exists(path).await.expect("exists is answered").is_some()
}

/// Waits for a watch.
pub async fn fired(watch: &mut Watch) -> WatchEvent {
    tokio::time::timeout(PATIENCE, watch.fired()).await.expect("the watch fires")
}

/// What a watch has seen already. One that has fired too late says with what, or that it never did.
pub async fn fired_already(watch: &mut Watch) -> WatchEvent {
    if let Some(event) = watch.try_fired() {
        return event;
    }
    let late = tokio::time::timeout(PATIENCE, watch.fired()).await;
    panic!("the watch has not fired before the reply; after it: {late:?}");
}

/// Waits until `path` is gone, as seen by `connection`.
pub async fn gone(connection: &Arc<dyn Connection>, path: &str) {
    while let (Some(_), mut watch) = connection.watch_exists(path).await.expect("exists is answered") {
        fired(&mut watch).await;
    }
}

/// `result`, which has to be an error.
pub fn error<T: std::fmt::Debug>(result: Result<T, ZkError>) -> ZkError {
    result.expect_err("an error is due")
}
