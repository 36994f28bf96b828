//! Sessions and the connections they outlive.

use std::time::Duration;

use forelock::zk::{Acl, ConnectError, CreateMode, EndReason, SessionId, WatchEvent, ZkError};

use crate::world::{PATIENCE, Place, World, connect, error, fired, gone, make, present, re_attach, request};

pub async fn a_new_session_is_what_was_asked_for(world: &dyn World) {
    let connection = connect(world).await;
    assert_ne!(connection.credentials().id, SessionId(0));
    assert_ne!(connection.credentials().id, connect(world).await.credentials().id);
    assert_eq!(connection.session_timeout(), world.session_timeout());
    assert!(!connection.is_read_only());
    assert!(!connection.has_ended());
}

pub async fn a_session_outlives_its_connection(world: &dyn World) {
    let place = Place::new(world).await;
    let made = place.make("a", CreateMode::Ephemeral).await;
    place.connection.abort();
    let again = re_attach(world, place.connection.credentials()).await.unwrap();
    assert_eq!(again.credentials().id, place.session());
    assert_eq!(again.session_timeout(), world.session_timeout());
    assert_eq!(again.exists(&place.at("a")).await, Ok(Some(made.stat)));
    let later = make(&again, &place.at("b"), CreateMode::Ephemeral).await;
    assert_eq!(later.stat.ephemeral_owner, place.session().0);
    // And once more, with the credentials of the second connection.
    again.abort();
    let third = re_attach(world, again.credentials()).await.unwrap();
    assert!(present(&third, &place.at("b")).await);
}

pub async fn re_attaching_ends_the_older_connection(world: &dyn World) {
    let place = Place::new(world).await;
    place.make("a", CreateMode::Ephemeral).await;
    let (_, _, mut watch) = place.connection.watch_data(&place.at("a")).await.unwrap();
    let newer = re_attach(world, place.connection.credentials()).await.unwrap();
    let ended = tokio::time::timeout(PATIENCE, place.connection.ended()).await.expect("it ends");
    assert!(matches!(ended, EndReason::Disconnected(_)), "{ended:?}");
    assert_eq!(fired(&mut watch).await, WatchEvent::ConnectionEnded);
    assert_eq!(place.connection.sync("/").await, Err(ZkError::ConnectionLost));
    assert!(present(&newer, &place.at("a")).await);
}

pub async fn a_session_without_a_connection_expires(world: &dyn World) {
    let place = Place::new(world).await;
    place.make("a", CreateMode::Ephemeral).await;
    place.make("b", CreateMode::Persistent).await;
    let observer = connect(world).await;
    place.connection.abort();
    gone(&observer, &place.at("a")).await;
    assert!(present(&observer, &place.at("b")).await);
    let again = re_attach(world, place.connection.credentials()).await.map(drop);
    assert_eq!(again, Err(ConnectError::SessionExpired));
}

pub async fn heartbeats_keep_a_session(world: &dyn World) {
    let place = Place::new(world).await;
    let made = place.make("a", CreateMode::Ephemeral).await;
    let every = world.session_timeout() / 6;
    for _ in 0..15 {
        tokio::time::sleep(every).await;
        place.connection.sync("/").await.unwrap();
    }
    assert_eq!(place.connection.exists(&place.at("a")).await, Ok(Some(made.stat)));
}

pub async fn closing_removes_ephemerals_at_once(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("a", CreateMode::Ephemeral).await;
    place.make("b", CreateMode::Persistent).await;
    let (_, _, mut watch) = zk.watch_data(&place.at("a")).await.unwrap();
    let observer = connect(world).await;
    let other = observer.credentials().id;
    let pending = zk.create(&place.at("c"), b"", CreateMode::Persistent, &Acl::Open);
    assert_eq!(zk.close().await, Ok(()));
    // What was sent before is answered before.
    assert_eq!(pending.await.unwrap().name, "c");
    assert_eq!(zk.ended().await, EndReason::Closed);
    assert!(zk.has_ended());
    let event = fired(&mut watch).await;
    assert!(matches!(event, WatchEvent::ConnectionEnded | WatchEvent::Deleted), "{event:?}");
    assert_eq!(zk.exists(&place.at("b")).await, Err(ZkError::ConnectionLost));

    observer.sync("/").await.unwrap();
    assert!(!present(&observer, &place.at("a")).await);
    assert!(present(&observer, &place.at("b")).await && present(&observer, &place.at("c")).await);
    assert_eq!(observer.credentials().id, other);
    let again = re_attach(world, zk.credentials()).await.map(drop);
    assert_eq!(again, Err(ConnectError::SessionExpired));
}

pub async fn aborting_ends_everything_but_the_session(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("a", CreateMode::Ephemeral).await;
    let ended = zk.ended();
    let pending = zk.sync("/");
    zk.abort();
    assert!(zk.has_ended());
    // The reply may have won the race; what counts is that there is an answer.
    let answer = tokio::time::timeout(PATIENCE, pending).await.expect("an answer");
    assert!(matches!(answer, Ok(()) | Err(ZkError::ConnectionLost)), "{answer:?}");
    assert_eq!(ended.await, EndReason::Closed);
    assert_eq!(zk.ended().await, EndReason::Closed);
    assert_eq!(zk.get_data("/").await, Err(ZkError::ConnectionLost));
    assert_eq!(error(zk.watch_children("/").await), ZkError::ConnectionLost);
    assert_eq!(zk.close().await, Err(ZkError::ConnectionLost));
    zk.abort();

    let again = re_attach(world, zk.credentials()).await.unwrap();
    assert!(present(&again, &place.at("a")).await);
}

pub async fn dropping_a_connection_leaves_its_session(world: &dyn World) {
    let observer = Place::new(world).await;
    let connection = connect(world).await;
    make(&connection, &observer.at("a"), CreateMode::Ephemeral).await;
    let credentials = connection.credentials();
    let pending = connection.sync("/");
    drop(connection);
    let answer = tokio::time::timeout(PATIENCE, pending).await.expect("an answer");
    assert!(matches!(answer, Ok(()) | Err(ZkError::ConnectionLost)), "{answer:?}");
    let again = re_attach(world, credentials).await.unwrap();
    assert!(present(&again, &observer.at("a")).await);
}

pub async fn requests_are_answered_in_the_order_of_the_calls(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let path = place.at("a");
    let create = zk.create(&path, b"0", CreateMode::Persistent, &Acl::Open);
    let first = zk.get_data(&path);
    let set = zk.set_data(&path, b"1", Some(0));
    let second = zk.get_data(&path);
    let names = zk.children(&place.root);
    let delete = zk.delete(&path, Some(1));
    let after = zk.exists(&path);
    // Awaited the other way round: the order of the calls is what counts.
    assert_eq!(after.await, Ok(None));
    assert_eq!(delete.await, Ok(()));
    assert_eq!(names.await.unwrap().0, ["a"]);
    assert_eq!(second.await.unwrap().0, b"1");
    assert_eq!(set.await.unwrap().version, 1);
    assert_eq!(first.await.unwrap().0, b"0");
    assert_eq!(create.await.unwrap().name, "a");
}

pub async fn a_dropped_reply_does_not_take_the_request_back(world: &dyn World) {
    let place = Place::new(world).await;
    drop(place.connection.create(&place.at("a"), b"", CreateMode::Persistent, &Acl::Open));
    assert!(present(&place.connection, &place.at("a")).await);
}

pub async fn a_given_up_attempt_to_connect_does_no_harm(world: &dyn World) {
    for _ in 0..5 {
        let attempt = world.connector().connect(request(world, None));
        let _ = tokio::time::timeout(Duration::from_micros(200), attempt).await;
    }
    Place::new(world).await;
}
