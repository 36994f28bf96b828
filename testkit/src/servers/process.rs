//! A server's process: it ends with ours, whatever happens to ours.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, Once, OnceLock, mpsc};
use std::time::Duration;

use crate::processes;
use crate::wait::{lock, poll_until};

/// Running servers and their folders, for the end of our process: a server in a `static` is never dropped.
static RUNNING: Mutex<Vec<(i32, PathBuf)>> = Mutex::new(Vec::new());

/// How long a server may take to end in order before it is killed.
const END_PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(super) struct Process {
    child: Child,
}

impl Process {
    /// Starts `command`, its output appended to `log`. At the end of our process, `folder` is removed.
    pub(super) fn start(mut command: Command, log: &Path, folder: &Path) -> io::Result<Self> {
        static AT_EXIT: Once = Once::new();
        // SAFETY: `end_all` has the required signature and may run at any time.
        AT_EXIT.call_once(|| unsafe {
            libc::atexit(end_all);
        });
        let output = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let parent = std::process::id();
        // SAFETY: only async-signal-safe calls are made between fork and exec.
        unsafe {
            command.pre_exec(move || {
                if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                    return Err(io::Error::last_os_error());
                }
                // The parent may have ended before the signal was asked for.
                if libc::getppid().unsigned_abs() != parent {
                    return Err(io::Error::from_raw_os_error(libc::ESRCH));
                }
                Ok(())
            });
        }
        let child = spawn(command)?;
        lock(&RUNNING).push((raw_pid(&child), folder.to_owned()));
        Ok(Self { child })
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: i32) {
        // SAFETY: the child has not been waited for, so the id is still its own.
        unsafe { libc::kill(raw_pid(&self.child), signal) };
    }

    /// How it has ended, if it has.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Ends it: with SIGTERM if `gracefully`, and with SIGKILL if that does not help. Returns when it has ended.
    pub(super) fn end(&mut self, gracefully: bool) {
        if gracefully {
            self.signal(libc::SIGTERM);
            self.signal(libc::SIGCONT);
            let _ = poll_until(String::new, END_PATIENCE, || self.ended());
        }
        lock(&RUNNING).retain(|(pid, _)| *pid != raw_pid(&self.child));
        let _ = processes::kill(&mut self.child);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn raw_pid(child: &Child) -> i32 {
    child.id().cast_signed()
}

/// The last lines of a log.
pub(super) fn log_tail(log: &Path) -> String {
    read_tail(log).unwrap_or_else(|error| format!("(no log: {error})"))
}

fn read_tail(log: &Path) -> io::Result<String> {
    const BYTES: u64 = 8 << 10;
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(BYTES)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let tail = String::from_utf8_lossy(&tail);
    let lines: Vec<&str> = tail.lines().collect();
    Ok(lines[lines.len().saturating_sub(40)..].join("\n"))
}

/// Spawns on a thread that lives as long as the process: the death signal comes when the spawning *thread* ends,
/// and the threads of tests end early.
fn spawn(command: Command) -> io::Result<Child> {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (send, jobs) = mpsc::channel::<Job>();
        std::thread::spawn(move || {
            for (mut command, answer) in jobs {
                let _ = answer.send(command.spawn());
            }
        });
        send
    });
    let gone = || io::Error::other("the spawning thread has ended");
    let (answer, child) = mpsc::channel();
    spawner.send((command, answer)).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

extern "C" fn end_all() {
    for (pid, folder) in std::mem::take(&mut *lock(&RUNNING)) {
        // SAFETY: the ids are of children that have not been waited for.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
        let _ = std::fs::remove_dir_all(folder);
    }
}
