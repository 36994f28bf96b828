//! The proxy's port: reserved for its life, listened on when it accepts.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex};

use socket2::{Domain, SockRef, Socket, Type};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::Shared;
use super::connection::serve;
use super::handle::on_thread;
use crate::wait::lock;

/// A port that nobody else gets, whether or not somebody of ours listens on it.
///
/// A bound socket that does not listen keeps the port from being handed out, connecting to it is refused, and
/// another socket with SO_REUSEADDR may listen there, in this process or in another.
#[derive(Debug)]
pub struct ReservedPort {
    sockets: Vec<Socket>,
    port: u16,
}

impl ReservedPort {
    /// Reserves a free port on 127.0.0.1, and on ::1 too if asked.
    ///
    /// # Errors
    /// When there is none.
    pub fn new(ipv6: bool) -> io::Result<Self> {
        // The port that is free for IPv4 may be taken for IPv6; a few tries will do. Five digits always, so that
        // addresses in the servers' own messages can be exchanged for one another.
        let mut tries = 0;
        loop {
            let v4 = bound((Ipv4Addr::LOCALHOST, 0).into())?;
            let port = v4.local_addr()?.as_socket().map_or(0, |addr| addr.port());
            if port < 10_000 && tries < 20 {
                tries += 1;
                continue;
            }
            if !ipv6 {
                return Ok(Self { sockets: vec![v4], port });
            }
            match bound((Ipv6Addr::LOCALHOST, port).into()) {
                Ok(v6) => return Ok(Self { sockets: vec![v4, v6], port }),
                Err(error) if tries > 20 => return Err(error),
                Err(_) => tries += 1,
            }
        }
    }

    /// The port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    fn addrs(&self) -> impl Iterator<Item = SocketAddr> {
        self.sockets.iter().filter_map(|socket| socket.local_addr().ok()?.as_socket())
    }
}

fn bound(addr: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(addr), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    if addr.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&addr.into())?;
    Ok(socket)
}

pub(super) struct Listeners {
    port: ReservedPort,
    accepting: Mutex<Vec<JoinHandle<()>>>,
}

impl Listeners {
    pub(super) fn reserve(ipv6: bool) -> io::Result<Self> {
        Ok(Self { port: ReservedPort::new(ipv6)?, accepting: Mutex::default() })
    }

    pub(super) fn port(&self) -> u16 {
        self.port.port()
    }

    pub(super) fn has_ipv6(&self) -> bool {
        self.port.addrs().any(|addr| addr.is_ipv6())
    }

    pub(super) fn open(&self, runtime: &tokio::runtime::Handle, shared: &Arc<Shared>) -> io::Result<()> {
        let mut accepting = lock(&self.accepting);
        if !accepting.is_empty() {
            return Ok(());
        }
        let _context = runtime.enter();
        for addr in self.port.addrs() {
            let socket = bound(addr)?;
            socket.listen(1024)?;
            socket.set_nonblocking(true)?;
            let listener = Listening(TcpListener::from_std(socket.into())?);
            accepting.push(runtime.spawn(accept(listener, shared.clone())));
        }
        Ok(())
    }

    /// Returns when the port is closed.
    pub(super) fn close(&self, runtime: &tokio::runtime::Handle) {
        let accepting = std::mem::take(&mut *lock(&self.accepting));
        on_thread(runtime, async move {
            for task in accepting {
                task.abort();
                let _ = task.await;
            }
        });
    }
}

/// A socket that stops listening when it is dropped, whoever else has a copy: a child process that is just being
/// started has one until it runs its program, and would keep the port open for as long.
struct Listening(TcpListener);

impl Drop for Listening {
    fn drop(&mut self) {
        let _ = SockRef::from(&self.0).shutdown(Shutdown::Both);
    }
}

async fn accept(listener: Listening, shared: Arc<Shared>) {
    loop {
        match listener.0.accept().await {
            Ok((client, _)) => {
                tokio::spawn(serve(shared.clone(), shared.add_connection(), client));
            }
            // Out of descriptors, or a client that is gone already: try the next one, but not at full speed.
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
        }
    }
}
