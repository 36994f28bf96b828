//! The simulated servers and a real one, given the same random operations, have to give the same answers.
//!
//! A plan is drawn from a seed: what three sessions do, one step after the other. It is carried out in both
//! worlds, and what was answered and which watches fired is written down. Transaction numbers are compared by
//! their order, session numbers by whose they are.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use forelock::zk::{Acl, Connection, CreateMode, Operation, Stat, Watch, ZkError};
use forelock_testkit::Version;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::real::Real;
use crate::simulated::{Simulated, simulate};
use crate::world::{World, make, request};

const SEEDS: u64 = 200;
const STEPS: usize = 40;
const SESSIONS: usize = 3;

/// What a session does in one step.
#[derive(Clone, Debug)]
enum Step {
    Write(Operation),
    Read(Reading, String),
    Multi(Vec<Operation>),
    /// Close the session and open another one.
    Close,
    /// Drop the connection and re-attach.
    Reconnect,
    /// Drop one of the session's watches.
    Unwatch(usize),
}

#[derive(Clone, Copy, Debug)]
enum Reading {
    Data,
    Exists,
    Children,
    WatchData,
    WatchExists,
    WatchChildren,
}

type Plan = Vec<(usize, Step)>;

/// Few paths, so that they meet often, and the upper ones more often than those under them.
const PATHS: [&str; 16] = [
    "",
    "/a",
    "/a",
    "/a",
    "/b",
    "/b",
    "/a/a",
    "/a/a",
    "/a/b",
    "/b/a",
    "/b/b",
    "/a/a/a",
    "/s-0000000002",
    "/a/s-0000000000",
    "/a/s-0000000001",
    "/b/s-0000000000",
];

fn plan(seed: u64, root: &str) -> Plan {
    let rng = &mut SmallRng::seed_from_u64(seed);
    (0..STEPS).map(|_| (rng.random_range(0..SESSIONS), step(rng, root))).collect()
}

fn step(rng: &mut SmallRng, root: &str) -> Step {
    match rng.random_range(0..100) {
        0..55 => Step::Write(operation(rng, root)),
        55..80 => {
            let readings = [
                Reading::Data,
                Reading::Exists,
                Reading::Children,
                Reading::WatchData,
                Reading::WatchExists,
                Reading::WatchChildren,
            ];
            Step::Read(*pick(rng, &readings), path(rng, root))
        }
        80..92 => Step::Multi((0..rng.random_range(1..5)).map(|_| operation(rng, root)).collect()),
        92..95 => Step::Close,
        95..98 => Step::Reconnect,
        _ => Step::Unwatch(rng.random_range(0..4)),
    }
}

fn operation(rng: &mut SmallRng, root: &str) -> Operation {
    let path = path(rng, root);
    match rng.random_range(0..10) {
        0..5 => {
            let modes = [
                CreateMode::Persistent,
                CreateMode::Persistent,
                CreateMode::Container,
                CreateMode::Ephemeral,
                CreateMode::EphemeralSequential,
            ];
            let mode = *pick(rng, &modes);
            // The server adds a number to this one.
            let path = if mode == CreateMode::EphemeralSequential { format!("{path}/s-") } else { path };
            Operation::Create { path, data: data(rng), mode, acl: Acl::Open }
        }
        5..7 => Operation::SetData { path, data: data(rng), version: version(rng) },
        7..9 => Operation::Delete { path, version: version(rng) },
        _ => Operation::Check { path, version: version(rng) },
    }
}

fn pick<'a, T>(rng: &mut SmallRng, choices: &'a [T]) -> &'a T {
    choices.choose(rng).expect("there is a choice")
}

fn path(rng: &mut SmallRng, root: &str) -> String {
    format!("{root}{}", pick(rng, &PATHS))
}

fn version(rng: &mut SmallRng) -> Option<i32> {
    rng.random_bool(0.3).then(|| rng.random_range(0..3))
}

fn data(rng: &mut SmallRng) -> Vec<u8> {
    vec![b'x'; rng.random_range(0..4)]
}

/// What was seen, with the numbers that differ between worlds kept apart.
#[derive(Default)]
struct Journal {
    lines: Vec<(String, Vec<i64>)>,
    owners: BTreeMap<i64, usize>,
}

impl Journal {
    fn note(&mut self, line: String) {
        self.lines.push((line, Vec::new()));
    }

    fn note_session(&mut self, session: i64) {
        let next = self.owners.len();
        self.owners.entry(session).or_insert(next);
    }

    /// Adds a stat to the last line.
    fn stat(&mut self, stat: &Stat) {
        let owner =
            self.owners.get(&stat.ephemeral_owner).map_or(String::new(), |owner| format!(" of {owner}"));
        let counts = (stat.version, stat.cversion, stat.data_length, stat.num_children);
        if let Some((line, zxids)) = self.lines.last_mut() {
            let _ = write!(line, " {counts:?}{owner}");
            zxids.extend([stat.czxid, stat.mzxid, stat.pzxid]);
        }
    }

    /// The lines, with each transaction number replaced by its place among all that were seen.
    fn finish(self) -> Vec<String> {
        let mut zxids: Vec<i64> = self.lines.iter().flat_map(|(_, zxids)| zxids).copied().collect();
        zxids.sort_unstable();
        zxids.dedup();
        let place = |zxid: &i64| zxids.partition_point(|other| other < zxid);
        self.lines
            .iter()
            .map(|(line, zxids)| format!("{line} {:?}", zxids.iter().map(place).collect::<Vec<_>>()))
            .collect()
    }
}

/// One of the plan's sessions.
struct Session {
    connection: Arc<dyn Connection>,
    watches: Vec<(String, Watch)>,
}

async fn open(world: &dyn World, who: usize) -> Session {
    let endpoints = world.endpoints();
    let mut request = request(world, None);
    request.endpoint = endpoints[who % endpoints.len()].clone();
    let connection = world.connector().connect(request).await.expect("a new session");
    Session { connection, watches: Vec::new() }
}

async fn carry_out(world: &dyn World, plan: &Plan, root: &str) -> Vec<String> {
    let mut journal = Journal::default();
    let mut sessions = Vec::new();
    for who in 0..SESSIONS {
        let session = open(world, who).await;
        journal.note_session(session.connection.credentials().id.0);
        sessions.push(session);
    }
    for path in ["", "/kept", "/a"] {
        // With a child that no plan knows of, the root cannot be deleted.
        make(&sessions[0].connection, &format!("{root}{path}"), CreateMode::Persistent).await;
    }
    catch_up(&sessions).await;
    for (number, (who, step)) in plan.iter().enumerate() {
        journal.note(format!("{number}: {who} {step:?}:"));
        take(world, &mut journal, &mut sessions[*who], *who, step).await;
        catch_up(&sessions).await;
        for (who, session) in sessions.iter_mut().enumerate() {
            session.watches.retain_mut(|(what, watch)| {
                let Some(event) = watch.try_fired() else { return true };
                journal.note(format!("   {who} is told {event:?} by {what}"));
                false
            });
        }
    }
    for session in sessions {
        session.connection.close().await.expect("closed");
    }
    journal.finish()
}

/// Makes every session see all that has happened, and get all events of it.
async fn catch_up(sessions: &[Session]) {
    for session in sessions {
        session.connection.sync("/").await.expect("a sync");
    }
}

async fn take(world: &dyn World, journal: &mut Journal, session: &mut Session, who: usize, step: &Step) {
    let zk = session.connection.clone();
    match step {
        Step::Write(Operation::Create { path, data, mode, acl }) => {
            let made = zk.create(path, data, *mode, acl).await.map(|made| (made.name, Some(made.stat)));
            report(journal, made);
        }
        Step::Write(Operation::SetData { path, data, version }) => {
            let set = zk.set_data(path, data, *version).await.map(|stat| ("set".to_owned(), Some(stat)));
            report(journal, set);
        }
        Step::Write(Operation::Delete { path, version }) => {
            report(journal, zk.delete(path, *version).await.map(|()| ("deleted".to_owned(), None)));
        }
        Step::Write(check @ Operation::Check { .. }) => {
            report(journal, zk.multi(vec![check.clone()]).await.map(|()| ("checked".to_owned(), None)));
        }
        Step::Multi(operations) => {
            report(journal, zk.multi(operations.clone()).await.map(|()| ("committed".to_owned(), None)));
        }
        Step::Read(reading, path) => {
            let answer = read(&zk, *reading, path).await;
            let answer = answer.map(|(what, stat, watch)| {
                session.watches.extend(watch.map(|watch| (format!("{reading:?} {path}"), watch)));
                (what, stat)
            });
            report(journal, answer);
        }
        Step::Close => {
            session.watches.clear();
            zk.close().await.expect("closed");
            *session = open(world, who).await;
            journal.note_session(session.connection.credentials().id.0);
        }
        Step::Reconnect => {
            session.watches.clear();
            zk.abort();
            let endpoints = world.endpoints();
            let mut request = request(world, Some(zk.credentials()));
            request.endpoint = endpoints[(who + 1) % endpoints.len()].clone();
            session.connection = world.connector().connect(request).await.expect("re-attached");
        }
        Step::Unwatch(which) => {
            if *which < session.watches.len() {
                session.watches.remove(*which);
            }
        }
    }
}

type Seen = (String, Option<Stat>, Option<Watch>);

async fn read(zk: &Arc<dyn Connection>, reading: Reading, path: &str) -> Result<Seen, ZkError> {
    let names = |mut names: Vec<String>| {
        names.sort();
        format!("{names:?}")
    };
    let seen = |there: bool| if there { "there" } else { "not there" }.to_owned();
    Ok(match reading {
        Reading::Data => {
            let (data, stat) = zk.get_data(path).await?;
            (format!("{data:?}"), Some(stat), None)
        }
        Reading::WatchData => {
            let (data, stat, watch) = zk.watch_data(path).await?;
            (format!("{data:?}"), Some(stat), Some(watch))
        }
        Reading::Exists => {
            let stat = zk.exists(path).await?;
            (seen(stat.is_some()), stat, None)
        }
        Reading::WatchExists => {
            let (stat, watch) = zk.watch_exists(path).await?;
            (seen(stat.is_some()), stat, Some(watch))
        }
        Reading::Children => {
            let (children, stat) = zk.children(path).await?;
            (names(children), Some(stat), None)
        }
        Reading::WatchChildren => {
            let (children, stat, watch) = zk.watch_children(path).await?;
            (names(children), Some(stat), Some(watch))
        }
    })
}

fn report(journal: &mut Journal, answer: Result<(String, Option<Stat>), ZkError>) {
    let (text, stat) = match answer {
        Ok((text, stat)) => (text, stat),
        // The words differ, and are nobody's business.
        Err(ZkError::BadArguments(_)) => ("bad arguments".to_owned(), None),
        Err(error) => (format!("{error:?}"), None),
    };
    if let Some((line, _)) = journal.lines.last_mut() {
        let _ = write!(line, " {text}");
    }
    if let Some(stat) = stat {
        journal.stat(&stat);
    }
}

/// The seeds to try: those of the environment's choice, to go on where a run has failed, or our own.
fn seeds() -> std::ops::Range<u64> {
    let chosen = |name| std::env::var(name).ok().and_then(|value: String| value.parse().ok());
    match chosen("FORELOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..chosen("FORELOCK_SEEDS").unwrap_or(SEEDS),
    }
}

fn compare(version: Version) {
    for seed in seeds() {
        let root = format!("/differential-{seed}");
        let plan = plan(seed, &root);
        let mut real = Vec::new();
        Real::hold(version, async |world| real = carry_out(world, &plan, &root).await);
        for servers in [1, 3] {
            let simulated = simulate(async { carry_out(&Simulated::new(seed, servers), &plan, &root).await });
            let same = real.iter().zip(&simulated).take_while(|(one, other)| one == other).count();
            assert!(
                same == real.len() && same == simulated.len(),
                "FORELOCK_SEED={seed}: ZooKeeper {version} and {servers} simulated servers differ.\n\
                 Both:\n{}\nReal: {:?}\nSimulated: {:?}",
                real[..same].join("\n"),
                real.get(same),
                simulated.get(same),
            );
        }
    }
}

#[test]
fn random_operations_have_the_same_answers() {
    compare(Version::V3_9_5);
}

#[test]
fn random_operations_have_the_same_answers_as_of_old() {
    compare(Version::V3_8_6);
}
