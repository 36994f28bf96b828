//! Creates that are held up between a follower and its leader, and applied after their client has seen elsewhere that
//! there is no such node.

use std::sync::Arc;
use std::time::Duration;

use forelock::{AcquireOptions, Client, HeldLock, Options, Timeout};
use forelock_testkit::proxy::Entry;
use forelock_testkit::servers::Ensemble;
use forelock_testkit::{CreateMode, Cut, FaultProxy, Flow, Observer, Op, Scope, ZooKeeper};

use crate::support::*;

const TICK: Duration = Duration::from_millis(500);
const CLIENTS: usize = 25;
const ROUNDS: usize = 2;

/// What makes the leader take the follower for the owner of the session again, before it takes up the create.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Return {
    /// The client comes back to the follower.
    Later,
    /// An attempt to come back, given up before the client went elsewhere, is held up behind the create.
    GivenUp,
}

/// A client that reaches the follower F and the server G, each through a proxy of its own.
struct Wanderer {
    client: Client,
    path: String,
    f: FaultProxy,
    g: FaultProxy,
}

impl Wanderer {
    /// A client that is connected to F.
    async fn start(ensemble: &Ensemble, f: usize, g: usize, path: String) -> Self {
        let f = FaultProxy::start(ensemble.server(f).client_addr()).expect("a fault proxy");
        let g = FaultProxy::start(ensemble.server(g).client_addr()).expect("a fault proxy");
        g.handle().refuse();
        let servers = format!("{},{}", f.handle().connect_string(), g.handle().connect_string());
        let options = Options::default().with_session_timeout(Duration::from_secs(10)).with_tick(TICK);
        let client = Client::with_options(&servers, options).expect("a client");
        soon("root", client.ensure_root(&path)).await.expect("made");
        Self { client, path, f, g }
    }

    /// Acquires through F, where the create is held up, and then through G.
    async fn acquire(&self, way: Return) -> HeldLock {
        let (f, g) = (self.f.handle(), self.g.handle());
        let journal = f.journal();
        let mark = journal.mark();
        let mutex = self.client.mutex(&self.path).expect("a path");
        let acquire = tokio::spawn(async move {
            let timeout = Timeout::After(Duration::from_secs(60));
            mutex.acquire_with(AcquireOptions::default().with_timeout(timeout)).await
        });
        let create = |entry: &Entry| entry.is_request_of(Op::Create2);
        journal.until(mark, SOON, create).await.expect("the create on its way");
        if way == Return::GivenUp {
            self.come_back_to_f(|| f.cut(Cut::Eof)).await;
        }
        g.accept().expect("listening");
        f.refuse();
        f.cut(Cut::Eof);
        let held = soon("granted", acquire).await.expect("not cancelled").expect("granted");
        assert_eq!(self.client.metrics().ghosts, 1, "{}", self.path);
        if way == Return::Later {
            f.accept().expect("listening");
            g.refuse();
            self.come_back_to_f(|| g.cut(Cut::Eof)).await;
        }
        held
    }

    /// How many nodes the client has asked the servers to delete.
    fn deletes(&self) -> usize {
        [&self.f, &self.g].iter().map(|proxy| proxy.handle().journal().all().count(Op::Delete)).sum()
    }

    /// Lets the client lose its connection, and waits until it asks F for the next one.
    async fn come_back_to_f(&self, lose: impl FnOnce() -> usize) {
        let journal = self.f.handle().journal();
        let mark = journal.mark();
        assert_eq!(lose(), 1);
        let connect = |entry: &Entry| entry.is_request_of(Op::Connect);
        journal.until(mark, SOON, connect).await.expect("an attempt to come back");
    }
}

async fn no_orphan_is_left(way: Return) {
    let settings = ZooKeeper::builder().tick(TICK);
    // The leader puts up with a silent follower for half a minute.
    let ensemble = Ensemble::builder().server(settings).sync_limit(60).start().expect("an ensemble");
    let ensemble = Arc::new(ensemble);
    let (leader, followers) = (ensemble.leader().expect("a leader"), ensemble.followers());
    let (f, g) = (followers[0], followers[1]);
    let at_f = Observer::connect(ensemble.server(f).client_addr()).expect("an observer");
    let to_leader = ensemble.link(f, leader).expect("a link").0;
    let mut landed = 0;
    for round in 0..ROUNDS {
        let mut wanderers = Vec::new();
        for number in 0..CLIENTS {
            let path = format!("/orphans/{round}-{number}");
            wanderers.push(Arc::new(Wanderer::start(&ensemble, f, g, path).await));
        }
        to_leader.stall(Flow::ToServer, Scope::All);
        let acquiring = wanderers.iter().map(|wanderer| {
            let wanderer = wanderer.clone();
            tokio::spawn(async move { wanderer.acquire(way).await })
        });
        let acquiring: Vec<_> = acquiring.collect();
        let mut held = Vec::new();
        for acquire in acquiring {
            held.push(acquire.await.expect("acquired"));
        }
        to_leader.resume(Flow::ToServer);
        // What is sent through F from here on comes behind everything that was held up.
        at_f.create(&format!("/barrier-{round}"), b"", CreateMode::Persistent).expect("created");
        for (wanderer, held) in wanderers.iter().zip(held) {
            eventually("the orphan gone", || {
                at_f.children(&wanderer.path).is_ok_and(|nodes| nodes == [held.node()])
            })
            .await;
            assert!(held.is_valid());
            landed += wanderer.deletes();
            soon("release", held.release()).await.expect("released");
            soon("close", wanderer.client.close()).await.expect("closed");
        }
    }
    println!(
        "{landed} of {} creates landed after they had been given up, and were deleted",
        ROUNDS * CLIENTS
    );
    // Whether the leader takes up what was held up before or after the client's return is a race of its own threads.
    assert!(landed > 0 || way == Return::Later, "nothing was held up as it should be");
}

/// Fault 45.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_lands_when_its_client_comes_back_is_deleted() {
    no_orphan_is_left(Return::Later).await;
}

/// Fault 45.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_create_that_lands_behind_an_attempt_given_up_is_deleted() {
    no_orphan_is_left(Return::GivenUp).await;
}
