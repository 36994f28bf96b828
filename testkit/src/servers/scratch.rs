//! Temporary folders that do not outlive their process for long.

use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::{fs, io, process};

const PREFIX: &str = "forelock-testkit-";

/// A temporary folder, removed when dropped. The name says which process it belongs to, so that the next process can
/// remove what a killed one has left behind.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    pub(super) fn new() -> io::Result<Self> {
        static SWEPT: Once = Once::new();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        SWEPT.call_once(sweep);
        let name = format!("{PREFIX}{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        // One of the same name is left from a process with the same id.
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path)?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of processes that are no more.
fn sweep() {
    for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok());
        if owner.is_some_and(|pid| !is_alive(pid)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_alive(pid: i32) -> bool {
    // SAFETY: signal 0 only asks whether the process exists.
    let answer = unsafe { libc::kill(pid, 0) };
    answer == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}
