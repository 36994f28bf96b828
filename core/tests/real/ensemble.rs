//! On an ensemble of three: a follower that is cut off, a leader that goes, a server in read-only mode.

use std::time::{Duration, Instant};

use forelock::{AcquireOptions, Client, ConnectionState, LostReason, Options};
use forelock_testkit::servers::{Ensemble, Mode};
use forelock_testkit::{Observer, ZooKeeper};

use crate::support::*;

const SLOW_TICK: Duration = Duration::from_millis(500);

fn ensemble(read_only: bool) -> Ensemble {
    let mut settings = ZooKeeper::builder().tick(SLOW_TICK);
    if read_only {
        // Without local sessions a server in read-only mode (3.9.5) refuses to make a session at all.
        settings = settings
            .read_only(true)
            .config("localSessionsEnabled", "true")
            .config("localSessionsUpgradingEnabled", "true");
    }
    Ensemble::builder().size(3).server(settings).start().expect("an ensemble")
}

fn with_timeout(seconds: u64) -> Options {
    options().with_session_timeout(Duration::from_secs(seconds)).with_tick(SLOW_TICK)
}

fn for_a_minute() -> AcquireOptions {
    AcquireOptions::default().with_timeout(Duration::from_secs(60))
}

/// Fault 44: the follower goes on answering its client after it has lost its leader.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_on_a_cut_off_follower_is_told_before_a_rival_on_the_majority_is_granted() {
    const PAIRS: usize = 10;
    let ensemble = ensemble(false);
    let follower = ensemble.followers()[0];
    let leader = ensemble.leader().expect("a leader");
    let mut pairs = Vec::new();
    for pair in 0..PAIRS {
        let path = format!("/cut-off/{pair}");
        let on_follower = ensemble.server(follower).connect_string();
        let holder = Client::with_options(&on_follower, with_timeout(4)).expect("a client");
        let on_leader = ensemble.server(leader).connect_string();
        let rival = Client::with_options(&on_leader, with_timeout(4)).expect("a client");
        let held = soon("held", holder.mutex(&path).expect("a path").acquire()).await.expect("acquired");
        let mutex = rival.mutex(&path).expect("a path");
        let granted = tokio::spawn(async move {
            let held = mutex.acquire_with(for_a_minute()).await.expect("granted");
            (Instant::now(), held)
        });
        let observer = Observer::connect(ensemble.server(leader).client_addr()).expect("an observer");
        observer.until_children(&path, SOON, |c| c.len() == 2).await.expect("the rival in line");
        pairs.push((held, granted));
        tokio::time::sleep(Duration::from_millis(67)).await;
    }
    ensemble.isolate(follower);
    let cut = Instant::now();
    let mut told = Vec::new();
    for (held, granted) in pairs {
        told.push(tokio::spawn(async move {
            assert_eq!(held.lost().await, Some(LostReason::LeaseElapsed));
            let told = Instant::now();
            let (granted, next) = granted.await.expect("granted");
            assert!(next.token() > held.token());
            assert!(told < granted, "told {:?} after the cut, granted after {:?}", told - cut, granted - cut);
            granted - told
        }));
    }
    for pair in told {
        let margin = soon("told", pair).await.expect("told first");
        println!("cut-off follower: told {margin:?} before the next grant");
    }
}

/// Fault 27: the leader goes, another is elected, and a holder keeps its session, its lock and its token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_costs_nothing_within_the_survivable_outage() {
    let ensemble = ensemble(false);
    let client = Client::with_options(&ensemble.connect_string(), with_timeout(10)).expect("a client");
    let held = soon("held", client.mutex("/leader/goes").expect("a path").acquire()).await.expect("acquired");
    let session = client.session().expect("connected");
    let mut states = client.states();
    let leader = ensemble.leader().expect("a leader");
    ensemble.server(leader).kill();
    let back = soon("back", states.wait_for(ConnectionState::Reconnected)).await.expect("open");
    assert!(back.same_session && back.session == session.id, "{back:?}");
    soon("verify", held.verify()).await.expect("still ours");
    soon("release", held.release()).await.expect("never lost");
    assert_eq!(client.metrics().losses(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_in_read_only_mode_is_told_as_such_and_grants_nothing() {
    let ensemble = ensemble(true);
    let follower = ensemble.followers()[0];
    ensemble.isolate(follower);
    let alone = move |modes: &[Option<Mode>]| modes[follower] == Some(Mode::ReadOnly);
    ensemble.wait_modes(SOON, alone).expect("in read-only mode");
    let options = with_timeout(4).with_allow_read_only(true);
    let servers = ensemble.server(follower).connect_string();
    let client = Client::with_options(&servers, options).expect("a client");
    let mut states = client.states();
    client.connect().await.expect("connected");
    let first = soon("first", states.next()).await.expect("open");
    assert_eq!(first.state, ConnectionState::ReadOnly);
    let mutex = client.mutex("/read-only").expect("a path");
    let error = mutex.acquire_timeout(Duration::from_millis(500)).await.expect_err("read-only");
    assert!(error.to_string().contains("read-only mode"), "{error}");
    // It stays connected for reading, however long: there is no lease that could run out.
    let lost = tokio::time::timeout(Duration::from_secs(5), states.next()).await;
    assert!(lost.is_err(), "{lost:?}");
    ensemble.heal(follower);
    let waiting = soon("acquire", mutex.acquire_with(for_a_minute())).await.expect("granted after all");
    assert!(waiting.is_valid());
    let mut told = Vec::new();
    while let Some(change) = states.try_next() {
        told.push(change.state);
    }
    use ConnectionState::{Lost, Reconnected, Suspended};
    assert!(told.starts_with(&[Suspended, Lost]) && told.ends_with(&[Reconnected]), "{told:?}");
}
