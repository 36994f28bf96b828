//! The adapter for real servers: the only file that names the client crate.
