//! The servers' jars, from Maven Central through Maven, once for each target folder.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{ServerError, Version};

const POM: &str = include_str!("../../zookeeper/pom.xml");

/// Makes sure that the jars of this version are here, and returns their folder:
/// `zookeeper/<version>/lib` in Cargo's target folder. Processes that need them at the same time wait for one
/// another.
///
/// # Errors
/// When Maven does not run or finds them neither in its cache nor in its repository.
pub fn fetch(version: Version) -> Result<PathBuf, ServerError> {
    let home = target_dir().join("zookeeper");
    let lib = home.join(version.as_str()).join("lib");
    if lib.is_dir() {
        return Ok(lib);
    }
    fs::create_dir_all(&home).map_err(ServerError::io(format!("making {}", home.display())))?;
    let lock =
        File::create(home.join(".lock")).map_err(ServerError::io("opening the lock file for the jars"))?;
    // SAFETY: the descriptor is open. The lock ends with it.
    if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(ServerError::io("locking the folder for the jars")(std::io::Error::last_os_error()));
    }
    if !lib.is_dir() {
        let partial = home.join(format!("{version}.partial"));
        let _ = fs::remove_dir_all(&partial);
        copy_dependencies(version, &partial)?;
        fs::rename(&partial, home.join(version.as_str()))
            .map_err(ServerError::io("moving the jars to their place"))?;
    }
    Ok(lib)
}

fn copy_dependencies(version: Version, folder: &Path) -> Result<(), ServerError> {
    fs::create_dir_all(folder).map_err(ServerError::io("making a folder for the jars"))?;
    let pom = folder.join("pom.xml");
    fs::write(&pom, POM).map_err(ServerError::io("writing the pom"))?;
    let output = Command::new("mvn")
        .args(["--quiet", "--batch-mode", "--file"])
        .arg(&pom)
        .arg("dependency:copy-dependencies")
        .arg(format!("-Dzookeeper.version={version}"))
        .arg(format!("-DoutputDirectory={}", folder.join("lib").display()))
        .stdin(Stdio::null())
        .output()
        .map_err(ServerError::io("running mvn"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Err(ServerError::Fetch(text(&output.stdout) + &text(&output.stderr)))
}

/// Cargo's target folder: the one that this program lies in, which Cargo marks as a cache.
fn target_dir() -> PathBuf {
    let exe = std::env::current_exe().unwrap_or_default();
    let marked = exe.ancestors().find(|folder| folder.join("CACHEDIR.TAG").is_file());
    let named = || std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let folder = marked.map(Path::to_owned).or_else(named).unwrap_or_else(|| PathBuf::from("target"));
    // Maven takes a relative path from where the pom lies.
    std::path::absolute(&folder).unwrap_or(folder)
}
