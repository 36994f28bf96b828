//! What listeners and settings show of the connection.

use std::time::Duration;

use forelock::{Client, ConnectionState, Options, RetryPolicy};
use forelock_testkit::{Cut, Flow, Scope};

use crate::support::*;

/// Fault 29: exactly one LOST, before the RECONNECTED of the new session. Fault 31: a slow listener holds nobody up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_listener_sees_every_state_in_order_and_none_is_dropped() {
    let server = fast_server();
    let proxy = proxy(&server);
    let client = client(&proxy.handle().connect_string());
    let (mut early, mut slow) = (client.states(), client.states());
    client.connect().await.expect("connected");
    let first = client.session().expect("connected").id;
    for _ in 0..5 {
        proxy.handle().cut(Cut::Eof);
        soon("back", early.wait_for(ConnectionState::Reconnected)).await.expect("open");
    }
    proxy.handle().blackhole(Flow::Both, Scope::All);
    soon("lost", early.wait_for(ConnectionState::Lost)).await.expect("open");
    proxy.handle().restore().expect("listening");
    let new = soon("new", early.wait_for(ConnectionState::Reconnected)).await.expect("open");
    assert!(!new.same_session && new.session != first, "{new:?}");

    // The slow one reads only now; the stream ends with the client.
    client.close().await.expect("closed");
    assert_eq!(soon("end", early.next()).await, None);
    let mut seen = Vec::new();
    while let Some(change) = soon("change", slow.next()).await {
        seen.push(change);
    }
    let names: Vec<_> = seen.iter().map(|change| change.state.as_str()).collect();
    let mut expected = vec!["CONNECTED"];
    for _ in 0..5 {
        expected.extend(["SUSPENDED", "RECONNECTED"]);
    }
    expected.extend(["SUSPENDED", "LOST", "RECONNECTED"]);
    assert_eq!(names, expected);
    assert!(seen.iter().rev().skip(1).all(|change| change.session == first));
}

/// The granted timeout is shown, and a warning names what was asked, what was granted and the setting.
#[tokio::test]
async fn a_timeout_that_the_server_changes_is_shown_and_warned_about() {
    let server = fast_server();
    for (asked, granted, parts) in [
        (60_000, 4_000, ["60 s", "4 s", "maxSessionTimeout"]),
        (100, 400, ["0.1 s", "0.4 s", "minSessionTimeout"]),
    ] {
        let options = Options::default().with_session_timeout(Duration::from_millis(asked));
        let client = Client::with_options(&server.connect_string(), options).expect("a client");
        soon("connect", client.connect()).await.expect("connected");
        let session = client.session().expect("connected");
        assert_eq!(session.asked_timeout, Duration::from_millis(asked));
        assert_eq!(session.timeout, Duration::from_millis(granted));
        let text = session.warnings.join("\n");
        for part in parts {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(session.tick <= session.timeout / 2);
        client.close().await.expect("closed");
    }
}

#[tokio::test]
async fn a_tick_setting_that_the_server_contradicts_is_warned_about() {
    let server = fast_server();
    let options = Options::default()
        .with_session_timeout(Duration::from_millis(100))
        .with_tick(Duration::from_millis(50));
    let client = Client::with_options(&server.connect_string(), options).expect("a client");
    soon("connect", client.connect()).await.expect("connected");
    let session = client.session().expect("connected");
    assert_eq!(session.tick, Duration::from_millis(200), "the longer of the two counts");
    assert!(session.warnings.iter().any(|w| w.contains("tickTime of 0.2 s")), "{:?}", session.warnings);
}

/// Heartbeats that only a quorum can answer keep the lease going just as well, and change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_heartbeats_are_committed_checks_and_keep_the_lease() {
    let server = fast_server();
    let (proxy, observer) = (proxy(&server), observer(&server));
    let options =
        options().with_session_timeout(Duration::from_secs(1)).with_heartbeat(forelock::Heartbeat::Quorum);
    let client = Client::with_options(&proxy.handle().connect_string(), options).expect("a client");
    let held =
        soon("held", client.mutex("/states/quorum").expect("a path").acquire()).await.expect("acquired");
    let node = format!("/states/quorum/{}", held.node());
    let before = observer.stat(&node).expect("asked").expect("there");
    let mark = proxy.handle().journal().mark();
    let journal = proxy.handle().journal();
    // Three timeouts' worth of heartbeats.
    let beats = tokio::task::spawn_blocking(move || {
        journal.wait_until(mark, SOON, |entries| {
            let beats = entries.iter().filter(|e| e.is_reply_to(forelock_testkit::Op::Multi)).count();
            (beats >= 18).then_some(beats)
        })
    });
    beats.await.expect("no panic").expect("heartbeats");
    assert!(held.is_valid());
    let records = proxy.handle().journal().since(mark);
    assert_eq!(records.count(forelock_testkit::Op::Sync), 0);
    assert!(records.replies().all(|reply| reply.err() == Some(0)), "{records}");
    assert_eq!(records.events().count(), 0, "no watch fires");
    let after = observer.stat(&node).expect("asked").expect("there");
    assert_eq!((before.version, before.mzxid), (after.version, after.mzxid));
}

/// Fault 24: one budget per call.
#[tokio::test]
async fn a_policy_of_no_retries_gives_up_at_the_first_lost_create() {
    let server = fast_server();
    let proxy = proxy(&server);
    let options = options().with_retry(RetryPolicy::None);
    let client = Client::with_options(&proxy.handle().connect_string(), options).expect("a client");
    client.ensure_root("/states/no-retry").await.expect("made");
    let create = forelock_testkit::Rule::drop_request(forelock_testkit::Op::Create2).then_cut(Cut::Eof);
    let dropped = proxy.handle().install(create);
    let error =
        soon("acquire", client.mutex("/states/no-retry").expect("a path").acquire()).await.expect_err("lost");
    assert_eq!(error.code(), forelock::ErrorCode::ConnectionLost, "{error}");
    dropped.fired(SOON).await.expect("the create was lost");
    observer(&server).until_children("/states/no-retry", SOON, <[_]>::is_empty).await.expect("nothing left");
}

/// Fault 25: a hand-off is by event. The figures are for people; the test asserts that none is as late as a poll.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hand_offs_are_by_event() {
    let server = fast_server();
    let (a, b) = (connected(&server.connect_string()).await, connected(&server.connect_string()).await);
    let (a, b) = (a.mutex("/states/hand-off").expect("a path"), b.mutex("/states/hand-off").expect("a path"));
    let observer = observer(&server);
    let mut took = Vec::new();
    for _ in 0..100 {
        let held = soon("held", a.acquire()).await.expect("acquired");
        let next = b.clone();
        let waiter = tokio::spawn(async move {
            let held = next.acquire().await.expect("granted");
            (std::time::Instant::now(), held)
        });
        observer.until_children("/states/hand-off", SOON, |c| c.len() == 2).await.expect("in line");
        let released = std::time::Instant::now();
        held.release().await.expect("released");
        let (granted, held) = soon("next", waiter).await.expect("no panic");
        took.push(granted.saturating_duration_since(released));
        held.release().await.expect("released");
    }
    took.sort();
    println!("hand-off: median {:?}, p99 {:?}", took[50], took[98]);
    assert!(took[50] < Duration::from_millis(500), "{:?}", took[50]);
}

/// Fault 30: the client is called from within its listener.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calling_the_client_while_listening_works() {
    let server = fast_server();
    let proxy = proxy(&server);
    let client = connected(&proxy.handle().connect_string()).await;
    let mut states = client.states();
    proxy.handle().cut(Cut::Rst);
    while let Some(change) = soon("change", states.next()).await {
        let held = soon("inside", client.mutex("/states/inside").expect("a path").acquire())
            .await
            .expect("acquired");
        held.release().await.expect("released");
        if change.state == ConnectionState::Reconnected {
            break;
        }
    }
}
