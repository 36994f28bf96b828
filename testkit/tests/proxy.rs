//! What the proxy does to the connections between the observer, as a client, and a real server.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use forelock_testkit::proxy::{Entry, Fate, What};
use forelock_testkit::{
    CreateMode, Cut, EventKind, FaultProxy, Flow, Observer, ObserverError, Op, Rule, Scope, ZooKeeper,
    wire::Writer,
};

const SOON: Duration = Duration::from_secs(60);

/// One server for all tests; each works under a node of its own, through a proxy of its own.
static SERVER: LazyLock<ZooKeeper> = LazyLock::new(|| ZooKeeper::start().expect("a server"));

struct Bench {
    proxy: FaultProxy,
    client: Observer,
    direct: Observer,
    root: String,
}

fn bench() -> Bench {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let proxy = FaultProxy::start(SERVER.client_addr()).expect("a proxy");
    let client = Observer::connect(proxy.addr()).expect("a session through the proxy");
    let direct = Observer::connect(SERVER.client_addr()).expect("a session");
    let root = format!("/test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
    direct.ensure(&root).expect("a node");
    Bench { proxy, client, direct, root }
}

impl Bench {
    fn path(&self, name: &str) -> String {
        format!("{}/{name}", self.root)
    }

    fn create(&self, name: &str) -> Result<String, ObserverError> {
        self.client.create(&self.path(name), &[], CreateMode::Persistent).map(|(path, _)| path)
    }
}

/// Whether a connection ends in order (`true`) or with a reset.
fn ends_in_order(mut stream: TcpStream) -> bool {
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
        other => panic!("the connection goes on: {other:?}"),
    }
}

#[test]
fn the_journal_tells_what_passed_in_order() {
    let bench = bench();
    let mark = bench.proxy.journal().mark();
    let made =
        bench.client.create(&bench.path("n-"), b"x", CreateMode::PersistentSequential).expect("a node").0;
    bench.client.children(&bench.root).expect("children");
    bench.client.delete(&bench.path("absent")).expect_err("no such node");

    let records = bench.proxy.journal().since(mark);
    let seen: Vec<_> = records.iter().map(|entry| (entry.op(), entry.is_request(), entry.err())).collect();
    let expected = [
        (Some(Op::Create2), true, None),
        (Some(Op::Create2), false, Some(0)),
        (Some(Op::GetChildren), true, None),
        (Some(Op::GetChildren), false, Some(0)),
        (Some(Op::Delete), true, None),
        (Some(Op::Delete), false, Some(-101)),
    ];
    assert_eq!(seen, expected, "\n{records}");
    assert!(matches!(&records[1].what, What::Reply { created: Some(path), .. } if *path == made));
    assert_eq!(records[4].path(), Some(bench.path("absent").as_str()));
    assert!(records.iter().all(|entry| entry.session == bench.client.session() && entry.is_delivered()));
    assert!(records.windows(2).all(|pair| pair[0].boot_ns <= pair[1].boot_ns));
    assert_eq!((records.count(Op::Create2), records.count(Op::Ping)), (1, 0));
    assert!(!records.in_flight_together(Op::Create2, Op::GetChildren));
}

#[test]
fn a_refusing_proxy_keeps_its_port_and_its_connections() {
    let bench = bench();
    bench.proxy.refuse();
    let refused = TcpStream::connect(bench.proxy.addr()).expect_err("refused");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    bench.create("through the open connection").expect("a node");
    bench.proxy.accept().expect("the port");
    bench.proxy.accept().expect("it is open already");
    TcpStream::connect(bench.proxy.addr()).expect("accepted");
}

#[test]
fn a_cut_is_seen_as_the_end_or_as_a_reset() {
    let bench = bench();
    for (how, in_order) in [(Cut::Eof, true), (Cut::Rst, false)] {
        let stream = TcpStream::connect(bench.proxy.addr()).expect("a connection");
        let mark = bench.proxy.journal().mark();
        // Data that nobody has read must not turn an orderly end into a reset.
        (&stream).write_all(&[0, 0, 0, 9, 0]).expect("written");
        let opened = || bench.proxy.connections().len() == 2;
        let start = Instant::now();
        while !opened() && start.elapsed() < SOON {
            thread::yield_now();
        }
        assert_eq!(bench.proxy.cut(how), 2);
        assert!(bench.proxy.connections().is_empty());
        assert_eq!(ends_in_order(stream), in_order, "{how:?}");
        let closed = bench.proxy.journal().wait_for(mark, SOON, |entry| entry.what == What::Closed);
        closed.expect("an entry");
        // The session is the same one, on a new connection.
        let session = bench.client.session();
        bench.client.children("/").expect("children");
        assert_eq!(bench.client.session(), session);
    }
}

#[test]
fn a_black_hole_takes_everything_and_new_connections_too() {
    let bench = bench();
    let mark = bench.proxy.journal().mark();
    bench.proxy.blackhole(Flow::Both, Scope::All);
    thread::scope(|scope| {
        let create = scope.spawn(|| bench.create("lost"));
        let entry = bench
            .proxy
            .journal()
            .wait_for(mark, SOON, |entry| entry.is_request_of(Op::Create2) && entry.fate == Fate::Swallowed);
        entry.expect("the request was swallowed");

        let mut stream = TcpStream::connect(bench.proxy.addr()).expect("still accepted");
        stream.write_all(&hello()).expect("written");
        let swallowed = bench
            .proxy
            .journal()
            .wait_for(mark, SOON, |entry| entry.is_request_of(Op::Connect) && entry.fate == Fate::Swallowed);
        swallowed.expect("the handshake was swallowed");

        bench.proxy.restore().expect("restored");
        bench.proxy.cut(Cut::Rst);
        create.join().expect("no panic").expect_err("its connection was cut");
    });
    assert_eq!(bench.direct.children(&bench.root).expect("children"), [""; 0]);
}

#[test]
fn a_black_hole_of_one_direction_lets_requests_take_effect() {
    let bench = bench();
    bench.proxy.blackhole(Flow::ToClient, Scope::Current);
    thread::scope(|scope| {
        let create = scope.spawn(|| bench.create("made"));
        bench.direct.wait_until_children(&bench.root, SOON, |names| names == ["made"]).expect("made");
        bench.proxy.cut(Cut::Eof);
        create.join().expect("no panic").expect_err("no reply");
    });
    // The next connection is not in the hole.
    bench.create("next").expect("a node");
}

#[test]
fn a_stall_delivers_all_in_order_when_it_ends() {
    let bench = bench();
    for flow in [Flow::ToServer, Flow::ToClient] {
        bench.proxy.stall(flow, Scope::All);
        let mark = bench.proxy.journal().mark();
        let paths: Vec<String> = (0..20).map(|i| bench.path(&format!("{flow:?}-{i}"))).collect();
        thread::scope(|scope| {
            let creates = scope.spawn(|| bench.client.create_together(&paths, CreateMode::Persistent));
            let all = |entries: &[&Entry]| {
                let held = entries.iter().filter(|entry| {
                    let ours = if flow == Flow::ToServer { entry.is_request() } else { entry.is_reply() };
                    ours && entry.op() == Some(Op::Create2) && entry.fate == Fate::Underway
                });
                (held.count() == 20).then_some(())
            };
            bench.proxy.journal().wait_until(mark, SOON, all).expect("all are held");
            let there = bench.direct.children(&bench.root).expect("children");
            let made = there.iter().filter(|name| name.starts_with(&format!("{flow:?}"))).count();
            assert_eq!(made, if flow == Flow::ToServer { 0 } else { 20 });
            bench.proxy.resume(Flow::Both);
            let made = creates.join().expect("no panic").expect("replies");
            let czxids: Vec<i64> = made.into_iter().map(|made| made.expect("a node").1.czxid).collect();
            assert!(czxids.is_sorted(), "{czxids:?}");
        });
    }
}

#[test]
fn a_delay_is_a_latency_and_not_a_limit() {
    let bench = bench();
    let each_way = Duration::from_millis(20);
    bench.proxy.delay(each_way, each_way, Scope::All);
    let mark = bench.proxy.journal().mark();
    let paths: Vec<String> = (0..50).map(|i| bench.path(&i.to_string())).collect();
    let start = Instant::now();
    let made = bench.client.create_together(&paths, CreateMode::Persistent).expect("replies");
    let took = start.elapsed();
    assert!(made.iter().all(Result::is_ok));
    assert!(took >= 2 * each_way, "{took:?}");
    // 50 in a row would take 2 s; the server itself needs a few milliseconds.
    assert!(took < 10 * each_way, "{took:?}");
    let records = bench.proxy.journal().since(mark);
    for entry in records.iter().filter(|entry| entry.op() == Some(Op::Create2)) {
        let Fate::Delivered(at) = entry.fate else { panic!("not delivered: {entry}") };
        assert!(at - entry.at >= each_way, "{entry}");
    }
    let first_reply = records.replies().next().expect("a reply").seq;
    assert!(records.requests().all(|request| request.seq < first_reply));
}

#[test]
fn the_nth_request_is_dropped_and_the_others_pass() {
    let bench = bench();
    let rule =
        bench.proxy.install(Rule::drop_request(Op::CREATES).nth(2).path_contains("/b").then_cut(Cut::Eof));
    bench.create("b1").expect("the first on such a path");
    bench.create("a").expect("another path");
    bench.create("b2").expect_err("dropped, and the connection cut");
    let entry = rule.wait_fired(SOON).expect("fired");
    assert_eq!((entry.path(), entry.fate), (Some(bench.path("b2").as_str()), Fate::Dropped));
    bench.create("b3").expect("the rule is used up");
    assert_eq!(bench.direct.children(&bench.root).expect("children"), ["a", "b1", "b3"]);
}

#[test]
fn a_request_takes_effect_although_its_reply_is_dropped() {
    let bench = bench();
    for (i, how) in [Cut::Eof, Cut::Rst].into_iter().enumerate() {
        let rule = bench.proxy.install(Rule::drop_reply([Op::Create, Op::Create2]).then_cut(how));
        bench.create(&i.to_string()).expect_err("the reply is lost");
        let entry = rule.fired_on().expect("fired");
        assert_eq!((entry.err(), entry.fate), (Some(0), Fate::Dropped));
        assert!(bench.direct.stat(&bench.path(&i.to_string())).expect("an answer").is_some());
    }
}

#[test]
fn what_came_before_a_dropped_request_still_arrives() {
    let bench = bench();
    for i in 0..20 {
        let how = if i % 2 == 0 { Cut::Eof } else { Cut::Rst };
        let rule =
            bench.proxy.install(Rule::drop_request(Op::Create2).path_contains("/second").then_cut(how));
        let paths = [bench.path(&format!("first-{i}")), bench.path("second")];
        bench.client.create_together(&paths, CreateMode::Persistent).expect_err("cut");
        rule.wait_fired(SOON).expect("fired");
        let arrived = bench.direct.wait_stat(&paths[0], SOON, |stat| stat.is_some());
        arrived.expect("sent before the dropped one");
        assert_eq!(bench.direct.stat(&paths[1]).expect("an answer"), None);
    }
}

#[test]
fn a_rule_whose_reply_never_came_takes_the_next() {
    let bench = bench();
    let rule = bench.proxy.install(Rule::drop_reply(Op::Create2).then_cut(Cut::Eof));
    bench.proxy.install(Rule::drop_request(Op::Create2).path_contains("never").then_cut(Cut::Rst));
    bench.proxy.stall(Flow::ToServer, Scope::Current);
    let mark = bench.proxy.journal().mark();
    thread::scope(|scope| {
        let create = scope.spawn(|| bench.create("stuck"));
        let journal = bench.proxy.journal();
        journal.wait_for(mark, SOON, |entry| entry.is_request_of(Op::Create2)).expect("seen");
        bench.proxy.cut(Cut::Rst);
        create.join().expect("no panic").expect_err("cut");
    });
    assert!(rule.fired_on().is_none());
    bench.create("next").expect_err("its reply is dropped");
    assert!(rule.fired_on().is_some());
}

#[test]
fn a_reply_can_be_held_and_let_go() {
    let bench = bench();
    let rule = bench.proxy.install(Rule::hold_reply(Op::Create2));
    thread::scope(|scope| {
        let create = scope.spawn(|| bench.create("held"));
        rule.wait_fired(SOON).expect("fired");
        assert!(!create.is_finished());
        bench.proxy.resume(Flow::Both);
        create.join().expect("no panic").expect("a node");
    });
}

#[test]
fn a_handshake_can_lose_its_answer() {
    let bench = bench();
    let rule = bench.proxy.install(Rule::drop_reply(Op::Connect).then_cut(Cut::Eof));
    let mut stream = TcpStream::connect(bench.proxy.addr()).expect("a connection");
    stream.write_all(&hello()).expect("written");
    assert!(ends_in_order(stream));
    let entry = rule.wait_fired(SOON).expect("fired");
    assert!(matches!(entry.what, What::Connected { session, .. } if session != 0));
}

#[test]
fn watch_events_are_seen_counted_and_dropped() {
    let bench = bench();
    let mut stream = TcpStream::connect(bench.proxy.addr()).expect("a connection");
    let mark = bench.proxy.journal().mark();
    stream.write_all(&hello()).expect("written");
    let watched: Vec<String> = (0..3).map(|i| bench.path(&i.to_string())).collect();
    for (xid, path) in (1..).zip(&watched) {
        bench.direct.ensure(path).expect("a node");
        let exists = Writer::new().int(xid).int(Op::Exists.code()).string(path).bool(true);
        stream.write_all(&exists.into_frame()).expect("written");
        let journal = bench.proxy.journal();
        journal.wait_for(mark, SOON, |entry| entry.xid() == Some(xid) && entry.is_reply()).expect("a reply");
    }
    let by_path = SERVER.watches_by_path().expect("watches");
    assert!(watched.iter().all(|path| by_path[path].len() == 1), "{by_path:?}");

    let rule = bench.proxy.install(Rule::drop_event(EventKind::NodeDeleted).path_contains(&watched[1]));
    watched.iter().for_each(|path| bench.direct.delete(path).expect("removed"));
    let dropped = rule.wait_fired(SOON).expect("fired");
    assert_eq!(dropped.path(), Some(watched[1].as_str()));
    let last =
        |entry: &Entry| entry.event().is_some() && entry.path() == Some(&watched[2]) && entry.is_delivered();
    bench.proxy.journal().wait_for(mark, SOON, last).expect("the last event");
    let records = bench.proxy.journal().since(mark);
    assert_eq!(records.events().count(), 3);
    assert_eq!(records.events().filter(|entry| entry.is_delivered()).count(), 2, "\n{records}");
}

#[test]
fn a_session_can_be_ended_by_what_the_journal_knows() {
    let bench = bench();
    let path = bench.path("e");
    bench.client.create(&path, &[], CreateMode::Ephemeral).expect("a node");
    let records = bench.proxy.journal().all();
    let known = records.iter().find_map(|entry| match &entry.what {
        What::Connected { session, password, .. } => Some((*session, password.clone())),
        _ => None,
    });
    let (session, password) = known.expect("a handshake");
    Observer::end_session(SERVER.client_addr(), session, &password).expect("ended");
    bench.direct.wait_gone(&path, SOON).expect("gone with its session");
}

#[test]
fn bytes_that_are_no_frames_pass_unread() {
    let bench = bench();
    let mark = bench.proxy.journal().mark();
    let mut stream = TcpStream::connect(bench.proxy.addr()).expect("a connection");
    stream.write_all(b"srvr").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("Mode: standalone"), "{answer}");
    let records = bench.proxy.journal().since(mark);
    assert!(records.iter().any(|entry| matches!(entry.what, What::Opaque { .. })));
}

#[test]
fn a_server_that_is_down_shows_as_a_reset() {
    let nobody = FaultProxy::start(([127, 0, 0, 1], 1).into()).expect("a proxy");
    let stream = TcpStream::connect(nobody.addr()).expect("accepted");
    assert!(!ends_in_order(stream));
    nobody.set_upstream(SERVER.client_addr());
    Observer::connect(nobody.addr()).expect("a session with the new upstream");
}

#[test]
fn ipv6_is_served_on_the_same_port() {
    let built = FaultProxy::builder(SERVER.client_addr()).ipv6().start();
    let proxy = match built {
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => return,
        other => other.expect("a proxy"),
    };
    let v6 = proxy.addr_v6().expect("an address");
    assert_eq!(v6.port(), proxy.port());
    Observer::connect(v6).expect("a session").sync().expect("an answer");
    proxy.refuse();
    let refused =
        |addr| TcpStream::connect(addr).expect_err("refused").kind() == ErrorKind::ConnectionRefused;
    assert!(refused(v6) && refused(proxy.addr()));
}

#[test]
fn the_journal_is_bounded_and_does_not_hide_that_it_forgets() {
    let proxy = FaultProxy::builder(SERVER.client_addr()).journal_capacity(10).start().expect("a proxy");
    let client = Observer::connect(proxy.addr()).expect("a session");
    let early = proxy.journal().mark();
    (0..20).for_each(|_| client.sync().expect("an answer"));
    let recent = proxy.journal().mark();
    client.sync().expect("an answer");
    assert_eq!(proxy.journal().since(recent).count(Op::Sync), 1);
    let journal = proxy.journal();
    thread::spawn(move || journal.since(early)).join().expect_err("forgotten");
}

#[tokio::test]
async fn everything_can_be_awaited_without_blocking() {
    let bench = tokio::task::spawn_blocking(bench).await.expect("a bench");
    let mark = bench.proxy.journal().mark();
    let rule = bench.proxy.install(Rule::drop_reply(Op::Create2).then_cut(Cut::Rst));
    let (client, path) = (bench.client.clone(), bench.path("n"));
    let create = tokio::task::spawn_blocking(move || client.create(&path, &[], CreateMode::Persistent));
    rule.fired(SOON).await.expect("fired");
    bench.proxy.journal().until(mark, SOON, |entry| entry.what == What::Closed).await.expect("closed");
    bench.direct.until_children(&bench.root, SOON, |names| names == ["n"]).await.expect("made");
    create.await.expect("no panic").expect_err("no reply");
    let late = bench.proxy.install(Rule::drop_request(Op::Delete));
    let error = late.fired(Duration::from_millis(1)).await.expect_err("nothing was deleted");
    assert!(error.to_string().contains("Delete"), "{error}");
}

/// A ConnectRequest for a new session.
fn hello() -> Vec<u8> {
    Writer::new().int(0).long(0).int(4000).long(0).buffer(&[0; 16]).bool(false).into_frame()
}

#[test]
fn dropping_a_proxy_closes_its_connections() -> io::Result<()> {
    let proxy = FaultProxy::start(SERVER.client_addr())?;
    let handle = proxy.handle();
    let stream = TcpStream::connect(proxy.addr())?;
    let mark = proxy.journal().mark();
    proxy.journal().wait_for(mark, Duration::ZERO, |_| false).expect_err("nothing follows");
    drop(proxy);
    let _ = ends_in_order(stream);
    assert!(TcpStream::connect(handle.addr()).is_err());
    handle.stall(Flow::Both, Scope::All);
    handle.refuse();
    Ok(())
}
