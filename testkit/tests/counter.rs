//! A node's child counter can be forced up to its end, and what the servers do there.

use forelock_testkit::{CreateMode, Observer, Version, ZooKeeper};

/// The number at the end of a sequential node's name, its sign included.
fn suffix(path: &str) -> i32 {
    let (_, suffix) = path.split_once("lock-").expect("a sequential name");
    suffix.parse().expect("a number")
}

fn create(observer: &Observer, parent: &str, name: &str) -> i32 {
    let path = format!("{parent}/{name}-lock-");
    suffix(&observer.create(&path, &[], CreateMode::EphemeralSequential).expect("a node").0)
}

#[test]
fn what_the_next_names_are_is_what_was_forced() {
    for version in Version::ALL {
        let server = ZooKeeper::builder().version(version).start().expect("a server");
        let observer = Observer::connect(server.client_addr()).expect("a session");
        observer.ensure("/some/locks").expect("nodes");
        assert_eq!(create(&observer, "/some/locks", "a"), 0);
        let session = observer.session();
        server.force_child_counter("/some/locks", 1_000_000).expect("forced");
        assert_eq!(create(&observer, "/some/locks", "b"), 1_000_000);
        assert_eq!(create(&observer, "/some/locks", "c"), 1_000_001);
        assert_eq!(observer.session(), session, "the session was kept");
        assert_eq!(observer.children("/some/locks").expect("children").len(), 3);
        server.restart().expect("a restart");
        assert_eq!(create(&observer, "/some/locks", "d"), 1_000_002);
        server.force_child_counter("/some/locks", 7).expect_err("only upwards");
        server.force_child_counter("/absent", 7).expect_err("no such node");
    }
}

/// Measured, and the same on 3.9.5 and 3.8.6: on a quiet parent every create from the end on gets 2147483647,
/// also after a restart.
#[test]
fn on_a_quiet_parent_the_last_number_is_given_out_for_ever() {
    for version in Version::ALL {
        let server = ZooKeeper::builder().version(version).start().expect("a server");
        let observer = Observer::connect(server.client_addr()).expect("a session");
        observer.ensure("/locks").expect("a node");
        server.force_child_counter("/locks", i32::MAX - 2).expect("forced");
        let suffixes: Vec<i32> = (0..6).map(|i| create(&observer, "/locks", &i.to_string())).collect();
        assert_eq!(suffixes[..3], [i32::MAX - 2, i32::MAX - 1, i32::MAX], "{version}");
        assert_eq!(suffixes[3..], [i32::MAX; 3], "{version}");
        let again = observer.create("/locks/5-lock-", &[], CreateMode::EphemeralSequential);
        again.expect_err("the same name again, so the node exists");
        server.restart().expect("a restart");
        assert_eq!(create(&observer, "/locks", "6"), i32::MAX, "{version}");
    }
}

/// Measured, and the same on 3.9.5 and 3.8.6: with creates outstanding the numbers go on at -2147483648 until
/// the parent is quiet for a moment, and then begin at 2147483647 again. So there are duplicates, and later nodes
/// that sort before earlier ones. How many in a row is a matter of timing.
#[test]
fn with_creates_outstanding_the_numbers_turn_negative_and_come_back() {
    for version in Version::ALL {
        let server = ZooKeeper::builder().version(version).start().expect("a server");
        let observer = Observer::connect(server.client_addr()).expect("a session");
        observer.ensure("/locks").expect("a node");
        server.force_child_counter("/locks", i32::MAX - 2).expect("forced");

        let mut made = Vec::new();
        for round in 0..50 {
            let paths: Vec<String> = (0..20).map(|i| format!("/locks/{round}-{i}-lock-")).collect();
            let replies = observer.create_together(&paths, CreateMode::EphemeralSequential).expect("replies");
            made.extend(replies.into_iter().map(|reply| reply.expect("a node")));
            if made.iter().any(|(path, _)| suffix(path) < 0) {
                break;
            }
        }
        let suffixes: Vec<i32> = made.iter().map(|(path, _)| suffix(path)).collect();
        assert_eq!(suffixes[..3], [i32::MAX - 2, i32::MAX - 1, i32::MAX], "{version}");
        assert!(suffixes[3..].iter().any(|suffix| *suffix < 0), "{version}: {suffixes:?}");
        for pair in suffixes[2..].windows(2) {
            let follows = pair[1] == pair[0].wrapping_add(1) || pair[1] == i32::MAX;
            assert!(follows, "{version}: {pair:?} in {suffixes:?}");
        }
        assert!(made.is_sorted_by_key(|(_, stat)| stat.czxid), "order of czxid is order of creation");
        assert_eq!(create(&observer, "/locks", "quiet"), i32::MAX, "{version}");
    }
}
