//! One lock that many want, and many locks that nobody else wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forelock::{AcquireOptions, Client, Options, Timeout};
use serde_json::{Value, json};
use zookeeper_client as zk;

use crate::usage;

/// The least time before it is measured.
const WARM_UP: Duration = Duration::from_secs(1);

/// How the load is laid out.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// How many tasks acquire and release, again and again.
    pub workers: usize,
    /// How many sessions they share.
    pub sessions: usize,
    /// Whether each has a lock of its own; otherwise all want the same.
    pub own: bool,
    /// How long it is measured.
    pub time: Duration,
}

impl Load {
    fn path(&self, base: &str, worker: usize) -> String {
        if self.own { format!("{base}/{worker}") } else { format!("{base}/one") }
    }
}

/// Counts what is done between the moment when everyone has begun and the end.
struct Meter {
    warm: AtomicUsize,
    done: AtomicU64,
    stop: AtomicBool,
}

impl Meter {
    fn new() -> Arc<Self> {
        Arc::new(Self { warm: AtomicUsize::new(0), done: AtomicU64::new(0), stop: AtomicBool::new(false) })
    }

    /// A worker's turns, until the time is over.
    fn turns(&self) -> impl Iterator<Item = u64> {
        (0..).take_while(|_| !self.stop.load(Ordering::Relaxed))
    }

    fn count(&self, turn: u64) {
        self.done.fetch_add(1, Ordering::Relaxed);
        if turn == 0 {
            self.warm.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn measure(&self, load: Load) -> (f64, Duration, u64) {
        // Everyone has had a turn: sessions and parents are there, the queue is full, and caches are warm.
        let began = Instant::now();
        while self.warm.load(Ordering::Relaxed) < load.workers || began.elapsed() < WARM_UP {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let (began, cpu, before) = (Instant::now(), usage::cpu(), self.done.load(Ordering::Relaxed));
        tokio::time::sleep(load.time).await;
        let done = self.done.load(Ordering::Relaxed) - before;
        let (took, cpu) = (began.elapsed(), usage::cpu() - cpu);
        self.stop.store(true, Ordering::Relaxed);
        (done as f64 / took.as_secs_f64(), cpu, done)
    }
}

fn report(who: &str, load: Load, (rate, cpu, done): (f64, Duration, u64)) -> Value {
    json!({
        "who": who, "workers": load.workers, "sessions": load.sessions, "own": load.own,
        "per_second": rate, "cpu_ms_each": cpu.as_secs_f64() * 1e3 / done.max(1) as f64,
    })
}

/// Forelock.
pub async fn forelock(servers: &str, base: &str, load: Load) -> Value {
    let meter = Meter::new();
    let mut clients = Vec::new();
    for _ in 0..load.sessions {
        clients.push(Client::with_options(servers, Options::default()).expect("a client"));
    }
    let mut tasks = Vec::new();
    for worker in 0..load.workers {
        let mutex = clients[worker % load.sessions].mutex(&load.path(base, worker)).expect("a path");
        let meter = meter.clone();
        tasks.push(tokio::spawn(async move {
            for turn in meter.turns() {
                let options = AcquireOptions::default().with_timeout(Timeout::Never);
                let held = mutex.acquire_with(options).await.expect("granted");
                held.release().await.expect("released");
                meter.count(turn);
            }
        }));
    }
    let measured = meter.measure(load).await;
    for task in tasks {
        task.await.expect("no panic");
    }
    for client in clients {
        client.close().await.expect("closed");
    }
    report("forelock", load, measured)
}

/// The requests of a lock and nothing else: no errors, no lease, no owner, no second look.
pub async fn bare(servers: &str, base: &str, load: Load) -> Value {
    let meter = Meter::new();
    let mut clients = Vec::new();
    for _ in 0..load.sessions {
        clients.push(zk::Client::connect(servers).await.expect("connected"));
    }
    let parents = zk::CreateMode::Persistent.with_acls(zk::Acls::anyone_all());
    for worker in 0..load.workers {
        clients[0].mkdir(&load.path(base, worker), &parents).await.ok();
    }
    let mut tasks = Vec::new();
    for worker in 0..load.workers {
        let client = clients[worker % load.sessions].clone();
        let (root, meter) = (load.path(base, worker), meter.clone());
        tasks.push(tokio::spawn(async move {
            for turn in meter.turns() {
                let node = bare_acquire(&client, &root).await;
                client.delete(&node, None).await.expect("deleted");
                meter.count(turn);
            }
        }));
    }
    let measured = meter.measure(load).await;
    for task in tasks {
        task.await.expect("no panic");
    }
    report("bare", load, measured)
}

async fn bare_acquire(client: &zk::Client, root: &str) -> String {
    let prefix = format!("{root}/n-");
    let mode = zk::CreateMode::EphemeralSequential.with_acls(zk::Acls::anyone_all());
    let created = client.create(&prefix, b"", &mode);
    let listed = client.get_children(root);
    let (_, sequence) = created.await.expect("created");
    let mine = format!("n-{sequence}");
    let (mut names, _) = listed.await.expect("listed");
    loop {
        // The suffix has a fixed width, so text sorts as numbers do.
        let Some(ahead) = names.iter().filter(|name| **name < mine).max() else {
            return format!("{root}/{mine}");
        };
        if let Ok((_, _, watcher)) = client.get_and_watch_data(&format!("{root}/{ahead}")).await {
            watcher.changed().await;
        }
        (names, _) = client.get_children(root).await.expect("listed");
    }
}
