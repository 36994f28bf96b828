//! One simulated process: its tasks, its clock, its chance, and what can befall it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use rand::rngs::SmallRng;
use rand::{RngCore, SeedableRng};

use super::connection;
use super::network::ProcessId;
use super::{RequestFault, RequestKind, RequestRates, Shared};
use crate::env::{BoxFuture, Chance, Clock, Env, Moment, Spawner};
use crate::zk::{ConnectError, ConnectRequest, Connection, Connector};

const RUNNING: u8 = 0;
const FROZEN: u8 = 1;
const KILLED: u8 = 2;

/// Whether a process runs, and the tasks to wake when that changes.
#[derive(Debug, Default)]
pub(super) struct RunState {
    state: AtomicU8,
    tasks: Mutex<Tasks>,
}

#[derive(Debug, Default)]
struct Tasks {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

#[derive(Debug, Default)]
struct Slot {
    waker: Option<Waker>,
    /// Woken while frozen: to be polled on thawing.
    missed: bool,
}

impl RunState {
    pub fn is_frozen(&self) -> bool {
        self.state.load(Ordering::Relaxed) == FROZEN
    }

    pub fn is_killed(&self) -> bool {
        self.state.load(Ordering::Relaxed) == KILLED
    }

    fn change(&self, state: u8) {
        if self.is_killed() {
            return;
        }
        self.state.store(state, Ordering::Relaxed);
        if state == FROZEN {
            return;
        }
        let mut wakers = Vec::new();
        for slot in &mut self.tasks().slots {
            if std::mem::take(&mut slot.missed) || state == KILLED {
                wakers.extend(slot.waker.clone());
            }
        }
        // Outside the lock, for what a waker does is not ours to know.
        wakers.into_iter().for_each(Waker::wake);
    }

    fn tasks(&self) -> std::sync::MutexGuard<'_, Tasks> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_slot(&self) -> usize {
        let mut tasks = self.tasks();
        tasks.free.pop().unwrap_or_else(|| {
            tasks.slots.push(Slot::default());
            tasks.slots.len() - 1
        })
    }

    fn note(&self, slot: usize, waker: &Waker, missed: bool) {
        let slot = &mut self.tasks().slots[slot];
        slot.missed |= missed;
        match &mut slot.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    fn give_back(&self, slot: usize) {
        let mut tasks = self.tasks();
        let old = std::mem::take(&mut tasks.slots[slot]);
        tasks.free.push(slot);
        drop(tasks);
        drop(old);
    }
}

/// A future that belongs to a process: not polled while it is frozen, dropped when it is killed.
///
/// Ends in `None` when the process was killed.
pub struct OfProcess<F: Future> {
    process: Arc<RunState>,
    slot: Option<usize>,
    inner: Option<Pin<Box<F>>>,
}

impl<F: Future> OfProcess<F> {
    fn new(process: Arc<RunState>, inner: F) -> Self {
        Self { process, slot: None, inner: Some(Box::pin(inner)) }
    }

    fn end(&mut self) {
        self.inner = None;
        if let Some(slot) = self.slot.take() {
            self.process.give_back(slot);
        }
    }
}

impl<F: Future> Future for OfProcess<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if this.process.is_killed() {
            this.end();
            return Poll::Ready(None);
        }
        let slot = *this.slot.get_or_insert_with(|| this.process.take_slot());
        let frozen = this.process.is_frozen();
        this.process.note(slot, cx.waker(), frozen);
        if frozen {
            return Poll::Pending;
        }
        let Some(inner) = &mut this.inner else { return Poll::Pending };
        match inner.as_mut().poll(cx) {
            Poll::Ready(output) => {
                this.end();
                Poll::Ready(Some(output))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<F: Future> Drop for OfProcess<F> {
    fn drop(&mut self) {
        self.end();
    }
}

/// What the engine sees of its process: everything an [`Env`] needs.
struct Machine {
    shared: Arc<Shared>,
    id: ProcessId,
    run: Arc<RunState>,
    clock_offset: u64,
    chance: Mutex<SmallRng>,
}

impl Clock for Machine {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.shared.elapsed() + self.clock_offset)
    }
}

impl Spawner for Machine {
    fn spawn(&self, task: BoxFuture<()>) {
        if !self.run.is_killed() {
            let task = AssertUnwindSafe(OfProcess::new(self.run.clone(), task)).catch_unwind();
            let (shared, id) = (self.shared.clone(), self.id);
            tokio::spawn(async move {
                if let Err(panic) = task.await {
                    // tokio would keep it to itself.
                    shared.with(|state| state.panicked(id, &*panic));
                }
            });
        }
    }
}

impl Chance for Machine {
    fn next_u64(&self) -> u64 {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner).next_u64()
    }
}

impl Connector for Machine {
    fn connect(&self, request: ConnectRequest) -> BoxFuture<Result<Arc<dyn Connection>, ConnectError>> {
        connection::connect(&self.shared, self.id, request)
    }
}

/// One process of the simulated world, with one machine to itself.
#[derive(Clone)]
pub struct SimProcess {
    shared: Arc<Shared>,
    id: ProcessId,
    name: Arc<str>,
    run: Arc<RunState>,
    env: Env,
}

impl std::fmt::Debug for SimProcess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimProcess").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SimProcess {
    pub(super) fn new(shared: &Arc<Shared>, name: &str) -> Self {
        let run = Arc::new(RunState::default());
        let (id, seed) = shared.with(|state| state.add_process(name, run.clone()));
        let mut chance = SmallRng::seed_from_u64(seed);
        // Machines have not all started at once: a clock of one means nothing to another.
        let clock_offset = chance.next_u64() % Duration::from_secs(1_000_000).as_nanos() as u64;
        let machine = Arc::new(Machine {
            shared: shared.clone(),
            id,
            run: run.clone(),
            clock_offset,
            chance: Mutex::new(chance),
        });
        let env = Env {
            clock: machine.clone(),
            spawner: machine.clone(),
            chance: machine.clone(),
            connector: machine,
        };
        Self { shared: shared.clone(), id, name: name.into(), run, env }
    }

    /// The world as the engine in this process sees it.
    #[must_use]
    pub fn env(&self) -> Env {
        self.env.clone()
    }

    /// The name it was given.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Runs `future` as code of this process: it stands still while the process is frozen, and ends in `None`
    /// when the process is killed.
    pub fn run<F: Future>(&self, future: F) -> OfProcess<F> {
        OfProcess::new(self.run.clone(), future)
    }

    /// Starts `task` in this process.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.env.spawn(task);
    }

    /// Stops every task of the process, as SIGSTOP does. What it has sent still arrives.
    pub fn freeze(&self) {
        self.shared.with(|state| state.trace(|| format!("{} frozen", self.name)));
        self.run.change(FROZEN);
    }

    /// Lets it run again. What has come for it meanwhile is read after its timers have fired, or before.
    pub fn thaw(&self) {
        if !self.run.is_frozen() {
            return;
        }
        self.run.change(RUNNING);
        self.shared.with(|state| {
            state.trace(|| format!("{} thawed", self.name));
            state.thaw(self.id);
        });
    }

    /// Whether it is frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.run.is_frozen()
    }

    /// Ends the process: its tasks are dropped where they stand and its connections are closed by the operating
    /// system. Its session lives on until it expires.
    pub fn kill(&self) {
        if self.run.is_killed() {
            return;
        }
        self.run.change(KILLED);
        self.shared.with(|state| {
            state.trace(|| format!("{} killed", self.name));
            state.kill_process(self.id);
        });
    }

    /// Whether it has been killed.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        self.run.is_killed()
    }

    /// Ends its connections, as a reset from the network does. New ones can be made.
    pub fn disconnect(&self) {
        self.shared.with(|state| state.disconnect(self.id));
    }

    /// Does `fault` to the next request that is of kind `on`.
    pub fn arm(&self, on: RequestKind, fault: RequestFault) {
        self.shared.with(|state| state.arm(self.id, on, fault));
    }

    /// How often chance alone brings a fault on one of its requests.
    pub fn set_rates(&self, rates: RequestRates) {
        self.shared.with(|state| state.set_rates(self.id, rates));
    }

    /// Stops what it sends (`up`) and what it is sent (`down`), to and from `server` or all servers, until
    /// [`release`](Self::release) delivers all of it at once. A black hole is a stall that nobody lifts.
    pub fn stall(&self, server: Option<usize>, up: bool, down: bool) {
        self.shared.with(|state| state.stall(self.id, server, up, down));
    }

    /// Ends every stall of the process, and delivers what was held up.
    pub fn release(&self) {
        self.shared.with(|state| state.release(self.id));
    }

    /// The server of its newest live connection, counted from 0.
    #[must_use]
    pub fn server(&self) -> Option<usize> {
        self.shared.with(|state| state.server_of_process(self.id))
    }

    /// The sessions that its live connections are attached to.
    #[must_use]
    pub fn sessions(&self) -> Vec<i64> {
        self.shared.with(|state| state.sessions_of(self.id))
    }
}
