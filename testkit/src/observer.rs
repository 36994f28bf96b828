//! An independent pair of eyes: a small blocking client that shares no code with the engine under test.
//!
//! It sets no watches, so a server's watch counts stay those of the clients under test; what it waits for it
//! asks for every few milliseconds. A thread keeps its session alive. When its connection is lost it connects
//! again, to the same session if that is still there.

mod link;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use crate::wait::{TimedOut, lock, off_thread, poll_until};
use crate::wire::{Malformed, Op, Reader, Stat, Writer, code};
use link::{Link, Reply};

/// Why a call of the observer failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserverError {
    /// The server's answer was an error; the codes are in [`wire::code`](crate::wire::code).
    #[error("{op} {path}: the server answers {code}")]
    Server {
        /// The operation.
        op: Op,
        /// The path it was about.
        path: String,
        /// The error code.
        code: i32,
    },
    /// The connection failed. A change that was asked for may have happened or not.
    #[error("the observer's connection: {0}")]
    Io(#[from] std::io::Error),
    /// The answer could not be read.
    #[error("the observer's connection: {0}")]
    Malformed(#[from] Malformed),
    /// The session to attach to has expired.
    #[error("the session has expired")]
    SessionExpired,
}

impl ObserverError {
    /// The server's error code, if it was the server that refused.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Server { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// A node that was made: its path, with the sequence number if it has one, and its stat.
pub type Created = (String, Stat);

/// What kind of node to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// Stays until deleted.
    Persistent = 0,
    /// Goes with its session.
    Ephemeral = 1,
    /// Stays, with the parent's child counter behind its name.
    PersistentSequential = 2,
    /// Goes with its session, with the parent's child counter behind its name.
    EphemeralSequential = 3,
    /// Stays until its last child has gone.
    Container = 4,
}

/// Looks at the tree and changes it. Clones share one session, which ends with the last of them.
#[derive(Debug, Clone)]
pub struct Observer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    server: SocketAddr,
    timeout: Duration,
    link: Mutex<State>,
    /// Its end ends the thread that keeps the session alive.
    _alive: mpsc::Sender<()>,
}

#[derive(Debug)]
struct State {
    link: Option<Link>,
    session: i64,
    password: Vec<u8>,
}

impl Inner {
    /// Runs `call` on a working connection. `again` says whether it may be repeated on another one.
    fn run<T>(
        &self,
        mut again: bool,
        mut call: impl FnMut(&mut Link) -> Result<T, ObserverError>,
    ) -> Result<T, ObserverError> {
        let mut state = lock(&self.link);
        loop {
            let mut link = match state.link.take() {
                Some(link) if !link.is_stale() => link,
                _ => {
                    let link = Link::attach(self.server, self.timeout, state.session, &state.password)
                        .or_else(|error| match error {
                            ObserverError::SessionExpired => Link::attach(self.server, self.timeout, 0, &[]),
                            error => Err(error),
                        })?;
                    (state.session, state.password) = (link.session, link.password.clone());
                    link
                }
            };
            match call(&mut link) {
                Err(ObserverError::Io(_)) if std::mem::take(&mut again) => {}
                Err(error @ (ObserverError::Io(_) | ObserverError::Malformed(_))) => return Err(error),
                answer => {
                    state.link = Some(link);
                    return answer;
                }
            }
        }
    }

    fn keep_alive(&self) {
        let mut state = lock(&self.link);
        if let Some(mut link) = state.link.take()
            && link.ping().is_ok()
        {
            state.link = Some(link);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(mut link) = lock(&self.link).link.take() {
            let _ = link.close_quickly();
        }
    }
}

impl Observer {
    /// Connects with a session of 30 s, or as much of it as the server grants.
    ///
    /// # Errors
    /// When the server cannot be reached within 60 s.
    pub fn connect(server: SocketAddr) -> Result<Self, ObserverError> {
        Self::connect_for(server, Duration::from_secs(30))
    }

    /// Connects with a session of `timeout`, or what the server makes of it.
    ///
    /// # Errors
    /// When the server cannot be reached within 60 s.
    pub fn connect_for(server: SocketAddr, timeout: Duration) -> Result<Self, ObserverError> {
        let link = Link::attach(server, timeout, 0, &[])?;
        let interval = link.timeout / 3;
        let (alive, ended) = mpsc::channel();
        let (session, password) = (link.session, link.password.clone());
        let state = Mutex::new(State { link: Some(link), session, password });
        let inner = Arc::new(Inner { server, timeout, link: state, _alive: alive });
        let weak = Arc::downgrade(&inner);
        std::thread::spawn(move || {
            while ended.recv_timeout(interval) == Err(mpsc::RecvTimeoutError::Timeout) {
                let Some(inner) = weak.upgrade() else { return };
                inner.keep_alive();
            }
        });
        Ok(Self { inner })
    }

    /// Ends somebody's session at once, as if it had expired. The password is in the proxy's journal, in the
    /// answer to the client's handshake.
    ///
    /// # Errors
    /// When the server cannot be reached, or the session has expired already.
    pub fn end_session(server: SocketAddr, session: i64, password: &[u8]) -> Result<(), ObserverError> {
        Link::attach(server, Duration::from_secs(30), session, password)?.close_session()
    }

    /// Its session.
    #[must_use]
    pub fn session(&self) -> i64 {
        lock(&self.inner.link).session
    }

    /// Makes a node.
    ///
    /// # Errors
    /// The server's, and those of the connection, after which the node may be there or not.
    pub fn create(&self, path: &str, data: &[u8], mode: CreateMode) -> Result<Created, ObserverError> {
        let op = if mode == CreateMode::Container { Op::CreateContainer } else { Op::Create2 };
        self.call(op, path, false, &create_record(path, data, mode), read_created)
    }

    /// Makes many nodes, all requests on their way before the first answer.
    ///
    /// # Errors
    /// Those of the connection; the server's are in the list.
    pub fn create_together(
        &self,
        paths: &[String],
        mode: CreateMode,
    ) -> Result<Vec<Result<Created, ObserverError>>, ObserverError> {
        let records: Vec<Vec<u8>> = paths.iter().map(|path| create_record(path, &[], mode)).collect();
        let replies = self.inner.run(false, |link| link.call_together(Op::Create2, &records))?;
        let read = |(reply, path): (Reply, &String)| answer(Op::Create2, path, &reply, read_created);
        Ok(replies.into_iter().zip(paths).map(read).collect())
    }

    /// Makes a persistent node and its missing parents, and leaves what is there.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn ensure(&self, path: &str) -> Result<(), ObserverError> {
        let ends = path.match_indices('/').map(|(at, _)| at).skip(1).chain([path.len()]);
        for end in ends {
            match self.create(&path[..end], &[], CreateMode::Persistent) {
                Err(error) if error.code() == Some(code::NODE_EXISTS) => {}
                other => drop(other?),
            }
        }
        Ok(())
    }

    /// Removes a node, whatever its version.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn delete(&self, path: &str) -> Result<(), ObserverError> {
        self.delete_version(path, -1)
    }

    /// Removes a node if its data has this version.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn delete_version(&self, path: &str, version: i32) -> Result<(), ObserverError> {
        let record = Writer::new().string(path).int(version).into_bytes();
        self.call(Op::Delete, path, false, &record, |_| Ok(()))
    }

    /// Removes a node and all that is under it. What others remove at the same time is no error.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn delete_tree(&self, path: &str) -> Result<(), ObserverError> {
        let absent = |error: &ObserverError| error.code() == Some(code::NO_NODE);
        match self.children(path) {
            Ok(children) => {
                children.iter().try_for_each(|child| self.delete_tree(&format!("{path}/{child}")))?
            }
            Err(error) if absent(&error) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.delete(path).or_else(|error| if absent(&error) { Ok(()) } else { Err(error) })
    }

    /// The names of the children, sorted as text.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn children(&self, path: &str) -> Result<Vec<String>, ObserverError> {
        let record = Writer::new().string(path).bool(false).into_bytes();
        let mut children = self.call(Op::GetChildren, path, true, &record, |body| {
            (0..body.int()?.max(0)).map(|_| body.string().map(str::to_owned)).collect::<Result<Vec<_>, _>>()
        })?;
        children.sort();
        Ok(children)
    }

    /// The node's stat, or `None` when there is no node.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn stat(&self, path: &str) -> Result<Option<Stat>, ObserverError> {
        let record = Writer::new().string(path).bool(false).into_bytes();
        match self.call(Op::Exists, path, true, &record, |body| body.stat()) {
            Ok(stat) => Ok(Some(stat)),
            Err(error) if error.code() == Some(code::NO_NODE) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The node's data and stat.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn get(&self, path: &str) -> Result<(Vec<u8>, Stat), ObserverError> {
        let record = Writer::new().string(path).bool(false).into_bytes();
        self.call(Op::GetData, path, true, &record, |body| Ok((body.buffer()?.to_owned(), body.stat()?)))
    }

    /// Writes the node's data, whatever its version.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn set(&self, path: &str, data: &[u8]) -> Result<Stat, ObserverError> {
        let record = Writer::new().string(path).buffer(data).int(-1).into_bytes();
        self.call(Op::SetData, path, false, &record, |body| body.stat())
    }

    /// Returns when the server has caught up with its leader.
    ///
    /// # Errors
    /// The server's, and those of the connection.
    pub fn sync(&self) -> Result<(), ObserverError> {
        self.call(Op::Sync, "/", true, &Writer::new().string("/").into_bytes(), |_| Ok(()))
    }

    /// Blocks until the node's children (names, sorted as text) fit; a missing node has none. Returns them.
    ///
    /// # Errors
    /// When they do not fit after `deadline`; the message names those that were there. A server that cannot be
    /// reached is asked again.
    pub fn wait_until_children(
        &self,
        path: &str,
        deadline: Duration,
        fit: impl Fn(&[String]) -> bool,
    ) -> Result<Vec<String>, TimedOut> {
        let last = std::cell::RefCell::new(String::from("nothing yet"));
        let what = || format!("other children of {path} than {}", last.borrow());
        poll_until(what, deadline, || {
            let children = match self.children(path) {
                Err(error) if error.code() == Some(code::NO_NODE) => Ok(Vec::new()),
                other => other,
            };
            *last.borrow_mut() = format!("{children:?}");
            children.ok().filter(|children| fit(children))
        })
    }

    /// Blocks until there is no such node.
    ///
    /// # Errors
    /// When it is still there after `deadline`.
    pub fn wait_gone(&self, path: &str, deadline: Duration) -> Result<(), TimedOut> {
        self.wait_stat(path, deadline, |stat| stat.is_none()).map(drop)
    }

    /// Blocks until the node's stat fits (`None`: there is no node), and returns it.
    ///
    /// # Errors
    /// When it does not fit after `deadline`.
    pub fn wait_stat(
        &self,
        path: &str,
        deadline: Duration,
        fits: impl Fn(Option<Stat>) -> bool,
    ) -> Result<Option<Stat>, TimedOut> {
        let last = std::cell::RefCell::new(String::from("nothing yet"));
        poll_until(
            || format!("another stat of {path} than {}", last.borrow()),
            deadline,
            || {
                let stat = self.stat(path);
                *last.borrow_mut() = format!("{stat:?}");
                stat.ok().filter(|stat| fits(*stat))
            },
        )
    }

    /// [`wait_until_children`](Self::wait_until_children) as a future. Dropping it is safe.
    ///
    /// # Errors
    /// As there.
    pub async fn until_children(
        &self,
        path: &str,
        deadline: Duration,
        fit: impl Fn(&[String]) -> bool + Send + 'static,
    ) -> Result<Vec<String>, TimedOut> {
        let (observer, path) = (self.clone(), path.to_owned());
        off_thread(move || observer.wait_until_children(&path, deadline, fit)).await
    }

    /// [`wait_gone`](Self::wait_gone) as a future. Dropping it is safe.
    ///
    /// # Errors
    /// As there.
    pub async fn until_gone(&self, path: &str, deadline: Duration) -> Result<(), TimedOut> {
        let (observer, path) = (self.clone(), path.to_owned());
        off_thread(move || observer.wait_gone(&path, deadline)).await
    }

    fn call<T>(
        &self,
        op: Op,
        path: &str,
        again: bool,
        record: &[u8],
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, ObserverError> {
        let reply = self.inner.run(again, |link| link.call(op, record))?;
        answer(op, path, &reply, read)
    }
}

fn answer<T>(
    op: Op,
    path: &str,
    reply: &Reply,
    read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
) -> Result<T, ObserverError> {
    match reply.err {
        code::OK => Ok(read(&mut Reader::new(&reply.body))?),
        code => Err(ObserverError::Server { op, path: path.to_owned(), code }),
    }
}

fn create_record(path: &str, data: &[u8], mode: CreateMode) -> Vec<u8> {
    Writer::new().string(path).buffer(data).open_acl().int(mode as i32).into_bytes()
}

fn read_created(body: &mut Reader<'_>) -> Result<Created, Malformed> {
    Ok((body.string()?.to_owned(), body.stat()?))
}
