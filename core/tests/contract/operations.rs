//! Each operation's success, and each of its failures.

use forelock::zk::{Acl, CreateMode, ZkError};

use crate::world::{Place, World, connect, error};

pub async fn create_answers_with_the_name_and_the_stat(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let made = zk.create(&place.at("a"), b"four", CreateMode::Persistent, &Acl::Open).await.unwrap();
    assert_eq!(made.name, "a");
    assert_eq!(made.stat.mzxid, made.stat.czxid);
    assert_eq!(made.stat.pzxid, made.stat.czxid);
    assert_eq!((made.stat.version, made.stat.cversion, made.stat.num_children), (0, 0, 0));
    assert_eq!(made.stat.data_length, 4);
    assert_eq!(made.stat.ephemeral_owner, 0);
    assert_eq!(zk.exists(&place.at("a")).await, Ok(Some(made.stat)));

    let made = place.make("b", CreateMode::Ephemeral).await;
    assert_eq!(made.name, "b");
    assert_eq!(made.stat.ephemeral_owner, place.session().0);
}

pub async fn a_container_looks_persistent(world: &dyn World) {
    let place = Place::new(world).await;
    let made = place.make("c", CreateMode::Container).await;
    assert_eq!((made.name.as_str(), made.stat.ephemeral_owner), ("c", 0));
    place.make("c/child", CreateMode::Ephemeral).await;
}

pub async fn create_says_why_it_fails(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let create = |path: String, acl: Acl| zk.create(&path, b"", CreateMode::Persistent, &acl);
    place.make("there", CreateMode::Persistent).await;
    place.make("ephemeral", CreateMode::Ephemeral).await;

    assert_eq!(create(place.at("there"), Acl::Open).await, Err(ZkError::NodeExists));
    assert_eq!(create(place.at("nowhere/a"), Acl::Open).await, Err(ZkError::NoNode));
    assert_eq!(create(place.at("ephemeral/a"), Acl::Open).await, Err(ZkError::NoChildrenForEphemerals));
    assert_eq!(create(place.at("a"), Acl::Entries(Vec::new())).await, Err(ZkError::InvalidAcl));
    assert_eq!(zk.exists(&place.at("a")).await, Ok(None));
}

pub async fn paths_that_cannot_be_are_refused(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let bad = |result: Result<(), ZkError>| matches!(result, Err(ZkError::BadArguments(_)));
    for path in ["", "a", "//", "/a//b", "/a/", "/a/./b", "/a/../b", "/a\u{1}"] {
        assert!(bad(zk.exists(path).await.map(drop)), "exists {path:?}");
        assert!(bad(zk.get_data(path).await.map(drop)), "get_data {path:?}");
        assert!(bad(zk.children(path).await.map(drop)), "children {path:?}");
        assert!(bad(zk.delete(path, None).await), "delete {path:?}");
        assert!(bad(zk.set_data(path, b"", None).await.map(drop)), "set_data {path:?}");
        let made = zk.create(path, b"", CreateMode::Persistent, &Acl::Open);
        assert!(bad(made.await.map(drop)), "create {path:?}");
    }
    assert!(bad(zk.delete("/", None).await), "delete the root");
}

pub async fn the_server_numbers_what_is_sequential(world: &dyn World) {
    let place = Place::new(world).await;
    let number = async |name: &str| place.make(name, CreateMode::EphemeralSequential).await;
    assert_eq!(number("n-").await.name, "n-0000000000");
    assert_eq!(number("n-").await.name, "n-0000000001");
    // The counter is the parent's: it counts every creation, and no deletion.
    place.make("plain", CreateMode::Persistent).await;
    assert_eq!(number("other-").await.name, "other-0000000003");
    place.connection.delete(&place.at("plain"), None).await.unwrap();
    assert_eq!(number("n-").await.name, "n-0000000004");
    // Digits at the end of the prefix are not the server's.
    assert_eq!(number("n-7").await.name, "n-70000000005");
    assert_eq!(number("").await.name, "0000000006");
}

pub async fn the_counter_restarts_with_its_parent(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let first = place.make("q", CreateMode::Persistent).await;
    place.make("q/n-", CreateMode::EphemeralSequential).await;
    zk.delete(&place.at("q/n-0000000000"), None).await.unwrap();
    zk.delete(&place.at("q"), None).await.unwrap();
    let second = place.make("q", CreateMode::Persistent).await;
    let node = place.make("q/n-", CreateMode::EphemeralSequential).await;
    assert_eq!(node.name, "n-0000000000");
    assert!(first.stat.czxid < second.stat.czxid && second.stat.czxid < node.stat.czxid);
}

pub async fn a_parent_remembers_its_children(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let stat = async || zk.exists(&place.root).await.unwrap().unwrap();
    let before = stat().await;
    let a = place.make("a", CreateMode::Persistent).await;
    let b = place.make("b", CreateMode::Ephemeral).await;
    let (mut names, parent) = zk.children(&place.root).await.unwrap();
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert_eq!((parent.num_children, parent.cversion), (2, before.cversion + 2));
    assert_eq!((parent.czxid, parent.mzxid, parent.pzxid), (before.czxid, before.mzxid, b.stat.czxid));
    assert!(a.stat.czxid < b.stat.czxid);
    assert_eq!(parent, stat().await);

    zk.delete(&place.at("a"), None).await.unwrap();
    let after = stat().await;
    assert_eq!((after.num_children, after.cversion), (1, before.cversion + 3));
    assert!(after.pzxid > b.stat.czxid);
    // A child's data is not the parent's affair.
    zk.set_data(&place.at("b"), b"x", None).await.unwrap();
    assert_eq!(stat().await, after);
}

pub async fn delete_says_why_it_fails(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("a", CreateMode::Persistent).await;
    place.make("a/b", CreateMode::Persistent).await;
    assert_eq!(zk.delete(&place.at("nowhere"), None).await, Err(ZkError::NoNode));
    assert_eq!(zk.delete(&place.at("a"), None).await, Err(ZkError::NotEmpty));
    assert_eq!(zk.delete(&place.at("a/b"), Some(7)).await, Err(ZkError::BadVersion));
    assert_eq!(zk.delete(&place.at("a/b"), Some(0)).await, Ok(()));
    assert_eq!(zk.delete(&place.at("a"), None).await, Ok(()));
    assert_eq!(zk.delete(&place.at("a"), None).await, Err(ZkError::NoNode));
}

pub async fn anyone_may_delete_an_ephemeral(world: &dyn World) {
    let place = Place::new(world).await;
    place.make("a", CreateMode::Ephemeral).await;
    let other = connect(world).await;
    assert_eq!(other.delete(&place.at("a"), None).await, Ok(()));
    assert_eq!(place.connection.exists(&place.at("a")).await, Ok(None));
}

pub async fn data_is_replaced_by_version(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let made = zk.create(&place.at("a"), b"one", CreateMode::Persistent, &Acl::Open).await.unwrap().stat;
    assert_eq!(zk.get_data(&place.at("a")).await, Ok((b"one".to_vec(), made)));
    assert_eq!(zk.set_data(&place.at("a"), b"three", Some(1)).await, Err(ZkError::BadVersion));

    let set = zk.set_data(&place.at("a"), b"three", Some(0)).await.unwrap();
    assert_eq!((set.version, set.data_length), (1, 5));
    assert!(set.mzxid > made.mzxid);
    assert_eq!((set.czxid, set.pzxid, set.ctime), (made.czxid, made.pzxid, made.ctime));
    assert_eq!(zk.get_data(&place.at("a")).await, Ok((b"three".to_vec(), set)));

    assert_eq!(zk.set_data(&place.at("a"), b"", None).await.unwrap().version, 2);
    assert_eq!(zk.get_data(&place.at("a")).await.unwrap().0, b"");
}

pub async fn reading_what_is_not_there(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let path = place.at("nowhere");
    assert_eq!(zk.exists(&path).await, Ok(None));
    assert_eq!(zk.get_data(&path).await, Err(ZkError::NoNode));
    assert_eq!(zk.children(&path).await, Err(ZkError::NoNode));
    assert_eq!(zk.set_data(&path, b"", None).await, Err(ZkError::NoNode));
    assert_eq!(error(zk.watch_data(&path).await), ZkError::NoNode);
    assert_eq!(error(zk.watch_children(&path).await), ZkError::NoNode);
    assert_eq!(zk.sync(&path).await, Ok(()));
}

pub async fn a_reader_that_syncs_sees_every_write(world: &dyn World) {
    let place = Place::new(world).await;
    let reader = connect(world).await;
    for round in 0..20 {
        let name = format!("a{round}");
        place.make(&name, CreateMode::Persistent).await;
        let (sync, exists) = (reader.sync(&place.root), reader.exists(&place.at(&name)));
        assert_eq!(sync.await, Ok(()));
        assert!(exists.await.unwrap().is_some());
    }
}
