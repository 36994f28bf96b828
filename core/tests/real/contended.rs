//! What a lock that is wanted by many costs, and in which order they get it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use forelock::{AcquireOptions, Client, HeldLock, OwnerKey};
use forelock_testkit::proxy::{Mark, What};
use forelock_testkit::{EventKind, FaultProxy, Observer, Op};
use tokio::task::JoinHandle;

use crate::support::*;

/// Waiters in a queue, in order.
struct Queue {
    clients: Vec<Client>,
    waiters: Vec<JoinHandle<Result<HeldLock, forelock::Error>>>,
}

impl Queue {
    /// Lines up `count` waiters of `clients` clients, one after the other.
    async fn line_up(
        proxy: &FaultProxy,
        observer: &Observer,
        path: &str,
        clients: usize,
        count: usize,
    ) -> Self {
        let mut queue = Self { clients: Vec::new(), waiters: Vec::new() };
        for _ in 0..clients {
            queue.clients.push(connected(&proxy.handle().connect_string()).await);
        }
        let before = observer.children(path).expect("listed").len();
        for index in 0..count {
            let mutex = queue.clients[index % clients].mutex(path).expect("a path");
            let acquire = AcquireOptions::default();
            let acquire = acquire.with_timeout(Duration::from_secs(60));
            queue.waiters.push(tokio::spawn(async move { mutex.acquire_with(acquire).await }));
            observer
                .until_children(path, SOON, move |c| c.len() == before + index + 1)
                .await
                .expect("in line");
        }
        queue
    }
}

/// Waits until everything is quiet: each waiter watches its own node and the one in front.
async fn settled(server: &forelock_testkit::ZooKeeper, path: &str, waiters: usize) {
    let watched = || {
        let watches = server.watches_by_path().expect("watches");
        let ours = watches.iter().filter(|(at, _)| at.starts_with(&format!("{path}/")));
        ours.map(|(_, sessions)| sessions.len()).sum::<usize>()
    };
    // Own watches and predecessors', counted once where one session has both on a node.
    eventually("all watches set", || watched() >= waiters).await;
    let mut last = 0;
    eventually("watches stand still", || {
        let now = watched();
        std::mem::replace(&mut last, now) == now
    })
    .await;
}

fn requests_since(proxy: &FaultProxy, mark: Mark) -> Vec<(Op, i64)> {
    let records = proxy.handle().journal().since(mark);
    records
        .requests()
        .filter_map(|entry| entry.op().map(|op| (op, entry.session)))
        .filter(|(op, _)| !is_heartbeat(*op))
        .collect()
}

fn deletions_since(proxy: &FaultProxy, mark: Mark) -> Vec<i64> {
    let records = proxy.handle().journal().since(mark);
    records.events().filter(|e| e.event() == Some(EventKind::NodeDeleted)).map(|e| e.session).collect()
}

/// One delete, at most one list, one wake-up; the other waiters send only heartbeats.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_wakes_one_of_200_waiters_and_costs_one_delete_and_at_most_one_list() {
    let server = fast_server();
    let (proxy, observer) = (proxy(&server), observer(&server));
    let holder = connected(&server.connect_string()).await;
    let path = "/herd/release";
    let mut held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let mut queue = Queue::line_up(&proxy, &observer, path, 10, 200).await;
    settled(&server, path, 200).await;
    for (round, waiter) in queue.waiters.drain(..).enumerate().take(5) {
        let mark = proxy.handle().journal().mark();
        soon("release", held.release()).await.expect("released");
        held = soon("next", waiter).await.expect("not cancelled").expect("granted");
        // From the second round on the one who releases is behind the proxy too.
        let (delete, own) = if round == 0 { (0, 0) } else { (1, 1) };
        let requests = requests_since(&proxy, mark);
        let count = |op| requests.iter().filter(|(o, _)| *o == op).count();
        assert_eq!(count(Op::Delete), delete, "{requests:?}");
        // The first in line watched the head, whose deletion is the grant. The others have to look again, since the
        // one that they watched was not the head when they looked last.
        assert!(count(Op::GetChildren2) <= round.min(1), "{requests:?}");
        assert_eq!(requests.len(), delete + count(Op::GetChildren2), "{requests:?}");
        let deletions = deletions_since(&proxy, mark);
        assert_eq!(deletions.len(), 1 + own, "the next in line, and the releaser's own watch: {deletions:?}");
    }
    drop(held);
    for client in queue.clients {
        client.close().await.expect("closed");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_holders_session_ending_wakes_one_of_200_waiters() {
    let server = fast_server();
    let (holders, proxy, observer) = (proxy(&server), proxy(&server), observer(&server));
    let path = "/herd/expiry";
    let holder = connected(&holders.handle().connect_string()).await;
    let held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let mut queue = Queue::line_up(&proxy, &observer, path, 10, 200).await;
    settled(&server, path, 200).await;
    let mark = proxy.handle().journal().mark();
    // Nothing more is heard from the holder, and the server lets its session expire.
    holders.handle().blackhole(forelock_testkit::Flow::Both, forelock_testkit::Scope::All);
    let reason = soon("told", held.lost()).await;
    assert_eq!(reason, Some(forelock::LostReason::LeaseElapsed));
    let next = soon("next", queue.waiters.remove(0)).await.expect("not cancelled").expect("granted");
    assert!(next.token() > held.token());
    assert_eq!(requests_since(&proxy, mark), []);
    assert_eq!(deletions_since(&proxy, mark).len(), 1);
    for waiter in &queue.waiters {
        assert!(!waiter.is_finished());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_middle_waiter_leaving_wakes_only_the_one_behind_it() {
    let server = fast_server();
    let (proxy, observer) = (proxy(&server), observer(&server));
    let path = "/herd/middle";
    let holder = connected(&server.connect_string()).await;
    let held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let queue = Queue::line_up(&proxy, &observer, path, 10, 60).await;
    settled(&server, path, 60).await;
    let mark = proxy.handle().journal().mark();
    let nodes = observer.children(path).expect("listed");
    let mut nodes: Vec<_> =
        nodes.iter().map(|name| (name[name.len() - 10..].to_owned(), name.clone())).collect();
    nodes.sort();
    // The thirtieth waiter's node goes, as when its session ends.
    observer.delete(&format!("{path}/{}", nodes[30].1)).expect("deleted");
    let behind = nodes[31].1.clone();
    let journal = proxy.handle().journal();
    let in_front = format!("{path}/{}", nodes[29].1);
    let new_watch = move |e: &forelock_testkit::proxy::Entry| {
        e.is_reply_to(Op::GetData) && e.path() == Some(in_front.as_str())
    };
    journal.until(mark, SOON, new_watch).await.expect("the one behind watches the next in front");
    let deleted = format!("{path}/{}", nodes[30].1);
    let events: Vec<_> = journal
        .since(mark)
        .events()
        .filter(|e| matches!(&e.what, What::Event { path, .. } if *path == deleted))
        .map(|e| e.session)
        .collect();
    assert_eq!(events.len(), 2, "the one behind ({behind}) and the one whose node it was");
    // One list for the one behind; the one who was deleted goes to the back with a create and a list.
    let requests = requests_since(&proxy, mark);
    let count = |op| requests.iter().filter(|(o, _)| *o == op).count();
    assert!(count(Op::GetChildren2) <= 2, "{requests:?}");
    assert!(count(Op::Create2) <= 1, "{requests:?}");
    drop(held);
    drop(queue);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_come_first_served_and_one_at_a_time_over_many_clients() {
    let server = fast_server();
    let (proxy, observer) = (proxy(&server), observer(&server));
    let path = "/fifo";
    let holder = connected(&server.connect_string()).await;
    let held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let first = held.token();
    let mut queue = Queue::line_up(&proxy, &observer, path, 5, 50).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut ends = Vec::new();
    for (index, waiter) in queue.waiters.drain(..).enumerate() {
        let order = order.clone();
        ends.push(tokio::spawn(async move {
            let held = waiter.await.expect("not cancelled").expect("granted");
            assert!(held.is_valid());
            order.lock().expect("no panic").push((index, held.token()));
            held.release().await.expect("released");
        }));
    }
    soon("release", held.release()).await.expect("released");
    for end in ends {
        soon("turn", end).await.expect("no panic");
    }
    let order = order.lock().expect("no panic");
    assert_eq!(order.iter().map(|(index, _)| *index).collect::<Vec<_>>(), (0..50).collect::<Vec<_>>());
    let tokens: Vec<_> = std::iter::once(first).chain(order.iter().map(|(_, token)| *token)).collect();
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

#[tokio::test]
async fn an_owner_acquires_again_at_once_and_only_it_may_release() {
    let server = fast_server();
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex("/owner").expect("a path");
    let (ann, bob) = (OwnerKey::new("ann"), OwnerKey::new("bob"));
    let as_owner =
        |owner: &OwnerKey, timeout| AcquireOptions::default().with_owner(owner.clone()).with_timeout(timeout);
    let short = Duration::from_secs(2);
    let outer = soon("outer", mutex.acquire_with(as_owner(&ann, SOON))).await.expect("acquired");
    let inner = soon("inner", mutex.acquire_with(as_owner(&ann, short))).await.expect("at once");
    assert_eq!(outer.token(), inner.token());
    let error = mutex.acquire_with(as_owner(&bob, short)).await.expect_err("held by ann");
    assert_eq!(error.code(), forelock::ErrorCode::TimedOut);
    assert!(error.holder().is_some_and(|holder| holder.contains("pid")), "{error}");

    let error = outer.release_as(Some(&bob)).await.expect_err("not bob's");
    assert_eq!(error.code(), forelock::ErrorCode::NotOwner);
    assert_eq!(outer.release_as(None).await.expect_err("nobody's").code(), forelock::ErrorCode::NotOwner);
    inner.release_as(Some(&ann)).await.expect("released");
    inner.release_as(Some(&ann)).await.expect("twice does nothing");
    assert!(outer.is_valid(), "the outer handle still holds it");

    outer.hand_over(Some(bob.clone())).expect("handed over");
    assert!(outer.release_as(Some(&ann)).await.is_err());
    let again = soon("bob", mutex.acquire_with(as_owner(&bob, short))).await.expect("re-entrant");
    again.release_as(Some(&bob)).await.expect("released");
    outer.release_as(Some(&bob)).await.expect("released");
    assert!(!outer.is_valid());
    assert!(observer(&server).children("/owner").expect("listed").is_empty());
}

/// Without an owner there is no re-entrance.
#[tokio::test]
async fn a_second_acquire_without_an_owner_waits_like_anyone_else() {
    let server = fast_server();
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex("/no-owner").expect("a path");
    let held = soon("first", mutex.acquire()).await.expect("acquired");
    let error = mutex.acquire_timeout(Duration::from_millis(200)).await.expect_err("waits");
    assert_eq!(error.code(), forelock::ErrorCode::TimedOut);
    drop(held);
    soon("second", mutex.acquire()).await.expect("acquired").release().await.expect("released");
}
