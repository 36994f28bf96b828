//! Transactions: all or nothing, and the failing part says why.

use forelock::zk::{Acl, CreateMode, Operation, ZkError};

use crate::world::{Place, World, error, present};

fn check(path: String, version: Option<i32>) -> Operation {
    Operation::Check { path, version }
}

fn create(path: String, mode: CreateMode) -> Operation {
    Operation::Create { path, data: b"new".to_vec(), mode, acl: Acl::Open }
}

fn set(path: String, version: Option<i32>) -> Operation {
    Operation::SetData { path, data: b"set".to_vec(), version }
}

fn delete(path: String, version: Option<i32>) -> Operation {
    Operation::Delete { path, version }
}

pub async fn all_parts_happen_together(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    for name in ["checked", "set", "deleted"] {
        place.make(name, CreateMode::Persistent).await;
    }
    let operations = vec![
        check(place.at("checked"), Some(0)),
        create(place.at("made"), CreateMode::Ephemeral),
        create(place.at("n-"), CreateMode::EphemeralSequential),
        set(place.at("set"), Some(0)),
        delete(place.at("deleted"), None),
    ];
    assert_eq!(zk.multi(operations).await, Ok(()));
    let (data, made) = zk.get_data(&place.at("made")).await.unwrap();
    assert_eq!((data.as_slice(), made.ephemeral_owner), (b"new".as_slice(), place.session().0));
    let (data, changed) = zk.get_data(&place.at("set")).await.unwrap();
    assert_eq!((data.as_slice(), changed.version), (b"set".as_slice(), 1));
    // One transaction, one number.
    assert_eq!(made.czxid, changed.mzxid);
    assert!(!present(zk, &place.at("deleted")).await);
    assert!(present(zk, &place.at("n-0000000004")).await);
}

pub async fn later_parts_see_earlier_ones(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let operations = vec![
        create(place.at("a"), CreateMode::Persistent),
        create(place.at("a/b"), CreateMode::Persistent),
        set(place.at("a/b"), Some(0)),
        check(place.at("a/b"), Some(1)),
        delete(place.at("a/b"), Some(1)),
    ];
    assert_eq!(zk.multi(operations).await, Ok(()));
    assert_eq!(zk.children(&place.at("a")).await.unwrap().0, Vec::<String>::new());
}

pub async fn one_failure_undoes_all(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    place.make("there", CreateMode::Persistent).await;
    place.make("full", CreateMode::Persistent).await;
    place.make("full/child", CreateMode::Persistent).await;
    place.make("ephemeral", CreateMode::Ephemeral).await;
    let failures = [
        (check(place.at("nowhere"), None), ZkError::NoNode),
        (check(place.at("there"), Some(3)), ZkError::BadVersion),
        (create(place.at("there"), CreateMode::Persistent), ZkError::NodeExists),
        (create(place.at("nowhere/a"), CreateMode::Persistent), ZkError::NoNode),
        (create(place.at("ephemeral/a"), CreateMode::Persistent), ZkError::NoChildrenForEphemerals),
        (set(place.at("nowhere"), None), ZkError::NoNode),
        (set(place.at("there"), Some(3)), ZkError::BadVersion),
        (delete(place.at("nowhere"), None), ZkError::NoNode),
        (delete(place.at("there"), Some(3)), ZkError::BadVersion),
        (delete(place.at("full"), None), ZkError::NotEmpty),
    ];
    let before = zk.exists(&place.root).await;
    for (failing, why) in failures {
        let what = format!("{failing:?}");
        let operations = vec![
            create(place.at("first"), CreateMode::Persistent),
            failing,
            create(place.at("last"), CreateMode::Persistent),
        ];
        assert_eq!(zk.multi(operations).await, Err(why), "{what}");
        assert!(!present(zk, &place.at("first")).await, "{what}");
        assert!(!present(zk, &place.at("last")).await, "{what}");
    }
    assert_eq!(zk.exists(&place.root).await, before);
}

pub async fn a_check_alone_changes_nothing(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let made = place.make("a", CreateMode::Ephemeral).await;
    let (_, _, mut watch) = zk.watch_data(&place.at("a")).await.unwrap();
    assert_eq!(zk.multi(vec![check(place.at("a"), None)]).await, Ok(()));
    assert_eq!(zk.exists(&place.at("a")).await, Ok(Some(made.stat)));
    assert_eq!(watch.try_fired(), None);
    assert_eq!(zk.multi(vec![check(place.at("b"), None)]).await, Err(ZkError::NoNode));
}

pub async fn an_empty_one_is_refused(world: &dyn World) {
    // Its success would prove nothing.
    let place = Place::new(world).await;
    assert!(matches!(error(place.connection.multi(Vec::new()).await), ZkError::BadArguments(_)));
}
