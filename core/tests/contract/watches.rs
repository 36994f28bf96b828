//! When watches fire, how often, and in what order.

use forelock::zk::{Acl, CreateMode, Operation, WatchEvent, ZkError};

use crate::world::{Place, World, connect, error, fired, fired_already};

pub async fn a_data_watch_fires_once(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    zk.create(&place.at("a"), b"old", CreateMode::Persistent, &Acl::Open).await.unwrap();
    let (data, stat, mut watch) = zk.watch_data(&place.at("a")).await.unwrap();
    assert_eq!((data.as_slice(), stat.version), (b"old".as_slice(), 0));
    assert_eq!(watch.try_fired(), None);
    // Neither a read nor a child is a change of data.
    zk.get_data(&place.at("a")).await.unwrap();
    place.make("a/child", CreateMode::Persistent).await;
    assert_eq!(watch.try_fired(), None);

    zk.set_data(&place.at("a"), b"new", None).await.unwrap();
    assert_eq!(fired_already(&mut watch).await, WatchEvent::DataChanged);
    zk.set_data(&place.at("a"), b"newer", None).await.unwrap();
    zk.delete(&place.at("a/child"), None).await.unwrap();
    zk.delete(&place.at("a"), None).await.unwrap();
    assert_eq!(watch.try_fired(), None);
}

pub async fn a_data_watch_on_nothing_leaves_none(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    assert_eq!(error(zk.watch_data(&place.at("a")).await), ZkError::NoNode);
    // Had a watch been left behind, it would fire now, and take this one with it.
    let (_, mut watch) = zk.watch_exists(&place.at("a")).await.unwrap();
    place.make("a", CreateMode::Persistent).await;
    assert_eq!(fired_already(&mut watch).await, WatchEvent::Created);
}

pub async fn an_exists_watch_sees_creation_change_and_deletion(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let path = place.at("a");
    let (stat, mut watch) = zk.watch_exists(&path).await.unwrap();
    assert_eq!(stat, None);
    place.make("a", CreateMode::Persistent).await;
    assert_eq!(fired_already(&mut watch).await, WatchEvent::Created);

    let (stat, mut watch) = zk.watch_exists(&path).await.unwrap();
    assert!(stat.is_some());
    zk.set_data(&path, b"x", None).await.unwrap();
    assert_eq!(fired_already(&mut watch).await, WatchEvent::DataChanged);

    let (_, mut watch) = zk.watch_exists(&path).await.unwrap();
    zk.delete(&path, None).await.unwrap();
    assert_eq!(fired_already(&mut watch).await, WatchEvent::Deleted);
}

pub async fn a_child_watch_sees_children_come_and_go(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let (names, stat, mut watch) = zk.watch_children(&place.root).await.unwrap();
    assert_eq!((names.len(), stat.num_children), (0, 0));
    // The node's own data is not a child.
    zk.set_data(&place.root, b"x", None).await.unwrap();
    assert_eq!(watch.try_fired(), None);
    place.make("a", CreateMode::Persistent).await;
    assert_eq!(fired_already(&mut watch).await, WatchEvent::ChildrenChanged);

    let (names, _, mut watch) = zk.watch_children(&place.root).await.unwrap();
    assert_eq!(names, ["a"]);
    // Neither a grandchild nor a child's data counts.
    place.make("a/b", CreateMode::Persistent).await;
    zk.set_data(&place.at("a"), b"x", None).await.unwrap();
    assert_eq!(watch.try_fired(), None);
    zk.delete(&place.at("a/b"), None).await.unwrap();
    zk.delete(&place.at("a"), None).await.unwrap();
    assert_eq!(fired_already(&mut watch).await, WatchEvent::ChildrenChanged);
}

pub async fn deletion_fires_every_kind_of_watch(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let path = place.at("a");
    place.make("a", CreateMode::Persistent).await;
    let (_, _, mut data) = zk.watch_data(&path).await.unwrap();
    let (_, mut exists) = zk.watch_exists(&path).await.unwrap();
    let (_, _, mut children) = zk.watch_children(&path).await.unwrap();
    let (_, _, mut parent) = zk.watch_children(&place.root).await.unwrap();
    zk.delete(&path, None).await.unwrap();
    assert_eq!(fired_already(&mut data).await, WatchEvent::Deleted);
    assert_eq!(fired_already(&mut exists).await, WatchEvent::Deleted);
    assert_eq!(fired_already(&mut children).await, WatchEvent::Deleted);
    assert_eq!(fired_already(&mut parent).await, WatchEvent::ChildrenChanged);
}

pub async fn a_watch_fires_before_a_reply_that_shows_the_change(world: &dyn World) {
    let place = Place::new(world).await;
    let watching = connect(world).await;
    for round in 0..50 {
        let path = place.at(&format!("a{round}"));
        let (_, mut watch) = watching.watch_exists(&path).await.unwrap();
        let make = place.connection.create(&path, b"", CreateMode::Persistent, &Acl::Open);
        // Reads that race with the change: whichever is the first to see it comes after the event.
        let look = async {
            while watching.exists(&path).await.unwrap().is_none() {}
            assert_eq!(fired_already(&mut watch).await, WatchEvent::Created, "round {round}");
        };
        let (made, ()) = tokio::join!(make, look);
        made.unwrap();
    }
}

pub async fn watches_on_one_path_are_independent(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let path = place.at("a");
    place.make("a", CreateMode::Persistent).await;
    let (_, _, dropped) = zk.watch_data(&path).await.unwrap();
    let (_, _, mut kept) = zk.watch_data(&path).await.unwrap();
    let (_, _, mut children) = zk.watch_children(&path).await.unwrap();
    drop(dropped);
    zk.sync(&path).await.unwrap();
    zk.set_data(&path, b"x", None).await.unwrap();
    assert_eq!(fired_already(&mut kept).await, WatchEvent::DataChanged);
    place.make("a/b", CreateMode::Persistent).await;
    assert_eq!(fired_already(&mut children).await, WatchEvent::ChildrenChanged);
}

pub async fn a_dropped_watch_makes_room_for_another(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let path = place.at("a");
    for round in 0..20 {
        let (_, watch) = zk.watch_exists(&path).await.unwrap();
        // The removal is on its way while the next watch is set, and must not take that one with it.
        let dropped_request = zk.watch_exists(&path);
        drop(watch);
        drop(dropped_request);
        let (_, mut watch) = zk.watch_exists(&path).await.unwrap();
        place.make("a", CreateMode::Persistent).await;
        assert_eq!(fired_already(&mut watch).await, WatchEvent::Created, "round {round}");
        zk.delete(&path, None).await.unwrap();
    }
}

pub async fn a_multi_fires_watches(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("a", CreateMode::Persistent).await;
    let (_, _, mut data) = zk.watch_data(&place.at("a")).await.unwrap();
    let (_, mut exists) = zk.watch_exists(&place.at("b")).await.unwrap();
    let acl = Acl::Open;
    let operations = vec![
        Operation::Delete { path: place.at("a"), version: None },
        Operation::Create { path: place.at("b"), data: Vec::new(), mode: CreateMode::Persistent, acl },
    ];
    zk.multi(operations).await.unwrap();
    assert_eq!(fired_already(&mut data).await, WatchEvent::Deleted);
    assert_eq!(fired_already(&mut exists).await, WatchEvent::Created);
}

pub async fn a_session_end_fires_watches_of_others(world: &dyn World) {
    let place = Place::new(world).await;
    let owner = connect(world).await;
    owner.create(&place.at("a"), b"", CreateMode::Ephemeral, &Acl::Open).await.unwrap();
    let (_, _, mut data) = place.connection.watch_data(&place.at("a")).await.unwrap();
    let (_, _, mut children) = place.connection.watch_children(&place.root).await.unwrap();
    owner.close().await.unwrap();
    assert_eq!(fired(&mut data).await, WatchEvent::Deleted);
    assert_eq!(fired(&mut children).await, WatchEvent::ChildrenChanged);
}

pub async fn the_end_of_the_connection_fires_watches(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("a", CreateMode::Persistent).await;
    let (_, _, mut seen) = zk.watch_data(&place.at("a")).await.unwrap();
    let (_, _, mut unseen) = zk.watch_data(&place.at("a")).await.unwrap();
    let (_, _, mut waiting) = zk.watch_children(&place.at("a")).await.unwrap();
    zk.set_data(&place.at("a"), b"x", None).await.unwrap();
    assert_eq!(fired_already(&mut seen).await, WatchEvent::DataChanged);
    zk.abort();
    // What had come in before the end is still worth knowing.
    assert_eq!(fired_already(&mut unseen).await, WatchEvent::DataChanged);
    assert_eq!(fired(&mut waiting).await, WatchEvent::ConnectionEnded);
    assert_eq!(seen.try_fired(), None);
    assert_eq!(waiting.try_fired(), None);
}

/// A watch and the change that fires it, sent in one go: the event goes before the reply to the change all the same.
pub async fn an_event_goes_before_the_reply_to_its_cause_however_close_they_are(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("a", CreateMode::Persistent).await;
    let path = place.at("a");
    for _ in 0..50 {
        let watching = zk.watch_data(&path);
        let changing = zk.set_data(&path, b"x", None);
        // The change is awaited first, so that all answers may have come in by then.
        changing.await.unwrap();
        let (_, _, mut watch) = watching.await.unwrap();
        assert_eq!(fired_already(&mut watch).await, WatchEvent::DataChanged);
    }
}
