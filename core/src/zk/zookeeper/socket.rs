//! TCP_NODELAY, which the crate never sets: without it a second small request waits for the answer to the
//! first, and sending requests back to back gains nothing on a real network.

use std::net::SocketAddr;

/// Sets TCP_NODELAY on this process's sockets to any of `peers`.
///
/// The crate offers no handle on its socket, so it is looked up among the process's descriptors by the
/// address it is connected to. When that fails nothing is lost but time, so it is only logged.
pub(super) fn set_nodelay(peers: &[SocketAddr]) {
    match imp::set_nodelay(peers) {
        Ok(0) => tracing::debug!(?peers, "no socket found to set TCP_NODELAY on"),
        Ok(_) => {}
        Err(error) => tracing::debug!(%error, ?peers, "TCP_NODELAY could not be set"),
    }
}

#[cfg(unix)]
mod imp {
    use std::io;
    use std::net::SocketAddr;
    use std::os::fd::{BorrowedFd, RawFd};

    use socket2::SockRef;

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const DESCRIPTORS: &str = "/proc/self/fd";
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const DESCRIPTORS: &str = "/dev/fd";

    pub(super) fn set_nodelay(peers: &[SocketAddr]) -> io::Result<usize> {
        let mut found = 0;
        for entry in std::fs::read_dir(DESCRIPTORS)? {
            let name = entry?.file_name();
            let Some(fd) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()) else { continue };
            // SAFETY: the descriptor is only named in system calls that read its peer and set one flag. Should
            // its owner close it meanwhile, they fail, or touch a flag of whatever took the number: neither
            // affects memory, and the latter would have to be a connection to the same peer.
            let descriptor = unsafe { BorrowedFd::borrow_raw(fd) };
            let socket = SockRef::from(&descriptor);
            let Some(peer) = socket.peer_addr().ok().and_then(|peer| peer.as_socket()) else { continue };
            if peers.iter().any(|wanted| same(*wanted, peer)) && socket.set_tcp_nodelay(true).is_ok() {
                found += 1;
            }
        }
        Ok(found)
    }

    /// Whether two addresses are the same, whatever the flow label and scope that the system reports.
    fn same(wanted: SocketAddr, actual: SocketAddr) -> bool {
        wanted.port() == actual.port() && wanted.ip().to_canonical() == actual.ip().to_canonical()
    }
}

#[cfg(not(unix))]
mod imp {
    use std::io;
    use std::net::SocketAddr;

    pub(super) fn set_nodelay(_peers: &[SocketAddr]) -> io::Result<usize> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }
}
