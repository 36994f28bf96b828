//! Deadlines hold whatever the ensemble does. Faults 22 and 23.

use std::time::{Duration, Instant};

use forelock::{Client, ErrorCode, Mutex, Options};
use forelock_testkit::{Flow, Scope};

use crate::support::*;

const TIMEOUT: Duration = Duration::from_secs(2);
/// What the design allows on top of the timeout.
const GRACE: Duration = Duration::from_millis(100);

/// What the network or the server does.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Refusing,
    Swallowing,
    Stalled,
    Stopped,
}

const TROUBLES: [Trouble; 4] = [Trouble::Refusing, Trouble::Swallowing, Trouble::Stalled, Trouble::Stopped];

fn impatient() -> Options {
    options().with_operation_timeout(TIMEOUT)
}

async fn on_time(what: &str, mutex: Mutex) {
    let limit = Limited::begin();
    let (acquired, tried) = {
        let (for_acquire, for_try) = (mutex.clone(), mutex);
        let acquire = tokio::spawn(async move {
            let began = Instant::now();
            let result = for_acquire.acquire_timeout(TIMEOUT).await;
            (result.map(drop), began.elapsed())
        });
        let attempt = tokio::spawn(async move {
            let began = Instant::now();
            let result = for_try.try_acquire().await;
            (result.map(drop), began.elapsed())
        });
        (acquire.await.expect("no panic"), attempt.await.expect("no panic"))
    };
    let (result, took) = acquired;
    let error = result.expect_err(what);
    assert_eq!(error.code(), ErrorCode::TimedOut, "{what}: {error}");
    assert!(took >= TIMEOUT, "{what}: acquire took {took:?}");
    limit.allows(took, TIMEOUT + GRACE, &format!("{what}: acquire"));
    let (result, took) = tried;
    let error = result.expect_err(what);
    assert_eq!(error.code(), ErrorCode::ConnectionLost, "{what}: {error}");
    limit.allows(took, TIMEOUT + GRACE, &format!("{what}: try-acquire"));
}

/// From the first use on, nothing was ever connected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_and_try_acquire_end_on_time_when_the_trouble_is_there_from_the_start() {
    for trouble in TROUBLES {
        let server = own_server(TICK);
        let proxy = proxy(&server);
        cause(trouble, &proxy, &server);
        let servers = proxy.handle().connect_string();
        let client = Client::with_options(&servers, impatient()).expect("a client");
        on_time(&format!("{trouble:?} from the start"), client.mutex("/deadline").expect("a path")).await;
        server.resume();
    }
}

/// The client is connected, and then the trouble begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_and_try_acquire_end_on_time_when_the_trouble_begins_later() {
    for trouble in TROUBLES {
        let server = own_server(TICK);
        let proxy = proxy(&server);
        let servers = proxy.handle().connect_string();
        let client = Client::with_options(&servers, impatient()).expect("a client");
        client.connect().await.expect("connected");
        cause(trouble, &proxy, &server);
        on_time(&format!("{trouble:?} later"), client.mutex("/deadline").expect("a path")).await;
        server.resume();
    }
}

fn cause(trouble: Trouble, proxy: &forelock_testkit::FaultProxy, server: &forelock_testkit::ZooKeeper) {
    let net = proxy.handle();
    match trouble {
        Trouble::Refusing => {
            net.refuse();
            net.cut(forelock_testkit::Cut::Rst);
        }
        Trouble::Swallowing => net.blackhole(Flow::Both, Scope::All),
        Trouble::Stalled => net.stall(Flow::ToClient, Scope::All),
        Trouble::Stopped => server.pause().expect("frozen"),
    }
}

/// Wake-ups on the way do not start the timeout again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_remaining_time_is_waited_after_a_wake_up() {
    let server = fast_server();
    let observer = observer(&server);
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex("/remaining").expect("a path");
    let held = soon("held", mutex.acquire()).await.expect("acquired");
    // One waiter in front after the other goes away, and each time the last one is woken.
    let mut in_front = Vec::new();
    for index in 0..4_usize {
        let mutex = mutex.clone();
        in_front.push(tokio::spawn(async move { mutex.acquire().await }));
        observer.until_children("/remaining", SOON, move |c| c.len() == index + 2).await.expect("in line");
    }
    let limit = Limited::begin();
    let waiter = tokio::spawn(async move { mutex.acquire_timeout(TIMEOUT).await });
    observer.until_children("/remaining", SOON, |c| c.len() == 6).await.expect("in line");
    for waiter in in_front.iter().rev() {
        tokio::time::sleep(Duration::from_millis(300)).await;
        waiter.abort();
    }
    let error = waiter.await.expect("no panic").expect_err("held all the time");
    limit.is_within(TIMEOUT + GRACE, "the acquire that was woken on the way");
    assert_eq!(error.code(), ErrorCode::TimedOut);
    assert!(error.waited().is_some_and(|waited| waited >= TIMEOUT), "{error}");
    drop(held);
}

/// A message of a failed acquire names the path, the holder and the time waited.
#[tokio::test]
async fn the_message_names_path_holder_and_time_waited() {
    let server = fast_server();
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex("/message").expect("a path");
    let held = soon("held", mutex.acquire()).await.expect("acquired");
    let error = mutex.acquire_timeout(Duration::from_secs(1)).await.expect_err("held");
    let text = error.to_string();
    for part in ["/message: ", "1 ahead", "after 1.", &format!("pid {}", std::process::id()), held.node()] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}
