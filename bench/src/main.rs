//! Measures locks: `forelock-bench crowd WAITERS CUTS`, or `forelock-bench lock WHO SERVERS BASE WORKERS SESSIONS own|one SECONDS`.
//! Prints one line of JSON.

// A benchmark that cannot go on has nothing to report.
#![allow(clippy::unwrap_used)]

mod crowd;
mod handoffs;
mod usage;

use std::time::Duration;

const USAGE: &str = "usage: forelock-bench crowd WAITERS CUTS\n       \
                     forelock-bench lock forelock|bare SERVERS BASE WORKERS SESSIONS own|one SECONDS";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>().unwrap_or_else(|_| usage());
    let report = match words.as_slice() {
        ["crowd", waiters, cuts] => crowd::run(number(waiters), number(cuts)),
        ["lock", who, servers, base, workers, sessions, own, seconds] => {
            let load = handoffs::Load {
                workers: number(workers),
                sessions: number(sessions),
                own: *own == "own",
                time: Duration::from_secs(number(seconds) as u64),
            };
            let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
            let runtime = runtime.expect("a runtime");
            match *who {
                "forelock" => runtime.block_on(handoffs::forelock(servers, base, load)),
                "bare" => runtime.block_on(handoffs::bare(servers, base, load)),
                _ => usage(),
            }
        }
        _ => usage(),
    };
    println!("{report}");
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2)
}
