//! Freezing, thawing and killing processes: each call returns when it is so.

use std::fs;
use std::io;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use crate::wait::poll_until;

/// How long a process may take to stand still; one that is busy in the kernel stops when it comes back.
const PATIENCE: Duration = Duration::from_secs(60);

/// Freezes a process (SIGSTOP), and returns when none of its threads runs.
///
/// The signal itself is only a request: its threads go on until each of them has seen it, and may answer somebody
/// in between.
///
/// # Errors
/// When there is no such process, it may not be frozen, or it does not stand still.
pub fn freeze(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGSTOP)?;
    let mut before = None;
    let still = poll_until(
        || format!("process {pid} to stand still"),
        PATIENCE,
        || {
            // Twice the same threads: one may have begun another just before it stopped.
            let now = match stopped_threads(pid) {
                Ok(threads) => threads,
                Err(error) => return Some(Err(error)),
            };
            let twice = now.is_some() && now == before;
            before = now;
            twice.then_some(Ok(()))
        },
    );
    still.map_err(|late| io::Error::new(io::ErrorKind::TimedOut, late))?
}

/// Lets a frozen process go on (SIGCONT). From the return on it is no longer frozen.
///
/// # Errors
/// When there is no such process, or it is not ours.
pub fn thaw(pid: u32) -> io::Result<()> {
    signal(pid, libc::SIGCONT)
}

/// Whether every thread of a process is stopped.
#[must_use]
pub fn is_frozen(pid: u32) -> bool {
    matches!(stopped_threads(pid), Ok(Some(_)))
}

/// Kills a child (SIGKILL), and returns when it has ended: its connections are closed, and its ports free.
///
/// # Errors
/// When it cannot be waited for.
pub fn kill(child: &mut Child) -> io::Result<ExitStatus> {
    child.kill()?;
    child.wait()
}

fn signal(pid: u32, signal: i32) -> io::Result<()> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    // SAFETY: no memory is involved.
    match unsafe { libc::kill(pid, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The threads of a process if all are stopped, and nothing if one of them runs.
fn stopped_threads(pid: u32) -> io::Result<Option<Vec<String>>> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?;
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        match state(&stat) {
            Some('T' | 't') => threads.push(task.file_name().to_string_lossy().into_owned()),
            Some('Z') if *task.file_name() == *pid.to_string() => {
                return Err(io::Error::new(io::ErrorKind::NotFound, "it has ended"));
            }
            // It runs; or it has ended meanwhile, and is not there the next time.
            _ => return Ok(None),
        }
    }
    threads.sort_unstable();
    Ok(Some(threads))
}

/// Reads the state in a thread's `stat`: behind its name, which stands in brackets and may have any in it.
fn state(stat: &str) -> Option<char> {
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_state_stands_behind_the_last_bracket() {
        assert_eq!(state("12 (a) S (b)) T 1 12 12"), Some('T'));
        assert_eq!(state("12 (a) T) S 1 12 12"), Some('S'));
        assert_eq!(state(""), None);
    }

    #[test]
    fn a_frozen_process_says_nothing_until_it_thaws_and_a_killed_one_nothing_more() {
        let mut echo =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (pid, mut stdin) = (echo.id(), echo.stdin.take().expect("its input"));
        let mut lines = BufReader::new(echo.stdout.take().expect("its output")).lines();
        for round in 0..50 {
            assert!(!is_frozen(pid));
            freeze(pid).expect("frozen");
            assert!(is_frozen(pid));
            writeln!(stdin, "{round}").expect("written");
            assert!(is_frozen(pid));
            thaw(pid).expect("thawed");
            assert_eq!(lines.next().expect("a line").expect("text"), round.to_string());
        }
        freeze(pid).expect("frozen");
        echo.kill().expect("killed");
        while is_frozen(pid) {
            std::thread::yield_now();
        }
        freeze(pid).expect_err("it has ended, and nobody has looked");
        kill(&mut echo).expect("ended");
        freeze(pid).expect_err("no such process");
        assert!(!is_frozen(pid));
    }
}
