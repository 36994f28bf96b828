//! Plays a cell.

mod checks;
mod exclusion;
mod net;
mod steps;
mod zk;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use forelock_testkit::proxy::{Mark, RuleHandle};
use forelock_testkit::{FaultProxy, Lateness, Observer};

use crate::actor::{Actor, Transcript};
use crate::agents::Settings;
use crate::matrix::Cell;
use crate::report::Outcome;
use crate::scenario::{Action, Scenario, ServerVerb};
use crate::servers::{Lease, Pool};
use exclusion::Holds;

/// How long a step may take unless it says otherwise.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long an agent may take to start on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// How long an agent may take to end: longer than the engine takes to close a session that it can't reach.
const END_PATIENCE: Duration = Duration::from_secs(60);
/// What a program that is well never writes to its stderr.
const ALARMS: [&str; 4] = ["Traceback", "Exception ignored", "panicked at", "Fatal Python error"];
/// How many entries of a proxy's journal a failure shows.
const JOURNAL_SHOWN: usize = 60;

/// What all cells of a run have in common.
pub struct Stage {
    /// The servers.
    pub pool: Pool,
    /// Where the agents' programs are.
    pub settings: Settings,
    lateness: Lateness,
    count: AtomicU32,
}

impl Stage {
    /// A stage with servers of its own.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { pool: Pool::default(), settings, lateness: Lateness::watch(), count: AtomicU32::new(0) }
    }

    /// Plays a cell, and says what came of it and how long it took.
    #[must_use]
    pub fn play(&self, cell: &Cell) -> (Outcome, Duration) {
        if let Some(reason) = &cell.skip {
            return (Outcome::Skipped(reason.clone()), Duration::ZERO);
        }
        let began = Instant::now();
        let outcome = match Play::set(self, cell) {
            Ok(mut play) => play.run(),
            Err(why) => Outcome::Failed(why),
        };
        (outcome, began.elapsed())
    }
}

/// An actor on the stage.
struct Player {
    agent: String,
    is_peer: bool,
    proxy: FaultProxy,
    actor: Actor,
    /// What its client puts before every path.
    namespace: String,
    /// Operations begun with `&` that have not been awaited.
    outstanding: Vec<Outstanding>,
    /// The rule that was installed last.
    rule: Option<RuleHandle>,
    /// Where counting begins.
    mark: Mark,
    /// How many events of each kind have been awaited.
    seen_states: usize,
    seen_losses: BTreeMap<String, usize>,
    seen_listeners: usize,
}

#[derive(Clone, Debug)]
struct Outstanding {
    id: u64,
    label: Option<String>,
    verb: &'static str,
    path: Option<String>,
}

/// Something that happened at a moment.
struct Happened {
    what: String,
    actor: String,
    detail: Option<String>,
    at: u64,
}

/// A grant that an actor has told of.
#[derive(Clone, Copy, Debug, Default)]
struct Granted {
    token: Option<i64>,
    epoch: Option<i64>,
    sequence: Option<i64>,
}

/// A cell that is being played.
struct Play<'a> {
    scenario: Arc<Scenario>,
    lease: Lease,
    /// The node that everything of this cell lies below.
    root: String,
    observer: Observer,
    players: BTreeMap<String, Player>,
    transcript: Transcript,
    happened: Vec<Happened>,
    grants: BTreeMap<String, Granted>,
    names: BTreeMap<String, i64>,
    holds: Holds,
    stage: &'a Stage,
}

impl<'a> Play<'a> {
    fn set(stage: &'a Stage, cell: &Cell) -> Result<Self, String> {
        let scenario = cell.scenario.clone();
        let kind = (scenario.server.clone(), cell.version);
        let lease = if scenario.wants_own_server() { stage.pool.take(kind) } else { stage.pool.share(kind) }?;
        let address = lease.server.client_addr();
        let observer = Observer::connect(address).map_err(|error| error.to_string())?;
        let root = format!("/cell-{}", stage.count.fetch_add(1, Ordering::Relaxed));
        // On a server that was wiped and given back, the name may be there already.
        observer
            .delete_tree(&root)
            .and_then(|()| observer.ensure(&root))
            .map_err(|error| error.to_string())?;
        let transcript = Transcript::default();
        let mut players = BTreeMap::new();
        for name in &scenario.actors {
            let agent = &cell.cast[name];
            let proxy = FaultProxy::start(address).map_err(|error| format!("no proxy: {error}"))?;
            let actor = Actor::start(name, agent.command(&stage.settings)?, transcript.clone())?;
            let mark = proxy.journal().mark();
            let player = Player {
                agent: agent.name.clone(),
                is_peer: scenario.peers.contains_key(name),
                proxy,
                actor,
                namespace: String::new(),
                outstanding: Vec::new(),
                rule: None,
                mark,
                seen_states: 0,
                seen_losses: BTreeMap::new(),
                seen_listeners: 0,
            };
            players.insert(name.clone(), player);
        }
        players.values().try_for_each(|player| player.actor.ready(START_PATIENCE))?;
        Ok(Self {
            scenario,
            lease,
            root,
            observer,
            players,
            transcript,
            happened: Vec::new(),
            grants: BTreeMap::new(),
            names: BTreeMap::new(),
            holds: Holds::default(),
            stage,
        })
    }

    fn run(&mut self) -> Outcome {
        let scenario = self.scenario.clone();
        for step in &scenario.steps {
            self.transcript.note(format!("-- {}: {}", step.line, step.text));
            for _ in 0..step.times {
                if let Err(why) = self.step(step) {
                    let place = format!("{}:{}: {}", scenario.file.display(), step.line, step.text);
                    return Outcome::Failed(self.failure(&format!("{why}  [{place}]")));
                }
            }
        }
        match self.curtain() {
            Ok(()) => Outcome::Passed,
            Err(why) => Outcome::Failed(self.failure(&format!("{why}  [at the end of the scenario]"))),
        }
    }

    /// What must hold at the end of every scenario: agents end in order, leave no node behind, and no two of
    /// ours ever held at once.
    fn curtain(&mut self) -> Result<(), String> {
        self.transcript.note("-- the end");
        self.players.values().try_for_each(|player| {
            match player.actor.look(|inbox| inbox.garbage.first().cloned()) {
                Some(text) => {
                    Err(format!("the agent {} says what is no line of the protocol: {text}", player.agent))
                }
                None => Ok(()),
            }
        })?;
        if self.scenario.may_overlap.is_none() {
            self.check_exclusion()?;
        }
        let killed = self.players.values().any(|player| !player.actor.is_running());
        self.lease.server.resume();
        if self.lease.server.mode().is_none() {
            self.lease.server.restart().map_err(|error| error.to_string())?;
        }
        for player in self.players.values_mut() {
            player.proxy.restore().map_err(|error| error.to_string())?;
            player.actor.tell_to_end();
        }
        for player in self.players.values_mut().filter(|player| player.actor.is_unfinished()) {
            player.actor.end(END_PATIENCE)?;
        }
        for (name, player) in &self.players {
            let said = player.actor.stderr_tail();
            if let Some(alarm) = ALARMS.iter().find(|alarm| said.contains(*alarm)) {
                return Err(format!("the log of {name} says `{alarm}`"));
            }
        }
        if !killed { self.check_nothing_left() } else { Ok(()) }
    }

    /// Everything that helps to see why a scenario failed.
    fn failure(&self, why: &str) -> String {
        let mut text = format!("{why}\n\nwhat was said:\n{}", self.transcript.text());
        for (name, player) in &self.players {
            let entries = player.proxy.journal().all();
            let skipped = entries.len().saturating_sub(JOURNAL_SHOWN);
            text += &format!("\nthe journal of {name} ({}), without the first {skipped}:\n", player.agent);
            entries.iter().skip(skipped).for_each(|entry| text += &format!("{entry}\n"));
            let stderr = player.actor.stderr_tail();
            if !stderr.is_empty() {
                text += &format!("\nthe log of {name}:\n{stderr}");
            }
        }
        text += &format!("\nthe server's log:\n{}", self.lease.server.log_tail());
        text
    }

    /// Whether a time is within limits; the upper one is extended by how late the machine was meanwhile.
    fn in_time(&self, took: Duration, limits: &RangeInclusive<Duration>, from: u64, to: u64) -> bool {
        if limits.contains(&took) {
            return true;
        }
        let late = self.stage.lateness.between(from, to);
        self.transcript
            .note(format!("-- {took:?} is not within {limits:?}; the machine was late by {late:?}"));
        (*limits.start()..=*limits.end() + late).contains(&took)
    }

    /// A path of the scenario, as the server knows it.
    fn on_server(&self, path: &str) -> String {
        format!("{}{path}", self.root)
    }

    fn player(&self, name: &str) -> Result<&Player, String> {
        self.players.get(name).ok_or_else(|| format!("{name} is not on the stage"))
    }

    fn player_mut(&mut self, name: &str) -> Result<&mut Player, String> {
        self.players.get_mut(name).ok_or_else(|| format!("{name} is not on the stage"))
    }

    fn note(&mut self, what: &str, actor: &str, detail: Option<&str>, at: u64) {
        let happened = Happened {
            what: what.to_owned(),
            actor: actor.to_owned(),
            detail: detail.map(str::to_owned),
            at,
        };
        self.happened.push(happened);
    }

    /// Whether a server emptied during the scenario counts its transactions anew.
    fn was_wiped(&self) -> bool {
        self.scenario.steps.iter().any(|step| matches!(step.action, Action::Server(ServerVerb::Wipe)))
    }
}
