//! The adapter against a server that says exactly what it is told to: what real servers do not say on demand.

use std::sync::Arc;
use std::time::Duration;

use forelock::zk::zookeeper::{Authentication, Config, ZooKeeperConnector};
use forelock::zk::{
    Acl, ConnectError, ConnectRequest, Connection, Connector, CreateMode, EndReason, Endpoint, WatchEvent,
    ZkError,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::world::PATIENCE;

const SESSION: i64 = 0x1234;
const PING: i32 = 11;
const CLOSE: i32 = -11;
const REMOVE_WATCHES: i32 = 18;
/// Transaction number of every reply; none of these tests reads it.
const ZXID: i64 = 9;

struct Server(TcpListener);

impl Server {
    async fn new() -> Self {
        Self(TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port"))
    }

    fn request(&self, timeout: Duration) -> ConnectRequest {
        let port = self.0.local_addr().expect("it listens").port();
        ConnectRequest {
            endpoint: Endpoint { host: "127.0.0.1".to_owned(), port },
            session: None,
            session_timeout: timeout,
            connect_timeout: PATIENCE,
            read_only: false,
        }
    }

    async fn peer(&self) -> Peer {
        Peer(self.0.accept().await.expect("a connection").0)
    }

    /// A connection of the adapter, and our end of it.
    async fn connected(&self, timeout: Duration) -> (Arc<dyn Connection>, Peer) {
        let serve = async {
            let mut peer = self.peer().await;
            peer.frame().await.expect("a connect request");
            peer.grant(SESSION, timeout, false).await;
            // The crate goes on when this ping is answered.
            peer.answer_ping().await;
            peer
        };
        let connector = plain();
        let (connection, peer) = tokio::join!(connector.connect(self.request(timeout)), serve);
        (connection.expect("a connection"), peer)
    }
}

fn plain() -> ZooKeeperConnector {
    ZooKeeperConnector::new(Config::default()).expect("plain TCP needs no options")
}

/// Our end of a connection.
struct Peer(TcpStream);

impl Peer {
    async fn frame(&mut self) -> Option<Vec<u8>> {
        let length = self.0.read_i32().await.ok()?;
        let mut frame = vec![0; usize::try_from(length).expect("a length")];
        self.0.read_exact(&mut frame).await.ok()?;
        Some(frame)
    }

    async fn send(&mut self, frames: &[Vec<u8>]) {
        let bytes: Vec<u8> = frames.iter().flat_map(|frame| framed(frame)).collect();
        self.0.write_all(&bytes).await.expect("it can be written");
    }

    async fn grant(&mut self, session: i64, timeout: Duration, read_only: bool) {
        let millis = i32::try_from(timeout.as_millis()).expect("a short time");
        let mut answer = Vec::new();
        answer.extend(0_i32.to_be_bytes());
        answer.extend(millis.to_be_bytes());
        answer.extend(session.to_be_bytes());
        answer.extend(16_i32.to_be_bytes());
        answer.extend([7; 16]);
        answer.push(u8::from(read_only));
        self.send(&[answer]).await;
    }

    async fn answer_ping(&mut self) {
        let frame = self.frame().await.expect("a ping");
        assert_eq!(op(&frame), PING);
        self.send(&[reply(-2, 0, &[])]).await;
    }

    /// The next request that is not a ping: its number, its operation and its body.
    async fn request(&mut self) -> Option<(i32, i32, Vec<u8>)> {
        loop {
            let frame = self.frame().await?;
            if op(&frame) != PING {
                let xid = i32::from_be_bytes(frame[..4].try_into().expect("four bytes"));
                return Some((xid, op(&frame), frame[8..].to_vec()));
            }
            self.send(&[reply(-2, 0, &[])]).await;
        }
    }
}

fn op(frame: &[u8]) -> i32 {
    i32::from_be_bytes(frame[4..8].try_into().expect("four bytes"))
}

fn framed(frame: &[u8]) -> Vec<u8> {
    let length = i32::try_from(frame.len()).expect("a short frame");
    [&length.to_be_bytes(), frame].concat()
}

fn reply(xid: i32, error: i32, body: &[u8]) -> Vec<u8> {
    [&xid.to_be_bytes()[..], &ZXID.to_be_bytes(), &error.to_be_bytes(), body].concat()
}

fn text(text: &str) -> Vec<u8> {
    framed(text.as_bytes())
}

fn stat() -> Vec<u8> {
    vec![0; 68]
}

fn event(kind: i32, path: &str) -> Vec<u8> {
    let body = [&kind.to_be_bytes()[..], &3_i32.to_be_bytes(), &text(path)].concat();
    reply(-1, 0, &body)
}

const T: Duration = Duration::from_secs(10);

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

#[tokio::test]
async fn names_are_the_servers_own() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    // What a server writes with "%010d" on either side of the counter's wrap.
    for suffix in ["0000000000", "2147483647", "-2147483648", "-2147483647", "-000000001"] {
        let created = connection.create("/q/n-", b"", CreateMode::EphemeralSequential, &Acl::Open);
        let (xid, ..) = peer.request().await.expect("a create");
        let body = [text(&format!("/q/n-{suffix}")), stat()].concat();
        peer.send(&[reply(xid, 0, &body)]).await;
        assert_eq!(created.await.unwrap().name, format!("n-{suffix}"));
    }
}

#[tokio::test]
async fn a_name_that_makes_no_sense_may_still_be_ours() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let created = connection.create("/q/n-", b"", CreateMode::EphemeralSequential, &Acl::Open);
    let (xid, ..) = peer.request().await.expect("a create");
    peer.send(&[reply(xid, 0, &[text("/q/n-first"), stat()].concat())]).await;
    let error = created.await.unwrap_err();
    assert!(error.outcome_unknown(), "{error:?}");
}

#[tokio::test]
async fn every_error_code_has_its_meaning() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let expected = [
        (-101, ZkError::NoNode),
        (-102, ZkError::NoAuth),
        (-103, ZkError::BadVersion),
        (-108, ZkError::NoChildrenForEphemerals),
        (-110, ZkError::NodeExists),
        (-111, ZkError::NotEmpty),
        (-114, ZkError::InvalidAcl),
        (-119, ZkError::NotReadOnly),
        (-125, ZkError::QuotaExceeded),
        (-127, ZkError::Throttled),
    ];
    for (code, meaning) in expected {
        let deleted = connection.delete("/a", None);
        let (xid, ..) = peer.request().await.expect("a delete");
        peer.send(&[reply(xid, code, &[])]).await;
        assert_eq!(deleted.await, Err(meaning), "{code}");
    }
    // A server's settings do not allow these: not applied, and the message says which setting.
    for code in [-6, -120, -126] {
        let deleted = connection.delete("/a", None);
        let (xid, ..) = peer.request().await.expect("a delete");
        peer.send(&[reply(xid, code, &[])]).await;
        let error = deleted.await.unwrap_err();
        assert!(matches!(error, ZkError::Refused(_)) && !error.outcome_unknown(), "{code}: {error:?}");
    }
    // Whatever else a server may say: it never passes for a refusal that left everything as it was.
    for code in [-1, -2, -3, -4, -5, -7, -13, -122, -123, -999] {
        let deleted = connection.delete("/a", None);
        let (xid, ..) = peer.request().await.expect("a delete");
        peer.send(&[reply(xid, code, &[])]).await;
        let error = deleted.await.unwrap_err();
        assert!(matches!(error, ZkError::Unexpected(_)) && error.outcome_unknown(), "{code}: {error:?}");
    }
    assert!(!connection.has_ended());
}

#[tokio::test]
async fn a_moved_session_ends_the_connection() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let (moved, other) = (connection.delete("/a", None), connection.delete("/b", None));
    let (xid, ..) = peer.request().await.expect("a delete");
    peer.send(&[reply(xid, -118, &[])]).await;
    assert_eq!(within(moved).await, Err(ZkError::ConnectionLost));
    assert_eq!(within(other).await, Err(ZkError::ConnectionLost));
    let EndReason::Disconnected(why) = within(connection.ended()).await else { panic!("it is disconnected") };
    assert!(why.contains("moved"), "{why}");
}

#[tokio::test]
async fn a_session_that_the_server_declares_over() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let (first, second) = (connection.delete("/a", None), connection.delete("/b", None));
    let (xid, ..) = peer.request().await.expect("a delete");
    peer.send(&[reply(xid, -112, &[])]).await;
    assert_eq!(within(first).await, Err(ZkError::SessionExpired));
    assert_eq!(within(second).await, Err(ZkError::SessionExpired));
    assert_eq!(within(connection.ended()).await, EndReason::SessionExpired);
    assert_eq!(connection.close().await, Err(ZkError::SessionExpired));
}

#[tokio::test]
async fn what_came_in_before_the_end_still_counts() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let watching = connection.watch_exists("/w");
    let (xid, ..) = peer.request().await.expect("an exists");
    peer.send(&[reply(xid, 0, &stat())]).await;
    let (_, mut watch) = watching.await.unwrap();
    let watching_too = connection.watch_exists("/v");
    let created = connection.create("/a", b"", CreateMode::Persistent, &Acl::Open);
    let lost = connection.create("/b", b"", CreateMode::Persistent, &Acl::Open);
    let (watch_xid, ..) = peer.request().await.expect("an exists");
    let (create_xid, ..) = peer.request().await.expect("a create");
    // All of it and the end of the stream arrive together.
    let create = reply(create_xid, 0, &[text("/a"), stat()].concat());
    peer.send(&[event(3, "/w"), reply(watch_xid, 0, &stat()), create]).await;
    drop(peer);
    let EndReason::Disconnected(_) = within(connection.ended()).await else { panic!("it is disconnected") };
    assert_eq!(watch.try_fired(), Some(WatchEvent::DataChanged));
    assert_eq!(created.await.unwrap().name, "a");
    assert_eq!(lost.await, Err(ZkError::ConnectionLost));
    let (_, mut watch) = watching_too.await.unwrap();
    assert_eq!(watch.try_fired(), Some(WatchEvent::ConnectionEnded));
}

#[tokio::test]
async fn nothing_is_sent_after_the_end() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let pending = connection.sync("/");
    peer.request().await.expect("a sync");
    drop(peer);
    assert_eq!(
        within(connection.ended()).await,
        EndReason::Disconnected("the server closed the connection".into())
    );
    assert_eq!(pending.await, Err(ZkError::ConnectionLost));
    // The crate opens a new connection in the very poll in which it notices the end; it must not get to use it.
    while let Ok(mut again) = tokio::time::timeout(Duration::from_millis(300), server.peer()).await {
        assert_eq!(within(again.frame()).await, None);
    }
}

#[tokio::test]
async fn an_expiry_by_our_own_clock_is_none() {
    let server = Server::new().await;
    let timeout = Duration::from_millis(200);
    let (connection, peer) = server.connected(timeout).await;
    let pending = connection.create("/a", b"", CreateMode::Ephemeral, &Acl::Open);
    drop(peer);
    // As if the process had been stopped: the crate finds the connection gone and its time long over, all at
    // once, and calls the session expired. No server has said so.
    std::thread::sleep(timeout * 3);
    let reason = within(connection.ended()).await;
    assert!(matches!(reason, EndReason::Disconnected(_)), "{reason:?}");
    assert_eq!(pending.await, Err(ZkError::ConnectionLost));
}

#[tokio::test]
async fn a_silent_server_is_given_up() {
    let server = Server::new().await;
    let timeout = Duration::from_millis(500);
    let (connection, _peer) = server.connected(timeout).await;
    let pending = connection.sync("/");
    let started = std::time::Instant::now();
    let EndReason::Disconnected(why) = within(connection.ended()).await else { panic!("it is disconnected") };
    assert!(why.contains("no response"), "{why}");
    assert!(started.elapsed() >= timeout / 2, "{:?}", started.elapsed());
    assert_eq!(pending.await, Err(ZkError::ConnectionLost));
}

#[tokio::test]
async fn garbage_ends_the_connection() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let pending = connection.sync("/");
    peer.request().await.expect("a sync");
    // A reply to a request that was never made.
    peer.send(&[reply(4711, 0, &[])]).await;
    assert_eq!(within(pending).await, Err(ZkError::ConnectionLost));
    assert!(matches!(within(connection.ended()).await, EndReason::Disconnected(_)));
}

#[tokio::test]
async fn a_reply_that_is_cut_short_is_survived() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let read = connection.get_data("/a");
    let (xid, ..) = peer.request().await.expect("a read");
    // Too short for the stat that every such reply ends with; the crate panics on it.
    peer.send(&[reply(xid, 0, &[0, 0, 0, 0])]).await;
    assert_eq!(within(read).await, Err(ZkError::ConnectionLost));
    assert!(matches!(within(connection.ended()).await, EndReason::Disconnected(_)));
}

#[tokio::test]
async fn closing_is_the_last_word_and_waits_for_the_answer() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let pending = connection.delete("/a", None);
    let mut closed = connection.close();
    let (delete_xid, ..) = peer.request().await.expect("a delete");
    // The request is not answered yet, and closing has to come after it.
    let early = tokio::time::timeout(Duration::from_millis(50), peer.request()).await;
    assert!(early.is_err(), "{early:?}");
    peer.send(&[reply(delete_xid, 0, &[])]).await;
    assert_eq!(within(pending).await, Ok(()));
    let (close_xid, what, _) = within(peer.request()).await.expect("a close");
    assert_eq!(what, CLOSE);
    let early = tokio::time::timeout(Duration::from_millis(50), &mut closed).await;
    assert!(early.is_err(), "{early:?}");
    peer.send(&[reply(close_xid, 0, &[])]).await;
    assert_eq!(within(closed).await, Ok(()));
    assert_eq!(connection.ended().await, EndReason::Closed);
}

#[tokio::test]
async fn a_close_without_an_answer_is_not_confirmed() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let closed = connection.close();
    assert_eq!(within(peer.request()).await.expect("a close").1, CLOSE);
    drop(peer);
    assert_eq!(within(closed).await, Err(ZkError::ConnectionLost));
}

#[tokio::test]
async fn aborting_says_nothing_to_the_server() {
    let server = Server::new().await;
    for dropped in [false, true] {
        let (connection, mut peer) = server.connected(T).await;
        let watching = connection.watch_exists("/w");
        let (xid, ..) = peer.request().await.expect("an exists");
        peer.send(&[reply(xid, 0, &stat())]).await;
        let (_, watch) = watching.await.unwrap();
        if dropped {
            drop(connection);
        } else {
            connection.abort();
        }
        drop(watch);
        assert_eq!(within(peer.request()).await, None);
    }
}

#[tokio::test]
async fn a_dropped_watch_is_taken_off_the_server() {
    let server = Server::new().await;
    let (connection, mut peer) = server.connected(T).await;
    let kept = connection.watch_exists("/kept");
    let (xid, ..) = peer.request().await.expect("an exists");
    peer.send(&[reply(xid, 0, &stat())]).await;
    drop(kept.await.unwrap());
    let (xid, what, body) = within(peer.request()).await.expect("a removal");
    assert_eq!((what, &body[4..9]), (REMOVE_WATCHES, b"/kept".as_slice()));
    peer.send(&[reply(xid, 0, &[])]).await;

    // Dropped before there is a watch to speak of.
    drop(connection.watch_exists("/early"));
    let (xid, ..) = peer.request().await.expect("an exists");
    peer.send(&[reply(xid, -101, &[])]).await;
    let (xid, what, body) = within(peer.request()).await.expect("a removal");
    assert_eq!((what, &body[4..10]), (REMOVE_WATCHES, b"/early".as_slice()));
    peer.send(&[reply(xid, 0, &[])]).await;

    // Nothing is left to remove once it has fired, whether or not anyone has looked.
    let fired = connection.watch_exists("/fired");
    let (xid, ..) = peer.request().await.expect("an exists");
    peer.send(&[reply(xid, 0, &stat())]).await;
    let (_, watch) = fired.await.unwrap();
    peer.send(&[event(2, "/fired")]).await;
    let sync = connection.sync("/");
    let (xid, ..) = peer.request().await.expect("a sync");
    peer.send(&[reply(xid, 0, &text("/"))]).await;
    sync.await.unwrap();
    drop(watch);
    let more = tokio::time::timeout(Duration::from_millis(100), peer.request()).await;
    assert!(more.is_err(), "{more:?}");
}

#[tokio::test]
async fn refused_credentials() {
    let server = Server::new().await;
    let config =
        Config { authentications: vec![Authentication::digest("user", "wrong")], ..Config::default() };
    assert!(!format!("{config:?}").contains("wrong"));
    let connector = ZooKeeperConnector::new(config).unwrap();
    let serve = async {
        let mut peer = server.peer().await;
        peer.frame().await.expect("a connect request");
        peer.grant(SESSION, T, false).await;
        peer.frame().await.expect("an auth packet");
        peer.send(&[reply(-4, -115, &[])]).await;
        peer
    };
    let (error, _peer) = tokio::join!(connector.connect(server.request(T)), serve);
    assert!(matches!(error.map(drop), Err(ConnectError::AuthFailed(_))));
}

#[tokio::test]
async fn a_read_only_session_lasts_until_there_is_better() {
    let server = Server::new().await;
    let mut request = server.request(T);
    request.read_only = true;
    let serve = async {
        let mut peer = server.peer().await;
        peer.frame().await.expect("a connect request");
        peer.grant(SESSION, T, true).await;
        peer.answer_ping().await;
        peer
    };
    let connector = plain();
    let (connection, _peer) = tokio::join!(connector.connect(request.clone()), serve);
    let connection = connection.expect("a connection");
    assert!(connection.is_read_only());
    // The crate asks around for a server that takes writes.
    let mut asked = within(server.peer()).await;
    let mut question = [0; 4];
    asked.0.read_exact(&mut question).await.expect("a question");
    assert_eq!(&question, b"isro");
    asked.0.write_all(b"rw").await.expect("it can be written");
    drop(asked);
    let EndReason::Disconnected(_) = within(connection.ended()).await else { panic!("it is disconnected") };
    // Such a session is known to that server alone.
    request.session = Some(connection.credentials());
    assert_eq!(connector.connect(request).await.map(drop), Err(ConnectError::SessionExpired));
}

#[tokio::test]
async fn a_read_only_server_that_is_not_wanted() {
    let server = Server::new().await;
    let serve = async {
        let mut peer = server.peer().await;
        peer.frame().await.expect("a connect request");
        peer.grant(SESSION, T, true).await;
        peer
    };
    let (error, _peer) = tokio::join!(plain().connect(server.request(T)), serve);
    assert!(matches!(error.map(drop), Err(ConnectError::Unreachable(_))));
}

#[tokio::test]
async fn an_attempt_that_is_given_up_leaves_nothing_behind() {
    let server = Server::new().await;
    let mut request = server.request(T);
    request.connect_timeout = Duration::from_millis(200);
    let started = std::time::Instant::now();
    let (error, mut peer) = tokio::join!(plain().connect(request), server.peer());
    let Err(ConnectError::Unreachable(why)) = error.map(drop) else { panic!("it is unreachable") };
    assert!(why.contains("127.0.0.1") && why.contains("no answer"), "{why}");
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    peer.frame().await.expect("the connect request");
    assert_eq!(within(peer.frame()).await, None);
}

#[tokio::test]
async fn a_server_that_hangs_up_is_named() {
    // As a server does that is not part of a quorum.
    let server = Server::new().await;
    let serve = async {
        loop {
            drop(server.peer().await);
        }
    };
    let error = tokio::select! {
        result = async { plain().connect(server.request(T)).await.map(drop) } => result.unwrap_err(),
        () = serve => unreachable!(),
    };
    let ConnectError::Unreachable(why) = error else { panic!("{error:?}") };
    assert!(why.contains("127.0.0.1") && why.contains("handshake"), "{why}");
}
