//! An agent's process, as the runner sees it: requests go in, lines come out.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use forelock_testkit::processes;
use forelock_testkit::proxy::boot_time_ns;

use crate::protocol::{Line, Request};

/// All lines of a cell, in and out, with their times. Clones share it.
#[derive(Clone, Default)]
pub struct Transcript(Arc<Mutex<Vec<(u64, String)>>>);

impl Transcript {
    /// Adds a line.
    pub fn note(&self, line: impl Into<String>) {
        lock(&self.0).push((boot_time_ns(), line.into()));
    }

    /// The lines so far.
    #[must_use]
    pub fn text(&self) -> String {
        let lines = lock(&self.0);
        let text = |(at, line): &(u64, String)| format!("{:>12.4} {line}\n", *at as f64 / 1e9);
        lines.iter().map(text).collect()
    }
}

/// What has come from an agent so far.
#[derive(Default)]
pub struct Inbox {
    /// Requests that have been begun.
    begun: Vec<u64>,
    /// The answers to requests.
    pub answers: BTreeMap<u64, Line>,
    /// Events, in order.
    pub events: Vec<Line>,
    /// Lines that could not be read.
    pub garbage: Vec<String>,
    /// Whether its stdout has ended.
    pub ended: bool,
}

impl Inbox {
    /// The events called `name`, in order.
    pub fn events(&self, name: &str) -> impl Iterator<Item = &Line> {
        self.events.iter().filter(move |line| line.event.as_deref() == Some(name))
    }
}

/// An agent that plays one actor.
pub struct Actor {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    inbox: Arc<(Mutex<Inbox>, Condvar)>,
    stderr: Arc<Mutex<Vec<u8>>>,
    transcript: Transcript,
    last_id: u64,
    frozen: bool,
    status: Option<ExitStatus>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How much of an agent's stderr is kept.
const STDERR_KEPT: usize = 64 << 10;

impl Actor {
    /// Starts the agent. [`ready`](Self::ready) waits until it listens.
    ///
    /// # Errors
    /// When the program can't be run.
    pub fn start(name: &str, mut command: Command, transcript: Transcript) -> Result<Self, String> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: both calls are async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                // An agent that is frozen would outlive a runner that is killed.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                // A runner in the background of a shell ignores Ctrl-C, and its children would too.
                libc::signal(libc::SIGINT, libc::SIG_DFL);
                Ok(())
            });
        }
        let mut child = command.spawn().map_err(|error| format!("{:?}: {error}", command.get_program()))?;
        let inbox = Arc::new((Mutex::new(Inbox::default()), Condvar::new()));
        let stderr = Arc::new(Mutex::new(Vec::new()));
        if let Some(output) = child.stdout.take() {
            let (inbox, transcript, name) = (inbox.clone(), transcript.clone(), name.to_owned());
            std::thread::spawn(move || read_lines(&name, output, &inbox, &transcript));
        }
        if let Some(output) = child.stderr.take() {
            let stderr = stderr.clone();
            std::thread::spawn(move || read_stderr(output, &stderr));
        }
        let stdin = child.stdin.take();
        Ok(Self {
            name: name.to_owned(),
            child,
            stdin,
            inbox,
            stderr,
            transcript,
            last_id: 0,
            frozen: false,
            status: None,
        })
    }

    /// Waits until the agent listens.
    ///
    /// # Errors
    /// When it does not.
    pub fn ready(&self, patience: Duration) -> Result<(), String> {
        self.wait(patience, |inbox| inbox.events("ready").next().map(drop)).map_err(|why| {
            format!("the agent of {} does not start: {why}\n{}", self.name, self.stderr_tail())
        })
    }

    /// Asks the agent to do something, and returns the request's number.
    ///
    /// # Errors
    /// When the agent has ended.
    pub fn ask(
        &mut self,
        verb: &str,
        args: serde_json::Map<String, serde_json::Value>,
    ) -> Result<u64, String> {
        self.last_id += 1;
        let request = Request { id: self.last_id, verb: verb.to_owned(), args };
        let line = serde_json::to_string(&request).map_err(|error| error.to_string())?;
        self.transcript.note(format!("{} <- {line}", self.name));
        let stdin = self.stdin.as_mut().ok_or_else(|| format!("{} has been told to end", self.name))?;
        writeln!(stdin, "{line}").map_err(|error| format!("the agent of {} is gone: {error}", self.name))?;
        Ok(self.last_id)
    }

    /// Waits until the agent has begun what it was asked. One that is frozen is not waited for.
    ///
    /// # Errors
    /// When it does not begin.
    pub fn begun(&self, id: u64, patience: Duration) -> Result<(), String> {
        if self.frozen {
            return Ok(());
        }
        self.wait(patience, |inbox| {
            (inbox.begun.contains(&id) || inbox.answers.contains_key(&id)).then_some(())
        })
    }

    /// Waits until the inbox has an answer.
    ///
    /// # Errors
    /// When it has none in time, or the agent ended first.
    pub fn wait<T>(
        &self,
        patience: Duration,
        mut answer: impl FnMut(&Inbox) -> Option<T>,
    ) -> Result<T, String> {
        let deadline = Instant::now() + patience;
        let (inbox, changed) = &*self.inbox;
        let mut inbox = lock(inbox);
        loop {
            if let Some(answer) = answer(&inbox) {
                return Ok(answer);
            }
            if inbox.ended {
                return Err("its process has ended".to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("nothing came within {patience:?}"));
            }
            inbox = match changed.wait_timeout(inbox, left) {
                Ok((inbox, _)) => inbox,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }

    /// Looks at what has come so far.
    pub fn look<T>(&self, look: impl FnOnce(&Inbox) -> T) -> T {
        look(&lock(&self.inbox.0))
    }

    /// Whether it still takes requests.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.status.is_none() && self.stdin.is_some()
    }

    /// Whether its process has not been waited for.
    #[must_use]
    pub fn is_unfinished(&self) -> bool {
        self.status.is_none()
    }

    /// Whether it is frozen.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    fn signal(&self, signal: i32) {
        self.transcript.note(format!("{} gets signal {signal}", self.name));
        // SAFETY: the child has not been waited for, so the id is its own.
        unsafe { libc::kill(self.child.id().cast_signed(), signal) };
    }

    /// Kills the process.
    pub fn kill(&mut self) {
        if self.status.is_none() {
            self.transcript.note(format!("{} is killed", self.name));
            self.status = processes::kill(&mut self.child).ok();
        }
    }

    /// Freezes the process, and returns when it stands still.
    ///
    /// # Errors
    /// When it has ended, or does not stand still.
    pub fn freeze(&mut self) -> Result<(), String> {
        self.transcript.note(format!("{} is frozen", self.name));
        processes::freeze(self.child.id()).map_err(|error| format!("freezing {}: {error}", self.name))?;
        self.frozen = true;
        Ok(())
    }

    /// Lets a frozen process go on.
    pub fn thaw(&mut self) {
        self.frozen = false;
        self.signal(libc::SIGCONT);
    }

    /// Sends what Ctrl-C sends.
    pub fn interrupt(&self) {
        self.signal(libc::SIGINT);
    }

    /// Tells the agent to end: the end of its stdin.
    pub fn tell_to_end(&mut self) {
        if self.frozen {
            self.thaw();
        }
        self.stdin = None;
    }

    /// Waits until the agent has ended, and says what is wrong with how it did.
    ///
    /// # Errors
    /// When it does not end in time (it is killed then), or not in order.
    pub fn end(&mut self, patience: Duration) -> Result<(), String> {
        self.tell_to_end();
        let deadline = Instant::now() + patience;
        while self.status.is_none() {
            self.status = self.child.try_wait().map_err(|error| error.to_string())?;
            if self.status.is_none() {
                if Instant::now() > deadline {
                    self.kill();
                    return Err(format!("the agent of {} did not end within {patience:?}", self.name));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        match self.status {
            Some(status) if !status.success() => Err(match status.signal() {
                Some(signal) => format!("the agent of {} was ended by signal {signal}", self.name),
                None => format!("the agent of {} ended with {status}", self.name),
            }),
            _ => Ok(()),
        }
    }

    /// The end of what the agent has written to stderr.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        String::from_utf8_lossy(&lock(&self.stderr)).into_owned()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_lines(name: &str, output: impl Read, inbox: &(Mutex<Inbox>, Condvar), transcript: &Transcript) {
    for text in BufReader::new(output).lines() {
        let Ok(text) = text else { break };
        transcript.note(format!("{name} -> {text}"));
        let mut inbox_now = lock(&inbox.0);
        match serde_json::from_str::<Line>(&text) {
            Ok(line) => match line.id {
                Some(id) if line.ok => inbox_now.begun.push(id),
                Some(id) => drop(inbox_now.answers.insert(id, line)),
                None => inbox_now.events.push(line),
            },
            Err(_) => inbox_now.garbage.push(text),
        }
        drop(inbox_now);
        inbox.1.notify_all();
    }
    lock(&inbox.0).ended = true;
    inbox.1.notify_all();
}

fn read_stderr(mut output: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = output.read(&mut buffer) {
        let mut kept = lock(kept);
        kept.extend_from_slice(&buffer[..read]);
        let surplus = kept.len().saturating_sub(STDERR_KEPT);
        kept.drain(..surplus);
    }
}
