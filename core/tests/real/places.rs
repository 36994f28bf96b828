//! Where locks lie, what their nodes are called, and which servers are asked.

use std::time::Duration;

use forelock::{Client, ErrorCode, MutexOptions, Naming};
use forelock_testkit::{CreateMode, FaultProxy};

use crate::support::*;

#[tokio::test]
async fn prefixes_go_before_everything_and_are_not_handed_back() {
    let server = fast_server();
    let options = options().with_namespace("team//a/").with_create_chroot(true);
    let servers = format!("{}/chroot/x", server.connect_string());
    let client = Client::with_options(&servers, options).expect("a client");
    let mutex = client.mutex("//locks///one/").expect("a path");
    assert_eq!(mutex.path(), "/locks/one");
    let held = soon("acquire", mutex.acquire()).await.expect("acquired");
    assert_eq!(held.path(), "/locks/one");
    let on_server = observer(&server).children("/chroot/x/team/a/locks/one").expect("listed");
    assert_eq!(on_server, [held.node()]);
    let error = mutex.acquire_timeout(Duration::from_secs(1)).await.expect_err("held");
    assert_eq!(error.path(), Some("/locks/one"));
    assert!(!error.to_string().contains("team"), "{error}");
}

/// A chroot that does not exist is not made, whatever is asked for first, and whenever it goes.
#[tokio::test]
async fn a_missing_chroot_is_an_error_and_is_not_made() {
    let server = fast_server();
    let observer = observer(&server);
    observer.create("/fleet", b"", CreateMode::Persistent).expect("made");
    let servers = format!("{}/fleet/servces", server.connect_string());
    let options = options().with_namespace("team/a");
    let client = Client::with_options(&servers, options.clone()).expect("a client");
    let mutex = client.mutex("/locks/one").expect("a path");
    let epoch = MutexOptions::default().with_naming(Naming::Epoch);
    let with_epoch = client.mutex_with("/locks/two", epoch).expect("a path");
    let attempts = async || {
        [
            soon("acquire", mutex.acquire()).await.err(),
            soon("try", mutex.try_acquire()).await.err(),
            soon("with the epoch", with_epoch.acquire()).await.err(),
            soon("the root", client.ensure_root("/locks/one")).await.err(),
        ]
    };
    for error in attempts().await {
        let error = error.expect("an error");
        assert_eq!(error.code(), ErrorCode::InvalidArgument, "{error}");
        assert!(
            error.message().contains("/fleet/servces") && error.message().contains("create_chroot"),
            "{error}"
        );
    }
    assert!(observer.children("/fleet").expect("listed").is_empty());

    // Made by whoever is in charge of it, it is there for this client as well, and the namespace is made.
    observer.create("/fleet/servces", b"", CreateMode::Persistent).expect("made");
    soon("acquire", mutex.acquire()).await.expect("acquired").release().await.expect("released");
    assert_eq!(observer.children("/fleet/servces/team/a").expect("listed"), ["locks"]);

    observer.delete_tree("/fleet/servces").expect("deleted");
    for error in attempts().await {
        assert_eq!(error.expect("an error").code(), ErrorCode::InvalidArgument);
    }
    assert!(observer.children("/fleet").expect("listed").is_empty());

    let options = options.with_create_chroot(true);
    let client = Client::with_options(&servers, options).expect("a client");
    let mutex = client.mutex("/locks/one").expect("a path");
    soon("acquire", mutex.acquire()).await.expect("acquired").release().await.expect("released");
    observer.delete_tree("/fleet").expect("deleted");
}

#[tokio::test]
async fn ensure_root_stores_the_epoch_and_leaves_data_alone() {
    let server = fast_server();
    let observer = observer(&server);
    let client = connected(&server.connect_string()).await;
    let epoch = client.ensure_root("/roots/new").await.expect("made");
    let (data, stat) = observer.get("/roots/new").expect("read");
    assert_eq!(epoch, stat.czxid);
    let data: serde_json::Value = serde_json::from_slice(&data).expect("JSON");
    assert_eq!(data["forelock"]["epoch"], epoch);
    assert_eq!(client.ensure_root("/roots/new").await.expect("there"), epoch);

    observer.create("/roots/theirs", b"precious", CreateMode::Persistent).expect("made");
    client.ensure_root("/roots/theirs").await.expect("there");
    assert_eq!(observer.get("/roots/theirs").expect("read").0, b"precious");
}

#[tokio::test]
async fn each_naming_has_its_form_and_both_kinds_of_contender_are_waited_for() {
    let server = fast_server();
    let observer = observer(&server);
    let client = connected(&server.connect_string()).await;
    for (naming, path, other) in [
        (Naming::Curator, "/naming/curator", "0123456789abcdef0123456789abcdef__lock__"),
        (Naming::Kazoo, "/naming/kazoo", "_c_01234567-89ab-4def-8123-456789abcdef-lock-"),
    ] {
        let mutex = client.mutex_with(path, MutexOptions::default().with_naming(naming)).expect("a path");
        let held = soon("acquire", mutex.acquire()).await.expect("acquired");
        let mark = if naming == Naming::Curator { "-lock-" } else { "__lock__" };
        assert!(held.node().contains(mark), "{}", held.node());
        held.release().await.expect("released");
        // A contender of the other kind holds the lock, and foreign children do not (fault 17).
        observer.create(&format!("{path}/config"), b"", CreateMode::Persistent).expect("made");
        let (theirs, _) = observer
            .create(&format!("{path}/{other}"), b"them", CreateMode::EphemeralSequential)
            .expect("made");
        assert!(soon("try", mutex.try_acquire()).await.expect("asked").is_none());
        let error = mutex.acquire_timeout(Duration::from_secs(1)).await.expect_err("held");
        assert!(error.holder().is_some_and(|holder| holder.contains("them")), "{error}");
        observer.delete(&theirs).expect("deleted");
        soon("acquire", mutex.acquire()).await.expect("acquired").release().await.expect("released");
    }
}

#[tokio::test]
async fn names_with_the_epoch_are_for_forelock_alone() {
    let server = fast_server();
    let observer = observer(&server);
    let client = connected(&server.connect_string()).await;
    let epoch = MutexOptions::default().with_naming(Naming::Epoch);
    let mutex = client.mutex_with("/naming/epoch", epoch.clone()).expect("a path");
    let held = soon("acquire", mutex.acquire()).await.expect("acquired");
    assert!(held.node().contains(&format!("-lock-{}-", held.epoch())), "{}", held.node());
    let first = held.node().to_owned();
    // Neither does a mutex under Curator's names come in here, nor this one where such nodes stand.
    let error = client.mutex("/naming/epoch").expect("a path").acquire().await.expect_err("mixture");
    assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
    held.release().await.expect("released");
    let plain =
        soon("plain", client.mutex("/naming/plain").expect("a path").acquire()).await.expect("acquired");
    let error =
        client.mutex_with("/naming/plain", epoch).expect("a path").acquire().await.expect_err("mixture");
    assert_eq!(error.code(), ErrorCode::Conflict, "{error}");
    drop(plain);
    // The root is made again: the name tells, although the number starts anew.
    observer.delete_tree("/naming/epoch").expect("deleted");
    let held = soon("again", mutex.acquire()).await.expect("acquired");
    assert_ne!(held.node().rsplit_once("-lock-"), first.rsplit_once("-lock-"));
}

/// Hosts that do not resolve, refuse, or swallow do not keep the client from one that answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_good_server_among_bad_ones_is_found() {
    let server = fast_server();
    let black_hole = proxy(&server);
    black_hole.handle().blackhole(forelock_testkit::Flow::Both, forelock_testkit::Scope::All);
    let hole = black_hole.handle().connect_string();
    let servers = format!("no-such-host.invalid:2181,127.0.0.1:1,{hole},{}", server.connect_string());
    for _ in 0..4 {
        let client = connected(&servers).await;
        let held =
            soon("acquire", client.mutex("/places/one").expect("a path").acquire()).await.expect("acquired");
        drop(held);
        client.close().await.expect("closed");
    }
}

#[tokio::test]
async fn ipv6_addresses_work() {
    let server = fast_server();
    let proxy = FaultProxy::builder(server.client_addr()).ipv6().start().expect("a fault proxy");
    let Some(address) = proxy.handle().addr_v6() else { panic!("no IPv6 loopback") };
    let client = connected(&format!("[::1]:{}", address.port())).await;
    soon("acquire", client.mutex("/places/six").expect("a path").acquire())
        .await
        .expect("acquired")
        .release()
        .await
        .expect("released");
}

#[tokio::test]
async fn a_connection_that_can_not_be_made_says_why_for_each_server() {
    let options = options().with_connection_timeout(Duration::from_millis(700));
    let client = Client::with_options("127.0.0.1:1,no-such-host.invalid:2", options).expect("a client");
    let error = client.connect().await.expect_err("nobody there");
    assert_eq!(error.code(), ErrorCode::ConnectionLost);
    let text = error.to_string();
    for part in ["127.0.0.1:1", "refused", "no-such-host.invalid", "does not resolve"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Fault 18: the root is deleted again and again while it is wanted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_deleted_while_acquiring_is_made_again() {
    let server = fast_server();
    let observer = observer(&server);
    let client = connected(&server.connect_string()).await;
    let mutex = client.mutex("/places/vanishing/root").expect("a path");
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let deleter = {
        let stop = stop.clone();
        std::thread::spawn(move || {
            let mut deleted = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                deleted += usize::from(observer.delete_tree("/places/vanishing").is_ok());
            }
            deleted
        })
    };
    for _ in 0..100 {
        match soon("acquire", mutex.acquire()).await {
            Ok(held) => drop(held),
            Err(error) => panic!("{error}"),
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(deleter.join().expect("no panic") > 0);
}
