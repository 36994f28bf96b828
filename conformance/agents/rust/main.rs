//! The agent that plays actors with the Rust API.
//!
//! It runs in a single-threaded runtime, as a small program would, so that a scenario can block it.

mod locks;
mod output;
mod verbs;

use std::io::BufRead;
use std::process::ExitCode;
use std::rc::Rc;

use forelock_conformance::protocol::{Line, Request};
use tokio::sync::mpsc;

use output::say;
use verbs::Agent;

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let (requests, mut inbox) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            match serde_json::from_str::<Request>(&line) {
                Ok(request) => {
                    if requests.send(request).is_err() {
                        break;
                    }
                }
                Err(error) => eprintln!("not understood: {line}: {error}"),
            }
        }
    });
    let agent = Rc::new(Agent::default());
    tokio::task::LocalSet::new().block_on(&runtime, async {
        say(&Line { event: Some("ready".to_owned()), ..Line::default() });
        while let Some(request) = inbox.recv().await {
            say(&Line { id: Some(request.id), ok: true, ..Line::default() });
            let agent = agent.clone();
            tokio::task::spawn_local(async move {
                let answer = agent.answer(&request).await;
                say(&answer);
            });
        }
        agent.end().await;
    });
    ExitCode::SUCCESS
}
