//! A deterministic ZooKeeper with faults, for tests.
