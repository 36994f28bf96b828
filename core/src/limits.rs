//! What the system has left to give.

use std::io;

use crate::words;

/// Makes sure that so many descriptors can be had. What needs them below us panics without, or does not say why it
/// fails.
pub(crate) fn descriptors_are_left(count: usize) -> io::Result<()> {
    let socket = || socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
    let all: Result<Vec<_>, _> = (0..count).map(|_| socket()).collect();
    match all {
        Err(error) if words::is_out_of_descriptors(&error) => Err(error),
        // Any other trouble is for those to tell who meet it.
        _ => Ok(()),
    }
}
