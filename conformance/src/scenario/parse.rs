//! Reads scenario files.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::Duration;

use forelock_testkit::{Cut, EventKind, Flow, Op, Version};
use serde_json::{Map, Value};

use super::check::{Check, Term};
use super::verbs::{self, Kind};
use super::words::{Word, split};
use super::{
    Action, Call, Expectation, NetVerb, ParseError, ProcessVerb, RuleFate, RuleVerb, Scenario,
    ServerSettings, ServerVerb, Step, ZkVerb,
};

/// Reads every `*.scenario` in a folder, in the order of their names.
///
/// # Errors
/// The first mistake in any of them, a name that is used twice, or a folder that can't be read.
pub fn read_folder(folder: &Path) -> Result<Vec<Scenario>, ParseError> {
    let unreadable = |path: &Path, error: std::io::Error| ParseError::new(path, 0, error.to_string());
    let entries = std::fs::read_dir(folder).map_err(|error| unreadable(folder, error))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "scenario"));
    files.sort();
    let mut scenarios = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(&file).map_err(|error| unreadable(&file, error))?;
        scenarios.extend(parse(&file, &text)?);
    }
    let mut seen = BTreeSet::new();
    for scenario in &scenarios {
        if !seen.insert(&scenario.name) {
            let message = format!("a second scenario called `{}`", scenario.name);
            return Err(ParseError::new(&scenario.file, scenario.line, message));
        }
    }
    Ok(scenarios)
}

/// Reads the scenarios of one file.
///
/// # Errors
/// The first mistake.
pub fn parse(file: &Path, text: &str) -> Result<Vec<Scenario>, ParseError> {
    let mut scenarios: Vec<Scenario> = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let wrong = |message: String| ParseError::new(file, line, message);
        if let Some(name) = text.trim_start().strip_prefix("scenario ") {
            scenarios.push(new_scenario(file, line, name.trim()));
            continue;
        }
        let words = split(text).map_err(wrong)?;
        if words.is_empty() {
            continue;
        }
        let Some(scenario) = scenarios.last_mut() else {
            return Err(wrong("a line before the first `scenario`".to_owned()));
        };
        if !directive(scenario, text, &words).map_err(wrong)? {
            let step = step(scenario, line, text, &words).map_err(wrong)?;
            scenario.steps.push(step);
        }
    }
    for scenario in &scenarios {
        check_actors(scenario)?;
    }
    Ok(scenarios)
}

fn new_scenario(file: &Path, line: usize, name: &str) -> Scenario {
    Scenario {
        name: name.to_owned(),
        file: file.to_owned(),
        line,
        server: ServerSettings::default(),
        versions: vec![Version::default()],
        actors: Vec::new(),
        peers: BTreeMap::new(),
        needs: BTreeSet::new(),
        skips: BTreeMap::new(),
        may_overlap: None,
        mixed: true,
        steps: Vec::new(),
    }
}

/// Reads a line that says something about the scenario as a whole. Whether it is one.
fn directive(scenario: &mut Scenario, line: &str, words: &[Word]) -> Result<bool, String> {
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let reason = || {
        let reason =
            line.split_once(':').map(|(_, reason)| reason.trim()).filter(|reason| !reason.is_empty());
        reason
            .map(str::to_owned)
            .ok_or_else(|| format!("{} wants a reason: `{} …: because`", texts[0], texts[0]))
    };
    match texts[..] {
        ["server", "tick", tick] => scenario.server.tick = duration(tick)?,
        ["versions", ..] => {
            let parsed = texts[1..].iter().map(|text| text.parse().map_err(|error| format!("{error}")));
            scenario.versions = parsed.collect::<Result<_, _>>()?;
        }
        ["peer", actor, agent] => {
            scenario.peers.insert(actor.to_owned(), agent.to_owned());
        }
        ["needs", ..] => scenario.needs.extend(texts[1..].iter().map(|text| (*text).to_owned())),
        ["skip", agent, ..] => {
            scenario.skips.insert(agent.trim_end_matches(':').to_owned(), reason()?);
        }
        ["may-overlap:", ..] => scenario.may_overlap = Some(reason()?),
        ["unmixed"] => scenario.mixed = false,
        _ => return Ok(false),
    }
    if !scenario.steps.is_empty() {
        return Err(format!("`{}` stands above the steps", texts[0]));
    }
    Ok(true)
}

fn step(scenario: &mut Scenario, line: usize, text: &str, words: &[Word]) -> Result<Step, String> {
    let (mut words, expect) = match words.iter().position(|word| word.is("->")) {
        Some(at) => (&words[..at], Some(expectation(&words[at + 1..])?)),
        None => (words, None),
    };
    let mut times = 1;
    if let [repeat, count, rest @ ..] = words
        && repeat.is("repeat")
    {
        times = count.text.parse().map_err(|_| format!("`{}` is no number of times", count.text))?;
        words = rest;
    }
    let action = action(scenario, words)?;
    Ok(Step { line, text: text.trim().to_owned(), times, action, expect })
}

fn action(scenario: &mut Scenario, words: &[Word]) -> Result<Action, String> {
    let [first, rest @ ..] = words else { return Err("an empty step".to_owned()) };
    match first.text.as_str() {
        "net" => net(rest),
        "server" => server(rest),
        "zk" => zk(rest),
        "check" => Ok(Action::Check(Check::parse(rest)?)),
        "let" => match rest {
            [name, equals, term] if equals.is("=") => {
                Ok(Action::Let { name: name.text.clone(), term: Term::parse(&term.text)? })
            }
            _ => Err("`let` is `let NAME = TERM`".to_owned()),
        },
        actor => {
            let action = actor_step(actor, rest)?;
            if !scenario.actors.iter().any(|known| known == actor) {
                if !matches!(&action, Action::Call(call) if call.verb == "connect") {
                    return Err(format!("`{actor}` is no actor yet: its first step is `{actor} connect …`"));
                }
                scenario.actors.push(actor.to_owned());
            }
            Ok(action)
        }
    }
}

fn actor_step(actor: &str, words: &[Word]) -> Result<Action, String> {
    let actor = actor.to_owned();
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let process = |what| Ok(Action::Process { actor: actor.clone(), what });
    match texts[..] {
        ["await"] => Ok(Action::Await { actor, label: None }),
        ["await", label] => Ok(Action::Await { actor, label: Some(label.to_owned()) }),
        ["await-lost", path] => Ok(Action::AwaitLost { actor, path: path.to_owned() }),
        ["lost-count", path] => Ok(Action::LostCount { actor, path: path.to_owned() }),
        ["await-state", state] => Ok(Action::AwaitState { actor, state: state.to_owned() }),
        ["states"] => Ok(Action::States { actor }),
        ["await-listener"] => Ok(Action::AwaitListener { actor }),
        ["bodies"] => Ok(Action::Bodies { actor }),
        ["kill"] => process(ProcessVerb::Kill),
        ["freeze"] => process(ProcessVerb::Freeze),
        ["thaw"] => process(ProcessVerb::Thaw),
        ["interrupt"] => process(ProcessVerb::Interrupt),
        ["exit"] => process(ProcessVerb::Exit),
        _ => call(actor, words).map(Action::Call),
    }
}

fn call(actor: String, words: &[Word]) -> Result<Call, String> {
    let [name, rest @ ..] = words else { return Err(format!("what does `{actor}` do?")) };
    let verb =
        verbs::find(&name.text).ok_or_else(|| format!("`{actor}` can't `{}`: no such verb", name.text))?;
    let mut call = Call { actor, verb: verb.name, args: Map::new(), background: false, label: None };
    let mut rest = rest.iter();
    for (name, kind) in verb.positional {
        let word = rest.next().ok_or_else(|| format!("`{}` wants a {name}", verb.name))?;
        call.args.insert((*name).to_owned(), value(word, *kind)?);
    }
    while let Some(word) = rest.next() {
        if word.is("&") {
            call.background = true;
        } else if word.is("as") {
            call.label = Some(rest.next().ok_or("`as` wants a name")?.text.clone());
        } else if let Some((name, kind)) = verb.options.iter().find(|(name, _)| word.is(name)) {
            let value = match kind {
                Kind::Flag => Value::Bool(true),
                kind => value(rest.next().ok_or_else(|| format!("`{name}` wants a value"))?, *kind)?,
            };
            call.args.insert((*name).to_owned(), value);
        } else {
            let known: Vec<&str> = verb.options.iter().map(|(name, _)| *name).collect();
            return Err(format!("`{}` knows no `{}`, but: {}", verb.name, word.text, known.join(" ")));
        }
    }
    Ok(call)
}

fn value(word: &Word, kind: Kind) -> Result<Value, String> {
    Ok(match kind {
        Kind::Text => Value::from(word.text.clone()),
        Kind::Number => {
            Value::from(word.text.parse::<i64>().map_err(|_| format!("`{}` is no number", word.text))?)
        }
        Kind::Duration => Value::from(u64::try_from(duration(&word.text)?.as_millis()).unwrap_or(u64::MAX)),
        Kind::Flag => Value::Bool(true),
    })
}

fn expectation(words: &[Word]) -> Result<Expectation, String> {
    let (results, within) = match words {
        [results @ .., word, limits] if word.is("within") => (results, Some(range(&limits.text)?)),
        _ => (words, None),
    };
    let any_of: Vec<String> = results
        .split(|word| word.is("|"))
        .map(|words| {
            let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
            match texts[..] {
                ["timeout"] => "error TIMED_OUT".to_owned(),
                _ => texts.join(" "),
            }
        })
        .collect();
    if any_of.iter().any(String::is_empty) {
        return Err("`->` wants a result, and `|` stands between two".to_owned());
    }
    Ok(Expectation { any_of, within })
}

fn net(words: &[Word]) -> Result<Action, String> {
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let [verb, actor, ref rest @ ..] = texts[..] else { return Err("`net VERB ACTOR …`".to_owned()) };
    let flow = || match rest {
        [] => Ok(Flow::Both),
        ["to-server"] => Ok(Flow::ToServer),
        ["to-client"] => Ok(Flow::ToClient),
        _ => Err(format!("`net {verb} {actor}` takes `to-server`, `to-client` or nothing")),
    };
    let what = match (verb, rest) {
        ("cut", []) => NetVerb::Cut(Cut::Eof),
        ("cut", ["rst"]) => NetVerb::Cut(Cut::Rst),
        ("eof", []) => NetVerb::Drop(Cut::Eof),
        ("rst", []) => NetVerb::Drop(Cut::Rst),
        ("blackhole", _) => NetVerb::BlackHole(flow()?),
        ("stall", _) => NetVerb::Stall(flow()?),
        ("resume", []) => NetVerb::Resume,
        ("refuse", []) => NetVerb::Refuse,
        ("restore", []) => NetVerb::Restore,
        ("mark", []) => NetVerb::Mark,
        ("await-rule", []) => NetVerb::AwaitRule,
        ("delay", [each_way]) => NetVerb::Delay(duration(each_way)?),
        ("drop-request", [op, rest @ ..]) => rule(RuleFate::DropRequest(operations(op)?), rest)?,
        ("drop-reply", [op, rest @ ..]) => rule(RuleFate::DropReply(operations(op)?), rest)?,
        ("hold-request", [op, rest @ ..]) => rule(RuleFate::HoldRequest(operations(op)?), rest)?,
        ("hold-reply", [op, rest @ ..]) => rule(RuleFate::HoldReply(operations(op)?), rest)?,
        ("drop-event", [kind, rest @ ..]) => rule(RuleFate::DropEvent(event(kind)?), rest)?,
        ("hold-event", [kind, rest @ ..]) => rule(RuleFate::HoldEvent(event(kind)?), rest)?,
        _ => return Err(format!("no such thing as `net {}`", texts.join(" "))),
    };
    Ok(Action::Net { actor: actor.to_owned(), what })
}

fn rule(fate: RuleFate, words: &[&str]) -> Result<NetVerb, String> {
    let mut rule = RuleVerb { fate, nth: 1, path: None, then: None };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match *word {
            "eof" => rule.then = Some(Cut::Eof),
            "rst" => rule.then = Some(Cut::Rst),
            "nth" => rule.nth = words.next().and_then(|n| n.parse().ok()).ok_or("`nth` wants a number")?,
            "path" => rule.path = Some((*words.next().ok_or("`path` wants a text")?).to_owned()),
            other => {
                return Err(format!("a rule takes `nth N`, `path TEXT`, `eof` and `rst`, not `{other}`"));
            }
        }
    }
    Ok(NetVerb::Rule(rule))
}

/// The operations that a word stands for.
pub(crate) fn operations(word: &str) -> Result<Vec<Op>, String> {
    Ok(match word {
        "create" => Op::CREATES.to_vec(),
        "list" => Op::LISTS.to_vec(),
        "heartbeat" => vec![Op::Sync, Op::Ping],
        other => vec![other.parse::<Op>().map_err(|error| error.to_string())?],
    })
}

fn event(word: &str) -> Result<EventKind, String> {
    match word {
        "deleted" => Ok(EventKind::NodeDeleted),
        "changed" => Ok(EventKind::NodeDataChanged),
        "created" => Ok(EventKind::NodeCreated),
        "children" => Ok(EventKind::NodeChildrenChanged),
        _ => Err(format!("`{word}` is no event: deleted changed created children")),
    }
}

fn server(words: &[Word]) -> Result<Action, String> {
    let [verb] = words else { return Err("`server VERB`".to_owned()) };
    Ok(Action::Server(match verb.text.as_str() {
        "stop" => ServerVerb::Stop,
        "start" => ServerVerb::Start,
        "restart" => ServerVerb::Restart,
        "kill" => ServerVerb::Kill,
        "pause" => ServerVerb::Pause,
        "resume" => ServerVerb::Resume,
        "wipe" => ServerVerb::Wipe,
        other => return Err(format!("no such thing as `server {other}`")),
    }))
}

fn zk(words: &[Word]) -> Result<Action, String> {
    let texts: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    let own = |text: &str| text.to_owned();
    Ok(Action::Zk(match texts[..] {
        ["delete-node", path, "of", actor] => ZkVerb::DeleteNode { path: own(path), of: own(actor) },
        ["delete-root", path] => ZkVerb::DeleteTree(own(path)),
        ["create", path] => ZkVerb::Create(own(path)),
        ["set-data", path, "of", actor, data] => {
            ZkVerb::SetData { path: own(path), of: own(actor), data: own(data) }
        }
        ["end-session", actor] => ZkVerb::EndSession(own(actor)),
        ["counter", path, next] => {
            let next = next.parse().map_err(|_| format!("`{next}` is no number"))?;
            ZkVerb::Counter { path: own(path), next }
        }
        ["children", path] => ZkVerb::Children(own(path)),
        ["watches", path] => ZkVerb::Watches(own(path)),
        ["gone", path, "of", actor] => ZkVerb::Gone { path: own(path), of: own(actor) },
        ["exists", path] => ZkVerb::Exists(own(path)),
        ["data-of", actor, path, "contains", text] => {
            ZkVerb::DataContains { path: own(path), of: own(actor), text: own(text) }
        }
        _ => return Err(format!("no such thing as `zk {}`", texts.join(" "))),
    }))
}

/// Reads `200ms`, `1.5s` or `2m`.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let seconds = match &text[number.len()..] {
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(format!("`{text}` is no duration such as 200ms, 1.5s or 2m")),
    };
    let number: f64 = number.parse().map_err(|_| format!("`{text}` is no duration"))?;
    Duration::try_from_secs_f64(number * seconds).map_err(|error| format!("`{text}`: {error}"))
}

/// Reads `1s..2s`, or `2s` for `0s..2s`.
pub(super) fn range(text: &str) -> Result<RangeInclusive<Duration>, String> {
    match text.split_once("..") {
        Some((from, to)) => Ok(duration(from)?..=duration(to)?),
        None => Ok(Duration::ZERO..=duration(text)?),
    }
}

/// Whoever is spoken of must act.
fn check_actors(scenario: &Scenario) -> Result<(), ParseError> {
    for step in &scenario.steps {
        let spoken_of: Vec<&str> = match &step.action {
            Action::Net { actor, .. } => vec![actor],
            Action::Zk(
                ZkVerb::DeleteNode { of, .. } | ZkVerb::SetData { of, .. } | ZkVerb::Gone { of, .. },
            ) => {
                vec![of]
            }
            Action::Zk(ZkVerb::EndSession(of) | ZkVerb::DataContains { of, .. }) => vec![of],
            Action::Check(check) => check.actors(),
            _ => Vec::new(),
        };
        let special = ["zk", "server"];
        if let Some(nobody) = spoken_of
            .into_iter()
            .find(|name| !special.contains(name) && !scenario.actors.iter().any(|actor| actor == name))
        {
            let message = format!("`{nobody}` does nothing in this scenario");
            return Err(ParseError::new(&scenario.file, step.line, message));
        }
    }
    for peer in scenario.peers.keys() {
        if !scenario.actors.contains(peer) {
            let message = format!("the peer `{peer}` does nothing in this scenario");
            return Err(ParseError::new(&scenario.file, scenario.line, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Scenario>, String> {
        parse(Path::new("x.scenario"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_example_of_the_design_is_read() {
        let text = "
            # a comment
            scenario the next waiter is granted when the holder's session expires
              server tick 200ms
              versions 3.9.5 3.8.6
              skip kazoo: it tells nobody
              a connect session 4s
              b connect session 4s
              a acquire /jobs         -> held
              b acquire /jobs as turn & -> waiting
              net cut a
              a await-lost /jobs      -> lease_elapsed | session_expired within 3s..4s
              b await turn            -> held
              check lost(a) before held(b)
              check token(b) > token(a)
              check requests(a create) = 1
              repeat 3 a acquire /jobs timeout 1.5s -> none";
        let scenarios = read(text).expect("a scenario");
        let [scenario] = &scenarios[..] else { panic!("one scenario") };
        assert_eq!(scenario.actors, ["a", "b"]);
        assert_eq!(scenario.versions.len(), 2);
        assert_eq!(scenario.skips["kazoo"], "it tells nobody");
        let Action::Call(wait) = &scenario.steps[3].action else { panic!("a call") };
        assert!(wait.background && wait.label.as_deref() == Some("turn"));
        let lost = scenario.steps[5].expect.as_ref().expect("an expectation");
        assert_eq!(lost.any_of, ["lease_elapsed", "session_expired"]);
        assert_eq!(lost.within, Some(Duration::from_secs(3)..=Duration::from_secs(4)));
        let last = scenario.steps.last().expect("a step");
        assert_eq!(last.times, 3);
        let Action::Call(last) = &last.action else { panic!("a call") };
        assert_eq!(last.args["timeout"], 1500);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, complaint) in [
            ("a connect", "x.scenario:1: a line before the first `scenario`"),
            ("scenario x\n a acquire /p", "x.scenario:2: `a` is no actor yet"),
            ("scenario x\n a connect\n a fly", "x.scenario:3: `a` can't `fly`"),
            ("scenario x\n a connect sesion 4s", "x.scenario:2: `connect` knows no `sesion`"),
            ("scenario x\n a connect session 4", "`4` is no duration"),
            ("scenario x\n a connect\n net cut b", "x.scenario:3: `b` does nothing"),
            ("scenario x\n a connect\n net fly a", "x.scenario:3: no such thing as `net fly a`"),
            ("scenario x\n a connect\n a acquire /p ->", "x.scenario:3: `->` wants a result"),
            ("scenario x\n skip kazoo", "x.scenario:2: skip wants a reason"),
            ("scenario x\n a connect\n check token(a) ~ 3", "x.scenario:3: `~` compares nothing"),
            ("scenario x\n a connect\n a acquire \"/p", "x.scenario:3: a quote that is not closed"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.contains(complaint), "{error}\nshould say: {complaint}");
        }
    }
}
