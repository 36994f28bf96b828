//! Who may do what. The simulated servers know no rights, so this is for real ones alone.

use forelock::zk::{Acl, AclEntry, CreateMode, ZkError};

use crate::world::{Place, World};

pub async fn creators_rights_need_a_creator(world: &dyn World) {
    let place = Place::new(world).await;
    // This session has shown no identity that could be the creator's.
    let made =
        place.connection.create(&place.at("a"), b"", CreateMode::Persistent, &Acl::CreatorWritesAllRead);
    assert_eq!(made.await, Err(ZkError::InvalidAcl));
}

pub async fn an_acl_is_enforced(world: &dyn World) {
    let place = Place::new(world).await;
    let zk = &place.connection;
    let entry = AclEntry { scheme: "world".to_owned(), id: "anyone".to_owned(), permissions: "r".to_owned() };
    let read_only = Acl::Entries(vec![entry]);
    zk.create(&place.at("a"), b"data", CreateMode::Persistent, &read_only).await.unwrap();

    assert_eq!(zk.get_data(&place.at("a")).await.unwrap().0, b"data");
    assert_eq!(zk.set_data(&place.at("a"), b"", None).await, Err(ZkError::NoAuth));
    let child = zk.create(&place.at("a/b"), b"", CreateMode::Persistent, &Acl::Open);
    assert_eq!(child.await, Err(ZkError::NoAuth));
    // Whether a node may be deleted is its parent's to say.
    assert_eq!(zk.delete(&place.at("a"), None).await, Ok(()));
}
