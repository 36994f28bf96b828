//! The ground that Forelock is tested on: real ZooKeepers, a network that fails on command, and an
//! independent pair of eyes.
//!
//! - [`servers`] starts ZooKeepers, one or an ensemble, and stops, kills, freezes and inspects them;
//! - [`proxy`] stands between a client and a server, understands the frames that pass, writes them into a
//!   journal, and refuses, swallows, stalls, delays, cuts or drops them;
//! - [`observer`] looks at the tree and changes it without the engine under test;
//! - [`processes`] freezes and kills whatever else runs, and [`lateness`] tells how late the machine itself is.
//!
//! Nothing here sleeps for a fixed time: whatever takes time is awaited by event, with a deadline. Methods
//! named `wait_…` block the calling thread; those named `until_…` (and [`RuleHandle::fired`]) are futures that
//! run on any executor.
//!
//! [`RuleHandle::fired`]: proxy::RuleHandle::fired

pub mod lateness;
pub mod observer;
pub mod processes;
pub mod proxy;
pub mod servers;
pub mod wait;
pub mod wire;

pub use lateness::Lateness;
pub use observer::{CreateMode, Observer, ObserverError};
pub use proxy::{Cut, Direction, FaultProxy, Flow, ProxyHandle, Rule, RuleHandle, Scope, Then};
pub use servers::{Ensemble, Version, ZooKeeper};
pub use wait::{TimedOut, off_thread};
pub use wire::{EventKind, Op, Stat};
