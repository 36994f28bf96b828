//! What one server does with its clients: handshakes, requests in order, reads, watches, replies.

use std::collections::{BTreeMap, VecDeque};

use rand::Rng;

use super::ensemble::{Origin, ToLeader, ToLearner};
use super::network::{Body, ConnId, Request, ServerId, ToClient, ToServer};
use super::tree::{Answer, Tree, Write};
use super::watches::Watches;
use super::{Door, Nanos, State};
use crate::zk::{ConnectError, ZkError};

/// One server.
pub(super) struct Server {
    pub up: bool,
    pub door: Door,
    /// Cut off from all other servers.
    pub isolated: bool,
    /// The share of requests that it refuses as overloaded.
    pub throttling: f64,
    /// More time that the commits of the leader take to get here.
    pub lag: super::Span,
    pub role: super::ensemble::Role,
    /// The leadership it takes part in.
    pub term: u32,
    pub tree: Tree,
    /// How much of the log is applied to `tree`.
    pub applied: usize,
    /// The sessions heard of since the last answer to a ping of the leader's, with their timeouts.
    pub touched: BTreeMap<i64, Nanos>,
    /// What a follower has yet to send to its leader.
    pub outgoing: Outgoing,
    pub watches: Watches,
    /// The connection of each session attached here.
    pub attached: BTreeMap<i64, ConnId>,
}

/// The queue of a follower's first processor.
#[derive(Default)]
pub(super) struct Outgoing {
    pub queue: VecDeque<ToLeader>,
    /// When the youngest of them will be taken up.
    pub last: Nanos,
}

/// The server's end of a connection.
#[derive(Default)]
pub(super) struct ServerSide {
    pub session: i64,
    timeout: Nanos,
    closed: bool,
    /// Requests that are not answered yet, in order: nothing overtakes a write of its own session.
    pipeline: VecDeque<Entry>,
}

struct Entry {
    xid: u64,
    stage: Stage,
}

enum Stage {
    /// A write or a sync that the leader has yet to deal with.
    Forwarded,
    Read(Request),
    Done(Result<Body, ZkError>),
    Ping,
}

/// Sessions need a password; this one cannot be guessed by accident.
fn password_of(session: i64) -> Vec<u8> {
    session.wrapping_mul(0x5851_f42d_4c95_7f2d).to_be_bytes().to_vec()
}

impl State {
    pub fn server_receives(&mut self, id: ConnId, packet: ToServer) {
        let server = self.conns[id].server;
        if self.conns[id].server_side.closed || !self.servers[server].up {
            return;
        }
        let packet = match packet {
            ToServer::Connect { session, timeout } => return self.handshake(id, session, timeout),
            ToServer::Fin => return self.close_server_side(id, None),
            packet => packet,
        };
        let side = &self.conns[id].server_side;
        let (session, timeout) = (side.session, side.timeout);
        if session == 0 || !self.touch(server, session, timeout) {
            return;
        }
        match packet {
            ToServer::Ping => self.enqueue(id, 0, Stage::Ping),
            ToServer::RemoveWatch(watch) => self.servers[server].watches.remove(id, watch),
            ToServer::Request { xid, request, throttled } => {
                let share = self.servers[server].throttling;
                if throttled || (share > 0.0 && self.rng.random_bool(share)) {
                    return self.enqueue(id, xid, Stage::Done(Err(ZkError::Throttled)));
                }
                self.accept(id, xid, request);
            }
            ToServer::Connect { .. } | ToServer::Fin => {}
        }
    }

    fn accept(&mut self, id: ConnId, xid: u64, request: Request) {
        let server = self.conns[id].server;
        let session = self.conns[id].server_side.session;
        let origin = Origin { server, conn: id, xid };
        let write = match request {
            Request::Write(operation) => Write::One(operation),
            Request::Multi(operations) => Write::Multi(operations),
            Request::Close => Write::CloseSession { id: session },
            Request::Sync => {
                self.enqueue(id, xid, Stage::Forwarded);
                return self.forward(server, ToLeader::Sync(origin));
            }
            read => return self.enqueue(id, xid, Stage::Read(read)),
        };
        self.enqueue(id, xid, Stage::Forwarded);
        self.forward(server, ToLeader::Write { origin, session, write });
    }

    fn enqueue(&mut self, id: ConnId, xid: u64, stage: Stage) {
        self.conns[id].server_side.pipeline.push_back(Entry { xid, stage });
        self.answer_in_order(id);
    }

    /// A write or a sync has come back from the leader and is applied here.
    pub fn complete(&mut self, id: ConnId, xid: u64, result: Result<Body, ZkError>) {
        let side = &mut self.conns[id].server_side;
        if side.closed {
            return;
        }
        if let Some(entry) = side.pipeline.iter_mut().find(|entry| entry.xid == xid) {
            entry.stage = Stage::Done(result);
            self.answer_in_order(id);
        }
    }

    fn answer_in_order(&mut self, id: ConnId) {
        loop {
            let side = &mut self.conns[id].server_side;
            match side.pipeline.front() {
                None | Some(Entry { stage: Stage::Forwarded, .. }) => return,
                Some(_) => {}
            }
            let Some(Entry { xid, stage }) = side.pipeline.pop_front() else { return };
            match stage {
                Stage::Forwarded => {}
                Stage::Ping => self.send_down(id, ToClient::Pong),
                Stage::Done(result) => self.send_down(id, ToClient::Reply { xid, result, watching: false }),
                Stage::Read(request) => {
                    let (result, watching) = self.read(id, request);
                    self.send_down(id, ToClient::Reply { xid, result, watching });
                }
            }
        }
    }

    /// Answers a read from this server's own tree, and sets its watch.
    fn read(&mut self, id: ConnId, request: Request) -> (Result<Body, ZkError>, bool) {
        let server = &mut self.servers[self.conns[id].server];
        match request {
            Request::GetData { path, watch } => match server.tree.get(&path) {
                Some(node) => {
                    let body = Body::Data(node.data.clone(), node.stat());
                    watch.into_iter().for_each(|watch| server.watches.add_data(&path, id, watch));
                    (Ok(body), watch.is_some())
                }
                None => (Err(ZkError::NoNode), false),
            },
            Request::Exists { path, watch } => {
                let body = server.tree.get(&path).map_or(Body::Missing, |node| Body::Stat(node.stat()));
                watch.into_iter().for_each(|watch| server.watches.add_data(&path, id, watch));
                (Ok(body), watch.is_some())
            }
            Request::Children { path, watch } => match server.tree.get(&path) {
                Some(node) => {
                    let names = node.children.iter().map(ToString::to_string).collect();
                    let body = Body::Children(names, node.stat());
                    watch.into_iter().for_each(|watch| server.watches.add_children(&path, id, watch));
                    (Ok(body), watch.is_some())
                }
                None => (Err(ZkError::NoNode), false),
            },
            Request::Write(_) | Request::Multi(_) | Request::Sync | Request::Close => {
                (Err(ZkError::Unexpected("not a read".into())), false)
            }
        }
    }

    // ---- sessions

    fn handshake(&mut self, id: ConnId, session: Option<(i64, Vec<u8>)>, timeout: Nanos) {
        let server = self.conns[id].server;
        if self.servers[server].term == 0 {
            // It looks for a leader: the connection is accepted, and closed.
            let error = ConnectError::Unreachable("the server closed the connection".into());
            return self.send_down(id, ToClient::Refused(error));
        }
        let tick = self.options.tick;
        let min = self.options.min_timeout.unwrap_or(2 * tick);
        let max = self.options.max_timeout.unwrap_or(20 * tick);
        let timeout = timeout.max(min).min(max);
        self.conns[id].server_side.timeout = timeout;
        let Some((session, password)) = session else {
            self.next_session += 1;
            let session = ((server as i64 + 1) << 56) | self.next_session;
            let origin = Origin { server, conn: id, xid: 0 };
            let write = Write::OpenSession { id: session, timeout };
            return self.send_to_leader(server, ToLeader::Write { origin, session, write });
        };
        if let Some(old) = self.servers[server].attached.get(&session).copied() {
            self.close_server_side(old, Some("the session is attached anew"));
        }
        if password == password_of(session) {
            self.send_to_leader(server, ToLeader::Revalidate { server, conn: id, session, timeout });
        } else {
            self.send_down(id, ToClient::Refused(ConnectError::SessionExpired));
        }
    }

    /// The leader has said whether the session lives; if it does, the connection serves it from now on.
    pub fn attach(&mut self, id: ConnId, session: i64, valid: bool) {
        let side = &mut self.conns[id].server_side;
        if side.closed {
            return;
        }
        if !valid {
            self.send_down(id, ToClient::Refused(ConnectError::SessionExpired));
            return self.close_server_side(id, None);
        }
        side.session = session;
        let timeout = side.timeout;
        let server = self.conns[id].server;
        if let Some(old) = self.servers[server].attached.insert(session, id)
            && old != id
        {
            self.close_server_side(old, Some("the session is attached anew"));
            self.servers[server].attached.insert(session, id);
        }
        let process = self.processes[self.conns[id].process].name.clone();
        self.note(|_| super::Note::Attached { process, session, server });
        let password = password_of(session);
        self.send_down(id, ToClient::Connected { session, password, timeout });
    }

    /// Ends the server's end of a connection; the client is told, unless it has closed its own.
    pub fn close_server_side(&mut self, id: ConnId, why: Option<&'static str>) {
        let side = &mut self.conns[id].server_side;
        if side.closed {
            return;
        }
        side.closed = true;
        side.pipeline.clear();
        let session = side.session;
        let server = &mut self.servers[self.conns[id].server];
        server.watches.remove_all(id);
        if server.attached.get(&session) == Some(&id) {
            server.attached.remove(&session);
        }
        if let Some(why) = why {
            self.send_down(id, ToClient::Fin(why));
        }
    }

    pub fn close_all(&mut self, server: ServerId, why: &'static str) {
        for id in 0..self.conns.len() {
            if self.conns[id].server == server {
                self.close_server_side(id, Some(why));
            }
        }
    }

    /// What the author of an applied write is answered, from the tree it has just been applied to.
    pub fn body(&self, server: ServerId, answer: &Answer) -> Result<Body, ZkError> {
        let stat_of = |path: &str| self.servers[server].tree.get(path).map(super::tree::Node::stat);
        match answer {
            Answer::Done => Ok(Body::Done),
            Answer::StatOf(path) => stat_of(path).map(Body::Stat).ok_or(ZkError::NoNode),
            Answer::Created(path) => {
                let name = path.rsplit('/').next().unwrap_or_default().to_string();
                stat_of(path).map(|stat| Body::Created(name, stat)).ok_or(ZkError::NoNode)
            }
        }
    }

    pub fn deliver_to_learner(&mut self, server: ServerId, message: ToLearner) {
        match message {
            ToLearner::Commit(upto) => {
                while self.servers[server].applied < upto {
                    self.apply_next(server);
                }
            }
            ToLearner::Synced(origin) => self.complete(origin.conn, origin.xid, Ok(Body::Done)),
            ToLearner::Validated { conn, session, valid } => self.attach(conn, session, valid),
            ToLearner::Ping => {
                let touched = std::mem::take(&mut self.servers[server].touched);
                if touched.is_empty() {
                    // A real follower answers all the same; it would change nothing here.
                    return;
                }
                self.send_to_leader(server, ToLeader::PingAnswer(touched));
            }
        }
    }
}
