//! What moves the simulated world: the queue of events, and the task that takes them one at a time.

use std::cmp::Ordering;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::network::{Attached, Body, ConnId, WatchFuture};
use super::watches::WatchId;
use super::{Event, Nanos, Shared, Step};
use crate::zk::{ConnectError, EndReason, Watch, WatchEvent, ZkError};

/// An event and when it is due. The heap gives the earliest, and of equals the one scheduled first.
pub(super) struct Scheduled {
    pub at: Nanos,
    pub number: u64,
    pub event: Event,
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

type ReplySender = oneshot::Sender<Result<(Body, Option<Watch>), ZkError>>;

/// What reaches a process. It takes effect when the world is no longer locked, since it may run code of the engine's.
pub(super) enum Effect {
    Connected(oneshot::Sender<Result<Attached, ConnectError>>, Result<Attached, ConnectError>),
    Reply(ReplySender, Result<(Body, Option<Watch>), ZkError>),
    Answer {
        reply: ReplySender,
        conn: ConnId,
        result: Result<Body, ZkError>,
        watch: Option<(WatchId, oneshot::Receiver<WatchEvent>)>,
    },
    Watch(oneshot::Sender<WatchEvent>, WatchEvent),
    Ended(oneshot::Sender<EndReason>, EndReason),
}

impl Effect {
    /// A receiver that is gone is no concern of the sender's, except that what it was sent is dropped.
    pub fn run(self, shared: &Arc<Shared>) {
        match self {
            Effect::Connected(sender, result) => drop(sender.send(result)),
            Effect::Reply(sender, result) => drop(sender.send(result)),
            Effect::Answer { reply, conn, result, watch } => {
                let watch = watch.map(|(id, receiver)| {
                    Watch::new(Box::pin(WatchFuture { shared: shared.clone(), conn, id, receiver }))
                });
                drop(reply.send(result.map(|body| (body, watch))));
            }
            Effect::Watch(sender, event) => drop(sender.send(event)),
            Effect::Ended(sender, reason) => drop(sender.send(reason)),
        }
    }
}

/// The task that takes the events. After each that reaches a process it lets the others run first.
pub(super) struct Driver {
    pub shared: std::sync::Weak<Shared>,
    pub sleep: Option<Pin<Box<Sleep>>>,
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(shared) = self.shared.upgrade() else { return Poll::Ready(()) };
        loop {
            let elapsed = shared.elapsed();
            let mut state = shared.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.now = state.now.max(elapsed);
            if state.stopped {
                return Poll::Ready(());
            }
            let next = state.queue.peek().map_or(Nanos::MAX, |scheduled| scheduled.at);
            if next > elapsed {
                // An hour stands for "until something is scheduled".
                let wait = (next - elapsed).min(Duration::from_secs(3600).as_nanos() as Nanos);
                state.armed = elapsed + wait;
                match &mut state.driver {
                    Some(waker) => waker.clone_from(cx.waker()),
                    none => *none = Some(cx.waker().clone()),
                }
                drop(state);
                let deadline = Instant::now() + Duration::from_nanos(wait);
                let sleep = self.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
                if sleep.deadline() != deadline {
                    sleep.as_mut().reset(deadline);
                }
                match sleep.as_mut().poll(cx) {
                    Poll::Ready(()) => continue,
                    Poll::Pending => return Poll::Pending,
                }
            }
            if let Some(Scheduled { event, .. }) = state.queue.pop() {
                state.handle(event);
            }
            let effects = std::mem::take(&mut state.out);
            let notes = std::mem::take(&mut state.notes);
            state.steps += 1;
            let now = state.now;
            let watched = state.watched;
            drop(state);
            let reached = !effects.is_empty();
            for effect in effects {
                effect.run(&shared);
            }
            if watched {
                shared.tell(&Step { now: Duration::from_nanos(now), notes: &notes });
            }
            if reached {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }
}
