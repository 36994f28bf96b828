//! What the tests share: servers, clients, and an observer.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use forelock::{Client, Options};
use forelock_testkit::{FaultProxy, Lateness, Observer, Op, ZooKeeper};

/// How long anything may take that should happen at once.
pub const SOON: Duration = Duration::from_secs(60);

/// The tick of [`fast_server`].
pub const TICK: Duration = Duration::from_millis(200);

/// A server with short ticks, which all tests that run at the time share.
pub fn fast_server() -> Arc<ZooKeeper> {
    static SHARED: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
    shared(&SHARED, TICK)
}

/// A server with the default tick of 2 s, shared as well.
pub fn slow_server() -> Arc<ZooKeeper> {
    static SHARED: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
    shared(&SHARED, Duration::from_secs(2))
}

fn shared(cell: &Mutex<Weak<ZooKeeper>>, tick: Duration) -> Arc<ZooKeeper> {
    let mut cell = cell.lock().unwrap_or_else(PoisonError::into_inner);
    cell.upgrade().unwrap_or_else(|| {
        let server = Arc::new(own_server(tick));
        *cell = Arc::downgrade(&server);
        server
    })
}

/// A server of one's own, to stop and to break.
pub fn own_server(tick: Duration) -> ZooKeeper {
    ZooKeeper::builder().tick(tick).start().expect("a ZooKeeper server")
}

pub fn observer(server: &ZooKeeper) -> Observer {
    Observer::connect(server.client_addr()).expect("an observer")
}

pub fn proxy(server: &ZooKeeper) -> FaultProxy {
    FaultProxy::start(server.client_addr()).expect("a fault proxy")
}

/// Options for a fast server: a session of 4 s, and the tick set.
pub fn options() -> Options {
    Options::default().with_session_timeout(Duration::from_secs(4)).with_tick(TICK)
}

pub fn client(servers: &str) -> Client {
    Client::with_options(servers, options()).expect("a client")
}

pub async fn connected(servers: &str) -> Client {
    let client = client(servers);
    client.connect().await.expect("connected");
    client
}

/// Waits for `future`, but not for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(SOON, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: nothing after {SOON:?}"),
    }
}

/// Waits until `fits`, for what does not announce itself.
pub async fn eventually(what: &str, fits: impl FnMut() -> bool) {
    within(SOON, what, fits).await;
}

/// As [`eventually`], for what may take longer.
pub async fn within(limit: Duration, what: &str, mut fits: impl FnMut() -> bool) {
    let began = std::time::Instant::now();
    while !fits() {
        assert!(began.elapsed() < limit, "{what}: not after {limit:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Time that has a limit: it runs from the making of this.
pub struct Limited {
    began: Instant,
    lateness: Lateness,
}

impl Limited {
    pub fn begin() -> Self {
        Self { lateness: Lateness::watch(), began: Instant::now() }
    }

    /// Fails when more than `most` has passed; but for as long as the machine itself was late, nobody is to blame.
    #[track_caller]
    pub fn is_within(&self, most: Duration, what: &str) {
        self.allows(self.began.elapsed(), most, what);
    }

    /// The same, for something that took so long in the meantime.
    #[track_caller]
    pub fn allows(&self, took: Duration, most: Duration, what: &str) {
        let late = self.lateness.so_far();
        assert!(
            took <= most + late,
            "{what}: {took:?}, with {most:?} allowed and a machine late by {late:?}"
        );
    }
}

/// Whether a request only keeps the session alive.
pub fn is_heartbeat(op: Op) -> bool {
    matches!(op, Op::Ping | Op::Sync)
}
