//! An ensemble whose links can be cut elects, loses and takes back its members.

use std::time::Duration;

use forelock_testkit::servers::Mode;
use forelock_testkit::{CreateMode, Ensemble, Observer, Version, ZooKeeper};

const SOON: Duration = Duration::from_secs(120);

fn start(version: Version) -> Ensemble {
    Ensemble::builder().server(ZooKeeper::builder().version(version)).start().expect("an ensemble")
}

fn connect(server: &ZooKeeper) -> Observer {
    Observer::connect(server.client_addr()).expect("a session")
}

#[test]
fn a_server_that_is_cut_off_stops_serving_and_comes_back() {
    for version in Version::ALL {
        let ensemble = start(version);
        for round in ["follower", "leader"] {
            let leader = ensemble.wait_healthy(SOON).expect("a leader");
            let lost = if round == "leader" { leader } else { ensemble.followers()[0] };
            let other = (0..3).find(|i| *i != lost && *i != leader).expect("three servers");
            let path = format!("/{round}");

            ensemble.isolate(lost);
            let fits = |modes: &[Option<Mode>]| {
                let leaders = modes.iter().filter(|mode| **mode == Some(Mode::Leader)).count();
                modes[lost].is_none() && leaders == 1 && modes.iter().flatten().count() == 2
            };
            ensemble.wait_modes(SOON, fits).expect("the majority goes on without it");
            connect(ensemble.server(other))
                .create(&path, b"", CreateMode::Persistent)
                .expect("a majority writes");
            assert_eq!(ensemble.server(lost).mode(), None, "{round}");

            ensemble.heal(lost);
            ensemble.wait_healthy(SOON).expect("it comes back");
            let observer = connect(ensemble.server(lost));
            observer.wait_stat(&path, SOON, |stat| stat.is_some()).expect("and catches up");
        }
    }
}

#[test]
fn a_cut_of_one_link_leaves_the_other_follower_alone() {
    let ensemble = start(Version::default());
    let leader = ensemble.wait_healthy(SOON).expect("a leader");
    let [cut, whole] = ensemble.followers()[..] else { panic!("two followers") };
    let observer = connect(ensemble.server(whole));
    ensemble.cut_link(leader, cut);
    ensemble.wait_modes(SOON, |modes| modes[cut].is_none()).expect("it has lost its leader");
    observer.create("/n", b"", CreateMode::Persistent).expect("a majority writes");
    assert_eq!(ensemble.leader(), Some(leader));
    ensemble.heal_link(leader, cut);
    ensemble.wait_healthy(SOON).expect("it comes back");
}

#[test]
fn a_stall_that_is_short_is_noticed_by_nobody() {
    let server = ZooKeeper::builder().tick(Duration::from_secs(2));
    let ensemble = Ensemble::builder().server(server).start().expect("an ensemble");
    let leader = ensemble.wait_healthy(SOON).expect("a leader");
    let follower = ensemble.followers()[0];
    let (here, there) = (connect(ensemble.server(leader)), connect(ensemble.server(follower)));
    ensemble.isolate(follower);
    here.create("/n", b"", CreateMode::Persistent).expect("a majority writes");
    let quiet = there.wait_stat("/n", Duration::from_millis(100), |stat| stat.is_some());
    quiet.expect_err("the follower answers from an old tree");
    ensemble.heal(follower);
    there.wait_stat("/n", SOON, |stat| stat.is_some()).expect("it catches up");
    assert_eq!(ensemble.leader(), Some(leader));
}

#[test]
fn a_killed_member_can_be_started_again() {
    let ensemble = Ensemble::builder().direct_links().start().expect("an ensemble");
    let leader = ensemble.wait_healthy(SOON).expect("a leader");
    ensemble.server(leader).kill();
    ensemble.wait_modes(SOON, |modes| modes.contains(&Some(Mode::Leader))).expect("another leader");
    assert_ne!(ensemble.leader(), Some(leader));
    ensemble.restart(leader).expect("a restart");
    ensemble.wait_healthy(SOON).expect("all serve");
    assert!(ensemble.link(0, 1).is_none());
}
