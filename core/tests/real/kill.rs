//! Killing the process, the runtime or the client at any moment leaves no queue stuck.

use std::time::Duration;

use crate::support::*;

/// The longest that a queue may be stuck after a client went without a word: a session timeout, the tick to which
/// the server rounds it up, and time for the machine.
const STUCK: Duration = Duration::from_secs(6);

async fn free_within(server: &forelock_testkit::ZooKeeper, path: &str, most: Duration, what: &str) {
    let next = connected(&server.connect_string()).await;
    let limit = Limited::begin();
    let held = soon(what, next.mutex(path).expect("a path").acquire()).await.expect("granted");
    limit.is_within(most, what);
    held.release().await.expect("released");
    next.close().await.expect("closed");
}

/// A user's runtime that ends in the middle of acquires and holds takes nothing with it that the engine needs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_runtime_that_is_shut_down_at_any_moment_leaves_nothing() {
    let server = fast_server();
    let path = "/kill/runtime";
    let client = connected(&server.connect_string()).await;
    for round in 0..40_u64 {
        let mutex = client.mutex(path).expect("a path");
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        for _ in 0..5 {
            let mutex = mutex.clone();
            runtime.spawn(async move {
                if let Ok(held) = mutex.acquire().await {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    drop(held);
                }
            });
        }
        tokio::time::sleep(Duration::from_micros(round * 200)).await;
        runtime.shutdown_background();
    }
    free_within(&server, path, Duration::from_secs(2), "after the runtimes").await;
    eventually("cleaned up", || client.metrics().cleanup_pending == 0).await;
    assert!(observer(&server).children(path).expect("listed").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_is_dropped_at_any_moment_closes_its_session() {
    let server = fast_server();
    let path = "/kill/client";
    for round in 0..40_u64 {
        let client = client(&server.connect_string());
        let mutex = client.mutex(path).expect("a path");
        drop(client);
        // The client lives on in the mutex, the acquire and the held lock, and goes with the last of them.
        drop(tokio::time::timeout(Duration::from_micros(round * 500), mutex.acquire()).await);
    }
    free_within(&server, path, Duration::from_secs(2), "after the clients").await;
    observer(&server).until_children(path, SOON, <[_]>::is_empty).await.expect("nothing left");
}

/// Not a test: a process that ends with the lock in its hand.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn careless_process() {
    let Ok(servers) = std::env::var("FORELOCK_CARELESS") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = client(&servers);
    let held = runtime.block_on(client.mutex("/kill/careless").expect("a path").acquire()).expect("acquired");
    std::mem::forget(held);
    std::process::exit(0);
}

/// At the normal exit of a process its session is closed, and what it held is free at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_exits_with_the_lock_in_its_hand_frees_it_at_once() {
    let server = fast_server();
    let status = std::process::Command::new(std::env::current_exe().expect("this test"))
        .args(["kill::careless_process", "--exact", "--ignored", "--nocapture"])
        .env("FORELOCK_CARELESS", server.connect_string())
        .stdout(std::process::Stdio::null())
        .status()
        .expect("a process");
    assert!(status.success());
    assert!(
        observer(&server).children("/kill/careless").expect("listed").is_empty(),
        "free when the process has ended"
    );
}

/// Not a test: a process that acquires and releases until it is killed.
#[test]
#[ignore = "run by another test, in a process of its own"]
fn busy_process() {
    let Ok(servers) = std::env::var("FORELOCK_BUSY") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let client = client(&servers);
        let mutex = client.mutex("/kill/process").expect("a path");
        println!("@started");
        loop {
            if let Ok(held) = mutex.acquire().await {
                drop(held);
            }
        }
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_are_killed_at_any_moment_leave_the_queue_stuck_for_a_session_at_most() {
    use std::process::{Command, Stdio};
    let server = fast_server();
    let mut children: Vec<_> = (0..6)
        .map(|_| {
            Command::new(std::env::current_exe().expect("this test"))
                .args(["kill::busy_process", "--exact", "--ignored", "--nocapture"])
                .env("FORELOCK_BUSY", server.connect_string())
                .stdout(Stdio::null())
                .spawn()
                .expect("a process")
        })
        .collect();
    observer(&server).until_children("/kill/process", SOON, |c| c.len() >= 4).await.expect("busy");
    for child in &mut children {
        tokio::time::sleep(Duration::from_millis(37)).await;
        forelock_testkit::processes::kill(child).expect("killed");
    }
    free_within(&server, "/kill/process", STUCK, "after the processes").await;
}
