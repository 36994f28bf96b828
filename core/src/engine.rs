//! The real world: one thread for all clients of the process, the machine's clock, and real servers.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rand::RngCore;
use tokio::runtime::Handle;

use crate::env::{BoxFuture, Chance, Clock, Env, Moment, Spawner};
use crate::error::{Error, ErrorCode, Result};
use crate::limits;
use crate::options::Options;
use crate::words;
use crate::zk::zookeeper::ZooKeeperConnector;

/// The world of a client with these options.
pub(crate) fn real_env(options: &Options) -> Result<Env> {
    let connector = ZooKeeperConnector::new(options.adapter_config())
        .map_err(|error| Error::invalid(error.to_string()).because(error))?;
    Ok(Env {
        clock: Arc::new(BootClock),
        spawner: Arc::new(EngineThread),
        chance: Arc::new(SystemChance),
        connector: Arc::new(connector),
    })
}

/// A clock that goes on while the machine is suspended.
struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        boot_now()
    }
}

/// The present moment on the lease clock.
pub(crate) fn boot_now() -> Moment {
    Moment::from_nanos(boot_nanos())
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn boot_nanos() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours; this clock exists on every Linux that Rust runs on.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    (time.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(time.tv_nsec as u64)
}

#[cfg(any(target_os = "macos", target_os = "ios"))]
fn boot_nanos() -> u64 {
    use std::sync::OnceLock;
    #[repr(C)]
    struct Timebase {
        numer: u32,
        denom: u32,
    }
    unsafe extern "C" {
        fn mach_continuous_time() -> u64;
        fn mach_timebase_info(info: *mut Timebase) -> i32;
    }
    static TIMEBASE: OnceLock<(u32, u32)> = OnceLock::new();
    let (numer, denom) = *TIMEBASE.get_or_init(|| {
        let mut info = Timebase { numer: 1, denom: 1 };
        // SAFETY: the pointer is to a struct of ours with the layout that the system expects.
        unsafe { mach_timebase_info(&raw mut info) };
        (info.numer, info.denom)
    });
    // SAFETY: takes no arguments and only reads the clock.
    let ticks = unsafe { mach_continuous_time() };
    u64::try_from(u128::from(ticks) * u128::from(numer) / u128::from(denom)).unwrap_or(u64::MAX)
}

#[cfg(windows)]
fn boot_nanos() -> u64 {
    #[link(name = "mincore")]
    unsafe extern "system" {
        fn QueryInterruptTime(time: *mut u64);
    }
    let mut time = 0_u64;
    // SAFETY: the pointer is to a number of ours.
    unsafe { QueryInterruptTime(&raw mut time) };
    time.saturating_mul(100)
}

struct SystemChance;

impl Chance for SystemChance {
    fn next_u64(&self) -> u64 {
        rand::rng().next_u64()
    }
}

/// The engine's thread: a tokio runtime that no language runtime is ever entered from.
struct EngineThread;

/// The running engine, and the process that it runs in.
static ENGINE: OnceLock<(u32, Handle)> = OnceLock::new();
/// Held while the engine is being started.
static STARTING: Mutex<()> = Mutex::new(());

impl Spawner for EngineThread {
    fn spawn(&self, task: BoxFuture<()>) {
        match ENGINE.get() {
            // A panic in a task is caught by the runtime, which drops the task.
            Some((pid, engine)) if *pid == std::process::id() => drop(engine.spawn(task)),
            _ => tracing::error!("a task was dropped: the engine is not running in this process"),
        }
    }

    fn ends_with_process(&self) -> bool {
        true
    }

    fn ready(&self) -> Result<()> {
        let pid = std::process::id();
        if ENGINE.get().is_none() {
            let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
            if ENGINE.get().is_none() {
                let _ = ENGINE.set((pid, start()?));
            }
        }
        match ENGINE.get() {
            Some((owner, _)) if *owner == pid => Ok(()),
            // The thread, and that of the connections' reactor, stayed behind in the parent.
            _ => Err(Error::forked()),
        }
    }
}

/// Starts the thread. It lives as long as the process.
fn start() -> Result<Handle> {
    // Nothing else can go wrong here than that the system has none left to give.
    let failed = |error: std::io::Error| {
        let why = format!("the engine's thread could not be started: {}", words::system_error(&error));
        Error::new(ErrorCode::OutOfResources, why).because(error)
    };
    // With its signals built in, tokio takes six, and panics over some of them.
    limits::descriptors_are_left(8).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("forelock".to_owned())
        .spawn(move || runtime.block_on(std::future::pending::<()>()))
        .map_err(failed)?;
    Ok(handle)
}
