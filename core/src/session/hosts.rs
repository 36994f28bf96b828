//! The servers, in an order of our own, so that many clients spread over them.

use super::Hub;
use crate::zk::Endpoint;

pub(super) struct Hosts {
    endpoints: Vec<Endpoint>,
    next: usize,
}

impl Hosts {
    pub(super) fn shuffled(hub: &Hub) -> Self {
        let mut endpoints = hub.servers.endpoints.clone();
        for last in (1..endpoints.len()).rev() {
            let other = (hub.env.chance.next_u64() % (last as u64 + 1)) as usize;
            endpoints.swap(last, other);
        }
        Self { endpoints, next: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.endpoints.len()
    }

    pub(super) fn next(&mut self) -> Endpoint {
        let endpoint = self.endpoints[self.next % self.endpoints.len()].clone();
        self.next += 1;
        endpoint
    }
}
