//! What moves the simulated world: the queue of events, and the task that takes them one at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep};

use super::connection::WatchFuture;
use super::network::{Attached, Body, ConnId};
use super::watches::WatchId;
use super::{Event, Nanos, Shared, Step};
use crate::zk::{ConnectError, EndReason, Watch, WatchEvent, ZkError};

/// What will happen, in order: the earliest first, and of equals the one scheduled first.
#[derive(Default)]
pub(super) struct Agenda {
    /// When, the how-manieth, and where in `events`: small, since a heap moves its entries about.
    order: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    events: Vec<Option<Event>>,
    free: Vec<usize>,
    number: u64,
}

impl Agenda {
    pub fn add(&mut self, at: Nanos, event: Event) {
        self.number += 1;
        let place = match self.free.pop() {
            Some(place) => {
                self.events[place] = Some(event);
                place
            }
            None => {
                self.events.push(Some(event));
                self.events.len() - 1
            }
        };
        self.order.push(Reverse((at, self.number, place)));
    }

    /// When the next event is due; the end of time if there is none.
    pub fn next(&self) -> Nanos {
        self.order.peek().map_or(Nanos::MAX, |Reverse((at, _, _))| *at)
    }

    pub fn take(&mut self) -> Option<Event> {
        let Reverse((_, _, place)) = self.order.pop()?;
        self.free.push(place);
        self.events[place].take()
    }
}

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
            let next = state.agenda.next();
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
            if let Some(event) = state.agenda.take() {
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
