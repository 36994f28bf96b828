//! The simulated servers: one that stands alone, and three together.

use std::sync::Arc;
use std::time::Duration;

use forelock::zk::simulated::{self, Door, SimProcess, WorldOptions};
use forelock::zk::{Connector, Endpoint};

use crate::world::World;

/// A simulated ensemble, and one process that all of a case's connections belong to.
pub struct Simulated {
    world: simulated::World,
    process: SimProcess,
}

impl Simulated {
    /// So many servers. Has to be made inside a runtime with a paused clock.
    pub fn new(seed: u64, servers: usize) -> Self {
        let options = WorldOptions { servers, ..WorldOptions::default() };
        let world = simulated::World::new(seed, &options);
        let process = world.process("p");
        Self { world, process }
    }
}

impl World for Simulated {
    fn connector(&self) -> Arc<dyn Connector> {
        self.process.env().connector
    }

    fn endpoints(&self) -> Vec<Endpoint> {
        self.world.endpoints()
    }

    fn dead_endpoint(&self) -> Option<Endpoint> {
        let last = self.world.endpoints().len() - 1;
        self.world.set_door(last, Door::Refusing);
        self.world.endpoints().get(last).cloned()
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_secs(6)
    }
}

/// Runs `future` on a clock that jumps to the next thing that happens.
pub fn simulate<F: Future>(future: F) -> F::Output {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().expect("a runtime").block_on(future)
}

/// Tries a case in many worlds; what differs is how long everything takes.
fn hold_often(servers: usize, case: impl AsyncFn(&dyn World)) {
    for seed in 0..20 {
        simulate(async { case(&Simulated::new(seed, servers)).await });
    }
}

mod alone {
    use super::*;

    fn hold(case: impl AsyncFn(&dyn World)) {
        hold_often(1, case);
    }

    crate::hold_to_the_contract!();
    crate::cases! { refusal { nobody_listens, } }
}

mod ensemble {
    use super::*;

    fn hold(case: impl AsyncFn(&dyn World)) {
        hold_often(3, case);
    }

    crate::hold_to_the_contract!();
    crate::cases! { refusal { nobody_listens, } }
}
