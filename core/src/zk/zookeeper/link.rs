//! One TCP connection of the crate, from the moment it is attached to a session until it ends.
//!
//! The crate runs a client in a single task, which would go on to reconnect when its connection ends. We own
//! that task: [`Link`] polls it, and drops it within the very poll in which the connection ended. Together with
//! it, it polls a *driver* for each request that waits for its reply and for each watch that has not fired. So
//! one place decides the order of everything: what the crate had delivered before the end is still handed on;
//! then the end is announced; then the drivers go, whose watches would panic if they outlived the crate's
//! task; then the task.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt};
use futures_util::task::AtomicWaker;
use tokio::sync::{oneshot, watch};
use tokio::task::unconstrained;
use zookeeper_client::{Client, Error, OneshotWatcher, SessionState, StateWatcher};

use super::convert;
use crate::env::BoxFuture;
use crate::zk::{EndReason, Reply, Watch, WatchEvent, ZkError};

/// Waits for one reply or one watch, and hands it on.
type Driver = BoxFuture<After>;

/// What is to be driven after a reply has been handed on: the watch that came with it, if one did. A future of its own,
/// since thousands of watches may wait at a time, and each would keep the room that its request took.
struct After(Option<Driver>);

/// A connection that is up, or has ended.
pub(super) struct Link {
    outbox: Mutex<Outbox>,
    /// What the connection runs on, until it ends.
    engine: Mutex<Option<Engine>>,
    fate: Arc<Fate>,
    abort: AtomicBool,
    /// The task that polls the engine.
    task: AtomicWaker,
    ended: watch::Sender<Option<EndReason>>,
    /// Whether the server has confirmed the end of the session.
    closed: AtomicBool,
}

/// One lock for both, so that requests go on the wire in the order of the calls, and no reply can come in
/// before its driver is there.
struct Outbox {
    /// The crate ends the session when the last clone is dropped, so there is this one, and one in every driver
    /// of a request until its reply. None once we close or the connection has ended.
    client: Option<Client>,
    /// Drivers that the engine has not seen yet.
    fresh: Vec<Driver>,
}

struct Engine {
    drivers: FuturesUnordered<Driver>,
    /// The crate's task.
    serve: BoxFuture<()>,
    /// Keeps [`Fate`] registered for the first change of state.
    _change: BoxFuture<()>,
}

impl Link {
    /// Takes over a connection that the crate has just made: its client, and the task it wanted to have spawned.
    pub(super) fn start(client: Client, serve: BoxFuture<()>) -> Arc<Self> {
        let fate = Arc::new(Fate {
            watcher: client.state_watcher(),
            first: OnceLock::new(),
            cause: OnceLock::new(),
        });
        let mut watcher = client.state_watcher();
        let mut change: BoxFuture<()> = Box::pin(async move {
            watcher.changed().await;
        });
        // Registers `fate` as the waker; should the state have changed already, `fate` sees it by itself.
        let _ = change.as_mut().poll(&mut Context::from_waker(&Waker::from(fate.clone())));
        let link = Arc::new(Self {
            outbox: Mutex::new(Outbox { client: Some(client), fresh: Vec::new() }),
            engine: Mutex::new(Some(Engine { drivers: FuturesUnordered::new(), serve, _change: change })),
            fate,
            abort: AtomicBool::new(false),
            task: AtomicWaker::new(),
            ended: watch::Sender::new(None),
            closed: AtomicBool::new(false),
        });
        tokio::spawn(unconstrained(Run(link.clone())));
        link
    }

    /// Sends a request at once, and gives its reply.
    ///
    /// `call` makes the crate's request. It is put on the wire when it is first polled, so that is done here.
    pub(super) fn request<T, F>(&self, call: impl FnOnce(Client) -> F) -> Reply<T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        self.drive(call, |reply, answer: T| {
            // A caller that has gone away needs no answer.
            let _ = reply.send(Ok(answer));
            After(None)
        })
    }

    /// As [`request`](Self::request), for one that leaves a watch.
    pub(super) fn watching_request<T, F>(&self, call: impl FnOnce(Client) -> F) -> Reply<(T, Watch)>
    where
        T: Send + 'static,
        F: Future<Output = Result<(T, OneshotWatcher), Error>> + Send + 'static,
    {
        self.drive(call, |reply, (answer, watcher)| {
            let (fire, fired) = oneshot::channel();
            let watch = Watch::new(Box::pin(async move {
                unconstrained(fired).await.unwrap_or(WatchEvent::ConnectionEnded)
            }));
            // If the caller has gone away, `fired` goes with the answer, and the watch off the server.
            let _ = reply.send(Ok((answer, watch)));
            After(Some(Box::pin(forward(watcher, fire))))
        })
    }

    fn drive<A, T, F>(
        &self,
        call: impl FnOnce(Client) -> F,
        deliver: impl FnOnce(oneshot::Sender<Result<T, ZkError>>, A) -> After + Send + 'static,
    ) -> Reply<T>
    where
        A: Send + 'static,
        T: Send + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let fate = self.fate.clone();
        {
            let mut outbox = lock(&self.outbox);
            let client = outbox.client.clone().filter(|_| !self.is_aborted());
            let Some(client) = client else {
                return Box::pin(std::future::ready(Err(ZkError::ConnectionLost)));
            };
            let call = call(client);
            let mut driver: Driver = Box::pin(async move {
                match call.await {
                    Ok(answer) => deliver(reply, answer),
                    Err(error) => {
                        let _ = reply.send(Err(fate.judge(&error)));
                        After(None)
                    }
                }
            });
            match driver.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => outbox.fresh.push(driver),
                Poll::Ready(After(next)) => outbox.fresh.extend(next),
            }
        }
        // Unconstrained, so that `now_or_never` is never told to wait by tokio's budget.
        Box::pin(async move { unconstrained(answer).await.unwrap_or(Err(ZkError::ConnectionLost)) })
    }

    /// Resolves when the connection has ended.
    pub(super) fn ended(&self) -> BoxFuture<EndReason> {
        let mut ended = self.ended.subscribe();
        Box::pin(async move {
            match ended.wait_for(Option::is_some).await.as_deref() {
                Ok(Some(reason)) => reason.clone(),
                _ => EndReason::Disconnected("the connection was dropped".to_owned()),
            }
        })
    }

    pub(super) fn has_ended(&self) -> bool {
        self.is_aborted() || self.ended.borrow().is_some()
    }

    fn is_aborted(&self) -> bool {
        self.abort.load(Ordering::Acquire)
    }

    /// Asks the server to end the session, after all requests sent so far.
    pub(super) fn close(self: &Arc<Self>) -> Reply<()> {
        // The crate sends closeSession when the last client is dropped. Those in drivers go when the replies
        // come in, and the crate's task ends when the server has answered closeSession itself.
        drop(lock(&self.outbox).client.take());
        let link = self.clone();
        let ended = self.ended();
        Box::pin(async move {
            match ended.await {
                _ if link.closed.load(Ordering::Acquire) => Ok(()),
                EndReason::SessionExpired => Err(ZkError::SessionExpired),
                _ => Err(ZkError::ConnectionLost),
            }
        })
    }

    /// Whether the session is being closed, or the connection has ended.
    pub(super) fn is_closing(&self) -> bool {
        lock(&self.outbox).client.is_none()
    }

    /// Drops the connection and leaves the session as it is.
    pub(super) fn abort(&self) {
        self.abort.store(true, Ordering::Release);
        // If the engine is being polled at this moment, its task looks at the flag right after.
        if let Ok(mut engine) = self.engine.try_lock()
            && let Some(engine) = engine.take()
        {
            self.finish(engine, EndReason::Closed, true);
        }
        self.task.wake();
    }

    /// Lets the connection go on as far as it can.
    fn turn(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut slot = lock(&self.engine);
        let Some(engine) = slot.as_mut() else { return Poll::Ready(()) };
        let (reason, deliver) = if self.is_aborted() {
            (EndReason::Closed, true)
        } else {
            match engine.turn(cx, &self.outbox, &self.fate) {
                Turn::GoesOn => return Poll::Pending,
                Turn::Ended { confirmed } => {
                    self.closed.store(confirmed, Ordering::Release);
                    (self.fate.end_reason(), true)
                }
                Turn::Broken => {
                    let why = "the client library gave up the connection".to_owned();
                    (EndReason::Disconnected(why), false)
                }
            }
        };
        if let Some(engine) = slot.take() {
            self.finish(engine, reason, deliver);
        }
        Poll::Ready(())
    }

    /// Ends everything, in the only order that is safe; see the module's documentation.
    fn finish(&self, mut engine: Engine, reason: EndReason, deliver: bool) {
        let client = {
            let mut outbox = lock(&self.outbox);
            engine.drivers.extend(outbox.fresh.drain(..));
            outbox.client.take()
        };
        if deliver {
            let mut cx = Context::from_waker(Waker::noop());
            for driver in Pin::new(&mut engine.drivers).iter_pin_mut() {
                if let Poll::Ready(After(Some(mut watch))) = driver.get_mut().as_mut().poll(&mut cx) {
                    let _ = watch.as_mut().poll(&mut cx);
                }
            }
        }
        tracing::debug!(?reason, "connection ended");
        self.ended.send_replace(Some(reason));
        let Engine { drivers, serve, .. } = engine;
        drop(drivers);
        drop(serve);
        // Last: the crate's task would otherwise take it for our wish to close the session.
        drop(client);
    }
}

/// What a turn of the engine came to.
enum Turn {
    GoesOn,
    /// The connection has ended; `confirmed` says that the server confirmed the end of the session.
    Ended {
        confirmed: bool,
    },
    /// The crate's task ended without having said so, which leaves its watches in a state that panics.
    Broken,
}

impl Engine {
    fn turn(&mut self, cx: &mut Context<'_>, outbox: &Mutex<Outbox>, fate: &Fate) -> Turn {
        let done = self.serve.as_mut().poll(cx).is_ready();
        fate.look();
        if done && !is_terminal(fate.watcher.peek_state()) {
            return Turn::Broken;
        }
        self.drivers.extend(lock(outbox).fresh.drain(..));
        while let Poll::Ready(Some(After(next))) = self.drivers.poll_next_unpin(cx) {
            if let Some(mut watch) = next
                // At once: its event may have come in with the reply, and goes before any reply behind it.
                && watch.as_mut().poll(cx).is_pending()
            {
                self.drivers.push(watch);
            }
        }
        match fate.first.get() {
            None => Turn::GoesOn,
            Some(state) => Turn::Ended { confirmed: done && *state == SessionState::Closed },
        }
    }
}

/// The task that polls the engine. Should the runtime drop it, the connection ends as well.
struct Run(Arc<Link>);

impl Future for Run {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.0.task.register(cx.waker());
        self.0.turn(cx)
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(engine) = lock(&self.0.engine).take() {
            self.0.finish(engine, EndReason::Disconnected("the runtime shut down".to_owned()), false);
        }
    }
}

/// How the connection came to its end.
///
/// The crate's state is overwritten when it goes on to reconnect, and after a pause of the process it does so,
/// fails, and declares the session expired by its own clock, all in one poll. That says nothing about the
/// session, so the *first* state that is not a connected one is what counts. The crate wakes us from within
/// the change, which is when it is written down.
struct Fate {
    watcher: StateWatcher,
    first: OnceLock<SessionState>,
    /// What the first request that failed with it said of it.
    cause: OnceLock<String>,
}

impl Wake for Fate {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

impl Fate {
    fn look(&self) {
        let state = self.watcher.peek_state();
        if !matches!(state, SessionState::SyncConnected | SessionState::ConnectedReadOnly) {
            let _ = self.first.set(state);
        }
    }

    /// A request's error in the port's terms.
    fn judge(&self, error: &Error) -> ZkError {
        if let Some(refusal) = convert::refusal(error) {
            return refusal;
        }
        match error {
            Error::SessionExpired if self.first.get() == Some(&SessionState::Expired) => {
                ZkError::SessionExpired
            }
            Error::SessionMoved => {
                // The servers hold another connection to be the session's: this one is of no use any more.
                let _ = self.cause.set("the session has moved to another connection".to_owned());
                let _ = self.first.set(SessionState::Disconnected);
                ZkError::ConnectionLost
            }
            // The reply can't be read, or the crate's task is gone. The latter ends the connection as well.
            Error::UnexpectedError(_) | Error::UnmarshalError { .. } if self.first.get().is_none() => {
                ZkError::Unexpected(error.to_string())
            }
            Error::ConnectionLoss => {
                let _ = self.cause.set("the server closed the connection".to_owned());
                ZkError::ConnectionLost
            }
            Error::Custom(cause) => {
                let _ = self.cause.set(cause.to_string());
                ZkError::ConnectionLost
            }
            // Whatever else it is, it does not tell whether the request was applied. A refusal of our
            // credentials is one of these: it ends the connection with every request that is in flight.
            _ => ZkError::ConnectionLost,
        }
    }

    fn end_reason(&self) -> EndReason {
        match self.first.get() {
            Some(SessionState::Expired) => EndReason::SessionExpired,
            Some(SessionState::AuthFailed) => EndReason::AuthFailed,
            Some(SessionState::Closed) => EndReason::Closed,
            _ => EndReason::Disconnected(
                self.cause
                    .get()
                    .cloned()
                    .unwrap_or_else(|| "the connection to the server was lost".to_owned()),
            ),
        }
    }
}

fn is_terminal(state: SessionState) -> bool {
    matches!(state, SessionState::Expired | SessionState::AuthFailed | SessionState::Closed)
}

/// Waits for the watch, or for its owner to drop it, which takes it off the server.
async fn forward(watcher: OneshotWatcher, mut fire: oneshot::Sender<WatchEvent>) -> After {
    let event = {
        let changed = std::pin::pin!(watcher.changed());
        let dropped = std::pin::pin!(fire.closed());
        match futures_util::future::select(changed, dropped).await {
            futures_util::future::Either::Left((event, _)) => event,
            futures_util::future::Either::Right(_) => return After(None),
        }
    };
    let _ = fire.send(convert::event(&event));
    After(None)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing is left half done by a panic under these locks.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
