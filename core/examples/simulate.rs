//! Runs schedules of the simulator and says what came of them.
//!
//! `simulate --seeds 10000 --threads 2` runs that many; `simulate --seed 7 --trace` runs one again and shows what
//! happened in it.

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use forelock::Mutants;
use forelock::simulation::{Outcome, Profile, Violation, run_schedule, trace_schedule};

const USAGE: &str = "usage: simulate [--seeds N] [--start S] [--profile P] [--threads N] [--mutant M] [--keep-going] | --seed X [--trace]";

struct Arguments {
    start: u64,
    seeds: u64,
    threads: usize,
    profile: Profile,
    trace: bool,
    keep_going: bool,
}

fn arguments() -> Result<Arguments, String> {
    let mut found = Arguments {
        start: 0,
        seeds: 1_000,
        threads: 1,
        profile: Profile::default(),
        trace: false,
        keep_going: false,
    };
    let mut mutants = Mutants::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
        let number = |text: String| text.parse::<u64>().map_err(|_| format!("{text:?} is no number"));
        match word.as_str() {
            "--seeds" => found.seeds = number(value()?)?,
            "--start" => found.start = number(value()?)?,
            "--threads" => found.threads = usize::try_from(number(value()?)?).unwrap_or(1).max(1),
            "--seed" => (found.start, found.seeds) = (number(value()?)?, 1),
            "--trace" => found.trace = true,
            "--mutant" => plant(&mut mutants, &value()?)?,
            "--keep-going" => found.keep_going = true,
            "--profile" => {
                let name = value()?;
                let mut every = Profile::every();
                let names: Vec<_> = every.iter().map(|profile| profile.name).collect();
                let at = names.iter().position(|known| *known == name);
                let at = at.ok_or_else(|| format!("no profile {name:?}; there are {}", names.join(", ")))?;
                found.profile = every.swap_remove(at);
            }
            _ => return Err(USAGE.to_owned()),
        }
    }
    found.profile.mutants = mutants;
    Ok(found)
}

/// Plants a bug, to see how it is found.
fn plant(mutants: &mut Mutants, name: &str) -> Result<(), String> {
    let bug = match name {
        "wrong_predecessor" => &mut mutants.wrong_predecessor,
        "skip_owner_check" => &mut mutants.skip_owner_check,
        "forget_cleanup" => &mut mutants.forget_cleanup,
        "lease_from_latest" => &mut mutants.lease_from_latest,
        "lease_send_to_send" => &mut mutants.lease_send_to_send,
        "head_shortcut_without_own_watch" => &mut mutants.head_shortcut_without_own_watch,
        "absent_is_gone" => &mut mutants.absent_is_gone,
        "trust_sync" => &mut mutants.trust_sync,
        "reuse_guid" => &mut mutants.reuse_guid,
        _ => return Err(format!("no planted bug {name:?}")),
    };
    *bug = true;
    Ok(())
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(2);
        }
    };
    let began = Instant::now();
    let total = run(&arguments);
    report(&total, began.elapsed().as_secs_f64());
    for violation in &total.violations {
        show(violation, &arguments);
    }
    if total.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(arguments: &Arguments) -> Outcome {
    if arguments.trace {
        let outcome = trace_schedule(arguments.start, &arguments.profile);
        outcome.trace.iter().for_each(|line| println!("{line}"));
        return outcome;
    }
    let next = AtomicU64::new(0);
    let work = || {
        let mut total = Outcome::default();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= arguments.seeds {
                return total;
            }
            total.add(run_schedule(arguments.start + number, &arguments.profile));
            if !total.violations.is_empty() && !arguments.keep_going {
                next.store(arguments.seeds, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..arguments.threads).map(|_| scope.spawn(work)).collect();
        let mut total = Outcome::default();
        for thread in threads {
            match thread.join() {
                Ok(outcome) => total.add(outcome),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        total.violations.sort_by_key(|violation| violation.seed);
        total
    })
}

fn report(total: &Outcome, seconds: f64) {
    println!(
        "{} schedules in {seconds:.1} s: {:.0} a second, {:.0} steps and {:.1} virtual seconds each",
        total.schedules,
        total.schedules as f64 / seconds,
        total.steps as f64 / total.schedules.max(1) as f64,
        total.millis as f64 / 1000.0 / total.schedules.max(1) as f64,
    );
    println!(
        "{} grants, {} acquires refused, {} cancelled; overlaps excused: {}",
        total.grants, total.refusals, total.cancelled, total.excused_overlaps
    );
    let losses: Vec<_> = total.losses.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
    println!("losses: {}", losses.join(", "));
    let faults: Vec<_> = total.faults.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
    println!("faults: {}", faults.join(", "));
    println!("violations: {}", total.violations.len());
}

fn show(violation: &Violation, arguments: &Arguments) {
    println!("\nseed {} of profile {}: {}", violation.seed, arguments.profile.name, violation.what);
    if arguments.seeds == 1 && !arguments.trace || !arguments.keep_going {
        violation.trace.iter().for_each(|line| println!("  {line}"));
    }
}
