//! The testkit for whoever does not speak Rust: servers and proxies that are driven by lines of text and answer
//! with one line of JSON each.

mod options;
mod proxy;
mod serve;

use std::io::{BufRead, Write};
use std::process::ExitCode;
use std::sync::mpsc;

use serde_json::{Value, json};

const USAGE: &str = "\
Usage:
  forelock-testkit fetch [--version V]
      Downloads the jars of a ZooKeeper (of all versions without --version).

  forelock-testkit freeze PID
      Freezes a process (SIGSTOP), and returns when none of its threads runs. SIGCONT lets it go on.

  forelock-testkit serve [--version V] [--tick-ms N] [--min-session-ms N] [--max-session-ms N]
                         [--config KEY=VALUE]...
      Starts a ZooKeeper on a free port, prints {\"connect\":\"127.0.0.1:PORT\",\"pid\":N,\"version\":V} when it
      serves, and runs until stdin closes or a SIGTERM comes.
      Commands on stdin: stop, kill, restart, pause, resume, wipe, four-letter WORD,
      force-child-counter PATH N

  forelock-testkit proxy --upstream HOST:PORT [--ipv6]
      Starts a fault proxy on a free port, prints {\"connect\":\"127.0.0.1:PORT\",\"port\":N}, and runs as long.
      Commands on stdin:
        refuse, accept, restore, upstream HOST:PORT, connections
        blackhole [FLOW] [SCOPE], stall [FLOW] [SCOPE], resume [FLOW]
        delay-ms N [N to the client, if different], cut eof|rst
        drop-request OPS [N] [eof|rst|swallow] [path=TEXT]
        drop-reply, hold-request, hold-reply, pass-request, pass-reply: likewise
        fired RULE [MS]: waits so long for the rule with that number
        count OP, journal [N]
      FLOW is to-server, to-client or both; SCOPE is current, new or all; OPS are names of requests separated
      by commas, `creates` or `lists`.

Every command is answered by one line: {\"ok\":true,...} or {\"ok\":false,\"error\":TEXT}.
";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let outcome = match command.as_str() {
        "fetch" => serve::fetch(arguments),
        "serve" => serve::run(arguments),
        "proxy" => proxy::run(arguments),
        "freeze" => serve::freeze(arguments),
        "" | "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        other => Err(format!("no such command: {other}\n\n{USAGE}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("forelock-testkit: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Prints `ready`, then answers the commands on stdin until it closes or the process is asked to end.
fn answer_commands(
    ready: &Value,
    mut answer: impl FnMut(&[&str]) -> Result<Value, String>,
) -> Result<(), String> {
    let (send, lines) = mpsc::channel();
    end_on_signal(send.clone())?;
    print_line(ready);
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(Some(line)).is_err() {
                return;
            }
        }
        let _ = send.send(None);
    });
    while let Ok(Some(line)) = lines.recv() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        let mut reply = match answer(&words) {
            Ok(Value::Object(fields)) => Value::Object(fields),
            Ok(_) => json!({}),
            Err(error) => json!({ "error": error }),
        };
        reply["ok"] = json!(reply.get("error").is_none());
        print_line(&reply);
    }
    Ok(())
}

/// Sends `None` when a SIGTERM or SIGINT comes, so that servers are ended and their data removed.
fn end_on_signal(end: mpsc::Sender<Option<String>>) -> Result<(), String> {
    use tokio::signal::unix::{SignalKind, signal};
    let failed = |error: std::io::Error| format!("waiting for signals: {error}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (mut terminate, mut interrupt) = {
        let _context = runtime.enter();
        (signal(SignalKind::terminate()).map_err(failed)?, signal(SignalKind::interrupt()).map_err(failed)?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        let _ = end.send(None);
    });
    Ok(())
}

fn print_line(value: &Value) {
    let mut out = std::io::stdout().lock();
    // Whoever does not read the answers any more will close stdin too.
    let _ = writeln!(out, "{value}").and_then(|()| out.flush());
}
