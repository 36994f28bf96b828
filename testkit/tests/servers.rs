//! A server can be started, looked into, frozen, killed, restarted and emptied, in every version.

use std::time::{Duration, Instant};

use forelock_testkit::servers::Mode;
use forelock_testkit::{CreateMode, Observer, Version, ZooKeeper};

const SOON: Duration = Duration::from_secs(60);

fn start(version: Version) -> ZooKeeper {
    ZooKeeper::builder().version(version).start().expect("a server")
}

#[test]
fn each_version_serves_under_its_own_name() {
    for version in Version::ALL {
        let server = start(version);
        assert_eq!(server.mode(), Some(Mode::Standalone));
        let srvr = server.four_letter("srvr").expect("an answer");
        assert!(srvr.contains(&format!("Zookeeper version: {version}")), "{srvr}");
    }
}

#[test]
fn sessions_and_ephemerals_survive_a_kill_and_not_a_wipe() {
    for version in Version::ALL {
        let server = start(version);
        let addr = server.client_addr();
        let observer = Observer::connect(addr).expect("a session");
        let (path, stat) = observer.create("/e-", b"x", CreateMode::EphemeralSequential).expect("a node");
        assert_eq!(path, "/e-0000000000");
        assert_eq!(stat.ephemeral_owner, observer.session());

        let before = (server.pid(), observer.session());
        server.kill();
        assert!(server.pid().is_none() && server.mode().is_none());
        server.restart().expect("a restart");
        assert_ne!(server.pid(), before.0);
        assert_eq!(server.client_addr(), addr);
        assert_eq!(observer.get(&path).expect("the node").0, b"x");
        assert_eq!(observer.session(), before.1, "the session is the same one");
        // A server that moves a session from one expiry to the next may leave it out of what it dumps meanwhile.
        let listed = Instant::now();
        while !server.sessions().expect("sessions").contains(&before.1) {
            assert!(listed.elapsed() < SOON, "the session is not listed");
        }
        assert!(server.ephemerals().expect("ephemerals")[&before.1].contains(&path));

        server.wipe().expect("a wipe");
        assert_eq!(observer.stat(&path).expect("an answer"), None);
        assert_ne!(observer.session(), before.1, "the old session is gone");
    }
}

#[test]
fn a_frozen_server_answers_when_it_thaws() {
    let server = start(Version::default());
    server.pause().expect("frozen");
    server.four_letter("srvr").expect_err("no answer while frozen");
    server.resume();
    assert_eq!(server.mode(), Some(Mode::Standalone));
    server.pause().expect("frozen");
    server.stop();
    assert_eq!(server.mode(), None);
}

#[test]
fn settings_reach_the_server() {
    let server = ZooKeeper::builder()
        .tick(Duration::from_millis(100))
        .min_session(Duration::from_millis(300))
        .max_session(Duration::from_secs(7))
        .config("snapCount", "12345")
        .start()
        .expect("a server");
    let conf = server.four_letter("conf").expect("an answer");
    for line in ["tickTime=100", "minSessionTimeout=300", "maxSessionTimeout=7000", "maxClientCnxns=0"] {
        assert!(conf.contains(line), "{line} is missing from\n{conf}");
    }
}

#[test]
fn a_server_that_does_not_start_says_why() {
    let error = ZooKeeper::builder().config("minSessionTimeout", "soon").start().expect_err("a bad setting");
    assert!(error.to_string().contains("minSessionTimeout") || error.to_string().contains("soon"), "{error}");
}

#[test]
fn a_server_outlives_the_thread_that_started_it() {
    let server = std::thread::spawn(|| start(Version::default())).join().expect("a server");
    let observer = Observer::connect(server.client_addr()).expect("a session");
    observer.sync().expect("an answer");
    assert_eq!(server.watch_count().expect("a count"), 0);
}

#[test]
fn observers_see_what_others_change_and_keep_their_session() {
    let server = start(Version::default());
    let connect =
        || Observer::connect_for(server.client_addr(), Duration::from_millis(400)).expect("a session");
    let (one, two) = (connect(), connect());
    one.ensure("/a/b/c").expect("nodes");
    one.ensure("/a/b/c").expect("nodes");
    one.create("/a/b/x", b"1", CreateMode::Ephemeral).expect("a node");
    assert_eq!(two.children("/a/b").expect("children"), ["c", "x"]);
    assert_eq!(two.set("/a/b/x", b"22").expect("a stat").version, 1);
    assert_eq!(two.get("/a/b/x").expect("data").0, b"22");

    // The second outlives many session timeouts without being asked anything; the first ends at once.
    let dropped = std::thread::spawn(move || drop(one));
    two.wait_gone("/a/b/x", SOON).expect("gone with its session");
    dropped.join().expect("dropped");
    let session = two.session();
    two.wait_until_children("/a/b", Duration::from_secs(1), |_| false).expect_err("no such children");
    assert_eq!(two.session(), session);
    two.delete_tree("/a").expect("removed");
    assert_eq!(two.stat("/a").expect("an answer"), None);
}
