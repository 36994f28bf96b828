//! `fetch`, `freeze` and `serve`.

use std::time::Duration;

use forelock_testkit::servers::{ServerError, fetch as fetch_jars};
use forelock_testkit::{Version, ZooKeeper, processes};
use serde_json::{Value, json};

use crate::{answer_commands, options};

fn text(error: ServerError) -> String {
    error.to_string()
}

pub fn fetch(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let mut versions = Version::ALL.to_vec();
    options::read(arguments, |name, value| {
        if name == "--version" {
            versions = vec![value()?.parse().map_err(text)?];
        }
        Ok(name == "--version")
    })?;
    for version in versions {
        println!("{}", fetch_jars(version).map_err(text)?.display());
    }
    Ok(())
}

pub fn freeze(mut arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let pid = options::parse("a process's id", &arguments.next().unwrap_or_default())?;
    processes::freeze(pid).map_err(|error| format!("process {pid}: {error}"))
}

pub fn run(arguments: impl Iterator<Item = String>) -> Result<(), String> {
    let mut settings = ZooKeeper::builder();
    options::read(arguments, |name, value| {
        let mut millis = || Ok::<_, String>(Duration::from_millis(options::parse("a number", &value()?)?));
        let so_far = settings.clone();
        settings = match name {
            "--tick-ms" => so_far.tick(millis()?),
            "--min-session-ms" => so_far.min_session(millis()?),
            "--max-session-ms" => so_far.max_session(millis()?),
            "--version" => so_far.version(value()?.parse().map_err(text)?),
            "--config" => {
                let line = value()?;
                let (key, value) = line.split_once('=').ok_or("--config needs KEY=VALUE")?;
                so_far.config(key, value)
            }
            _ => return Ok(false),
        };
        Ok(true)
    })?;
    let server = settings.start().map_err(text)?;
    answer_commands(&about(&server), |words| answer(&server, words))
}

fn about(server: &ZooKeeper) -> Value {
    json!({ "connect": server.connect_string(), "pid": server.pid(), "version": server.version().as_str() })
}

fn answer(server: &ZooKeeper, words: &[&str]) -> Result<Value, String> {
    match words {
        ["stop"] => server.stop(),
        ["kill"] => server.kill(),
        ["pause"] => server.pause().map_err(text)?,
        ["resume"] => server.resume(),
        ["restart"] => server.restart().map_err(text)?,
        ["wipe"] => server.wipe().map_err(text)?,
        ["force-child-counter", path, value] => {
            server.force_child_counter(path, options::parse("a counter", value)?).map_err(text)?;
        }
        ["four-letter", word] => return Ok(json!({ "answer": server.four_letter(word).map_err(text)? })),
        _ => return Err(format!("no such command: {}", words.join(" "))),
    }
    Ok(about(server))
}
