//! Durations and system errors in messages, as people write them.

use std::io;
use std::time::Duration;

/// Whether a system error means that there is no file descriptor left.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    #[cfg(unix)]
    return matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
    #[cfg(not(unix))]
    {
        // WSAEMFILE
        error.raw_os_error() == Some(10024)
    }
}

/// A system error as people know it.
pub(crate) fn system_error(error: &io::Error) -> String {
    match error.kind() {
        _ if is_out_of_descriptors(error) => {
            format!("no file descriptor is left ({error}); sockets are files, too")
        }
        io::ErrorKind::ConnectionRefused => "connection refused: nothing listens on that port".to_owned(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            format!("there is no route to the server ({error})")
        }
        _ => error.to_string(),
    }
}

/// A duration in words, such as `30 s`, `0.92 s` or `5 ms`: three digits at most, and none that say nothing.
pub(crate) fn duration(duration: Duration) -> String {
    let (value, unit) = match duration.as_secs_f64() {
        seconds if duration.is_zero() => (seconds, "s"),
        seconds if seconds < 0.01 => (seconds * 1_000.0, "ms"),
        seconds => (seconds, "s"),
    };
    let places = match value {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.places$}");
    let text = if places > 0 { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_as_people_write_them() {
        for (nanos, words) in [
            (0, "0 s"),
            (5_000_000, "5 ms"),
            (1_234_567, "1.23 ms"),
            (20_000_000, "0.02 s"),
            (920_833_335, "0.92 s"),
            (1_333_333_333, "1.33 s"),
            (2_500_000_000, "2.5 s"),
            (13_333_333_333, "13.3 s"),
            (30_000_000_000, "30 s"),
            (100_000_000_000, "100 s"),
            (2_147_483_647_000_000, "2147484 s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), words);
        }
    }
}
