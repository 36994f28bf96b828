//! Recipes: what one can do with a queue.

mod mutex;

pub use mutex::{AcquireOptions, Mutex, MutexOptions, Timeout};
