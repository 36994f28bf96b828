//! The ways to lose a lock, each with its reason, told at once and once.

use std::time::Duration;

use forelock::{Acl, AclEntry, Client, ErrorCode, HeldLock, LockState, LostReason, Mutants, MutexOptions};
use forelock_testkit::{Cut, Flow, Observer, Scope};

use crate::support::*;

async fn holding(servers: &str, path: &str) -> (Client, HeldLock) {
    let client = connected(servers).await;
    let held = soon("held", client.mutex(path).expect("a path").acquire()).await.expect("acquired");
    (client, held)
}

async fn lost_for(held: &HeldLock, reason: LostReason) {
    assert_eq!(soon("told", held.lost()).await, Some(reason));
    assert!(!held.is_valid());
    assert_eq!(held.state(), LockState::Lost(reason));
    assert_eq!(held.remaining(), Duration::ZERO);
    assert_eq!(held.ensure(Duration::ZERO).expect_err("lost").lost_reason(), Some(reason));
    assert_eq!(held.verify().await.expect_err("lost").lost_reason(), Some(reason));
    let error = held.release().await.expect_err("it was lost");
    assert_eq!((error.code(), error.lost_reason()), (ErrorCode::LockLost, Some(reason)));
    held.release().await.expect("a second release does nothing");
}

async fn watched(observer: &Observer, held: &HeldLock) -> String {
    let node = format!("{}/{}", held.path(), held.node());
    assert!(observer.stat(&node).expect("asked").is_some());
    node
}

/// Fault 4.
#[tokio::test]
async fn a_node_deleted_by_an_operator_is_a_loss_at_once() {
    let server = fast_server();
    let observer = observer(&server);
    let (client, held) = holding(&server.connect_string(), "/losing/deleted").await;
    let node = watched(&observer, &held).await;
    observer.delete(&node).expect("deleted");
    lost_for(&held, LostReason::NodeDeleted).await;
    eventually("counted", || client.metrics().losses() == 1).await;
}

#[tokio::test]
async fn a_node_that_is_asked_back_and_deleted_is_revoked() {
    let server = fast_server();
    let observer = observer(&server);
    let (_client, held) = holding(&server.connect_string(), "/losing/revoked").await;
    let node = watched(&observer, &held).await;
    observer.set(&node, b"__REVOKE__").expect("asked back");
    soon("asked", held.revocation_asked()).await;
    assert!(held.is_valid(), "asked back is not lost");
    observer.delete(&node).expect("deleted");
    lost_for(&held, LostReason::Revoked).await;
}

/// The own watch is set again after each change of the node's data.
#[tokio::test]
async fn changes_of_the_nodes_data_do_not_hide_its_deletion() {
    let server = fast_server();
    let observer = observer(&server);
    let (_client, held) = holding(&server.connect_string(), "/losing/changed").await;
    let node = watched(&observer, &held).await;
    for round in 0..20 {
        observer.set(&node, format!("{round}").as_bytes()).expect("changed");
    }
    assert!(held.is_valid());
    observer.delete(&node).expect("deleted");
    lost_for(&held, LostReason::NodeDeleted).await;
}

#[tokio::test]
async fn a_root_made_again_during_an_outage_is_told_as_such() {
    let server = fast_server();
    let (proxy, observer) = (proxy(&server), observer(&server));
    let path = "/losing/recreated";
    let (client, held) = holding(&proxy.handle().connect_string(), path).await;
    let mut events = client.events();
    watched(&observer, &held).await;
    proxy.handle().refuse();
    proxy.handle().cut(Cut::Eof);
    observer.delete_tree(path).expect("deleted");
    observer.ensure(path).expect("made again");
    proxy.handle().accept().expect("listening");
    lost_for(&held, LostReason::RootRecreated).await;
    let again = soon("again", client.mutex(path).expect("a path").acquire()).await.expect("acquired");
    assert!(again.token() > held.token() && again.epoch() > held.epoch());
    assert!(again.sequence() <= held.sequence(), "the numbers start anew, the token does not");
    assert_eq!(client.metrics().roots_recreated, 1);
    let event = soon("event", events.next()).await.expect("open");
    assert_eq!(
        event,
        forelock::Event::RootRecreated { path: path.to_owned(), before: held.epoch(), now: again.epoch() }
    );
    assert_eq!(client.metrics().losses_for(LostReason::RootRecreated), 1);
}

#[tokio::test]
async fn a_lock_held_for_too_long_is_given_up() {
    let server = fast_server();
    let client = connected(&server.connect_string()).await;
    let limit = MutexOptions::default().with_max_hold(Duration::from_millis(300));
    let mutex = client.mutex_with("/losing/max-hold", limit).expect("a path");
    let held = soon("held", mutex.acquire()).await.expect("acquired");
    assert!(held.remaining() <= Duration::from_millis(300));
    // The next one is granted without anybody's help.
    let next = soon("next", mutex.acquire()).await.expect("acquired");
    lost_for(&held, LostReason::MaxHold).await;
    assert!(next.token() > held.token());
}

#[tokio::test]
async fn a_refusal_downstream_marks_the_lock_superseded_and_frees_it() {
    let server = fast_server();
    let (client, held) = holding(&server.connect_string(), "/losing/superseded").await;
    held.mark_superseded();
    lost_for(&held, LostReason::Superseded).await;
    soon("next", client.mutex("/losing/superseded").expect("a path").acquire())
        .await
        .expect("acquired")
        .release()
        .await
        .expect("released");
}

#[tokio::test]
async fn closing_the_client_loses_its_locks_and_frees_them_at_once() {
    let server = fast_server();
    let (client, held) = holding(&server.connect_string(), "/losing/closed").await;
    let waiting = client.mutex("/losing/closed").expect("a path");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    observer(&server).until_children("/losing/closed", SOON, |c| c.len() == 2).await.expect("in line");
    soon("close", client.close()).await.expect("closed");
    assert_eq!(held.lost().await, Some(LostReason::Closed));
    assert!(!held.is_valid());
    let error = soon("told", waiting).await.expect("no panic").expect_err("closed");
    assert_eq!(error.code(), ErrorCode::Closed, "{error}");
    assert!(observer(&server).children("/losing/closed").expect("listed").is_empty());
    let error = client.mutex("/losing/closed").expect("a path").acquire().await.expect_err("closed");
    assert_eq!(error.code(), ErrorCode::Closed);
    soon("close again", client.close()).await.expect("idempotent");
}

/// Fault 2: a holder that has lost the lock does not get it again as if nothing had happened.
#[tokio::test]
async fn reentry_after_a_loss_is_refused() {
    let server = fast_server();
    let observer = observer(&server);
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex("/losing/reentry").expect("a path");
    let me = || forelock::AcquireOptions::default().with_owner(forelock::OwnerKey::new("me"));
    let held = soon("held", mutex.acquire_with(me())).await.expect("acquired");
    observer.delete(&watched(&observer, &held).await).expect("deleted");
    soon("told", held.lost()).await;
    let error = mutex.acquire_with(me()).await.expect_err("lost");
    assert_eq!(error.code(), ErrorCode::LockLost, "{error}");
    assert!(held.release().await.is_err());
    let again = soon("again", mutex.acquire_with(me())).await.expect("a new grant");
    assert!(again.token() > held.token());
}

/// Fault 29, by the server's word: the session is closed under the client's feet.
#[tokio::test]
async fn an_expired_session_is_a_loss_and_a_new_one_is_made() {
    let server = fast_server();
    let proxy = proxy(&server);
    let mark = proxy.handle().journal().mark();
    let (client, held) = holding(&proxy.handle().connect_string(), "/losing/expired").await;
    let mut states = client.states();
    let (session, password) = {
        let connected = proxy.handle().journal().since(mark);
        let found = connected.iter().find_map(|e| match &e.what {
            forelock_testkit::proxy::What::Connected { session, password, .. } => {
                Some((*session, password.clone()))
            }
            _ => None,
        });
        found.expect("a handshake")
    };
    // The client must not attach again before the session has ended.
    proxy.handle().refuse();
    proxy.handle().cut(Cut::Eof);
    Observer::end_session(server.client_addr(), session, &password).expect("ended");
    proxy.handle().accept().expect("listening");
    lost_for(&held, LostReason::SessionExpired).await;
    let told =
        [soon("s", states.next()).await, soon("l", states.next()).await, soon("r", states.next()).await];
    let told: Vec<_> =
        told.into_iter().flatten().map(|c| (c.state.as_str(), c.session.0 == session)).collect();
    assert_eq!(told, [("SUSPENDED", true), ("LOST", true), ("RECONNECTED", false)]);
    let again =
        soon("again", client.mutex("/losing/expired").expect("a path").acquire()).await.expect("acquired");
    assert!(again.token() > held.token());
}

/// A lock whose lease has run out is freed by closing the old session as soon as a server can be reached.
#[tokio::test]
async fn the_old_session_is_closed_and_not_left_to_expire() {
    let server = own_server(Duration::from_secs(1));
    let proxy = proxy(&server);
    let long = options().with_session_timeout(Duration::from_secs(20)).with_tick(Duration::from_secs(1));
    let client = Client::with_options(&proxy.handle().connect_string(), long).expect("a client");
    let limit = MutexOptions::default();
    let mutex = client.mutex_with("/losing/reaped", limit).expect("a path");
    let held = soon("held", mutex.acquire()).await.expect("acquired");
    let session = client.session().expect("connected").id;
    proxy.handle().blackhole(Flow::Both, Scope::All);
    client.close().await.expect("closed");
    assert!(!held.is_valid());
    proxy.handle().restore().expect("listening");
    proxy.handle().cut(Cut::Rst);
    let healed = std::time::Instant::now();
    eventually("the session is closed", || !server.sessions().expect("sessions").contains(&session.0)).await;
    assert!(healed.elapsed() < Duration::from_secs(10), "closed, not expired");
    observer(&server).until_children("/losing/reaped", SOON, <[_]>::is_empty).await.expect("gone");
}

/// Tokens that storage has seen are larger than all that a wiped ensemble will grant for a long time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_ensemble_is_told() {
    let server = own_server(TICK);
    let path = "/losing/wiped";
    let observer = observer(&server);
    observer.ensure("/losing").expect("made");
    for round in 0..50 {
        observer.set("/losing", format!("{round}").as_bytes()).expect("changed");
    }
    let (client, held) = holding(&server.connect_string(), path).await;
    let mut events = client.events();
    drop(observer);
    let server = tokio::task::spawn_blocking(move || server.wipe().map(|()| server));
    let server = server.await.expect("no panic").expect("started again");
    soon("lost", held.lost()).await.expect("a reason");
    let again = soon("again", client.mutex(path).expect("a path").acquire()).await.expect("acquired");
    assert!(again.token() < held.token(), "{} {}", again.token(), held.token());
    let told = soon("told", events.next()).await.expect("open");
    let (before, now) = (held.token().0, again.token().0);
    assert_eq!(told, forelock::Event::TransactionIdsWentBackwards { before, now });
    assert_eq!(client.metrics().ids_went_backwards, 1);
    again.release().await.expect("released");
    let third = soon("third", client.mutex(path).expect("a path").acquire()).await.expect("acquired");
    assert!(third.token() > again.token());
    assert_eq!(client.metrics().ids_went_backwards, 1, "once");
    assert_eq!(client.metrics().roots_recreated, 0, "a small czxid is no proof that the root was made again");
    drop(server);
}

/// Fault 48. Nobody may delete below the root, so a release can't succeed, and says so at once.
#[tokio::test]
async fn a_release_that_is_refused_for_good_fails_at_once_and_says_what_to_change() {
    let server = fast_server();
    let path = "/losing/undeletable";
    let all_but_delete =
        AclEntry { scheme: "world".to_owned(), id: "anyone".to_owned(), permissions: "crwa".to_owned() };
    let options = options().with_acl(Acl::Entries(vec![all_but_delete]));
    let admin = Client::with_options(&server.connect_string(), options).expect("a client");
    soon("root", admin.ensure_root(path)).await.expect("made");
    let (client, held) = holding(&server.connect_string(), path).await;
    let rival = connected(&server.connect_string()).await;
    let waiting = rival.mutex(path).expect("a path");
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    let observer = observer(&server);
    observer.until_children(path, SOON, |nodes| nodes.len() == 2).await.expect("a waiter");
    let release_timeout = client.options().release_timeout;
    let began = std::time::Instant::now();
    let error = soon("release", held.release()).await.expect_err("refused");
    assert!(began.elapsed() < release_timeout, "after {:?}", began.elapsed());
    assert_eq!((error.code(), error.path()), (ErrorCode::NotPermitted, Some(path)));
    for part in ["one other waits for it", "right to delete", "until this client is closed"] {
        assert!(error.to_string().contains(part), "{part}: {error}");
    }
    assert!(!held.is_valid());
    client.close().await.expect("closed");
    let next = soon("granted", waiting).await.expect("not cancelled").expect("granted");
    assert!(next.token() > held.token());
}

/// A grant is lost before its node is removed, should the task that watches over it fail.
#[tokio::test]
async fn a_lock_that_nobody_watches_over_is_lost() {
    let server = fast_server();
    let observer = observer(&server);
    let mutants = Mutants { monitor_panics: true, ..Mutants::default() };
    let options = options().with_mutants(mutants);
    let client = Client::with_options(&server.connect_string(), options).expect("a client");
    let mutex = client.mutex("/losing/unwatched").expect("a path");
    let held = soon("held", mutex.acquire()).await.expect("acquired");
    lost_for(&held, LostReason::Internal).await;
    observer.until_children("/losing/unwatched", SOON, <[String]>::is_empty).await.expect("the node removed");
}
