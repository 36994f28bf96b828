//! Forelock: a distributed lock for ZooKeeper that tells its holder in time.
//!
//! Every waiter watches the one in front of it; every grant carries a fencing token; and when a session can no
//! longer be relied on, its holder is told before anyone else can be granted the lock.

pub mod env;
pub mod zk;
