//! Thousands of acquires of one client, waiting for one lock, beside a lock that nobody else wants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forelock::{AcquireOptions, Client, ConnectionState, HeldLock, Options, Timeout};
use forelock_testkit::proxy::{Mark, Records};
use forelock_testkit::{Cut, FaultProxy, Lateness, Op};

use crate::support::*;

const WAITERS: usize = 2_000;
const CUTS: u64 = 10;
const SESSION: Duration = Duration::from_secs(30);

/// Only catches what hangs: on a machine that does much else, a crowd takes its time.
const LONG: Duration = Duration::from_secs(120);

/// Looks at a lock's lease again and again, and keeps the least that it had left.
fn least_lease(held: Arc<HeldLock>, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<Duration> {
    std::thread::spawn(move || {
        let mut least = SESSION;
        while !stop.load(Ordering::Relaxed) {
            least = least.min(held.remaining());
            std::thread::sleep(Duration::from_millis(10));
        }
        least
    })
}

fn lists(proxy: &FaultProxy, mark: Mark) -> usize {
    let records: Records = proxy.handle().journal().since(mark);
    records.count(Op::GetChildren2)
}

/// Fault 46: each waiter used to list the whole queue, and the heartbeats waited behind them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_shares_its_listings_and_costs_no_bystander_his_lease() {
    let server = own_server(Duration::from_secs(2));
    let observer = observer(&server);
    let proxy = FaultProxy::builder(server.client_addr()).journal_capacity(400_000).start().expect("a proxy");
    let options = Options::default().with_session_timeout(SESSION);
    let client = Client::with_options(&proxy.handle().connect_string(), options.clone()).expect("a client");
    let holder = Client::with_options(&server.connect_string(), options).expect("a client");
    let held = soon("held", holder.mutex("/crowd").expect("a path").acquire()).await.expect("acquired");
    let bystander = soon("held", client.mutex("/bystander").expect("a path").acquire()).await;
    let bystander = Arc::new(bystander.expect("acquired"));
    let stop = Arc::new(AtomicBool::new(false));
    let lateness = Lateness::watch();
    let least = least_lease(bystander.clone(), stop.clone());
    let mut states = client.states();

    let mark = proxy.handle().journal().mark();
    let mutex = client.mutex("/crowd").expect("a path");
    let mut waiting: Vec<_> = (0..WAITERS)
        .map(|_| {
            let mutex = mutex.clone();
            tokio::spawn(async move {
                mutex.acquire_with(AcquireOptions::default().with_timeout(Timeout::Never)).await
            })
        })
        .collect();
    observer.until_children("/crowd", LONG, |nodes| nodes.len() == WAITERS + 1).await.expect("all in line");
    // Each watches its own node, and the first one the holder's: what else they watch is the same nodes.
    let all_watch = || server.watch_count().is_ok_and(|count| count > WAITERS);
    within(LONG, "all watching", all_watch).await;
    let listed = lists(&proxy, mark);
    assert!(listed <= WAITERS / 20, "{listed} lists for {WAITERS} waiters");

    let mark = proxy.handle().journal().mark();
    for _ in 0..CUTS {
        proxy.handle().cut(Cut::Eof);
        let back = states.wait_for(ConnectionState::Reconnected);
        let back = tokio::time::timeout(LONG, back).await.expect("back in time").expect("open");
        assert!(back.same_session);
        within(LONG, "all watching again", all_watch).await;
    }
    // A connection that is cut again before all watches are set may make a few look anew.
    let listed = lists(&proxy, mark);
    assert!(listed <= WAITERS / 20, "{listed} lists after {CUTS} reconnects of {WAITERS} waiters");
    assert_eq!((client.metrics().suspended, client.metrics().sessions_lost), (CUTS, 0));

    soon("release", held.release()).await.expect("released");
    let mut granted = None;
    // Whoever spawned first need not have entered first.
    within(LONG, "one granted", || {
        granted = granted.or_else(|| waiting.iter().position(tokio::task::JoinHandle::is_finished));
        granted.is_some()
    })
    .await;
    let next = waiting.swap_remove(granted.expect("granted")).await.expect("no panic").expect("acquired");
    assert!(next.token() > held.token());
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
    observer.until_children("/crowd", LONG, |nodes| nodes.len() == 1).await.expect("all gone");
    stop.store(true, Ordering::Relaxed);
    let least = least.join().expect("no panic");
    let late = lateness.so_far();
    assert!(
        least + late >= SESSION / 2,
        "the bystander's lease fell to {least:?} on a machine late by {late:?}"
    );
    assert!(bystander.is_valid());
    soon("close", client.close()).await.expect("closed");
}
