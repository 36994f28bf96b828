//! A deterministic ZooKeeper ensemble with faults, for tests.
//!
//! A [`World`] holds one or three servers and any number of [processes](SimProcess), all in one tokio runtime of
//! the `current_thread` kind, with its clock paused. Everything that happens follows from the seed: a world
//! takes chance only from it, keeps nothing in an order that may differ, and handles one event at a time.
//!
//! The servers behave as real ones do in all that a lock stands on: the tree and its counters, one-shot watches in
//! order with the replies, followers that lag, answer reads themselves and hand on whom they have heard of with
//! their answers to the leader's pings, sessions that expire at the leader's ticks, leaders that are deposed and
//! do not know. What they do not have: read-only mode, quotas, credentials, and the meaning of ACLs.
//!
//! The parts: [`tree`] and [`expiry`] are pure; [`server`] is what one server does with its clients; [`ensemble`] is
//! what the servers do among themselves, and [`election`] how leaders come and go; [`network`] is the wire between clients
//! and servers, [`client`] its client's end, and [`connection`] what the engine sees of that; [`process`] is freezing and
//! killing; [`faults`] is what a test can do to all of it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

use crate::zk::{Endpoint, WatchEvent};

mod client;
mod connection;
mod driver;
mod election;
mod ensemble;
mod expiry;
mod faults;
mod network;
mod process;
mod server;
mod tree;
mod watches;

#[cfg(test)]
mod tests;

pub use faults::{Detection, Door, RequestFault, RequestKind, RequestRates};
pub use process::{OfProcess, SimProcess};

use ensemble::{Message, Role, Wire};
use network::{ConnId, ProcessId, ServerId, ToClient, ToServer};

/// Nanoseconds since the world began.
type Nanos = u64;

fn nanos(duration: Duration) -> Nanos {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
}

/// A range of durations to draw from, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    min: Nanos,
    max: Nanos,
}

impl Span {
    /// From `min` to `max`.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        Self { min: nanos(min), max: nanos(max.max(min)) }
    }

    /// From so many milliseconds to so many.
    #[must_use]
    pub fn millis(min: u64, max: u64) -> Self {
        Self::new(Duration::from_millis(min), Duration::from_millis(max))
    }

    fn draw(self, rng: &mut SmallRng) -> Nanos {
        if self.max == 0 {
            return 0;
        }
        rng.random_range(self.min..=self.max)
    }
}

/// How a world is laid out.
#[derive(Clone, Debug)]
pub struct WorldOptions {
    /// How many servers: 1 stands alone, more are an ensemble.
    pub servers: usize,
    /// The server's `tickTime`.
    pub tick: Duration,
    /// The smallest session timeout granted; two ticks if none.
    pub min_session_timeout: Option<Duration>,
    /// The largest session timeout granted; twenty ticks if none.
    pub max_session_timeout: Option<Duration>,
    /// The server's `syncLimit`: for how many ticks followers and leader wait for each other.
    pub sync_limit: u32,
    /// How long a packet takes between a client and a server, one way.
    pub client_latency: Span,
    /// How long a message takes between two servers, one way.
    pub server_latency: Span,
    /// How long a request waits in the queue of a server's first processor: in a follower's before it is sent to the
    /// leader, in the leader's before the owner of its session is checked. Re-validations wait in neither.
    pub queueing: Span,
    /// How long a quorum takes to answer a proposal.
    pub commit_latency: Span,
    /// How long an election takes, once it can be held.
    pub election: Span,
    /// For how long a change counts as outstanding, when a child counter is at its end.
    pub outstanding: Duration,
    /// How often empty containers are removed.
    pub container_sweep: Duration,
    /// How many lines of what happened are kept for a report; none of it costs anything when 0.
    pub trace: usize,
}

impl Default for WorldOptions {
    fn default() -> Self {
        Self {
            servers: 3,
            tick: Duration::from_secs(2),
            min_session_timeout: None,
            max_session_timeout: None,
            sync_limit: 5,
            client_latency: Span::millis(0, 2),
            server_latency: Span::millis(0, 2),
            queueing: Span::millis(0, 1),
            commit_latency: Span::millis(0, 2),
            election: Span::millis(100, 600),
            outstanding: Duration::from_millis(2),
            container_sweep: Duration::from_secs(60),
            trace: 0,
        }
    }
}

/// The options in the terms of the simulation.
struct Options {
    tick: Nanos,
    min_timeout: Option<Nanos>,
    max_timeout: Option<Nanos>,
    sync_limit: u32,
    client_latency: Span,
    server_latency: Span,
    queueing: Span,
    commit_latency: Span,
    election: Span,
    outstanding: Nanos,
    container_sweep: Nanos,
}

/// Why a write was made that no client asked for, or that one did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A client asked for it.
    Client,
    /// A client had asked the leader before this one.
    Survived,
    /// A session expired.
    Expiry,
    /// The server does so by itself.
    Server,
    /// An operator, or a clean-up job, through a client of his own.
    Operator,
}

/// Something that happened in a step.
#[derive(Clone, Debug)]
pub enum Note {
    /// A node came to be.
    Created {
        /// Its path.
        path: Arc<str>,
        /// The transaction.
        czxid: i64,
    },
    /// A node is gone.
    Deleted {
        /// Its path.
        path: Arc<str>,
        /// The transaction that had created it.
        czxid: i64,
        /// Who did it.
        cause: Cause,
    },
    /// A session is over.
    SessionClosed {
        /// Its number.
        session: i64,
        /// Who did it.
        cause: Cause,
    },
    /// A session is attached to a server, anew or for the first time.
    Attached {
        /// Whose it is.
        process: Arc<str>,
        /// Its number.
        session: i64,
        /// The server, counted from 0.
        server: usize,
    },
    /// A task of a process has panicked.
    Panicked {
        /// The process.
        process: Arc<str>,
        /// What it said.
        message: String,
    },
    /// A watch event has reached a process.
    Told {
        /// The process.
        process: Arc<str>,
        /// The path watched.
        path: Arc<str>,
        /// What was seen.
        event: WatchEvent,
    },
}

/// One step of the world: an operation applied, a packet delivered, a timer fired.
#[derive(Debug)]
pub struct Step<'a> {
    /// How long the world has run.
    pub now: Duration,
    /// What happened, in order.
    pub notes: &'a [Note],
}

type Hook = Box<dyn FnMut(&Step<'_>) + Send>;

/// Everything that will happen.
enum Event {
    ToServer(ConnId, ToServer),
    ToClient(ConnId, ToClient),
    ClientLoses(ConnId, &'static str),
    ServerLoses(ConnId),
    Keepalive(ConnId),
    ConnectTimeout(ConnId),
    Inbox(ProcessId),
    Between {
        from: ServerId,
        to: ServerId,
        term: u32,
        message: Message,
    },
    /// A follower's first processor takes up its oldest request.
    Forward {
        follower: ServerId,
        term: u32,
    },
    /// A leader's first processor takes up its oldest request.
    Prepare {
        leader: ServerId,
        term: u32,
    },
    Quorum {
        leader: ServerId,
        term: u32,
    },
    Pings {
        leader: ServerId,
        term: u32,
    },
    Expiries {
        leader: ServerId,
        term: u32,
    },
    GivesUp {
        server: ServerId,
        term: u32,
        stamp: u32,
    },
    Elect,
    Sweep,
}

/// The whole world but for the processes' own tasks.
struct State {
    now: Nanos,
    agenda: driver::Agenda,
    /// When the driver will look again by itself.
    armed: Nanos,
    driver: Option<Waker>,
    stopped: bool,
    steps: u64,
    rng: SmallRng,
    options: Options,
    servers: Vec<server::Server>,
    wires: Vec<Wire>,
    conns: Vec<network::Conn>,
    processes: Vec<network::Process>,
    /// The committed transactions.
    log: Vec<Arc<ensemble::Entry>>,
    /// How much of the log has been noted for the hook.
    noted: usize,
    /// The latest leadership.
    term: u32,
    /// What may live on of the proposals of the leader of some term.
    survivors: Option<(u32, Vec<ensemble::Proposal>)>,
    /// Counts how often the servers were joined again.
    partition_stamp: u32,
    next_session: i64,
    next_watch: u64,
    /// What is to reach processes once the world is unlocked.
    out: Vec<driver::Effect>,
    /// Whether anybody looks at the notes.
    watched: bool,
    notes: Vec<Note>,
    trace: VecDeque<String>,
    trace_limit: usize,
}

impl State {
    fn schedule(&mut self, after: Nanos, event: Event) {
        self.schedule_at(self.now.saturating_add(after), event);
    }

    fn schedule_at(&mut self, at: Nanos, event: Event) {
        self.agenda.add(at, event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::ToServer(conn, packet) => self.server_receives(conn, packet),
            Event::ServerLoses(conn) => self.close_server_side(conn, None),
            Event::Inbox(process) => self.read_inbox(process),
            Event::Between { from, to, term, message } => self.arrives_between(from, to, term, message),
            Event::Forward { follower, term } => self.follower_forwards(follower, term),
            Event::Prepare { leader, term } => self.leader_prepares(leader, term),
            Event::Quorum { leader, term } => self.quorum_answers(leader, term),
            Event::Pings { leader, term } => self.leader_pings(leader, term),
            Event::Expiries { leader, term } => self.leader_expires(leader, term),
            Event::GivesUp { server, term, stamp } => self.gives_up(server, term, stamp),
            Event::Elect => self.elect(),
            Event::Sweep => self.sweep_containers(),
            Event::ToClient(conn, _)
            | Event::ClientLoses(conn, _)
            | Event::Keepalive(conn)
            | Event::ConnectTimeout(conn) => {
                if let Some(event) = self.set_aside(conn, event) {
                    self.reaches_client(event);
                }
            }
        }
    }

    fn reaches_client(&mut self, event: Event) {
        match event {
            Event::ToClient(conn, packet) => self.client_receives(conn, packet),
            Event::ClientLoses(conn, why) => {
                self.end_client(conn, crate::zk::EndReason::Disconnected(why.into()));
            }
            Event::Keepalive(conn) => self.keepalive(conn),
            Event::ConnectTimeout(conn) => self.connect_timed_out(conn),
            _ => {}
        }
    }

    fn note(&mut self, note: impl FnOnce(&Self) -> Note) {
        if self.watched {
            let note = note(self);
            self.notes.push(note);
        }
    }

    fn trace(&mut self, line: impl FnOnce() -> String) {
        self.trace_with(|_| line());
    }

    fn trace_with(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.trace_limit == 0 {
            return;
        }
        if self.trace.len() == self.trace_limit {
            self.trace.pop_front();
        }
        let line = without_bytes(&line(self));
        let line = format!("{:>12.6} {line}", Duration::from_nanos(self.now).as_secs_f64());
        self.trace.push_back(line);
    }
}

/// Leaves out lists of numbers, which are the data of nodes.
fn without_bytes(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('[') {
        shown.push_str(before);
        shown.push('[');
        rest = after;
        if let Some((inside, _)) = after.split_once(']')
            && inside.len() > 20
            && inside.bytes().all(|b| b.is_ascii_digit() || b == b',' || b == b' ')
        {
            shown.push('…');
            rest = &after[inside.len()..];
        }
    }
    shown + rest
}

/// What the processes and the world share.
struct Shared {
    start: Instant,
    state: Mutex<State>,
    hook: Mutex<Option<Hook>>,
}

impl Shared {
    fn elapsed(&self) -> Nanos {
        nanos(Instant::now().duration_since(self.start))
    }

    /// Works on the state, then lets what it set off take effect.
    fn with<R>(self: &Arc<Self>, work: impl FnOnce(&mut State) -> R) -> R {
        let now = self.elapsed();
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = state.now.max(now);
        let result = work(&mut state);
        let effects = std::mem::take(&mut state.out);
        let next = state.agenda.next();
        let waker = if next < state.armed {
            state.armed = 0;
            state.driver.take()
        } else {
            None
        };
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        for effect in effects {
            effect.run(self);
        }
        result
    }

    fn tell(&self, step: &Step<'_>) {
        // Taken out while it runs, so that it may look at the world.
        let hook = self.hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut hook) = hook {
            hook(step);
            *self.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
        }
    }
}

/// A simulated ZooKeeper and its surroundings. Dropping it stops it.
pub struct World {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.shared.with(|state| {
            state.stopped = true;
            state.armed = Nanos::MAX;
            state.schedule(0, Event::Elect);
        });
    }
}

impl World {
    /// A world that follows from `seed`.
    ///
    /// # Panics
    ///
    /// Outside a tokio runtime.
    #[must_use]
    pub fn new(seed: u64, options: &WorldOptions) -> Self {
        let count = options.servers.max(1);
        let server = || server::Server {
            up: true,
            door: Door::Open,
            isolated: false,
            throttling: 0.0,
            lag: Span::millis(0, 0),
            role: Role::Looking,
            term: 0,
            tree: tree::Tree::new(),
            applied: 0,
            touched: std::collections::BTreeMap::new(),
            outgoing: server::Outgoing::default(),
            watches: watches::Watches::default(),
            attached: std::collections::BTreeMap::new(),
        };
        let mut state = State {
            now: 0,
            agenda: driver::Agenda::default(),
            armed: 0,
            driver: None,
            stopped: false,
            steps: 0,
            rng: SmallRng::seed_from_u64(seed),
            options: Options {
                tick: nanos(options.tick).max(2),
                min_timeout: options.min_session_timeout.map(nanos),
                max_timeout: options.max_session_timeout.map(nanos),
                sync_limit: options.sync_limit,
                client_latency: options.client_latency,
                server_latency: options.server_latency,
                queueing: options.queueing,
                commit_latency: options.commit_latency,
                election: options.election,
                outstanding: nanos(options.outstanding),
                container_sweep: nanos(options.container_sweep),
            },
            servers: (0..count).map(|_| server()).collect(),
            wires: (0..count * count).map(|_| Wire::default()).collect(),
            conns: Vec::new(),
            processes: Vec::new(),
            log: Vec::new(),
            noted: 0,
            term: 0,
            survivors: None,
            partition_stamp: 0,
            next_session: 0,
            next_watch: 0,
            out: Vec::new(),
            watched: false,
            notes: Vec::new(),
            trace: VecDeque::new(),
            trace_limit: options.trace,
        };
        let all: Vec<_> = (0..count).collect();
        state.start_term(&all);
        state.schedule(state.options.container_sweep, Event::Sweep);
        let shared =
            Arc::new(Shared { start: Instant::now(), state: Mutex::new(state), hook: Mutex::new(None) });
        tokio::spawn(driver::Driver { shared: Arc::downgrade(&shared), sleep: None });
        Self { shared }
    }

    /// A world of one server where nothing goes wrong, for tests of what the operations do.
    #[must_use]
    pub fn single(seed: u64) -> Self {
        let none = Span::millis(0, 0);
        Self::new(
            seed,
            &WorldOptions {
                servers: 1,
                client_latency: none,
                server_latency: none,
                queueing: none,
                commit_latency: none,
                ..WorldOptions::default()
            },
        )
    }

    /// Starts a process.
    #[must_use]
    pub fn process(&self, name: &str) -> SimProcess {
        SimProcess::new(&self.shared, name)
    }

    /// The servers' addresses.
    #[must_use]
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let count = self.shared.with(|state| state.servers.len());
        (0..count).map(|index| Endpoint { host: format!("zk{}", index + 1), port: 2181 }).collect()
    }

    /// Calls `hook` after every step: each operation applied, each packet delivered, each timer. It may look at
    /// the world and at the engine's handles, and change neither.
    pub fn on_step(&self, hook: impl FnMut(&Step<'_>) + Send + 'static) {
        self.shared.with(|state| state.watched = true);
        *self.shared.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// How long the world has run.
    #[must_use]
    pub fn now(&self) -> Duration {
        Duration::from_nanos(self.shared.elapsed())
    }

    /// How many steps it has taken.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.shared.with(|state| state.steps)
    }

    /// Adds a line to the trace. The line is not made when there is no trace.
    pub fn trace(&self, line: impl FnOnce() -> String) {
        self.shared.with(|state| state.trace(line));
    }

    /// The last lines of what happened, oldest first.
    #[must_use]
    pub fn trace_lines(&self) -> Vec<String> {
        self.shared.with(|state| state.trace.iter().cloned().collect())
    }
}
