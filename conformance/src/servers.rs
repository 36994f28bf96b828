//! The servers that cells share.
//!
//! Cells that want the same kind of server run on one, each below a root of its own. A cell that stops or wipes
//! its server has one to itself for the while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use forelock_testkit::{Version, ZooKeeper};

use crate::scenario::ServerSettings;

/// What two cells must have in common to share a server.
pub type Kind = (ServerSettings, Version);

#[derive(Default)]
struct Servers {
    /// A slot for each kind, so that starting one kind holds nobody up who wants another.
    shared: HashMap<Kind, Arc<Mutex<Option<Arc<ZooKeeper>>>>>,
    /// Servers that were had alone and have been given back.
    idle: HashMap<Kind, Vec<Arc<ZooKeeper>>>,
}

/// All servers of a run. Clones share them.
#[derive(Clone, Default)]
pub struct Pool(Arc<Mutex<Servers>>);

/// A server for one cell.
pub struct Lease {
    pool: Pool,
    kind: Kind,
    /// The server.
    pub server: Arc<ZooKeeper>,
    alone: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start(kind: &Kind) -> Result<Arc<ZooKeeper>, String> {
    let (settings, version) = kind;
    // Snapshots and big logs are no use here, and a session may be as long as a scenario wants.
    let builder = ZooKeeper::builder()
        .version(*version)
        .tick(settings.tick)
        .max_session(std::time::Duration::from_secs(60));
    builder.start().map(Arc::new).map_err(|error| format!("no server: {error}"))
}

impl Pool {
    /// A server that others may use at the same time.
    ///
    /// # Errors
    /// When it does not start.
    pub fn share(&self, kind: Kind) -> Result<Lease, String> {
        let slot = lock(&self.0).shared.entry(kind.clone()).or_default().clone();
        let mut slot = lock(&slot);
        let server = match &*slot {
            Some(server) => server.clone(),
            None => slot.insert(start(&kind)?).clone(),
        };
        Ok(Lease { pool: self.clone(), kind, server, alone: false })
    }

    /// A server that nobody else uses meanwhile.
    ///
    /// # Errors
    /// When it does not start.
    pub fn take(&self, kind: Kind) -> Result<Lease, String> {
        let idle = lock(&self.0).idle.get_mut(&kind).and_then(Vec::pop);
        let server = match idle {
            Some(server) => server,
            None => start(&kind)?,
        };
        Ok(Lease { pool: self.clone(), kind, server, alone: true })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.alone {
            // However the scenario left it, the next one gets one that serves.
            self.server.resume();
            if self.server.mode().is_some() || self.server.restart().is_ok() {
                lock(&self.pool.0).idle.entry(self.kind.clone()).or_default().push(self.server.clone());
            }
        }
    }
}
