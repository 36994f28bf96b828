//! The wire between processes and servers.
//!
//! Each direction of a connection is a queue: what is sent first arrives first, whatever happens to the link.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use rand::Rng;
use tokio::sync::oneshot;

use super::process::RunState;
use super::server::ServerSide;
use super::watches::WatchId;
use super::{Event, Nanos, RequestFault, RequestKind, RequestRates, State};
use crate::zk::{ConnectError, EndReason, Operation, Stat, Watch, WatchEvent, ZkError};

pub(super) type ProcessId = usize;
pub(super) type ConnId = usize;
pub(super) type ServerId = usize;
pub(super) type Xid = u64;

/// A request as it travels.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Write(Operation),
    Multi(Vec<Operation>),
    GetData { path: String, watch: Option<WatchId> },
    Exists { path: String, watch: Option<WatchId> },
    Children { path: String, watch: Option<WatchId> },
    Sync,
    Close,
}

impl Request {
    pub fn kind(&self) -> RequestKind {
        match self {
            Request::Write(Operation::Create { .. }) => RequestKind::Create,
            Request::Write(Operation::Delete { .. }) => RequestKind::Delete,
            Request::Write(_) | Request::Multi(_) => RequestKind::OtherWrite,
            Request::GetData { .. } | Request::Exists { .. } | Request::Children { .. } => RequestKind::Read,
            Request::Sync => RequestKind::Sync,
            Request::Close => RequestKind::Close,
        }
    }
}

/// What a server answers a request.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Done,
    Created(String, Stat),
    Stat(Stat),
    Data(Vec<u8>, Stat),
    Missing,
    Children(Vec<String>, Stat),
}

#[derive(Debug)]
pub(super) enum ToServer {
    Connect { session: Option<(i64, Vec<u8>)>, timeout: Nanos },
    Request { xid: Xid, request: Request, throttled: bool },
    Ping,
    RemoveWatch(WatchId),
    Fin,
}

#[derive(Debug)]
pub(super) enum ToClient {
    Connected { session: i64, password: Vec<u8>, timeout: Nanos },
    Refused(ConnectError),
    Reply { xid: Xid, result: Result<Body, ZkError>, watching: bool },
    Event { path: Arc<str>, event: WatchEvent, watches: Vec<WatchId> },
    Pong,
    Fin(&'static str),
}

pub(super) type ReplySender = oneshot::Sender<Result<(Body, Option<Watch>), ZkError>>;

pub(super) struct Pending {
    pub xid: Xid,
    pub watch: Option<WatchId>,
    pub reply: ReplySender,
}

pub(super) enum Phase {
    Connecting(Option<oneshot::Sender<Result<Attached, ConnectError>>>),
    Open,
    Ended(EndReason),
}

/// What the handshake tells the client.
#[derive(Debug)]
pub(super) struct Attached {
    pub server: String,
    pub session: i64,
    pub password: Vec<u8>,
    pub timeout: Nanos,
}

/// One TCP connection, both ends of it.
pub(super) struct Conn {
    pub process: ProcessId,
    pub server: ServerId,
    pub phase: Phase,
    pub pending: VecDeque<Pending>,
    pub watches: BTreeMap<WatchId, oneshot::Sender<WatchEvent>>,
    pub ended: Vec<oneshot::Sender<EndReason>>,
    pub last_sent: Nanos,
    pub last_received: Nanos,
    /// The negotiated session timeout.
    pub timeout: Nanos,
    pub next_xid: Xid,
    /// The request that closes the session.
    pub close: Option<Xid>,
    /// Nothing sent from here on arrives: the client's packets, and the server's.
    pub cut_up: bool,
    pub cut_down: bool,
    /// The request whose reply is lost, and how the client finds out.
    pub lose_reply: Option<(Xid, RequestFault)>,
    pub up_last: Nanos,
    pub down_last: Nanos,
    pub server_side: ServerSide,
}

pub(super) struct Process {
    pub name: Arc<str>,
    pub run: Arc<RunState>,
    pub armed: VecDeque<(RequestKind, RequestFault)>,
    pub rates: RequestRates,
    pub links: Vec<Link>,
    /// What has come for a frozen process.
    pub inbox: Vec<Event>,
}

#[derive(Default)]
pub(super) struct Link {
    pub up_stalled: bool,
    pub down_stalled: bool,
    pub up: Vec<(ConnId, ToServer)>,
    pub down: Vec<(ConnId, ToClient)>,
}

impl State {
    pub fn add_process(&mut self, name: &str, run: Arc<RunState>) -> (ProcessId, u64) {
        let links = self.servers.iter().map(|_| Link::default()).collect();
        self.processes.push(Process {
            name: name.into(),
            run,
            armed: VecDeque::new(),
            rates: RequestRates::default(),
            links,
            inbox: Vec::new(),
        });
        (self.processes.len() - 1, self.rng.random())
    }

    pub fn panicked(&mut self, process: ProcessId, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        let message = text.unwrap_or_else(|| "a panic".to_owned());
        self.trace_with(|state| format!("{} panicked: {message}", state.processes[process].name));
        self.note(|state| super::Note::Panicked { process: state.processes[process].name.clone(), message });
    }

    pub fn arm(&mut self, process: ProcessId, on: RequestKind, fault: RequestFault) {
        self.processes[process].armed.push_back((on, fault));
    }

    pub fn set_rates(&mut self, process: ProcessId, rates: RequestRates) {
        self.processes[process].rates = rates;
    }

    pub fn sessions_of(&self, process: ProcessId) -> Vec<i64> {
        let open =
            self.conns.iter().filter(|conn| conn.process == process && matches!(conn.phase, Phase::Open));
        open.map(|conn| conn.server_side.session).filter(|session| *session != 0).collect()
    }

    pub fn server_of_process(&self, process: ProcessId) -> Option<ServerId> {
        let open = |conn: &&Conn| conn.process == process && matches!(conn.phase, Phase::Open);
        self.conns.iter().rev().find(open).map(|conn| conn.server)
    }

    // ---- the links

    pub fn send_up(&mut self, id: ConnId, packet: ToServer, extra: Nanos) {
        let now = self.now;
        let conn = &mut self.conns[id];
        conn.last_sent = now;
        if conn.cut_up {
            return;
        }
        let link = &mut self.processes[conn.process].links[conn.server];
        if link.up_stalled {
            link.up.push((id, packet));
            return;
        }
        let latency = self.options.client_latency.draw(&mut self.rng);
        let at = conn.up_last.max(now + latency + extra);
        conn.up_last = at;
        self.schedule_at(at, Event::ToServer(id, packet));
    }

    pub fn send_down(&mut self, id: ConnId, packet: ToClient) {
        let now = self.now;
        let conn = &mut self.conns[id];
        if let (ToClient::Reply { xid, .. }, Some((lost, fault))) = (&packet, conn.lose_reply)
            && *xid == lost
        {
            conn.cut_down = true;
            self.lose_connection(id, fault);
            return;
        }
        if conn.cut_down {
            return;
        }
        let link = &mut self.processes[conn.process].links[conn.server];
        if link.down_stalled {
            link.down.push((id, packet));
            return;
        }
        let latency = self.options.client_latency.draw(&mut self.rng);
        let at = conn.down_last.max(now + latency);
        conn.down_last = at;
        self.schedule_at(at, Event::ToClient(id, packet));
    }

    /// The network gives up on a connection, in the way that `fault` says.
    pub fn lose_connection(&mut self, id: ConnId, fault: RequestFault) {
        let (delay, why) = match fault {
            RequestFault::LostEof | RequestFault::ReplyLostEof => (0, "end of stream"),
            RequestFault::LostReset | RequestFault::ReplyLostReset => (0, "connection reset by peer"),
            // Nobody says anything: the client's own limit on silence ends it.
            _ => return,
        };
        let at = self.now + delay + self.options.client_latency.draw(&mut self.rng);
        self.schedule_at(at, Event::ClientLoses(id, why));
        self.conns[id].cut_up = true;
        self.schedule_at(at, Event::ServerLoses(id));
    }

    pub fn stall(&mut self, process: ProcessId, server: Option<usize>, up: bool, down: bool) {
        self.trace_with(|state| {
            format!(
                "{}: link stalled (server {server:?}, up {up}, down {down})",
                state.processes[process].name
            )
        });
        for (index, link) in self.processes[process].links.iter_mut().enumerate() {
            if server.is_none_or(|server| server == index) {
                link.up_stalled |= up;
                link.down_stalled |= down;
            }
        }
    }

    pub fn release(&mut self, process: ProcessId) {
        self.trace_with(|state| format!("{}: links released", state.processes[process].name));
        for server in 0..self.servers.len() {
            let link = std::mem::take(&mut self.processes[process].links[server]);
            let latency = self.options.client_latency.draw(&mut self.rng);
            let at = self.now + latency;
            // Of a connection that the client has given up, the kernel may still deliver what was written, or
            // the server may see a reset instead.
            let mut given_up: BTreeMap<ConnId, bool> = BTreeMap::new();
            for (id, packet) in link.up {
                let lost = matches!(self.conns[id].phase, Phase::Ended(_))
                    && *given_up.entry(id).or_insert_with(|| self.rng.random());
                if lost && !matches!(packet, ToServer::Fin) {
                    continue;
                }
                self.conns[id].up_last = at;
                self.schedule_at(at, Event::ToServer(id, packet));
            }
            for (id, packet) in link.down {
                self.conns[id].down_last = at;
                self.schedule_at(at, Event::ToClient(id, packet));
            }
        }
    }

    pub fn thaw(&mut self, process: ProcessId) {
        let latency = self.options.client_latency.draw(&mut self.rng);
        self.schedule(latency, Event::Inbox(process));
    }

    /// What came for a frozen process is read, all of it at once.
    pub fn read_inbox(&mut self, process: ProcessId) {
        if self.processes[process].run.is_frozen() {
            return;
        }
        let inbox = std::mem::take(&mut self.processes[process].inbox);
        // A timer of the client's own may be noticed before what lies in its socket.
        let timers_first = self.rng.random();
        let is_timer = |event: &Event| matches!(event, Event::Keepalive(_) | Event::ConnectTimeout(_));
        let (timers, rest): (Vec<_>, Vec<_>) = inbox.into_iter().partition(is_timer);
        let (first, second) = if timers_first { (timers, rest) } else { (rest, timers) };
        for event in first.into_iter().chain(second) {
            self.handle(event);
        }
    }

    pub fn disconnect(&mut self, process: ProcessId) {
        for id in 0..self.conns.len() {
            if self.conns[id].process == process && !matches!(self.conns[id].phase, Phase::Ended(_)) {
                self.conns[id].cut_up = true;
                self.conns[id].cut_down = true;
                self.lose_connection(id, RequestFault::LostReset);
            }
        }
    }

    pub fn kill_process(&mut self, process: ProcessId) {
        for id in 0..self.conns.len() {
            if self.conns[id].process == process {
                self.end_client(id, EndReason::Closed);
            }
        }
        self.processes[process].inbox.clear();
        self.processes[process].armed.clear();
    }

    /// Puts aside what is for a frozen process, and for one that has not yet read what came meanwhile.
    pub fn set_aside(&mut self, id: ConnId, event: Event) -> Option<Event> {
        let process = &mut self.processes[self.conns[id].process];
        if process.run.is_frozen() || !process.inbox.is_empty() {
            process.inbox.push(event);
            return None;
        }
        Some(event)
    }
}
