//! `proxy`.

use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use forelock_testkit::proxy::{Direction, Entry, Ops};
use forelock_testkit::{Cut, FaultProxy, Flow, Op, Rule, RuleHandle, Scope};
use serde_json::{Value, json};

use crate::answer_commands;
use crate::options::{self, parse};

pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let (mut upstream, mut ipv6) = (None, false);
    options::read(arguments, |name, value| {
        match name {
            "--upstream" => upstream = Some(resolve(&value()?)?),
            "--ipv6" => ipv6 = true,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    let builder = FaultProxy::builder(upstream.ok_or("--upstream HOST:PORT is missing")?);
    let builder = if ipv6 { builder.ipv6() } else { builder };
    let proxy = builder.start().map_err(|error| error.to_string())?;
    let ready = json!({ "connect": proxy.connect_string(), "port": proxy.port() });
    let mut rules = Vec::new();
    answer_commands(&ready, |words| answer(&proxy, &mut rules, words))
}

fn resolve(text: &str) -> Result<SocketAddr, String> {
    let mut addrs = text.to_socket_addrs().map_err(|error| format!("{text}: {error}"))?;
    addrs.next().ok_or_else(|| format!("{text} has no address"))
}

fn answer(proxy: &FaultProxy, rules: &mut Vec<RuleHandle>, words: &[&str]) -> Result<Value, String> {
    let io = |error: std::io::Error| error.to_string();
    match words {
        ["refuse"] => proxy.refuse(),
        ["accept"] => proxy.accept().map_err(io)?,
        ["restore"] => proxy.restore().map_err(io)?,
        ["upstream", addr] => proxy.set_upstream(resolve(addr)?),
        ["blackhole", rest @ ..] => {
            let (flow, scope) = where_to(rest)?;
            proxy.blackhole(flow, scope);
        }
        ["stall", rest @ ..] => {
            let (flow, scope) = where_to(rest)?;
            proxy.stall(flow, scope);
        }
        ["resume", rest @ ..] => proxy.resume(where_to(rest)?.0),
        ["delay-ms", there, back @ ..] if back.len() < 2 => {
            let millis = |text| parse("a number", text).map(Duration::from_millis);
            proxy.delay(millis(there)?, millis(back.first().unwrap_or(there))?, Scope::All);
        }
        ["cut", how] => return Ok(json!({ "connections": proxy.cut(cut(how)?) })),
        ["connections"] => {
            let list = proxy.connections();
            let list: Vec<Value> =
                list.iter().map(|info| json!({ "id": info.id, "session": hex(info.session) })).collect();
            return Ok(json!({ "connections": list }));
        }
        ["count", op] => {
            let op = parse("a request", op)?;
            return Ok(json!({ "count": proxy.journal().all().count(op) }));
        }
        ["journal", last @ ..] if last.len() < 2 => {
            let last = last.first().map_or(Ok(100), |last| parse("a number", last))?;
            let records = proxy.journal().all();
            let entries: Vec<Value> =
                records.iter().skip(records.len().saturating_sub(last)).map(entry).collect();
            return Ok(json!({ "entries": entries }));
        }
        ["fired", number, wait @ ..] if wait.len() < 2 => {
            let number: usize = parse("a rule's number", number)?;
            let rule = rules.get(number).ok_or_else(|| format!("there is no rule {number}"))?;
            let wait = wait.first().map_or(Ok(0), |wait| parse("a number", wait))?;
            let fired = rule.wait_fired(Duration::from_millis(wait)).map_err(|error| error.to_string())?;
            return Ok(json!({ "entry": entry(&fired) }));
        }
        [kind, ops, rest @ ..] => {
            rules.push(proxy.install(rule(kind, ops, rest)?));
            return Ok(json!({ "rule": rules.len() - 1 }));
        }
        _ => return Err(no_such(words)),
    }
    Ok(json!({}))
}

fn no_such(words: &[&str]) -> String {
    format!("no such command: {}", words.join(" "))
}

/// A flow and a scope, in any order, both ways and all connections unless said.
fn where_to(words: &[&str]) -> Result<(Flow, Scope), String> {
    let (mut flow, mut scope) = (Flow::Both, Scope::All);
    for word in words {
        match *word {
            "to-server" => flow = Flow::ToServer,
            "to-client" => flow = Flow::ToClient,
            "both" => flow = Flow::Both,
            "current" => scope = Scope::Current,
            "new" => scope = Scope::New,
            "all" => scope = Scope::All,
            other => return Err(format!("{other:?} is neither a flow nor a scope")),
        }
    }
    Ok((flow, scope))
}

fn cut(word: &str) -> Result<Cut, String> {
    match word {
        "eof" => Ok(Cut::Eof),
        "rst" => Ok(Cut::Rst),
        other => Err(format!("a cut is eof or rst, not {other:?}")),
    }
}

fn rule(kind: &str, ops: &str, rest: &[&str]) -> Result<Rule, String> {
    let ops = match ops {
        "creates" => Ops::from(Op::CREATES),
        "lists" => Ops::from(Op::LISTS),
        names => names.split(',').map(|name| parse("a request", name)).collect::<Result<_, _>>()?,
    };
    let mut rule = match kind {
        "drop-request" => Rule::drop_request(ops),
        "drop-reply" => Rule::drop_reply(ops),
        "hold-request" => Rule::hold_request(ops),
        "hold-reply" => Rule::hold_reply(ops),
        "pass-request" => Rule::pass_request(ops),
        "pass-reply" => Rule::pass_reply(ops),
        other => return Err(no_such(&[other])),
    };
    for word in rest {
        rule = match (*word, word.strip_prefix("path=")) {
            (_, Some(path)) => rule.path_contains(path),
            ("swallow", _) => rule,
            ("eof" | "rst", _) => rule.then_cut(cut(word)?),
            _ => rule.nth(parse("a number", word)?),
        };
    }
    Ok(rule)
}

fn hex(session: i64) -> String {
    format!("{session:#x}")
}

fn entry(entry: &Entry) -> Value {
    json!({
        "seq": entry.seq,
        "boot_ns": entry.boot_ns,
        "connection": entry.connection,
        "session": hex(entry.session),
        "direction": if entry.direction == Direction::ToServer { "to-server" } else { "to-client" },
        "request": entry.is_request(),
        "op": entry.op().map(|op| op.to_string()),
        "event": entry.event().map(|kind| format!("{kind:?}")),
        "xid": entry.xid(),
        "path": entry.path(),
        "err": entry.err(),
        "delivered": entry.is_delivered(),
        "text": format!("{:?}", entry.what),
    })
}
