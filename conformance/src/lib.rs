//! Conformance: scenarios in text, run in every language and in mixtures of them.
//!
//! A scenario says who does what and what must come of it. The runner starts a real ZooKeeper, a fault proxy and
//! an agent process for each actor, and drives the agents in lines over stdin and stdout. The README beside this
//! crate documents the grammar, the agents' protocol and what is covered where.
//!
//! From a scenario to a verdict: [`scenario`] reads the text, [`matrix`] decides who plays whom, [`run`] plays
//! one cell with [`actor`]s on [`servers`], and [`report`] tells.

pub mod actor;
pub mod agents;
pub mod matrix;
pub mod protocol;
pub mod report;
pub mod run;
pub mod scenario;
pub mod servers;
pub mod setup;
