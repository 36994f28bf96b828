//! Host names, and name servers that fail. With real servers only.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forelock::zk::zookeeper::{Config, ZooKeeperConnector};
use forelock::zk::{Acl, ConnectError, ConnectRequest, Connector, CreateMode, Endpoint};
use forelock_testkit::{Version, off_thread};

use crate::real::Real;
use crate::world::{present, request};

/// The name servers go down in an outage, as they do when it is the network's: the session is re-attached at the
/// addresses that its servers had before.
#[tokio::test]
async fn a_session_is_saved_without_name_servers() {
    let real = off_thread(|| Real::shared(Version::default())).await;
    let address = real.server.client_addr();
    let silent = Arc::new(AtomicBool::new(false));
    let asked = silent.clone();
    let connector = ZooKeeperConnector::with_lookup(
        Config::default(),
        Arc::new(move |_| {
            let silent = asked.load(Ordering::Relaxed);
            Box::pin(async move { if silent { pending().await } else { Ok(vec![address]) } })
        }),
    )
    .unwrap();
    let to = |host: &str, session| {
        let endpoint = Endpoint { host: host.to_owned(), port: address.port() };
        ConnectRequest { endpoint, ..request(&real, session) }
    };
    let connection = connector.connect(to("zk.test", None)).await.unwrap();
    let node = format!("/named-{}", std::process::id());
    connection.create(&node, b"", CreateMode::Ephemeral, &Acl::Open).await.unwrap();

    silent.store(true, Ordering::Relaxed);
    connection.abort();
    let again = connector.connect(to("zk.test", Some(connection.credentials()))).await.unwrap();
    assert!(present(&again, &node).await);
    // A new session waits a while for a fresh answer, and makes do.
    let brief = |host| ConnectRequest { connect_timeout: Duration::from_secs(3), ..to(host, None) };
    let other =
        connector.connect(ConnectRequest { connect_timeout: Duration::from_secs(9), ..to("zk.test", None) });
    other.await.unwrap().close().await.unwrap();

    let error = connector.connect(brief("never-seen.test")).await.map(drop).unwrap_err();
    let ConnectError::Unresolvable(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("never-seen.test") && why.contains("no name server answered within 3 s"), "{why}");
    again.close().await.unwrap();
}
