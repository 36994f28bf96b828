//! The promise the project is for: the holder is told before anyone else is granted the lock. Fault 1.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forelock::{AcquireOptions, Client, ConnectionState, LockState, LostReason, Options, Timeout};
use forelock_testkit::{Cut, FaultProxy, Flow, Scope, ZooKeeper, processes};

use crate::support::*;

const RUNS: usize = 50;

/// One holder behind a proxy of its own, and a rival that waits. The holder's network goes silent.
async fn silent_partition(server: Arc<ZooKeeper>, options: Options, path: String) -> Duration {
    let proxy = FaultProxy::start(server.client_addr()).expect("a fault proxy");
    let holder = Client::with_options(&proxy.handle().connect_string(), options.clone()).expect("a client");
    let rival = Client::with_options(&server.connect_string(), options.clone()).expect("a client");
    let held = soon("held", holder.mutex(&path).expect("a path").acquire()).await.expect("acquired");
    let mutex = rival.mutex(&path).expect("a path");
    let for_long = Timeout::After(Duration::from_secs(60));
    let rival = tokio::spawn(async move {
        let held = mutex.acquire_with(AcquireOptions::default().with_timeout(for_long)).await;
        (Instant::now(), held.expect("granted"))
    });
    forelock_testkit::Observer::connect(server.client_addr())
        .expect("an observer")
        .until_children(&path, SOON, |children| children.len() == 2)
        .await
        .expect("the rival in line");
    // Let a few heartbeats pass, at another point of their rhythm in each run.
    let phase = path.bytes().map(u32::from).sum::<u32>() % 17;
    tokio::time::sleep(options.session_timeout / 6 * phase / 8).await;
    proxy.handle().blackhole(Flow::Both, Scope::All);
    let silent = Instant::now();
    let reason = held.lost().await;
    let told = Instant::now();
    assert_eq!(reason, Some(LostReason::LeaseElapsed));
    assert!(!held.is_valid());
    let (granted, next) = rival.await.expect("no panic");
    assert!(next.token() > held.token());
    assert!(
        told < granted,
        "told {:?} after the silence, and granted after {:?}",
        told - silent,
        granted - silent
    );
    granted - told
}

async fn silent_partitions(server: Arc<ZooKeeper>, options: Options, name: &str) {
    let mut runs = tokio::task::JoinSet::new();
    for run in 0..RUNS {
        runs.spawn(silent_partition(server.clone(), options.clone(), format!("/partition/{name}/{run}")));
    }
    let mut margins: Vec<_> = Vec::new();
    while let Some(margin) = runs.join_next().await {
        margins.push(margin.expect("told before the next grant"));
    }
    margins.sort();
    println!(
        "{name}: told before the next grant in {} of {RUNS} runs, by {:?} to {:?}",
        margins.len(),
        margins[0],
        margins[RUNS - 1]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_partition_with_4_s_on_200_ms_ticks_tells_the_holder_first() {
    silent_partitions(fast_server(), options(), "fast").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_partition_with_6_s_on_2_s_ticks_tells_the_holder_first() {
    let options = options().with_session_timeout(Duration::from_secs(6)).with_tick(Duration::from_secs(2));
    silent_partitions(slow_server(), options, "slow").await;
}

/// Fault 28: within the survivable outage nothing is lost. Suspect, then held again, with the same token.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_well_within_the_survivable_one_costs_nothing() {
    let server = fast_server();
    let proxy = proxy(&server);
    let client = connected(&proxy.handle().connect_string()).await;
    let mut states = client.states();
    let held =
        soon("held", client.mutex("/partition/short").expect("a path").acquire()).await.expect("acquired");
    let session = client.session().expect("connected");
    assert!(session.survivable_outage > Duration::from_millis(2_200), "{session:?}");
    for round in 0..3 {
        proxy.handle().refuse();
        proxy.handle().cut(if round == 1 { Cut::Rst } else { Cut::Eof });
        let down = soon("suspended", states.next()).await.expect("open");
        assert_eq!((down.state, down.session), (ConnectionState::Suspended, session.id));
        eventually("suspect", || held.state() == LockState::Suspect).await;
        assert!(held.is_valid(), "suspect is still valid");
        tokio::time::sleep(session.survivable_outage / 2).await;
        proxy.handle().accept().expect("listening");
        let up = soon("reconnected", states.next()).await.expect("open");
        assert_eq!((up.state, up.session, up.same_session), (ConnectionState::Reconnected, session.id, true));
        eventually("held again", || held.state() == LockState::Held).await;
    }
    assert!(held.is_valid());
    soon("verify", held.verify()).await.expect("still ours");
    soon("release", held.release()).await.expect("never lost");
    assert_eq!(client.metrics().losses(), 0);
}

/// Fault 26: the back-off does not sleep through the return of the network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_session_is_saved_when_the_network_comes_back_in_time() {
    let server = own_server(Duration::from_millis(500));
    let proxy = proxy(&server);
    let options =
        options().with_session_timeout(Duration::from_secs(10)).with_tick(Duration::from_millis(500));
    let client = Client::with_options(&proxy.handle().connect_string(), options).expect("a client");
    let held =
        soon("held", client.mutex("/partition/back").expect("a path").acquire()).await.expect("acquired");
    let mut states = client.states();
    proxy.handle().blackhole(Flow::Both, Scope::All);
    let silent = Instant::now();
    soon("suspended", states.wait_for(ConnectionState::Suspended)).await.expect("open");
    tokio::time::sleep_until((silent + Duration::from_millis(6_500)).into()).await;
    proxy.handle().restore().expect("listening");
    let back = Limited::begin();
    let up = soon("reconnected", states.next()).await.expect("open");
    assert!(up.same_session, "{up:?}");
    back.is_within(Duration::from_secs(2), "reconnecting after the return");
    assert!(held.is_valid());
}

/// A holder in a process of its own, which a test can freeze.
struct Holder {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(servers: &str, path: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["partition::holder_process", "--exact", "--ignored", "--nocapture"])
            .env("FORELOCK_HOLDER", format!("{servers} {path}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a holder process");
        let output = BufReader::new(child.stdout.take().expect("its output"));
        Self { child, output }
    }

    /// The next line that starts with `word`; what follows the word.
    fn hear(&mut self, word: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).expect("output") > 0, "the holder ended before {word}");
            if let Some((_, rest)) = line.split_once(&format!("@{word} ")) {
                return rest.trim().to_owned();
            }
        }
    }

    fn ask(&mut self) {
        writeln!(self.child.stdin.as_mut().expect("its input"), "valid?").expect("asked");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = processes::kill(&mut self.child);
    }
}

/// Not a test: the body of the process that [`Holder`] starts.
#[test]
#[ignore = "run by other tests, in a process of its own"]
fn holder_process() {
    let Ok(job) = std::env::var("FORELOCK_HOLDER") else { return };
    let (servers, path) = job.split_once(' ').expect("servers and a path");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = client(servers);
    let held = runtime.block_on(client.mutex(path).expect("a path").acquire()).expect("acquired");
    println!("@held {}", held.token());
    for line in std::io::stdin().lines() {
        // The first line that this process runs after it was frozen.
        let valid = held.is_valid();
        println!("@valid {valid} {:?}", line.expect("input"));
    }
}

/// A holder that is frozen for longer than its session finds out with its first look at the clock.
#[test]
fn a_frozen_holder_is_told_by_its_first_look_after_waking() {
    let server = fast_server();
    let runs: Vec<_> = (0..RUNS)
        .map(|run| {
            let server = server.clone();
            std::thread::spawn(move || frozen_holder(&server, &format!("/frozen/{run}")))
        })
        .collect();
    for run in runs {
        run.join().expect("told");
    }
}

fn frozen_holder(server: &ZooKeeper, path: &str) {
    let mut holder = Holder::start(&server.connect_string(), path);
    let token: i64 = holder.hear("held").parse().expect("a token");
    holder.ask();
    assert!(holder.hear("valid").starts_with("true"));
    processes::freeze(holder.child.id()).expect("frozen");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let rival = client(&server.connect_string());
    let next = runtime.block_on(rival.mutex(path).expect("a path").acquire()).expect("granted");
    assert!(next.token().0 > token);
    holder.ask();
    processes::thaw(holder.child.id()).expect("thawed");
    assert!(holder.hear("valid").starts_with("false"), "the first look after waking");
    assert!(next.is_valid());
    runtime.block_on(rival.close()).expect("closed");
}
