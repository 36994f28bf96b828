//! The client's end of a connection: connecting, requests and their replies, watches, and how it ends.

use std::collections::{BTreeMap, VecDeque};

use tokio::sync::oneshot;

use super::driver::Effect;
use super::network::{
    Attached, Body, Conn, ConnId, Pending, Phase, ProcessId, Request, ServerId, ToClient, ToServer,
};
use super::server::ServerSide;
use super::watches::WatchId;
use super::{Door, Event, RequestFault, RequestKind, State, nanos};
use crate::zk::{ConnectError, ConnectRequest, EndReason, Watch, WatchEvent, ZkError};

impl State {
    pub fn open(
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

    pub fn request(
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
                    let server = format!("zk{}", conn.server + 1);
                    let attached = Ok(Attached { server, session, password, timeout });
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

    pub fn drop_watch(&mut self, id: ConnId, watch: WatchId) {
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
