//! What is left on the server by acquires that came to nothing: no node and no watch.

use std::time::Duration;

use forelock::ErrorCode;
use forelock_testkit::ZooKeeper;

use crate::support::*;

/// Watches on anything below `path`.
fn watches_below(server: &ZooKeeper, path: &str) -> Vec<String> {
    let watches = server.watches_by_path().expect("watches");
    watches.into_keys().filter(|at| at.starts_with(&format!("{path}/")) || at == path).collect()
}

/// The holder's node is the only one left, and the watch on it the holder's own.
async fn only_the_holder_is_left(server: &ZooKeeper, path: &str, node: &str, client: &forelock::Client) {
    let observer = observer(server);
    eventually("cleaned up", || client.metrics().cleanup_pending == 0).await;
    observer.until_children(path, SOON, |children| children.len() == 1).await.expect("the holder alone");
    let expected = [format!("{path}/{node}")];
    eventually("watches gone", || watches_below(server, path) == expected).await;
    let sessions = server.watches_by_path().expect("watches").remove(&expected[0]).unwrap_or_default();
    assert_eq!(sessions.len(), 1, "only the holder's own session watches its node");
}

/// Fault 20 for waiting acquires.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_timed_out_acquires_leave_no_node_and_no_watch() {
    let server = fast_server();
    let path = "/leftovers/timeout";
    let holder = connected(&server.connect_string()).await;
    let held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex(path).expect("a path");
    let mut acquires = tokio::task::JoinSet::new();
    for index in 0..1_000_u64 {
        let mutex = mutex.clone();
        // Spread over every stage: before the create, between list and watch, and in the middle of the wait.
        acquires.spawn(async move { mutex.acquire_timeout(Duration::from_micros(index * 500)).await });
    }
    while let Some(acquire) = soon("timed out", acquires.join_next()).await {
        let error = acquire.expect("no panic").expect_err("held by another");
        assert_eq!(error.code(), ErrorCode::TimedOut, "{error}");
    }
    only_the_holder_is_left(&server, path, held.node(), &client).await;
    assert_eq!(client.metrics().timeouts, 1_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_cancelled_acquires_leave_no_node_and_no_watch() {
    let server = fast_server();
    let path = "/leftovers/cancel";
    let holder = connected(&server.connect_string()).await;
    let held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex(path).expect("a path");
    let mut acquires = tokio::task::JoinSet::new();
    for index in 0..1_000_u64 {
        let mutex = mutex.clone();
        acquires.spawn(async move {
            // Dropping the future is the cancellation.
            tokio::time::timeout(Duration::from_micros(index * 300), mutex.acquire()).await.is_err()
        });
    }
    while let Some(cancelled) = soon("cancelled", acquires.join_next()).await {
        assert!(cancelled.expect("no panic"));
    }
    only_the_holder_is_left(&server, path, held.node(), &client).await;
}

/// A future that is dropped just when the lock is granted gives it back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquires_cancelled_while_they_are_granted_leave_nothing() {
    let server = fast_server();
    let path = "/leftovers/race";
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex(path).expect("a path");
    soon("warm", mutex.acquire()).await.expect("acquired").release().await.expect("released");
    for index in 0..300_u64 {
        let within = Duration::from_micros(20 * index);
        drop(tokio::time::timeout(within, mutex.acquire()).await);
    }
    eventually("cleaned up", || client.metrics().cleanup_pending == 0).await;
    observer(&server).until_children(path, SOON, <[_]>::is_empty).await.expect("nothing left");
    eventually("watches gone", || watches_below(&server, path).is_empty()).await;
}

/// Fault 20: failed try-acquires leave no watch; fault 11: nor a node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_try_acquires_leave_no_node_and_no_watch() {
    let server = fast_server();
    let path = "/leftovers/try";
    let holder = connected(&server.connect_string()).await;
    let held = soon("held", holder.mutex(path).expect("a path").acquire()).await.expect("acquired");
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex(path).expect("a path");
    for _ in 0..50 {
        assert!(soon("try", mutex.try_acquire()).await.expect("asked").is_none());
    }
    only_the_holder_is_left(&server, path, held.node(), &client).await;
}
