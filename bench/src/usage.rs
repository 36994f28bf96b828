//! What this process has used so far.

use std::time::Duration;

/// The processor time of all threads, user and system.
pub fn cpu() -> Duration {
    // SAFETY: an all-zero rusage is valid, and the pointer is to one of ours.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let part = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    part(usage.ru_utime) + part(usage.ru_stime)
}

/// Resident memory in bytes, after what the allocator can give back has been given back.
pub fn resident() -> usize {
    // SAFETY: takes no pointers.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0);
    pages * 4096
}
