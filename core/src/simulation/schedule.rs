//! One schedule, from the first process to the last node gone.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, RngCore, SeedableRng};

use super::chaos::Chaos;
use super::checker::{Checker, SLACK};
use super::workload::{Counts, Program};
use super::{Outcome, Profile, Violation};
use crate::client::Client;
use crate::options::Options;
use crate::recipes::MutexOptions;
use crate::session::{Heartbeat, RetryPolicy, States};
use crate::zk::simulated::{Span, World, WorldOptions};

/// How long after the last fault everybody must have come to an end, and everything must be gone.
const REST: Duration = Duration::from_secs(90);

pub(super) fn run(seed: u64, profile: &Profile, trace: usize) -> Outcome {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    match runtime {
        Ok(runtime) => runtime.block_on(simulate(seed, profile, trace)),
        Err(error) => panic!("a runtime can't be made: {error}"),
    }
}

fn one_of<T: Clone>(choices: &[T], rng: &mut SmallRng) -> T {
    choices[rng.random_range(0..choices.len())].clone()
}

/// What a schedule has drawn from its profile.
struct Plan {
    servers: usize,
    timeout: Duration,
    tick: Duration,
    heartbeat: Heartbeat,
    roots: Vec<String>,
    faults: usize,
    /// Whether roots are made as containers, which the servers remove when they are empty.
    containers: bool,
}

async fn simulate(seed: u64, profile: &Profile, trace: usize) -> Outcome {
    let mut rng = SmallRng::seed_from_u64(seed);
    let (timeout, tick) = one_of(&profile.times, &mut rng);
    let locks = rng.random_range(profile.locks.clone());
    let plan = Plan {
        servers: one_of(&profile.servers, &mut rng),
        timeout: Duration::from_millis(timeout),
        tick: Duration::from_millis(tick),
        heartbeat: one_of(&profile.heartbeats, &mut rng),
        roots: (0..locks).map(|lock| format!("/locks/{lock}")).collect(),
        faults: rng.random_range(profile.faults.clone()),
        containers: rng.random_bool(profile.containers),
    };
    let latency = [Span::millis(0, 1), Span::millis(0, 3), Span::millis(1, 20)];
    let options = WorldOptions {
        servers: plan.servers,
        tick: plan.tick,
        sync_limit: one_of(&profile.sync_limits, &mut rng),
        client_latency: one_of(&latency, &mut rng),
        server_latency: one_of(&latency, &mut rng),
        queueing: Span::millis(0, rng.random_range(0..4)),
        commit_latency: Span::millis(0, rng.random_range(0..4)),
        container_sweep: Duration::from_secs(2),
        trace,
        ..WorldOptions::default()
    };
    let world = Arc::new(World::new(rng.next_u64(), &options));
    let checker = Checker::new(world.clone(), plan.heartbeat, plan.faults == 0, &plan.roots);
    let looker = checker.clone();
    world.on_step(move |step| looker.step(step));
    if profile.old_counters && rng.random_bool(0.15) {
        // Made before the first client comes, there is always a leader to do it.
        let made = ["/locks", "/locks/0"].map(|path| world.operator_create(path, b""));
        let forced = world.force_counter("/locks/0", i32::MAX - rng.random_range(0..4));
        debug_assert!(made.iter().all(Result::is_ok) && forced.is_ok());
    }
    let (programs, mut states) = start_programs(&plan, profile, &world, &checker, &mut rng);
    let counts = programs[0].counts.clone();
    let mut chaos = Chaos {
        world: &world,
        programs: &programs,
        roots: &plan.roots,
        servers: plan.servers,
        tick: plan.tick,
        timeout: plan.timeout,
        rng: SmallRng::seed_from_u64(rng.next_u64()),
        partition: profile.partition.clone(),
        counts: BTreeMap::new(),
    };
    let course = async {
        start_users(&programs, profile, &mut rng);
        chaos.run(profile, plan.faults).await;
        come_to_rest(&plan, &world, &checker, &programs).await;
        close_clients(&plan, &world, &checker, &programs).await;
    };
    tokio::select! {
        biased;
        () = checker.first_violation() => {}
        () = course => {
            for (program, states) in programs.iter().zip(&mut states) {
                checker.check_states(program.process.name(), states);
            }
        }
    }
    for program in &programs {
        program.process.kill();
    }
    let (grants, excused_overlaps, losses) = checker.counts();
    let violations =
        checker.take_violation().map(|what| Violation { seed, what, trace: world.trace_lines() });
    Outcome {
        schedules: 1,
        steps: world.steps(),
        millis: u64::try_from(world.now().as_millis()).unwrap_or(u64::MAX),
        grants,
        refusals: counts.refusals.load(Ordering::Relaxed),
        cancelled: counts.cancelled.load(Ordering::Relaxed),
        losses,
        faults: std::mem::take(&mut chaos.counts),
        excused_overlaps,
        violations: violations.into_iter().collect(),
        trace: world.trace_lines(),
    }
}

fn start_programs(
    plan: &Plan,
    profile: &Profile,
    world: &Arc<World>,
    checker: &Arc<Checker>,
    rng: &mut SmallRng,
) -> (Vec<Program>, Vec<States>) {
    let counts = Arc::new(Counts::default());
    let namings: Vec<_> = plan.roots.iter().map(|_| one_of(&profile.namings, rng)).collect();
    let servers: Vec<_> = world.endpoints().iter().map(ToString::to_string).collect();
    let count = rng.random_range(profile.processes.clone());
    let mut programs = Vec::with_capacity(count);
    let mut states = Vec::with_capacity(count);
    for number in 0..count {
        let process = world.process(&format!("p{number}"));
        let retry = match rng.random_range(0..3) {
            0 => RetryPolicy::default(),
            1 => RetryPolicy::Forever { delay: Duration::from_millis(20) },
            _ => RetryPolicy::Times { attempts: 5, delay: Duration::from_millis(50) },
        };
        let options = Options {
            session_timeout: plan.timeout,
            connection_timeout: Duration::from_millis(rng.random_range(500..4_000)),
            operation_timeout: Duration::from_millis(rng.random_range(1_000..6_000)),
            release_timeout: Duration::from_secs(2),
            tick: rng.random_bool(profile.tick_known).then_some(plan.tick),
            heartbeat: plan.heartbeat,
            retry,
            container_parents: plan.containers,
            program: Some("simulated".to_owned()),
            mutants: profile.mutants,
            ..Options::default()
        };
        let client = match Client::in_env(&servers.join(","), options, process.env()) {
            Ok(client) => client,
            Err(error) => panic!("a client can't be made: {error}"),
        };
        let mutexes = plan.roots.iter().zip(&namings).map(|(root, naming)| {
            let max_hold = (rng.random_bool(profile.max_hold))
                .then(|| Duration::from_millis(rng.random_range(200..2_000)));
            let options = MutexOptions::default().with_naming(*naming).with_max_hold(max_hold);
            match client.mutex_with(root, options) {
                Ok(mutex) => mutex,
                Err(error) => panic!("a mutex can't be made: {error}"),
            }
        });
        let mutexes = mutexes.collect();
        states.push(client.states());
        programs.push(Program {
            world: world.clone(),
            checker: checker.clone(),
            process,
            client,
            mutexes,
            thawed: Arc::default(),
            busy: Arc::default(),
            counts: counts.clone(),
            hold: profile.hold.clone(),
            patient: profile.patient,
        });
    }
    (programs, states)
}

fn start_users(programs: &[Program], profile: &Profile, rng: &mut SmallRng) {
    for program in programs {
        for number in 0..rng.random_range(profile.users.clone()) {
            let rounds = rng.random_range(profile.rounds.clone());
            program.start_user(number, SmallRng::seed_from_u64(rng.next_u64()), rounds);
        }
    }
}

/// After the last fault everybody comes to an end, and nothing is left over.
async fn come_to_rest(plan: &Plan, world: &World, checker: &Checker, programs: &[Program]) {
    let healed = world.now();
    let mut pause = Duration::from_millis(200);
    loop {
        let rest = unrest(plan, world, programs);
        let Some(why) = rest else { return };
        if world.now() > healed + REST {
            return checker.broken(|| why);
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 5 / 4).min(Duration::from_secs(2));
    }
}

/// What is not at rest yet.
fn unrest(plan: &Plan, world: &World, programs: &[Program]) -> Option<String> {
    for program in programs.iter().filter(|program| !program.process.is_killed()) {
        let name = program.process.name();
        let busy = program.busy();
        if busy > 0 {
            return Some(format!("{busy} users of {name} have come to no end"));
        }
        let pending = program.client.metrics().cleanup_pending;
        if pending > 0 {
            return Some(format!("{name} has {pending} clean-ups pending"));
        }
    }
    for root in &plan.roots {
        let left = world.children(root);
        if !left.is_empty() {
            return Some(format!("nodes are left over below {root}: {left:?}"));
        }
    }
    let watches = world.watches();
    (!watches.is_empty()).then(|| format!("watches are left over: {watches:?}"))
}

/// Closes every client in time, and with them every session.
async fn close_clients(plan: &Plan, world: &World, checker: &Checker, programs: &[Program]) {
    for program in programs.iter().filter(|program| !program.process.is_killed()) {
        let began = world.now();
        let limit = program.client.options().close_timeout + SLACK;
        let closed = program.process.run(program.client.close());
        let closed = closed.await;
        if world.now() > began + limit || !matches!(closed, Some(Ok(()))) {
            checker.broken(|| format!("{}: close ended in {closed:?} too late", program.process.name()));
        }
    }
    let began = world.now();
    while !world.sessions().is_empty() {
        if world.now() > began + plan.timeout + 3 * plan.tick + SLACK {
            return checker.broken(|| format!("sessions are left over: {:x?}", world.sessions()));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
