//! The adapter for real servers, against the versions of ZooKeeper that we test with.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use forelock::zk::zookeeper::{Config, ZooKeeperConnector};
use forelock::zk::{Connector, Endpoint};
use forelock_testkit::{Version, ZooKeeper};

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

    pub fn hold(version: Version, case: impl AsyncFnOnce(&dyn World)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime").block_on(case(&Self::shared(version)));
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

    fn endpoints(&self) -> Vec<Endpoint> {
        let address = self.server.client_addr();
        vec![Endpoint { host: address.ip().to_string(), port: address.port() }]
    }

    fn dead_endpoint(&self) -> Option<Endpoint> {
        // Privileged, and given to a service that has been out of use for decades.
        Some(Endpoint { host: "127.0.0.1".to_owned(), port: 1 })
    }

    fn session_timeout(&self) -> Duration {
        // The longest that it grants: short ones have no room for a busy machine.
        Duration::from_secs(4)
    }
}

mod newest {
    use super::*;

    fn hold(case: impl AsyncFnOnce(&dyn World)) {
        Real::hold(Version::V3_9_5, case);
    }

    crate::hold_to_the_contract!();
    crate::cases! {
        rights { creators_rights_need_a_creator, an_acl_is_enforced, }
        refusal { nobody_listens, }
    }
}

mod older {
    use super::*;

    fn hold(case: impl AsyncFnOnce(&dyn World)) {
        Real::hold(Version::V3_8_6, case);
    }

    crate::hold_to_the_contract!();
    crate::cases! {
        rights { creators_rights_need_a_creator, an_acl_is_enforced, }
        refusal { nobody_listens, }
    }
}
