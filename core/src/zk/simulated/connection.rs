//! The [`Connection`] that the engine sees.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::driver::Effect;
use super::network::{Attached, Body, ConnId, Phase, ProcessId, Request};
use super::tree::check_path;
use super::watches::WatchId;
use crate::env::BoxFuture;
use crate::zk::{
    Acl, ConnectError, ConnectRequest, Connection, CreateMode, Created, EndReason, Operation, Reply,
    SessionCredentials, SessionId, Stat, Watch, WatchEvent, ZkError,
};

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

    fn server(&self) -> Option<&str> {
        Some(&self.attached.server)
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
