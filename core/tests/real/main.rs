//! The engine on real ZooKeeper servers, behind the fault proxy.

mod contended;
mod crowd;
mod deadlines;
mod ensemble;
mod kill;
mod leftovers;
mod limits;
mod losing;
mod orphans;
mod partition;
mod places;
mod states;
mod support;
mod uncontended;
