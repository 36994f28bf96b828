//! The adapter for real servers, against the versions of ZooKeeper that we test with.

use std::future::Future;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forelock::zk::zookeeper::{Config, ZooKeeperConnector};
use forelock::zk::{Connector, Endpoint};
use forelock_testkit::{Version, ZooKeeper};

use crate::hold_to_the_contract;
use crate::world::World;

/// A real server.
pub struct Real {
    pub server: &'static ZooKeeper,
}

impl Real {
    /// The server of this version that all tests of this process share.
    pub fn shared(version: Version) -> Self {
        static NEWEST: LazyLock<ZooKeeper> = LazyLock::new(|| start(Version::V3_9_5));
        static OLDER: LazyLock<ZooKeeper> = LazyLock::new(|| start(Version::V3_8_6));
        let server = match version {
            Version::V3_9_5 => &*NEWEST,
            Version::V3_8_6 => &*OLDER,
        };
        Self { server }
    }

    pub fn run(&self, case: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(case);
    }
}

fn start(version: Version) -> ZooKeeper {
    ZooKeeper::builder().version(version).start().expect("a server")
}

pub fn plain_connector() -> ZooKeeperConnector {
    ZooKeeperConnector::new(Config::default()).expect("plain TCP needs no options")
}

impl World for Real {
    fn connector(&self) -> Arc<dyn Connector> {
        Arc::new(plain_connector())
    }

    fn endpoint(&self) -> Endpoint {
        let address = self.server.client_addr();
        Endpoint { host: address.ip().to_string(), port: address.port() }
    }

    fn dead_endpoint(&self) -> Endpoint {
        // Privileged, and given to a service that has been out of use for decades.
        Endpoint { host: "127.0.0.1".to_owned(), port: 1 }
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_secs(2)
    }
}

mod newest {
    use super::*;
    hold_to_the_contract!(Real::shared(Version::V3_9_5));
}

mod older {
    use super::*;
    hold_to_the_contract!(Real::shared(Version::V3_8_6));
}
