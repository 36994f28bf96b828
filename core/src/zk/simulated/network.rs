//! The wire between processes and servers, and the client's end of it: the [`Connector`] and [`Connection`] that
//! the engine sees.
//!
//! Each direction of a connection is a queue: what is sent first arrives first, whatever happens to the link.
//!
//! [`Connector`]: crate::zk::Connector

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rand::Rng;
use tokio::sync::oneshot;

use super::driver::Effect;
use super::process::RunState;
use super::server::ServerSide;
use super::tree::check_path;
use super::watches::WatchId;
use super::{Door, Event, Nanos, RequestFault, RequestKind, RequestRates, Shared, State, nanos};
use crate::env::BoxFuture;
use crate::zk::{
    Acl, ConnectError, ConnectRequest, Connection, CreateMode, Created, EndReason, Operation, Reply,
    SessionCredentials, SessionId, Stat, Watch, WatchEvent, ZkError,
};

pub(super) type ProcessId = usize;
pub(super) type ConnId = usize;
pub(super) type ServerId = usize;
type Xid = u64;

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
    fn kind(&self) -> RequestKind {
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

type ReplySender = oneshot::Sender<Result<(Body, Option<Watch>), ZkError>>;

struct Pending {
    xid: Xid,
    watch: Option<WatchId>,
    reply: ReplySender,
}

enum Phase {
    Connecting(Option<oneshot::Sender<Result<Attached, ConnectError>>>),
    Open,
    Ended(EndReason),
}

/// What the handshake tells the client.
#[derive(Debug)]
pub(super) struct Attached {
    session: i64,
    password: Vec<u8>,
    timeout: Nanos,
}

/// One TCP connection, both ends of it.
pub(super) struct Conn {
    pub process: ProcessId,
    pub server: ServerId,
    phase: Phase,
    pending: VecDeque<Pending>,
    watches: BTreeMap<WatchId, oneshot::Sender<WatchEvent>>,
    ended: Vec<oneshot::Sender<EndReason>>,
    last_sent: Nanos,
    last_received: Nanos,
    /// The negotiated session timeout.
    timeout: Nanos,
    next_xid: Xid,
    /// The request that closes the session.
    close: Option<Xid>,
    /// Nothing sent from here on arrives: the client's packets, and the server's.
    cut_up: bool,
    cut_down: bool,
    /// The request whose reply is lost, and how the client finds out.
    lose_reply: Option<(Xid, RequestFault)>,
    up_last: Nanos,
    down_last: Nanos,
    pub server_side: ServerSide,
}

pub(super) struct Process {
    pub name: Arc<str>,
    pub run: Arc<RunState>,
    armed: VecDeque<(RequestKind, RequestFault)>,
    rates: RequestRates,
    links: Vec<Link>,
    /// What has come for a frozen process.
    inbox: Vec<Event>,
}

#[derive(Default)]
struct Link {
    up_stalled: bool,
    down_stalled: bool,
    up: Vec<(ConnId, ToServer)>,
    down: Vec<(ConnId, ToClient)>,
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

    fn send_up(&mut self, id: ConnId, packet: ToServer, extra: Nanos) {
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
    fn lose_connection(&mut self, id: ConnId, fault: RequestFault) {
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

    // ---- the client's end

    fn open(
        &mut self,
        process: ProcessId,
        request: &ConnectRequest,
    ) -> (ConnId, oneshot::Receiver<Result<Attached, ConnectError>>) {
        let (sender, receiver) = oneshot::channel();
        let id = self.conns.len();
        let killed = self.processes[process].run.is_killed();
        let server = server_of(&request.endpoint.host).filter(|server| *server < self.servers.len());
        self.conns.push(Conn {
            process,
            server: server.unwrap_or(0),
            phase: match killed {
                true => Phase::Ended(EndReason::Closed),
                false => Phase::Connecting(Some(sender)),
            },
            pending: VecDeque::new(),
            watches: BTreeMap::new(),
            ended: Vec::new(),
            last_sent: self.now,
            last_received: self.now,
            timeout: 0,
            next_xid: 1,
            close: None,
            cut_up: false,
            cut_down: false,
            lose_reply: None,
            up_last: 0,
            down_last: 0,
            server_side: ServerSide::default(),
        });
        if killed {
            return (id, receiver);
        }
        let latency = self.options.client_latency.draw(&mut self.rng);
        let refusal = match server.map(|server| (self.servers[server].door, self.servers[server].up)) {
            None | Some((Door::Unresolvable, _)) => {
                Some(ConnectError::Unresolvable(format!("no address for {}", request.endpoint.host)))
            }
            Some((Door::NoRoute, _)) => Some(ConnectError::Unreachable("no route to host".into())),
            Some((Door::Refusing, _) | (_, false)) => {
                Some(ConnectError::Unreachable("connection refused".into()))
            }
            Some((Door::Open, true)) => None,
        };
        match refusal {
            Some(error) => self.schedule(latency, Event::ToClient(id, ToClient::Refused(error))),
            None => {
                let session = request.session.as_ref().map(|s| (s.id.0, s.password.clone()));
                let timeout = nanos(request.session_timeout);
                self.send_up(id, ToServer::Connect { session, timeout }, latency);
            }
        }
        self.schedule(nanos(request.connect_timeout), Event::ConnectTimeout(id));
        self.trace_with(|state| {
            let name = &state.processes[process].name;
            let session = request.session.as_ref().map(|s| s.id);
            format!("{name}: connects to {} as c{id}, session {session:?}", request.endpoint)
        });
        (id, receiver)
    }

    pub fn connect_timed_out(&mut self, id: ConnId) {
        if let Phase::Connecting(sender) = &mut self.conns[id].phase {
            let error = Err(ConnectError::Unreachable("timed out".into()));
            self.out.extend(sender.take().map(|sender| Effect::Connected(sender, error)));
            self.end_client(id, EndReason::Disconnected("connecting timed out".into()));
        }
    }

    fn request(
        &mut self,
        id: ConnId,
        request: Request,
        watch: Option<WatchId>,
    ) -> oneshot::Receiver<Result<(Body, Option<Watch>), ZkError>> {
        let (reply, receiver) = oneshot::channel();
        let conn = &mut self.conns[id];
        if !matches!(conn.phase, Phase::Open) {
            self.out.push(Effect::Reply(reply, Err(ZkError::ConnectionLost)));
            return receiver;
        }
        let xid = conn.next_xid;
        conn.next_xid += 1;
        conn.pending.push_back(Pending { xid, watch, reply });
        if matches!(request, Request::Close) {
            conn.close = Some(xid);
        }
        let fault = self.fault_for(id, request.kind());
        self.trace_with(|state| {
            let name = &state.processes[state.conns[id].process].name;
            let fault = fault.map_or(String::new(), |fault| format!(" !! {fault:?}"));
            format!("{name}: c{id} #{xid} sends {request:?}{fault}")
        });
        let (mut extra, mut throttled) = (0, false);
        match fault {
            None => {}
            Some(fault @ (RequestFault::LostEof | RequestFault::LostReset | RequestFault::LostSilently)) => {
                let conn = &mut self.conns[id];
                conn.cut_up = true;
                conn.cut_down = true;
                self.lose_connection(id, fault);
            }
            Some(
                fault @ (RequestFault::ReplyLostEof
                | RequestFault::ReplyLostReset
                | RequestFault::ReplyLostSilently),
            ) => self.conns[id].lose_reply = Some((xid, fault)),
            Some(RequestFault::Delayed(by)) => extra = nanos(by),
            Some(RequestFault::Throttled) => throttled = true,
        }
        self.send_up(id, ToServer::Request { xid, request, throttled }, extra);
        receiver
    }

    fn fault_for(&mut self, id: ConnId, kind: RequestKind) -> Option<RequestFault> {
        let process = &mut self.processes[self.conns[id].process];
        if let Some(at) = process.armed.iter().position(|(on, _)| *on == kind || *on == RequestKind::Any) {
            return process.armed.remove(at).map(|(_, fault)| fault);
        }
        process.rates.draw(&mut self.rng)
    }

    pub fn client_receives(&mut self, id: ConnId, packet: ToClient) {
        let conn = &mut self.conns[id];
        if matches!(conn.phase, Phase::Ended(_)) {
            return;
        }
        conn.last_received = self.now;
        match packet {
            ToClient::Connected { session, password, timeout } => {
                if let Phase::Connecting(sender) = &mut conn.phase {
                    let sender = sender.take();
                    conn.phase = Phase::Open;
                    conn.timeout = timeout;
                    let attached = Ok(Attached { session, password, timeout });
                    self.out.extend(sender.map(|sender| Effect::Connected(sender, attached)));
                    self.schedule(timeout * 15 / 100, Event::Keepalive(id));
                    self.trace_with(|_| format!("c{id} connected to session 0x{session:x}"));
                }
            }
            ToClient::Refused(error) => {
                if let Phase::Connecting(sender) = &mut conn.phase {
                    let sender = sender.take();
                    self.trace_with(|_| format!("c{id} refused: {error}"));
                    self.out.extend(sender.map(|sender| Effect::Connected(sender, Err(error))));
                    self.end_client(id, EndReason::Disconnected("refused".into()));
                }
            }
            ToClient::Reply { xid, result, watching } => {
                self.trace_with(|_| format!("c{id} #{xid} answered {result:?}"));
                let conn = &mut self.conns[id];
                let Some(pending) = conn.pending.pop_front() else { return };
                debug_assert_eq!(pending.xid, xid, "replies come in the order of the requests");
                let mut watch = None;
                if let (Some(watch_id), true) = (pending.watch, watching) {
                    let (sender, receiver) = oneshot::channel();
                    conn.watches.insert(watch_id, sender);
                    watch = Some((watch_id, receiver));
                }
                let closed = matches!(result, Ok(Body::Done)) && conn.close == Some(xid);
                self.out.push(Effect::Answer { reply: pending.reply, conn: id, result, watch });
                if closed {
                    self.end_client(id, EndReason::Closed);
                }
            }
            ToClient::Event { path, event, watches } => {
                self.trace_with(|_| format!("c{id} told {path} {event:?}"));
                for watch in watches {
                    if let Some(sender) = conn_watch(&mut self.conns[id], watch) {
                        self.out.push(Effect::Watch(sender, event));
                    }
                }
                let process = self.conns[id].process;
                self.note(|state| super::Note::Told {
                    process: state.processes[process].name.clone(),
                    path: path.clone(),
                    event,
                });
            }
            ToClient::Pong => {}
            ToClient::Fin(why) => self.end_client(id, EndReason::Disconnected(why.into())),
        }
    }

    /// The client pings when it has been quiet, and gives up when the server has been.
    pub fn keepalive(&mut self, id: ConnId) {
        let conn = &self.conns[id];
        if !matches!(conn.phase, Phase::Open) {
            return;
        }
        let timeout = conn.timeout;
        let ping_after = timeout * 15 / 100;
        let silence = timeout * 40 / 100;
        if self.now >= conn.last_received + silence {
            self.send_up(id, ToServer::Fin, 0);
            return self.end_client(id, EndReason::Disconnected("no response".into()));
        }
        if self.now >= conn.last_sent + ping_after {
            self.send_up(id, ToServer::Ping, 0);
        }
        let conn = &self.conns[id];
        let next = (conn.last_sent + ping_after).min(conn.last_received + silence);
        self.schedule_at(next, Event::Keepalive(id));
    }

    /// Ends the client's end: requests fail, watches fire, and nothing more is received.
    pub fn end_client(&mut self, id: ConnId, reason: EndReason) {
        let conn = &mut self.conns[id];
        if matches!(conn.phase, Phase::Ended(_)) {
            return;
        }
        let was = std::mem::replace(&mut conn.phase, Phase::Ended(reason.clone()));
        let pending = std::mem::take(&mut conn.pending);
        let watches = std::mem::take(&mut conn.watches);
        let ended = std::mem::take(&mut conn.ended);
        if let Phase::Connecting(Some(sender)) = was {
            let error = Err(ConnectError::Unreachable("the connection was lost".into()));
            self.out.push(Effect::Connected(sender, error));
        }
        let lost = pending.into_iter().map(|p| Effect::Reply(p.reply, Err(ZkError::ConnectionLost)));
        self.out.extend(lost);
        self.out.extend(watches.into_values().map(|w| Effect::Watch(w, WatchEvent::ConnectionEnded)));
        self.trace_with(|_| format!("c{id} ended: {reason:?}"));
        self.out.extend(ended.into_iter().map(|waiter| Effect::Ended(waiter, reason.clone())));
        self.send_up(id, ToServer::Fin, 0);
    }

    fn drop_watch(&mut self, id: ConnId, watch: WatchId) {
        if conn_watch(&mut self.conns[id], watch).is_some() && matches!(self.conns[id].phase, Phase::Open) {
            self.send_up(id, ToServer::RemoveWatch(watch), 0);
        }
    }
}

fn conn_watch(conn: &mut Conn, watch: WatchId) -> Option<oneshot::Sender<WatchEvent>> {
    conn.watches.remove(&watch)
}

/// Servers are called `zk1`, `zk2`, and so on.
fn server_of(host: &str) -> Option<ServerId> {
    host.strip_prefix("zk")?.parse::<usize>().ok()?.checked_sub(1)
}

pub(super) fn connect(
    shared: &Arc<Shared>,
    process: ProcessId,
    request: ConnectRequest,
) -> BoxFuture<Result<Arc<dyn Connection>, ConnectError>> {
    let (id, attached) = shared.with(|state| state.open(process, &request));
    // Dropping the future gives the attempt up.
    let handle = Handle { shared: shared.clone(), id };
    Box::pin(async move {
        match attached.await {
            Ok(Ok(attached)) => Ok(Arc::new(SimConnection { handle, attached }) as Arc<dyn Connection>),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ConnectError::Unreachable("the connection was lost".into())),
        }
    })
}

/// Ends the connection when dropped.
struct Handle {
    shared: Arc<Shared>,
    id: ConnId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.with(|state| state.end_client(self.id, EndReason::Closed));
    }
}

struct SimConnection {
    handle: Handle,
    attached: Attached,
}

/// A reply, as the engine awaits it.
struct Answer<T> {
    receiver: oneshot::Receiver<Result<(Body, Option<Watch>), ZkError>>,
    read: fn(Body, Option<Watch>) -> Option<T>,
}

impl<T> Future for Answer<T> {
    type Output = Result<T, ZkError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let read = self.read;
        Pin::new(&mut self.receiver).poll(cx).map(|received| match received {
            Ok(Ok((body, watch))) => {
                read(body, watch).ok_or_else(|| ZkError::Unexpected("an answer of another kind".into()))
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Err(ZkError::ConnectionLost),
        })
    }
}

/// A watch on its way to the engine: takes itself off the server when it is dropped.
pub(super) struct WatchFuture {
    pub shared: Arc<Shared>,
    pub conn: ConnId,
    pub id: WatchId,
    pub receiver: oneshot::Receiver<WatchEvent>,
}

impl Future for WatchFuture {
    type Output = WatchEvent;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<WatchEvent> {
        Pin::new(&mut self.receiver).poll(cx).map(|event| event.unwrap_or(WatchEvent::ConnectionEnded))
    }
}

impl Drop for WatchFuture {
    fn drop(&mut self) {
        self.shared.with(|state| state.drop_watch(self.conn, self.id));
    }
}

impl SimConnection {
    fn send<T: Send + 'static>(
        &self,
        path: &str,
        request: impl FnOnce(Option<WatchId>) -> Request,
        watch: bool,
        read: fn(Body, Option<Watch>) -> Option<T>,
    ) -> Reply<T> {
        if let Err(error) = check_path(path, false) {
            return Box::pin(std::future::ready(Err(error)));
        }
        self.send_unchecked(request, watch, read)
    }

    fn send_unchecked<T: Send + 'static>(
        &self,
        request: impl FnOnce(Option<WatchId>) -> Request,
        watch: bool,
        read: fn(Body, Option<Watch>) -> Option<T>,
    ) -> Reply<T> {
        let receiver = self.handle.shared.with(|state| {
            let watch = watch.then(|| {
                state.next_watch += 1;
                state.next_watch
            });
            state.request(self.handle.id, request(watch), watch)
        });
        Box::pin(Answer { receiver, read })
    }
}

fn done(body: Body, _: Option<Watch>) -> Option<()> {
    matches!(body, Body::Done).then_some(())
}

impl Connection for SimConnection {
    fn credentials(&self) -> SessionCredentials {
        let Attached { session, password, .. } = &self.attached;
        SessionCredentials { id: SessionId(*session), password: password.clone(), opaque: None }
    }

    fn session_timeout(&self) -> Duration {
        Duration::from_nanos(self.attached.timeout)
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn create(&self, path: &str, data: &[u8], mode: CreateMode, acl: &Acl) -> Reply<Created> {
        if let Err(error) = check_path(path, mode == CreateMode::EphemeralSequential) {
            return Box::pin(std::future::ready(Err(error)));
        }
        let operation = Operation::Create { path: path.into(), data: data.into(), mode, acl: acl.clone() };
        self.send_unchecked(
            |_| Request::Write(operation),
            false,
            |body, _| match body {
                Body::Created(name, stat) => Some(Created { name, stat }),
                _ => None,
            },
        )
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let operation = Operation::Delete { path: path.into(), version };
        self.send(path, |_| Request::Write(operation), false, done)
    }

    fn get_data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        self.send(
            path,
            |watch| Request::GetData { path: path.into(), watch },
            false,
            |body, _| match body {
                Body::Data(data, stat) => Some((data, stat)),
                _ => None,
            },
        )
    }

    fn watch_data(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        self.send(
            path,
            |watch| Request::GetData { path: path.into(), watch },
            true,
            |body, watch| match body {
                Body::Data(data, stat) => Some((data, stat, watch?)),
                _ => None,
            },
        )
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let operation = Operation::SetData { path: path.into(), data: data.into(), version };
        self.send(
            path,
            |_| Request::Write(operation),
            false,
            |body, _| match body {
                Body::Stat(stat) => Some(stat),
                _ => None,
            },
        )
    }

    fn exists(&self, path: &str) -> Reply<Option<Stat>> {
        self.send(
            path,
            |watch| Request::Exists { path: path.into(), watch },
            false,
            |body, _| match body {
                Body::Stat(stat) => Some(Some(stat)),
                Body::Missing => Some(None),
                _ => None,
            },
        )
    }

    fn watch_exists(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        self.send(
            path,
            |watch| Request::Exists { path: path.into(), watch },
            true,
            |body, watch| match body {
                Body::Stat(stat) => Some((Some(stat), watch?)),
                Body::Missing => Some((None, watch?)),
                _ => None,
            },
        )
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        self.send(
            path,
            |watch| Request::Children { path: path.into(), watch },
            false,
            |body, _| match body {
                Body::Children(names, stat) => Some((names, stat)),
                _ => None,
            },
        )
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        self.send(
            path,
            |watch| Request::Children { path: path.into(), watch },
            true,
            |body, watch| match body {
                Body::Children(names, stat) => Some((names, stat, watch?)),
                _ => None,
            },
        )
    }

    fn sync(&self, path: &str) -> Reply<()> {
        self.send(path, |_| Request::Sync, false, done)
    }

    fn multi(&self, operations: Vec<Operation>) -> Reply<()> {
        if operations.is_empty() {
            let error = ZkError::BadArguments("a multi needs at least one operation".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        for operation in &operations {
            let (path, sequential) = match operation {
                Operation::Create { path, mode, .. } => (path, *mode == CreateMode::EphemeralSequential),
                Operation::Check { path, .. }
                | Operation::SetData { path, .. }
                | Operation::Delete { path, .. } => (path, false),
            };
            if let Err(error) = check_path(path, sequential) {
                return Box::pin(std::future::ready(Err(error)));
            }
        }
        self.send_unchecked(|_| Request::Multi(operations), false, done)
    }

    fn ended(&self) -> BoxFuture<EndReason> {
        let receiver = self.handle.shared.with(|state| {
            let (sender, receiver) = oneshot::channel();
            let conn = &mut state.conns[self.handle.id];
            match &conn.phase {
                Phase::Ended(reason) => state.out.push(Effect::Ended(sender, reason.clone())),
                _ => conn.ended.push(sender),
            }
            receiver
        });
        Box::pin(async move { receiver.await.unwrap_or(EndReason::Closed) })
    }

    fn has_ended(&self) -> bool {
        self.handle.shared.with(|state| matches!(state.conns[self.handle.id].phase, Phase::Ended(_)))
    }

    fn close(&self) -> Reply<()> {
        self.send_unchecked(|_| Request::Close, false, done)
    }

    fn abort(&self) {
        self.handle.shared.with(|state| state.end_client(self.handle.id, EndReason::Closed));
    }
}
