//! One client's connection and its counterpart to the server.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::watch;
use tokio::time::Instant;

use super::dissect::Dissector;
use super::entry::{Direction, Fate, What};
use super::line::{Faults, Line, Load, Next};
use super::rules::{Action, Then};
use super::{Cut, Shared};
use crate::wait::lock;
use crate::wire::MAX_FRAME;

pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) session: AtomicI64,
    pub(super) to_server: Line,
    pub(super) to_client: Line,
    cut: watch::Sender<Option<Cut>>,
    /// Whether the traffic is not ZooKeeper's frames: stated at the start, or found out.
    opaque: AtomicBool,
    dissector: std::sync::Mutex<Dissector>,
}

impl Connection {
    pub(super) fn new(id: u64, opaque: bool, to_server: Faults, to_client: Faults) -> Self {
        Self {
            id,
            session: AtomicI64::new(0),
            to_server: Line::new(to_server),
            to_client: Line::new(to_client),
            cut: watch::Sender::new(None),
            opaque: AtomicBool::new(opaque),
            dissector: std::sync::Mutex::default(),
        }
    }

    pub(super) fn request_cut(&self, how: Cut) {
        self.cut.send_replace(Some(how));
    }

    fn line(&self, direction: Direction) -> &Line {
        match direction {
            Direction::ToServer => &self.to_server,
            Direction::ToClient => &self.to_client,
        }
    }

    async fn cut_requested(&self) -> Cut {
        let mut requests = self.cut.subscribe();
        let request = requests.wait_for(Option::is_some).await.map(|how| *how);
        request.ok().flatten().unwrap_or(Cut::Rst)
    }
}

/// Serves one client until its connection is over.
pub(super) async fn serve(shared: Arc<Shared>, connection: Arc<Connection>, mut client: TcpStream) {
    let id = connection.id;
    let _ = client.set_nodelay(true);
    let note = |direction, what| {
        let session = connection.session.load(Ordering::Relaxed);
        shared.journal.record(id, session, direction, what, Fate::Delivered(std::time::Instant::now()));
    };
    note(Direction::ToServer, What::Opened);
    let connected = tokio::select! {
        how = connection.cut_requested() => Err(how),
        server = connect(&shared) => match server {
            Ok(server) => Ok(server),
            Err(_) => {
                note(Direction::ToClient, What::Unreachable);
                Err(refusal_seen(&connection).await)
            }
        },
    };
    match connected {
        Ok(mut server) => {
            let _ = server.set_nodelay(true);
            let how = carry(&shared, &connection, &mut client, &mut server).await;
            hang_up(&mut client, how).await;
            hang_up(&mut server, how).await;
            forget(&shared, &connection);
            note(Direction::ToClient, What::Closed);
            if how == Some(Cut::Eof) {
                let _ =
                    tokio::time::timeout(LINGER, async { tokio::join!(drain(client), drain(server)) }).await;
            }
        }
        Err(how) => {
            hang_up(&mut client, Some(how)).await;
            drop(client);
            forget(&shared, &connection);
            note(Direction::ToClient, What::Closed);
        }
    }
}

/// Connects to the upstream, again and again for as long as the settings say.
async fn connect(shared: &Shared) -> io::Result<TcpStream> {
    let deadline = Instant::now() + shared.patience;
    loop {
        match TcpStream::connect(shared.upstream()).await {
            Err(_) if Instant::now() < deadline => tokio::time::sleep(Duration::from_millis(5)).await,
            answer => return answer,
        }
    }
}

/// How long the proxy goes on reading after a cut with EOF. A socket closed with unread bytes in it would send
/// RST after the FIN.
const LINGER: Duration = Duration::from_secs(60);

async fn drain(mut stream: TcpStream) {
    let mut discarded = [0; 4096];
    while matches!(stream.read(&mut discarded).await, Ok(n) if n > 0) {}
}

/// Tells the other side that it is over. Without a cut both directions have ended in order.
async fn hang_up(stream: &mut TcpStream, how: Option<Cut>) {
    match how {
        Some(Cut::Rst) => {
            let _ = SockRef::from(&*stream).set_linger(Some(Duration::ZERO));
            // A linger of zero takes effect when the descriptor is closed, and that must have happened when the
            // connection counts as gone: put another socket in its place.
            if let Ok(other) = unconnected() {
                drop(std::mem::replace(stream, other));
            }
        }
        Some(Cut::Eof) => {
            let _ = stream.shutdown().await;
        }
        None => {}
    }
}

fn unconnected() -> io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    TcpStream::from_std(socket.into())
}

fn forget(shared: &Shared, connection: &Connection) {
    for rule in lock(&connection.dissector).unmet_rules() {
        shared.rules.put_back(rule);
    }
    lock(&shared.connections).remove(&connection.id);
    shared.connections_changed.notify_all();
}

/// Waits until the line to the client lets it see that the server was not there.
async fn refusal_seen(connection: &Connection) -> Cut {
    connection.to_client.push(Load::Reset);
    tokio::select! {
        how = connection.cut_requested() => how,
        how = async {
            loop {
                match connection.to_client.next(Instant::now()) {
                    Next::Cut(how) => break how,
                    Next::Wait(until) => pause(&connection.to_client, until).await,
                    _ => {}
                }
            }
        } => how,
    }
}

/// Carries frames both ways until both directions have ended (`None`) or the connection is cut.
async fn carry(
    shared: &Shared,
    connection: &Connection,
    client: &mut TcpStream,
    server: &mut TcpStream,
) -> Option<Cut> {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let all = async {
        tokio::try_join!(
            receive(shared, connection, Direction::ToServer, from_client),
            deliver(shared, connection, Direction::ToServer, to_server),
            receive(shared, connection, Direction::ToClient, from_server),
            deliver(shared, connection, Direction::ToClient, to_client),
        )
    };
    tokio::select! {
        biased;
        how = connection.cut_requested() => Some(how),
        end = all => end.err(),
    }
}

async fn receive(
    shared: &Shared,
    connection: &Connection,
    direction: Direction,
    mut from: ReadHalf<'_>,
) -> Result<(), Cut> {
    let mut buffer = Vec::with_capacity(16 << 10);
    loop {
        let end = match from.read_buf(&mut buffer).await {
            Ok(0) => (What::Eof, Load::Eof),
            Err(_) => (What::Reset, Load::Reset),
            Ok(_) => {
                while let Some(frame) = split_frame(&mut buffer, &connection.opaque) {
                    arrive(shared, connection, direction, frame);
                }
                continue;
            }
        };
        let session = connection.session.load(Ordering::Relaxed);
        shared.journal.record(connection.id, session, direction, end.0, Fate::Underway);
        connection.line(direction).push(end.1);
        return Ok(());
    }
}

/// Takes a whole frame, its length included, off the front of the buffer.
fn split_frame(buffer: &mut Vec<u8>, opaque: &AtomicBool) -> Option<Vec<u8>> {
    if !opaque.load(Ordering::Relaxed) {
        let length = u32::from_be_bytes(*buffer.first_chunk()?) as usize;
        if length <= MAX_FRAME {
            let end = 4 + length;
            return (buffer.len() >= end).then(|| buffer.drain(..end).collect());
        }
        opaque.store(true, Ordering::Relaxed);
    }
    (!buffer.is_empty()).then(|| std::mem::take(buffer))
}

/// A frame has arrived at the proxy: reads it, writes it down, and puts it on its line unless a rule says
/// otherwise.
fn arrive(shared: &Shared, connection: &Connection, direction: Direction, mut frame: Vec<u8>) {
    let mut dissector = lock(&connection.dissector);
    let session = || connection.session.load(Ordering::Relaxed);
    let (what, rule) = if connection.opaque.load(Ordering::Relaxed) {
        if direction == Direction::ToServer {
            shared.rewrite(&mut frame);
        }
        (What::Opaque { length: frame.len() }, None)
    } else if direction == Direction::ToServer {
        let what = dissector.read_client(&frame[4..]);
        match shared.rules.take(connection.id, session(), &what) {
            Some(rule) if rule.is_about_reply() => {
                dissector.expect_reply(&what, Some(rule));
                (what, None)
            }
            Some(rule) if rule.action() == Action::Drop => (what, Some(rule)),
            rule => {
                dissector.expect_reply(&what, None);
                (what, rule)
            }
        }
    } else {
        let (what, rule) = dissector.read_server(&frame[4..]);
        let rule = rule.or_else(|| match what {
            What::Event { .. } => shared.rules.take(connection.id, session(), &what),
            _ => None,
        });
        (what, rule)
    };
    drop(dissector);
    if let What::Connect { session, .. } | What::Connected { session, .. } = what
        && session != 0
    {
        connection.session.store(session, Ordering::Relaxed);
    }

    let action = rule.as_ref().map_or(Action::Pass, |rule| rule.action());
    let fate = if action == Action::Drop { Fate::Dropped } else { Fate::Underway };
    let entry = shared.journal.record(connection.id, session(), direction, what, fate);
    let line = connection.line(direction);
    if action == Action::Hold {
        line.push(Load::Stall);
    }
    if action != Action::Drop {
        line.push(Load::Bytes(frame, entry.seq));
    }
    if let Some(rule) = rule {
        if let Then::Cut(how) = rule.then() {
            line.push(Load::Cut(how));
        }
        rule.fire(entry);
    }
}

async fn deliver(
    shared: &Shared,
    connection: &Connection,
    direction: Direction,
    mut to: WriteHalf<'_>,
) -> Result<(), Cut> {
    let line = connection.line(direction);
    loop {
        match line.next(Instant::now()) {
            Next::Write(bytes, entries) => {
                shared.journal.settle(&entries, Fate::Delivered(std::time::Instant::now()));
                to.write_all(&bytes).await.map_err(|_| Cut::Rst)?;
            }
            Next::Swallowed(entries) => shared.journal.settle(&entries, Fate::Swallowed),
            Next::Eof => {
                let _ = to.shutdown().await;
                return Ok(());
            }
            Next::Cut(how) => return Err(how),
            Next::Wait(until) => pause(line, until).await,
        }
    }
}

/// Waits until something changes on the line, or until then.
async fn pause(line: &Line, until: Option<Instant>) {
    match until {
        None => line.changed().await,
        Some(due) => tokio::select! {
            () = line.changed() => {}
            () = tokio::time::sleep_until(due) => {}
        },
    }
}
