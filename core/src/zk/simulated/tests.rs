//! The model held to what is known of real servers.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::zk::{
    Acl, ConnectError, ConnectRequest, Connection, CreateMode, EndReason, SessionCredentials, ZkError,
};

const T: Duration = Duration::from_secs(6);

fn simulate<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime").block_on(future)
}

async fn connect_to(
    world: &World,
    process: &SimProcess,
    server: usize,
    session: Option<SessionCredentials>,
) -> Result<Arc<dyn Connection>, ConnectError> {
    let request = ConnectRequest {
        endpoint: world.endpoints()[server].clone(),
        session,
        session_timeout: T,
        connect_timeout: Duration::from_secs(3),
        read_only: false,
    };
    process.env().connector.connect(request).await
}

async fn connect(world: &World, process: &SimProcess, server: usize) -> Arc<dyn Connection> {
    connect_to(world, process, server, None).await.expect("connected")
}

async fn make(conn: &Arc<dyn Connection>, path: &str, mode: CreateMode) -> Result<String, ZkError> {
    conn.create(path, b"", mode, &Acl::Open).await.map(|created| created.name)
}

async fn until(what: &str, mut so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("never: {what}");
}

fn a_follower(world: &World) -> usize {
    let leader = world.leader().expect("a leader");
    (0..3).find(|server| *server != leader).expect("a follower")
}

#[test]
fn operations_do_what_they_say() {
    simulate(async {
        let world = World::single(1);
        let a = world.process("a");
        let conn = connect(&world, &a, 0).await;
        assert_eq!(conn.session_timeout(), T);
        assert_eq!(make(&conn, "/q", CreateMode::Persistent).await.as_deref(), Ok("q"));
        assert_eq!(
            make(&conn, "/q/n-", CreateMode::EphemeralSequential).await.as_deref(),
            Ok("n-0000000000")
        );
        let (names, stat) = conn.children("/q").await.expect("listed");
        assert_eq!((names, stat.num_children, stat.cversion), (vec!["n-0000000000".to_string()], 1, 1));
        let stat = conn.exists("/q/n-0000000000").await.expect("asked").expect("there");
        assert_eq!(stat.ephemeral_owner, conn.credentials().id.0);
        assert_eq!(conn.set_data("/q", b"x", Some(0)).await.expect("set").version, 1);
        assert_eq!(conn.set_data("/q", b"x", Some(0)).await, Err(ZkError::BadVersion));
        assert_eq!(conn.get_data("/q").await.expect("read").0, b"x");
        assert_eq!(conn.delete("/q", None).await, Err(ZkError::NotEmpty));
        assert_eq!(conn.exists("/nowhere").await, Ok(None));
        assert!(matches!(conn.exists("/q/").await, Err(ZkError::BadArguments(_))));
        assert_eq!(conn.close().await, Ok(()));
        assert_eq!(conn.ended().await, EndReason::Closed);
        assert!(world.children("/q").is_empty());
        assert_eq!(conn.sync("/").await, Err(ZkError::ConnectionLost));
    });
}

#[test]
fn an_event_comes_before_the_reply_that_could_see_the_change() {
    for seed in 0..50 {
        simulate(async move {
            let world = World::new(seed, &WorldOptions::default());
            let (a, b) = (world.process("a"), world.process("b"));
            let (ca, cb) = (connect(&world, &a, 0).await, connect(&world, &b, 1).await);
            make(&ca, "/n", CreateMode::Persistent).await.expect("made");
            cb.sync("/n").await.expect("synced");
            let (_, _, mut watch) = cb.watch_data("/n").await.expect("watched");
            let delete = ca.delete("/n", None);
            loop {
                let gone = cb.exists("/n").await.expect("asked").is_none();
                assert!(!gone || watch.try_fired() == Some(WatchEvent::Deleted), "seed {seed}");
                if gone {
                    break;
                }
            }
            delete.await.expect("deleted");
            assert_eq!(world.watch_count(), 0);
        });
    }
}

#[test]
fn a_dropped_watch_leaves_the_server_and_a_missing_node_has_none() {
    simulate(async {
        let world = World::single(1);
        let a = world.process("a");
        let conn = connect(&world, &a, 0).await;
        let (_, watch) = conn.watch_exists("/n").await.expect("watched");
        assert!(conn.watch_data("/n").await.is_err());
        let children = conn.watch_children("/");
        assert_eq!(world.watch_count(), 1);
        drop(watch);
        drop(children);
        conn.sync("/").await.expect("synced");
        conn.sync("/").await.expect("synced");
        assert_eq!(world.watches(), Vec::<String>::new());
    });
}

#[test]
fn replies_come_in_the_order_of_the_requests() {
    simulate(async {
        let world = World::new(3, &WorldOptions::default());
        let a = world.process("a");
        let conn = connect(&world, &a, a_follower(&world)).await;
        let create = conn.create("/n", b"", CreateMode::Persistent, &Acl::Open);
        let list = conn.children("/");
        // The list waits behind the create of its own session.
        assert!(list.await.expect("listed").0.contains(&"n".to_string()));
        create.await.expect("made");
    });
}

#[test]
fn a_follower_lags_and_a_sync_catches_up() {
    let mut stale = 0;
    for seed in 0..30 {
        stale += simulate(async move {
            let world = World::new(seed, &WorldOptions::default());
            let (a, b) = (world.process("a"), world.process("b"));
            let follower = a_follower(&world);
            world.set_lag(follower, Span::millis(0, 50));
            let leader = world.leader().expect("a leader");
            let (ca, cb) = (connect(&world, &a, leader).await, connect(&world, &b, follower).await);
            make(&ca, "/n", CreateMode::Persistent).await.expect("made");
            let seen = cb.exists("/n").await.expect("asked").is_some();
            cb.sync("/n").await.expect("synced");
            assert!(cb.exists("/n").await.expect("asked").is_some());
            u32::from(!seen)
        });
    }
    assert!(stale > 0);
}

/// When the session's node goes, counted from the last that its server heard of it.
async fn time_to_expiry(world: &World, path: &str) -> Duration {
    let since = world.now();
    until("expired", || world.node(path).is_none()).await;
    world.now() - since
}

#[test]
fn a_session_expires_no_sooner_than_its_timeout_and_within_a_tick_after() {
    for seed in 0..40 {
        simulate(async move {
            let world = World::new(seed, &WorldOptions { servers: 1, ..WorldOptions::default() });
            let a = world.process("a");
            let conn = connect(&world, &a, 0).await;
            make(&conn, "/e", CreateMode::Ephemeral).await.expect("made");
            a.kill();
            let after = time_to_expiry(&world, "/e").await;
            assert!(after > T - Duration::from_millis(20), "seed {seed}: {after:?}");
            assert!(after < T + Duration::from_millis(2050), "seed {seed}: {after:?}");
            assert!(world.sessions().is_empty());
        });
    }
}

#[test]
fn an_idle_session_lives_by_its_pings() {
    for servers in [1, 3] {
        simulate(async move {
            let world = World::new(5, &WorldOptions { servers, ..WorldOptions::default() });
            let a = world.process("a");
            let conn = connect(&world, &a, servers - 1).await;
            tokio::time::sleep(T * 5).await;
            assert!(!conn.has_ended());
            assert_eq!(world.sessions().len(), 1);
        });
    }
}

#[test]
fn a_session_moves_and_the_old_connection_is_refused() {
    for seed in 0..20 {
        simulate(async move {
            let world = World::new(seed, &WorldOptions::default());
            let a = world.process("a");
            let old = connect(&world, &a, 0).await;
            make(&old, "/e", CreateMode::Ephemeral).await.expect("made");
            let new = connect_to(&world, &a, 1, Some(old.credentials())).await.expect("attached");
            assert_eq!(old.credentials().id, new.credentials().id);
            assert_eq!(make(&old, "/f", CreateMode::Persistent).await, Err(ZkError::ConnectionLost));
            assert!(old.has_ended() && !new.has_ended());
            assert!(world.node("/f").is_none() && world.node("/e").is_some());
            // Attaching at the same server ends the old connection at once.
            let newer = connect_to(&world, &a, 1, Some(new.credentials())).await.expect("attached");
            assert!(matches!(new.ended().await, EndReason::Disconnected(_)));
            newer.close().await.expect("closed");
            let gone = connect_to(&world, &a, 2, Some(newer.credentials())).await;
            assert!(matches!(gone, Err(ConnectError::SessionExpired)));
        });
    }
}

#[test]
fn a_follower_that_is_cut_off_still_reads_but_does_not_sync() {
    for seed in 0..20 {
        simulate(async move {
            let world = World::new(seed, &WorldOptions::default());
            let a = world.process("a");
            let follower = a_follower(&world);
            let conn = connect(&world, &a, follower).await;
            make(&conn, "/e", CreateMode::Ephemeral).await.expect("made");
            tokio::time::sleep(Duration::from_secs(1)).await;
            world.isolate(follower, Detection::Slow);
            let cut = world.now();
            // The touches stay where they are: the leader expires a session whose client is still answered.
            while world.node("/e").is_some() {
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert!(conn.exists("/e").await.expect("answered").is_some());
            }
            let gone = world.now() - cut;
            assert!(gone > T - Duration::from_millis(1100) && gone < T + Duration::from_secs(2), "{gone:?}");
            // What needs the leader is not answered, nor is what comes after it.
            let (synced, read) = tokio::join!(conn.sync("/e"), conn.exists("/e"));
            assert_eq!((synced, read), (Err(ZkError::ConnectionLost), Err(ZkError::ConnectionLost)));
            world.rejoin();
            until("joined again", || world.leader().is_some()).await;
            tokio::time::sleep(Duration::from_secs(2)).await;
            let back = connect_to(&world, &a, follower, Some(conn.credentials())).await;
            assert!(matches!(back, Err(ConnectError::SessionExpired)), "seed {seed}");
        });
    }
}

#[test]
fn a_deposed_leader_answers_syncs_but_commits_nothing() {
    for (seed, detection) in (0..20).map(|seed| (seed, Detection::Fast)).chain([(77, Detection::Slow)]) {
        simulate(async move {
            let world = World::new(seed, &WorldOptions::default());
            let a = world.process("a");
            let old = world.leader().expect("a leader");
            let conn = connect(&world, &a, old).await;
            make(&conn, "/e", CreateMode::Ephemeral).await.expect("made");
            world.isolate(old, detection);
            let cut = world.now();
            let mut last_synced = world.now();
            while conn.sync("/").await.is_ok() {
                last_synced = world.now();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let synced_for = last_synced - cut;
            assert!(
                synced_for > Duration::from_millis(9500) && synced_for < Duration::from_secs(12),
                "{synced_for:?}"
            );
            until("another leader", || world.leader().is_some_and(|leader| leader != old)).await;
            until("expired at the new leader", || world.node("/e").is_none()).await;
            let gone = world.now() - cut;
            match detection {
                Detection::Fast => assert!(gone < Duration::from_secs(12), "{gone:?}"),
                Detection::Slow => assert!(gone > Duration::from_secs(15), "{gone:?}"),
            }
            world.rejoin();
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(!world.is_deposed(old));
        });
    }
}

#[test]
fn a_write_at_a_deposed_leader_is_lost_or_survives_with_the_new_one() {
    let mut survived = 0;
    for seed in 0..60 {
        survived += simulate(async move {
            let world = World::new(
                seed,
                &WorldOptions { commit_latency: Span::millis(5, 10), ..WorldOptions::default() },
            );
            let a = world.process("a");
            let old = world.leader().expect("a leader");
            let conn = connect(&world, &a, old).await;
            let create = make(&conn, "/p", CreateMode::Persistent);
            let cut = async {
                tokio::time::sleep(Duration::from_millis(4)).await;
                world.isolate(old, Detection::Fast);
            };
            let (created, ()) = tokio::join!(create, cut);
            until("another leader", || world.leader().is_some_and(|leader| leader != old)).await;
            u32::from(created.is_err() && world.node("/p").is_some())
        });
    }
    assert!(survived > 0 && survived < 60, "{survived}");
}

#[test]
fn sessions_outlive_a_leader() {
    for seed in 0..20 {
        simulate(async move {
            let world = World::new(seed, &WorldOptions::default());
            let a = world.process("a");
            let leader = world.leader().expect("a leader");
            let conn = connect(&world, &a, leader).await;
            make(&conn, "/e", CreateMode::Ephemeral).await.expect("made");
            world.crash(leader);
            conn.ended().await;
            until("a new leader", || world.leader().is_some()).await;
            let server = world.leader().expect("a leader");
            let again = connect_to(&world, &a, server, Some(conn.credentials())).await.expect("attached");
            assert!(again.exists("/e").await.expect("asked").is_some());
            world.start(leader);
            tokio::time::sleep(Duration::from_secs(2)).await;
            let third = connect_to(&world, &a, leader, Some(conn.credentials())).await.expect("attached");
            assert!(third.exists("/e").await.expect("asked").is_some());
        });
    }
}

#[test]
fn request_faults_do_what_they_say() {
    use RequestFault::*;
    for (fault, applied, answered) in [
        (LostEof, false, false),
        (LostReset, false, false),
        (LostSilently, false, false),
        (ReplyLostEof, true, false),
        (ReplyLostReset, true, false),
        (ReplyLostSilently, true, false),
        (Delayed(Duration::from_millis(300)), true, true),
        (Throttled, false, false),
    ] {
        simulate(async move {
            let world = World::single(9);
            let a = world.process("a");
            let conn = connect(&world, &a, 0).await;
            a.arm(RequestKind::Create, fault);
            conn.sync("/").await.expect("not meant");
            let start = world.now();
            let made = make(&conn, "/n", CreateMode::Persistent).await;
            assert_eq!(made.is_ok(), answered, "{fault:?}");
            assert_eq!(world.node("/n").is_some(), applied, "{fault:?}");
            match fault {
                Throttled => assert_eq!(made, Err(ZkError::Throttled)),
                Delayed(by) => assert!(world.now() - start >= by),
                LostSilently | ReplyLostSilently => assert!(world.now() - start >= T * 2 / 5),
                _ => assert_eq!(made, Err(ZkError::ConnectionLost)),
            }
        });
    }
}

#[test]
fn a_stalled_link_delivers_everything_at_once() {
    simulate(async {
        let world = World::single(4);
        let a = world.process("a");
        let conn = connect(&world, &a, 0).await;
        a.stall(None, true, true);
        let (one, two) = (conn.sync("/"), conn.create("/n", b"", CreateMode::Persistent, &Acl::Open));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.node("/n").is_none());
        assert!(connect_to(&world, &a, 0, None).await.is_err(), "nobody answers");
        a.release();
        let released = world.now();
        // The silence has ended the connection on the client's side, but the kernel may still have delivered.
        drop((one, two));
        assert!(world.now() - released < Duration::from_millis(10));
    });
    simulate(async {
        let world = World::single(4);
        let a = world.process("a");
        let conn = connect(&world, &a, 0).await;
        a.stall(None, false, true);
        let (one, two) = (conn.sync("/"), conn.create("/n", b"", CreateMode::Persistent, &Acl::Open));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(world.node("/n").is_some());
        let released = world.now();
        a.release();
        one.await.expect("answered");
        two.await.expect("answered");
        assert!(world.now() - released < Duration::from_millis(10));
    });
}

#[test]
fn a_frozen_process_stands_still_and_reads_its_mail_when_thawed() {
    simulate(async {
        let world = World::single(4);
        let (a, b) = (world.process("a"), world.process("b"));
        let ca = connect(&world, &a, 0).await;
        let cb = connect(&world, &b, 0).await;
        let (_, mut watch) = ca.watch_exists("/n").await.expect("watched");
        let ticks = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counter = ticks.clone();
        let env = a.env();
        a.spawn(async move {
            loop {
                env.sleep(Duration::from_millis(100)).await;
                counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let count = || ticks.load(std::sync::atomic::Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(550)).await;
        a.freeze();
        assert_eq!(count(), 5);
        make(&cb, "/n", CreateMode::Persistent).await.expect("made");
        let before = a.env().now();
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(count(), 5);
        assert_eq!(watch.try_fired(), None);
        assert_eq!(a.env().now().since(before), Duration::from_secs(2), "the lease clock goes on");
        a.thaw();
        assert_eq!(watch.fired().await, WatchEvent::Created);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(count(), 6);
    });
}

#[test]
fn a_killed_process_runs_no_more_and_its_session_expires() {
    simulate(async {
        let world = World::new(4, &WorldOptions::default());
        let a = world.process("a");
        let conn = connect(&world, &a, 1).await;
        make(&conn, "/e", CreateMode::Ephemeral).await.expect("made");
        let running = a.run(std::future::pending::<()>());
        a.kill();
        assert_eq!(running.await, None);
        assert!(conn.has_ended());
        assert!(world.node("/e").is_some());
        time_to_expiry(&world, "/e").await;
    });
}

#[test]
fn doors_and_throttling() {
    simulate(async {
        let world = World::single(4);
        let a = world.process("a");
        for (door, resolves) in [(Door::Refusing, true), (Door::NoRoute, true), (Door::Unresolvable, false)] {
            world.set_door(0, door);
            let refused = connect_to(&world, &a, 0, None).await.err();
            assert_eq!(matches!(refused, Some(ConnectError::Unreachable(_))), resolves, "{door:?}");
        }
        world.set_door(0, Door::Open);
        let conn = connect(&world, &a, 0).await;
        world.set_throttling(0, 1.0);
        assert_eq!(conn.sync("/").await, Err(ZkError::Throttled));
    });
}

#[test]
fn an_operator_and_a_container_sweep_change_the_tree() {
    simulate(async {
        let world = World::single(4);
        let a = world.process("a");
        let conn = connect(&world, &a, 0).await;
        world.operator_create("/q", b"x").expect("made");
        world.force_counter("/q", i32::MAX).expect("forced");
        make(&conn, "/q/a-", CreateMode::EphemeralSequential).await.expect("made");
        assert_eq!(world.children("/q"), ["a-2147483647"]);
        world.operator_delete_all("/q").expect("deleted");
        assert!(world.node("/q").is_none());
        make(&conn, "/c", CreateMode::Container).await.expect("made");
        let name = make(&conn, "/c/x-", CreateMode::EphemeralSequential).await.expect("made");
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert!(world.node("/c").is_some());
        conn.delete(&format!("/c/{name}"), None).await.expect("deleted");
        tokio::time::sleep(Duration::from_secs(70)).await;
        assert!(world.node("/c").is_none());
    });
}

#[test]
fn the_hook_sees_every_change_once_and_in_order() {
    simulate(async {
        let world = World::new(8, &WorldOptions::default());
        let seen = Arc::new(Mutex::new(Vec::new()));
        let notes = seen.clone();
        world.on_step(move |step| notes.lock().expect("alone").extend(step.notes.iter().cloned()));
        let a = world.process("a");
        let conn = connect(&world, &a, 1).await;
        let (_, _watch) = conn.watch_exists("/n").await.expect("watched");
        make(&conn, "/n", CreateMode::Ephemeral).await.expect("made");
        conn.close().await.expect("closed");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let seen = seen.lock().expect("alone");
        let kinds: Vec<_> = seen
            .iter()
            .map(|note| match note {
                Note::Attached { .. } => "attached",
                Note::Created { .. } => "created",
                Note::Told { .. } => "told",
                Note::Deleted { .. } => "deleted",
                Note::SessionClosed { .. } => "closed",
                Note::Panicked { .. } => "panicked",
            })
            .collect();
        assert_eq!(kinds.iter().filter(|kind| **kind == "created").count(), 1);
        assert!(kinds.contains(&"told") && kinds.contains(&"deleted") && kinds.contains(&"closed"));
    });
}

/// Some clients that do this and that while things go wrong.
fn busy(seed: u64, trace: usize) -> (Vec<String>, u64) {
    simulate(async move {
        let world = World::new(seed, &WorldOptions { trace, ..WorldOptions::default() });
        world.operator_create("/q", b"").expect("made");
        let rates = RequestRates { lost: 0.02, reply_lost: 0.02, ..RequestRates::default() };
        let processes: Vec<_> = (0..3).map(|index| world.process(&format!("p{index}"))).collect();
        for (index, process) in processes.iter().enumerate() {
            process.set_rates(rates);
            let (env, endpoint) = (process.env(), world.endpoints()[index].clone());
            process.spawn(async move {
                let mut session: Option<SessionCredentials> = None;
                loop {
                    let request = ConnectRequest {
                        endpoint: endpoint.clone(),
                        session: session.clone(),
                        session_timeout: T,
                        connect_timeout: Duration::from_secs(1),
                        read_only: false,
                    };
                    match env.connector.connect(request).await {
                        Ok(conn) => {
                            session = Some(conn.credentials());
                            while !conn.has_ended() {
                                let made = make(&conn, "/q/n-", CreateMode::EphemeralSequential).await;
                                let watching = conn.watch_children("/q").await;
                                env.sleep(Duration::from_millis(env.chance.next_u64() % 200)).await;
                                if let Ok(name) = made {
                                    let _ = conn.delete(&format!("/q/{name}"), None).await;
                                }
                                drop(watching);
                            }
                        }
                        Err(ConnectError::SessionExpired) => session = None,
                        Err(_) => env.sleep(Duration::from_millis(50)).await,
                    }
                }
            });
        }
        let leader = world.leader().expect("a leader");
        tokio::time::sleep(Duration::from_secs(3)).await;
        world.isolate(leader, Detection::Fast);
        processes[0].freeze();
        tokio::time::sleep(Duration::from_secs(3)).await;
        processes[0].thaw();
        processes[1].kill();
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.rejoin();
        tokio::time::sleep(Duration::from_secs(4)).await;
        (world.trace_lines(), world.steps())
    })
}

#[test]
fn a_seed_decides_everything() {
    for seed in 0..5 {
        let (once, again) = (busy(seed, 100_000), busy(seed, 100_000));
        for (a, b) in once.0.iter().zip(&again.0) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(once.1, again.1);
        assert_eq!(busy(seed, 0).1, once.1, "tracing changes nothing");
    }
    assert_ne!(busy(1, 0).1, busy(2, 0).1);
}
