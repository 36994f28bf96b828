//! Thousands of acquires of one client, waiting for one lock, beside a lock that nobody else wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forelock::{AcquireOptions, Client, ConnectionState, HeldLock, Options, Timeout};
use forelock_testkit::{Cut, FaultProxy, Observer, ZooKeeper};
use serde_json::{Value, json};

use crate::usage;

const SESSION: Duration = Duration::from_secs(30);
const PATH: &str = "/crowd";

/// Looks at the bystander's lock ten times a second, and keeps the least that its lease had left.
fn watch_bystander(held: Arc<HeldLock>, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<Duration> {
    std::thread::spawn(move || {
        let mut least = Duration::MAX;
        while !stop.load(Ordering::Relaxed) {
            least = least.min(held.remaining());
            std::thread::sleep(Duration::from_millis(20));
        }
        least
    })
}

fn until(what: &str, limit: Duration, mut fits: impl FnMut() -> bool) {
    let began = Instant::now();
    while !fits() {
        assert!(began.elapsed() < limit, "{what}: not within {limit:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Lets `waiters` acquires enter the queue, cuts the connection `cuts` times, and cancels them all.
pub fn run(waiters: usize, cuts: usize) -> Value {
    let server = ZooKeeper::builder().tick(Duration::from_secs(2)).start().expect("a ZooKeeper server");
    let observer = Observer::connect(server.client_addr()).expect("an observer");
    let proxy = FaultProxy::start(server.client_addr()).expect("a fault proxy");
    let options = Options::default().with_session_timeout(SESSION);
    let servers = proxy.handle().connect_string();
    let client = Client::with_options(&servers, options.clone()).expect("a client");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    runtime.block_on(async {
        let holder = Client::with_options(&server.connect_string(), options).expect("a client");
        let held = holder.mutex(PATH).expect("a path").acquire().await.expect("acquired");
        let bystander = client.mutex("/bystander").expect("a path").acquire().await.expect("acquired");
        let bystander = Arc::new(bystander);
        let stop = Arc::new(AtomicBool::new(false));
        let looker = watch_bystander(bystander.clone(), stop.clone());
        let mutex = client.mutex(PATH).expect("a path");
        let mut states = client.states();

        let before = usage::resident();
        let (began, cpu) = (Instant::now(), usage::cpu());
        let acquires: Vec<_> = (0..waiters)
            .map(|_| {
                let mutex = mutex.clone();
                tokio::spawn(async move {
                    let options = AcquireOptions::default().with_timeout(Timeout::Never);
                    mutex.acquire_with(options).await
                })
            })
            .collect();
        let limit = Duration::from_secs(300);
        until("entered", limit, || observer.children(PATH).is_ok_and(|nodes| nodes.len() == waiters + 1));
        // Each waiter watches its own node, and the first one the holder's. That another one watches the same node too,
        // from the same session, the server does not count.
        let watches = waiters + 1;
        let set = || server.watch_count().is_ok_and(|count| count >= watches);
        until("watches set", limit, set);
        let entered = began.elapsed();
        let entered_cpu = usage::cpu() - cpu;
        let memory = usage::resident().saturating_sub(before);

        let mut back = Vec::new();
        for _ in 0..cuts {
            let began = Instant::now();
            proxy.handle().cut(Cut::Eof);
            states.wait_for(ConnectionState::Reconnected).await.expect("open");
            until("watches set", limit, set);
            back.push(began.elapsed());
        }
        let resident_after = usage::resident().saturating_sub(before);

        let began = Instant::now();
        for acquire in &acquires {
            acquire.abort();
        }
        until("cancelled", limit, || observer.children(PATH).is_ok_and(|nodes| nodes.len() == 1));
        let cancelled = began.elapsed();
        stop.store(true, Ordering::Relaxed);
        let least = looker.join().expect("no panic");
        assert!(bystander.is_valid(), "the bystander's lock was lost");
        held.release().await.expect("released");
        let seconds = |times: &[Duration]| times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>();
        json!({
            "waiters": waiters,
            "entered_s": entered.as_secs_f64(),
            "entered_cpu_s": entered_cpu.as_secs_f64(),
            "kib_per_waiter": memory as f64 / 1024.0 / waiters as f64,
            "kib_per_waiter_after_cuts": resident_after as f64 / 1024.0 / waiters as f64,
            "back_after_cut_s": seconds(&back),
            "cancelled_s": cancelled.as_secs_f64(),
            "suspended": client.metrics().suspended,
            "sessions_lost": client.metrics().sessions_lost,
            "bystander_least_lease_s": least.as_secs_f64(),
            "lease_s": SESSION.as_secs_f64(),
        })
    })
}
