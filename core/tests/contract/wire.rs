//! What the adapter puts on the wire, and when, as seen from the network between it and a real server.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forelock::zk::{
    Acl, ConnectError, Connection, Connector, CreateMode, EndReason, Endpoint, WatchEvent, ZkError,
};
use forelock_testkit::{Cut, FaultProxy, Flow, Op, Rule, Scope, Version};

use crate::real::{Real, plain_connector};
use crate::world::{PATIENCE, connect, fired, make, present, request};

/// A real server behind a network of our own.
struct Bench {
    real: Real,
    proxy: FaultProxy,
    root: String,
}

impl Bench {
    async fn new(name: &str) -> Self {
        let (real, proxy) = forelock_testkit::off_thread(|| {
            let real = Real::shared(Version::default());
            let proxy = FaultProxy::builder(real.server.client_addr()).ipv6().start().expect("a proxy");
            (real, proxy)
        })
        .await;
        let root = format!("/wire-{name}");
        let direct = connect(&real).await;
        make(&direct, &root, CreateMode::Persistent).await;
        direct.close().await.expect("closed");
        Self { real, proxy, root }
    }

    /// A connection through the proxy.
    async fn connect(&self) -> Arc<dyn Connection> {
        self.connect_to("127.0.0.1").await.expect("a connection")
    }

    async fn connect_to(&self, host: &str) -> Result<Arc<dyn Connection>, ConnectError> {
        let mut request = request(&self.real, None);
        request.endpoint = Endpoint { host: host.to_owned(), port: self.proxy.port() };
        plain_connector().connect(request).await
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_made_together_travel_together() {
    let bench = Bench::new("together").await;
    let zk = bench.connect().await;
    // Long enough on the way that a client that waits for replies would show it.
    let each_way = Duration::from_millis(20);
    bench.proxy.delay(each_way, each_way, Scope::All);
    for _ in 0..20 {
        // Past the phase in which the kernel acknowledges every segment at once.
        zk.sync("/").await.unwrap();
    }
    let mut together = Vec::new();
    let mut in_turn = Vec::new();
    for _ in 0..9 {
        let mark = bench.proxy.journal().mark();
        let started = Instant::now();
        let create = zk.create(&bench.at("n-"), b"", CreateMode::EphemeralSequential, &Acl::Open);
        let children = zk.children(&bench.root);
        create.await.unwrap();
        children.await.unwrap();
        together.push(started.elapsed());
        let records = bench.proxy.journal().since(mark);
        assert!(records.in_flight_together(Op::Create2, Op::GetChildren2), "{records}");

        let started = Instant::now();
        zk.create(&bench.at("n-"), b"", CreateMode::EphemeralSequential, &Acl::Open).await.unwrap();
        zk.children(&bench.root).await.unwrap();
        in_turn.push(started.elapsed());
    }
    together.sort();
    in_turn.sort();
    let (together, in_turn) = (together[4], in_turn[4]);
    assert!(together * 4 < in_turn * 3, "{together:?} together, {in_turn:?} one after the other");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_request_does_not_wait_for_the_answer_to_another() {
    let bench = Bench::new("nodelay").await;
    let zk = bench.connect().await;
    for _ in 0..30 {
        zk.sync("/").await.unwrap();
    }
    bench.proxy.stall(Flow::ToClient, Scope::All);
    let mark = bench.proxy.journal().mark();
    let create = zk.create(&bench.at("a"), b"", CreateMode::Persistent, &Acl::Open);
    // Written and arrived on its own, before there is anything that it could be sent together with.
    let journal = bench.proxy.journal();
    journal.until(mark, PATIENCE, |entry| entry.is_request_of(Op::Create2)).await.unwrap();
    let children = zk.children(&bench.root);
    journal.until(mark, PATIENCE, |entry| entry.is_request_of(Op::GetChildren2)).await.unwrap();
    assert!(journal.since(mark).replies().all(|reply| !reply.is_delivered()));
    bench.proxy.resume(Flow::ToClient);
    create.await.unwrap();
    children.await.unwrap();
    assert!(has_nodelay(bench.proxy.port()));
}

/// Whether our sockets to this port have TCP_NODELAY set.
#[cfg(target_os = "linux")]
fn has_nodelay(port: u16) -> bool {
    use std::os::fd::BorrowedFd;
    let mut found = 0;
    for entry in std::fs::read_dir("/proc/self/fd").expect("our descriptors") {
        let name = entry.expect("a descriptor").file_name();
        let fd = name.to_str().and_then(|name| name.parse().ok()).expect("a number");
        // SAFETY: only asked about its peer and an option; see the adapter's own look-up.
        let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
        let socket = socket2::SockRef::from(&descriptor);
        let peer = socket.peer_addr().ok().and_then(|peer| peer.as_socket());
        if peer.is_some_and(|peer| peer.port() == port) {
            assert!(socket.tcp_nodelay().expect("a TCP socket"));
            found += 1;
        }
    }
    found > 0
}

#[cfg(not(target_os = "linux"))]
fn has_nodelay(_port: u16) -> bool {
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_wire_is_silent_between_heartbeats() {
    let bench = Bench::new("silent").await;
    let mut request = request(&bench.real, None);
    request.endpoint.port = bench.proxy.port();
    // As long as the server grants, so that a busy machine is no reason for a ping.
    request.session_timeout = Duration::from_secs(4);
    let zk = plain_connector().connect(request).await.unwrap();
    let mark = bench.proxy.journal().mark();
    let every = zk.session_timeout() / 6;
    for _ in 0..10 {
        zk.sync("/").await.unwrap();
        tokio::time::sleep(every).await;
    }
    let records = bench.proxy.journal().since(mark);
    // Our heartbeats take the place of the crate's pings.
    assert_eq!((records.count(Op::Sync), records.count(Op::Ping)), (10, 0), "{records}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_removed_from_the_server() {
    let bench = Bench::new("watches").await;
    let zk = bench.connect().await;
    let session = zk.credentials().id.0;
    let watched =
        || bench.real.server.watches_by_session().expect("an answer").remove(&session).unwrap_or_default();
    let (_, kept) = zk.watch_exists(&bench.at("kept")).await.unwrap();
    let (_, dropped) = zk.watch_exists(&bench.at("dropped")).await.unwrap();
    assert_eq!(watched().len(), 2);
    drop(dropped);
    // Given up before the reply; one that finds its node, and one that does not.
    drop(zk.watch_data(&bench.root));
    drop(zk.watch_exists(&bench.at("early")));
    zk.sync("/").await.unwrap();
    zk.sync("/").await.unwrap();
    assert_eq!(watched(), [bench.at("kept")].into());

    // One that has fired leaves nothing to remove, read or not.
    make(&zk, &bench.at("kept"), CreateMode::Ephemeral).await;
    let mark = bench.proxy.journal().mark();
    drop(kept);
    assert!(zk.watch_data(&bench.at("nowhere")).await.is_err());
    zk.sync("/").await.unwrap();
    assert_eq!(bench.proxy.journal().since(mark).count(Op::RemoveWatches), 0);
    assert!(watched().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_is_lost_leaves_the_outcome_open() {
    let bench = Bench::new("lost").await;
    for how in [Cut::Eof, Cut::Rst] {
        let zk = bench.connect().await;
        let path = bench.at(&format!("{how:?}"));
        let (_, _, mut watch) = zk.watch_data(&bench.root).await.unwrap();
        let rule = bench.proxy.install(Rule::drop_reply(Op::CREATES).then_cut(how));
        let create = zk.create(&path, b"", CreateMode::Persistent, &Acl::Open);
        rule.fired(PATIENCE).await.unwrap();
        assert_eq!(create.await, Err(ZkError::ConnectionLost));
        assert_eq!(fired(&mut watch).await, WatchEvent::ConnectionEnded);
        let EndReason::Disconnected(why) = zk.ended().await else { panic!("it is disconnected") };
        let cause = if how == Cut::Eof { "closed" } else { "reset" };
        assert!(why.contains(cause), "{how:?}: {why}");
        assert!(present(&bench.connect().await, &path).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_expires_on_a_stalled_link() {
    let bench = Bench::new("stalled").await;
    let zk = bench.connect().await;
    make(&zk, &bench.at("a"), CreateMode::Ephemeral).await;
    let observer = connect(&bench.real).await;
    let (_, _, mut watch) = observer.watch_data(&bench.at("a")).await.unwrap();
    bench.proxy.stall(Flow::ToServer, Scope::All);
    assert_eq!(fired(&mut watch).await, WatchEvent::Deleted);
    bench.proxy.resume(Flow::ToServer);
    // The server hangs up, or the silence was too long for us already: either says nothing about the session.
    let ended = tokio::time::timeout(PATIENCE, zk.ended()).await.expect("it ends");
    assert!(matches!(ended, EndReason::Disconnected(_) | EndReason::SessionExpired), "{ended:?}");
    let mut again = request(&bench.real, Some(zk.credentials()));
    again.endpoint.port = bench.proxy.port();
    let again = plain_connector().connect(again).await.map(drop);
    assert_eq!(again, Err(ConnectError::SessionExpired));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_is_said_and_aborting_is_not() {
    let bench = Bench::new("closing").await;
    for (abort, said) in [(false, 1), (true, 0)] {
        let mark = bench.proxy.journal().mark();
        let zk = bench.connect().await;
        let session = zk.credentials().id.0;
        let pending = zk.sync("/");
        if abort {
            zk.abort();
        } else {
            zk.close().await.unwrap();
        }
        drop((pending, zk));
        let closed =
            |entry: &forelock_testkit::proxy::Entry| entry.what == forelock_testkit::proxy::What::Closed;
        bench.proxy.journal().until(mark, PATIENCE, closed).await.unwrap();
        assert_eq!(bench.proxy.journal().since(mark).count(Op::CloseSession), said);
        let sessions = bench.real.server.sessions().unwrap();
        assert_eq!(sessions.contains(&session), abort);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hosts_by_name_and_by_either_kind_of_address() {
    let bench = Bench::new("hosts").await;
    for host in ["127.0.0.1", "::1", "localhost"] {
        for _ in 0..3 {
            let zk = bench.connect_to(host).await.unwrap_or_else(|error| panic!("{host}: {error}"));
            zk.close().await.unwrap();
        }
    }
    bench.proxy.refuse();
    let ConnectError::Unreachable(why) = bench.connect_to("127.0.0.1").await.map(drop).unwrap_err() else {
        panic!("nobody listens");
    };
    assert!(why.contains(&bench.proxy.addr().to_string()) && why.contains("refused"), "{why}");
    let error = bench.connect_to("no-such-host.invalid").await.map(drop).unwrap_err();
    let ConnectError::Unresolvable(why) = error else { panic!("{error:?}") };
    assert!(why.contains("no-such-host.invalid"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_address_of_two_that_swallows_packets() {
    let bench = Bench::new("swallows").await;
    bench.proxy.blackhole(Flow::Both, Scope::All);
    let mut to_proxy = request(&bench.real, None);
    to_proxy.endpoint = Endpoint { host: "localhost".to_owned(), port: bench.proxy.port() };
    to_proxy.connect_timeout = Duration::from_millis(600);
    let started = Instant::now();
    let error = plain_connector().connect(to_proxy).await.map(drop).unwrap_err();
    let ConnectError::Unreachable(why) = error else { panic!("{error:?}") };
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}: {why}", started.elapsed());
    assert!(why.contains("no answer"), "{why}");
}
