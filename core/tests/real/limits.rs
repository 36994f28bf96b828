//! Processes that have reached a limit of the system.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use forelock::{Client, ErrorCode};

use crate::support::*;

/// A process with no file descriptor left is told so, before the engine's first use and at each connection, and gets
/// its lock once it has let go of enough.
#[test]
fn a_process_without_file_descriptors_says_so_and_recovers() {
    const SERVERS: &str = "FORELOCK_TEST_SERVERS";
    if let Ok(servers) = std::env::var(SERVERS) {
        return without_descriptors(&servers);
    }
    let server = fast_server();
    let child = Command::new(std::env::current_exe().expect("a program"))
        .args(["--exact", "limits::a_process_without_file_descriptors_says_so_and_recovers", "--nocapture"])
        .env(SERVERS, server.connect_string())
        .output()
        .expect("the program runs");
    let told = String::from_utf8_lossy(&child.stdout) + String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success() && told.contains("1 passed"), "{told}");
}

fn without_descriptors(servers: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    let client = Client::with_options(servers, options()).expect("a client");
    let mutex = client.mutex("/limits/descriptors").expect("a path");
    let few = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the pointer is to a struct of ours.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
    let mut files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    let mut refusals = 0;
    runtime.block_on(async {
        loop {
            match mutex.acquire_timeout(Duration::from_secs(60)).await {
                Ok(held) => break held.release().await.expect("released"),
                Err(error) => {
                    assert_eq!(error.code(), ErrorCode::OutOfResources, "{error}");
                    assert!(error.message().contains("no file descriptor is left"), "{error}");
                }
            }
            refusals += 1;
            assert!(files.pop().is_some(), "no lock with all of them back");
        }
    });
    // The engine takes some, and a connection.
    assert!(refusals > 4, "{refusals}");
}
