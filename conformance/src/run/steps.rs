//! One step of a scenario.

use std::time::{Duration, Instant};

use forelock_testkit::Op;
use forelock_testkit::proxy::{Entry, Mark, What, boot_time_ns};
use serde_json::Value;

use super::{Granted, Outstanding, PATIENCE, Play};
use crate::protocol::Line;
use crate::scenario::{Action, Call, Expectation, ProcessVerb, ServerVerb, Step};

/// Verbs whose `held` gives a lock.
const ACQUIRING: [&str; 3] = ["acquire", "try-acquire", "enter-block"];
/// Verbs that give one back.
const RELEASING: [&str; 3] = ["release", "leave-block", "throw-in-block"];

/// What came of a step: the result, and how long it took by the clock of the one who did it.
pub(super) type Came = Result<(String, Option<Duration>), String>;

fn came(result: impl Into<String>) -> Came {
    Ok((result.into(), None))
}

impl Play<'_> {
    pub(super) fn step(&mut self, step: &Step) -> Result<(), String> {
        let began = boot_time_ns();
        let (result, took) = self.act(step)?;
        let ended = boot_time_ns();
        let Some(expect) = &step.expect else {
            return if result.starts_with("error") { Err(result) } else { Ok(()) };
        };
        if !expect.any_of.contains(&result) {
            return Err(format!("it is `{result}`, not `{}`", expect.any_of.join(" | ")));
        }
        let took = took.unwrap_or(Duration::from_nanos(ended - began));
        // An operation that was begun with `&` began before the step that awaits it.
        let began = began.min(ended.saturating_sub(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)));
        match &expect.within {
            Some(limits) if !self.in_time(took, limits, began, ended) => {
                Err(format!("`{result}` took {took:?}, not {limits:?}"))
            }
            _ => Ok(()),
        }
    }

    fn act(&mut self, step: &Step) -> Came {
        let expect = step.expect.as_ref();
        let patience = patience(expect);
        match &step.action {
            Action::Call(call) => self.call(call, expect, patience),
            Action::Await { actor, label } => {
                let outstanding = self.take_outstanding(actor, label.as_deref())?;
                self.answer(actor, &outstanding, patience)
            }
            Action::AwaitLost { actor, path } => self.await_lost(actor, path, patience),
            Action::LostCount { actor, path } => {
                self.round_trip(actor)?;
                let lost = |line: &&Line| line.path.as_deref() == Some(path);
                came(
                    self.player(actor)?
                        .actor
                        .look(|inbox| inbox.events("lost").filter(lost).count())
                        .to_string(),
                )
            }
            Action::AwaitState { actor, state } => self.await_state(actor, state, patience),
            Action::States { actor } => self.states(actor, expect, patience),
            Action::AwaitListener { actor } => {
                let player = self.player_mut(actor)?;
                let nth = player.seen_listeners;
                let told =
                    player.actor.wait(patience, |inbox| inbox.events("listener").nth(nth).map(Line::outcome));
                player.seen_listeners += 1;
                came(told?)
            }
            Action::Bodies { actor } => {
                self.round_trip(actor)?;
                came(self.player(actor)?.actor.look(|inbox| inbox.events("body").count()).to_string())
            }
            Action::Process { actor, what } => self.process(actor, *what),
            Action::Net { actor, what } => self.net(actor, what, patience),
            Action::Server(verb) => self.server(*verb),
            Action::Zk(verb) => self.zk(verb, expect, patience),
            Action::Check(check) => self.check(check).and_then(|()| came("ok")),
            Action::Let { name, term } => {
                let value = self.value(term)?;
                self.names.insert(name.clone(), value);
                came(value.to_string())
            }
        }
    }

    fn call(&mut self, call: &Call, expect: Option<&Expectation>, patience: Duration) -> Came {
        let Call { actor, verb, args, background, label } = call;
        let mut args = args.clone();
        if *verb == "connect" {
            let servers = format!("{}{}", self.player(actor)?.proxy.connect_string(), self.root);
            args.insert("servers".to_owned(), Value::from(servers));
            if let Some(namespace) = args.get("namespace").and_then(Value::as_str) {
                let namespace = namespace.to_owned();
                self.player_mut(actor)?.namespace = namespace;
            }
        }
        if *verb == "cancel" {
            let label = args.remove("label");
            let outstanding = self.find_outstanding(actor, label.as_ref().and_then(Value::as_str))?;
            args.insert("of".to_owned(), Value::from(outstanding.id));
        }
        let path = args.get("path").and_then(Value::as_str).map(str::to_owned);
        let player = self.player_mut(actor)?;
        let mark = player.proxy.journal().mark();
        let id = player.actor.ask(verb, args)?;
        let outstanding = Outstanding { id, label: label.clone(), verb, path };
        if !background {
            return self.answer(actor, &outstanding, patience);
        }
        player.actor.begun(id, patience)?;
        player.outstanding.push(outstanding.clone());
        if expect.is_some_and(|expect| expect.any_of.iter().any(|result| result == "waiting")) {
            return self.queued(actor, &outstanding, mark, patience);
        }
        came("begun")
    }

    /// Waits until an acquire stands in the queue and watches the node in front of it: its own create and a read
    /// of another node have been answered.
    fn queued(&mut self, actor: &str, wait: &Outstanding, mark: Mark, patience: Duration) -> Came {
        const SLICE: Duration = Duration::from_millis(20);
        let path = wait.path.clone().unwrap_or_default();
        let below = format!("{}/", self.node_root(actor, &path)?);
        let deadline = Instant::now() + patience;
        loop {
            let player = self.player(actor)?;
            let queued =
                player.proxy.journal().wait_until(mark, SLICE, |entries| watches_another(entries, &below));
            let answered = player.actor.look(|inbox| inbox.answers.get(&wait.id).map(Line::outcome));
            match (answered, queued) {
                (Some(outcome), _) => return came(outcome),
                (None, Ok(())) => return came("waiting"),
                (None, Err(_)) if Instant::now() > deadline => {
                    return Err(format!("{actor} does not stand in the queue after {patience:?}"));
                }
                (None, Err(_)) => {}
            }
        }
    }

    /// Waits for the answer to a request, and takes note of what it says.
    fn answer(&mut self, actor: &str, wait: &Outstanding, patience: Duration) -> Came {
        let answer = self.player(actor)?.actor.wait(patience, |inbox| inbox.answers.get(&wait.id).cloned());
        let line = answer.map_err(|why| format!("no answer of {actor} to `{}`: {why}", wait.verb))?;
        let outcome = line.outcome();
        let path = wait.path.as_deref();
        let at = line.at.unwrap_or_else(boot_time_ns);
        let began = line.began.unwrap_or(at);
        self.note("started", actor, Some(wait.verb), began);
        self.note("ended", actor, Some(wait.verb), at);
        let word = if outcome == "error TIMED_OUT" {
            "timeout"
        } else {
            outcome.split(' ').next().unwrap_or_default()
        };
        self.note(word, actor, path, at);
        if ACQUIRING.contains(&wait.verb) && outcome == "held" {
            let grant = Granted { token: line.token, epoch: line.epoch, sequence: line.sequence };
            self.grants.insert(actor.to_owned(), grant);
            let root = self.node_root(actor, path.unwrap_or_default())?;
            self.holds.held(actor, &root, line.token, at);
        }
        if RELEASING.contains(&wait.verb) && outcome != "error NOT_OWNER" {
            let root = self.node_root(actor, path.unwrap_or_default())?;
            self.holds.released(actor, &root, began);
        }
        if wait.verb == "close" {
            self.holds.all_over(actor, began);
        }
        let took = Duration::from_nanos(at.saturating_sub(began));
        match (&line.message, line.error.as_deref()) {
            // What no scenario can expect is better shown with its message.
            (Some(message), Some("AGENT")) => Err(format!("the agent of {actor}: {message}")),
            _ => Ok((outcome, Some(took))),
        }
    }

    fn find_outstanding(&self, actor: &str, label: Option<&str>) -> Result<Outstanding, String> {
        let all = &self.player(actor)?.outstanding;
        let found = match label {
            Some(label) => all.iter().find(|one| one.label.as_deref() == Some(label)),
            None => all.last(),
        };
        found.cloned().ok_or_else(|| format!("{actor} has begun nothing of the kind with `&`"))
    }

    fn take_outstanding(&mut self, actor: &str, label: Option<&str>) -> Result<Outstanding, String> {
        let found = self.find_outstanding(actor, label)?;
        self.player_mut(actor)?.outstanding.retain(|one| one.id != found.id);
        Ok(found)
    }

    /// After an answer, all that the agent had to say before it has come.
    fn round_trip(&mut self, actor: &str) -> Result<(), String> {
        let player = self.player_mut(actor)?;
        let id = player.actor.ask("ping", serde_json::Map::new())?;
        player.actor.wait(PATIENCE, |inbox| inbox.answers.get(&id).map(drop))
    }

    fn await_lost(&mut self, actor: &str, path: &str, patience: Duration) -> Came {
        let player = self.player_mut(actor)?;
        let nth = player.seen_losses.get(path).copied().unwrap_or(0);
        let lost = player.actor.wait(patience, |inbox| {
            let mut lost = inbox.events("lost").filter(|line| line.path.as_deref() == Some(path));
            lost.nth(nth).map(|line| line.reason.clone().unwrap_or_default())
        });
        let reason = lost.map_err(|why| format!("{actor} was told of no loss: {why}"))?;
        *player.seen_losses.entry(path.to_owned()).or_default() += 1;
        came(reason)
    }

    fn await_state(&mut self, actor: &str, state: &str, patience: Duration) -> Came {
        let player = self.player_mut(actor)?;
        let from = player.seen_states;
        let at = player.actor.wait(patience, |inbox| {
            inbox.events("state").skip(from).position(|line| state_fits(state, line)).map(|at| from + at)
        });
        player.seen_states = at.map_err(|why| format!("{actor} saw no {state}: {why}"))? + 1;
        came("ok")
    }

    fn states(&mut self, actor: &str, expect: Option<&Expectation>, patience: Duration) -> Came {
        let wanted: Vec<&str> = expect
            .and_then(|expect| expect.any_of.first())
            .into_iter()
            .flat_map(|text| text.split(' '))
            .collect();
        let player = self.player(actor)?;
        // What comes too late fails; what comes too much is seen after the round trip.
        let _ = player
            .actor
            .wait(patience, |inbox| (inbox.events("state").count() >= wanted.len()).then_some(()));
        self.round_trip(actor)?;
        let player = self.player(actor)?;
        let fits = player.actor.look(|inbox| {
            let lines: Vec<&Line> = inbox.events("state").collect();
            lines.len() == wanted.len()
                && lines.iter().zip(&wanted).all(|(line, wanted)| state_fits(wanted, line))
        });
        if fits {
            return came(wanted.join(" "));
        }
        came(player.actor.look(|inbox| inbox.events("state").map(state_word).collect::<Vec<_>>().join(" ")))
    }

    fn process(&mut self, actor: &str, what: ProcessVerb) -> Came {
        let word = match what {
            ProcessVerb::Kill => "killed",
            ProcessVerb::Freeze => "frozen",
            ProcessVerb::Thaw => "thawed",
            ProcessVerb::Interrupt => "interrupted",
            ProcessVerb::Exit => "exited",
        };
        // Before it is done, so that whatever follows from it is later.
        let at = boot_time_ns();
        self.note(word, actor, None, at);
        let player = self.player_mut(actor)?;
        match what {
            ProcessVerb::Kill => player.actor.kill(),
            ProcessVerb::Freeze => player.actor.freeze()?,
            ProcessVerb::Thaw => player.actor.thaw(),
            ProcessVerb::Interrupt => player.actor.interrupt(),
            ProcessVerb::Exit => player.actor.end(super::END_PATIENCE)?,
        }
        match what {
            // Until the end of a killed process's session nobody else may hold; it can't use the lock any more.
            ProcessVerb::Kill | ProcessVerb::Exit => self.holds.all_over(actor, at),
            ProcessVerb::Freeze => self.holds.frozen(actor, at),
            ProcessVerb::Thaw | ProcessVerb::Interrupt => {}
        }
        came("ok")
    }

    fn server(&mut self, verb: ServerVerb) -> Came {
        let at = boot_time_ns();
        self.note("server", "server", None, at);
        let server = &self.lease.server;
        match verb {
            ServerVerb::Stop => server.stop(),
            ServerVerb::Kill => server.kill(),
            ServerVerb::Pause => server.pause().map_err(|error| error.to_string())?,
            ServerVerb::Resume => server.resume(),
            ServerVerb::Start | ServerVerb::Restart => server.restart().map_err(|error| error.to_string())?,
            ServerVerb::Wipe => server.wipe().map_err(|error| error.to_string())?,
        }
        came("ok")
    }

    /// Where an actor's lock nodes for a path lie on the server.
    pub(super) fn node_root(&self, actor: &str, path: &str) -> Result<String, String> {
        Ok(format!("{}{}{}", self.root, self.player(actor)?.namespace, path.trim_end_matches('/')))
    }

    /// The node that an actor made last below a path, as the proxy saw it.
    pub(super) fn node_of(&self, actor: &str, path: &str) -> Result<String, String> {
        let below = format!("{}/", self.node_root(actor, path)?);
        let entries = self.player(actor)?.proxy.journal().all();
        let made = entries.iter().rev().find_map(|entry| created_below(entry, &below));
        made.ok_or_else(|| format!("{actor} has made no node below {path}"))
    }
}

fn patience(expect: Option<&Expectation>) -> Duration {
    // A little more than what is allowed, so that a late answer is seen as late and not as missing.
    let most =
        expect.and_then(|expect| expect.within.as_ref()).map(|limits| *limits.end() + Duration::from_secs(5));
    most.map_or(PATIENCE, |most| most.max(PATIENCE))
}

fn created_below(entry: &Entry, below: &str) -> Option<String> {
    match &entry.what {
        What::Reply { err: 0, created: Some(path), .. } if path.starts_with(below) => Some(path.clone()),
        _ => None,
    }
}

/// Whether a node was made below a path and then another one there was read: the one in front.
fn watches_another(entries: &[&Entry], below: &str) -> Option<()> {
    let (at, own) =
        entries.iter().enumerate().find_map(|(at, entry)| Some((at, created_below(entry, below)?)))?;
    let reads = [Op::GetData, Op::Exists];
    let watches = |entry: &&&Entry| {
        entry.is_reply()
            && entry.is_delivered()
            && entry.err() == Some(0)
            && entry.op().is_some_and(|op| reads.contains(&op))
            && entry.path().is_some_and(|path| path.starts_with(below) && path != own)
    };
    entries[at..].iter().find(watches).map(drop)
}

/// A state as scenarios write it; RECONNECTED may say to which session.
fn state_word(line: &Line) -> String {
    let state = line.state.clone().unwrap_or_default();
    match (state.as_str(), line.same_session) {
        ("RECONNECTED", Some(true)) => format!("{state}=same"),
        ("RECONNECTED", Some(false)) => format!("{state}=new"),
        _ => state,
    }
}

fn state_fits(wanted: &str, line: &Line) -> bool {
    wanted == state_word(line) || Some(wanted) == line.state.as_deref()
}
