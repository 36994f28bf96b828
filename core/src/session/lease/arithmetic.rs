//! The arithmetic of a lease: how often heartbeats are sent, what is taken off, and which outage can be survived.

use std::time::Duration;

use crate::words;

/// The tick that is assumed where nothing is known: longer than the server's default of 2 s.
pub const DEFAULT_TICK: Duration = Duration::from_secs(3);

/// How often a live session sends a pair of heartbeats: as seldom as can be, so that the request that the last pair
/// has proved is never older than a sixth of the timeout and a tick when the next pair is due.
///
/// A pair proves what was answered a tick before. So where the tick is short that was the pair before it, and where it
/// is long it is made to be a whole number of intervals. Between a twelfth and a sixth of the timeout.
#[must_use]
pub fn heartbeat_interval(timeout: Duration, tick: Duration) -> Duration {
    let most = timeout / 6;
    if tick <= most {
        return (most + tick) / 2;
    }
    let intervals = tick.as_nanos().div_ceil(most.as_nanos().max(1));
    tick / u32::try_from(intervals).unwrap_or(u32::MAX)
}

/// What is taken off the lease for clocks that drift and timers that fire late: the larger of 200 ms and a
/// twentieth of the timeout, but never more than a tenth of it.
#[must_use]
pub fn margin(timeout: Duration) -> Duration {
    (timeout / 20).max(Duration::from_millis(200)).min(timeout / 10)
}

/// The longest outage that a session survives: its timeout, less a sixth of it, a tick, the margin, and the
/// attempt to connect that may be under way in vain when the network comes back.
#[must_use]
pub fn survivable_outage(timeout: Duration, tick: Duration) -> Duration {
    let slack = slack(timeout, tick);
    slack.saturating_sub(reconnect_attempt(slack)).saturating_sub(reconnect_delay(slack))
}

/// How long an attempt to save a session may take.
pub(crate) fn reconnect_attempt(slack: Duration) -> Duration {
    (slack / 8).clamp(Duration::from_millis(100), Duration::from_secs(1))
}

/// The longest wait between two such attempts.
pub(crate) fn reconnect_delay(slack: Duration) -> Duration {
    (slack / 16).clamp(Duration::from_millis(50), Duration::from_millis(500))
}

/// How long a lease lasts without an answer, wherever between two heartbeats that begins.
pub(super) fn slack(timeout: Duration, tick: Duration) -> Duration {
    timeout.saturating_sub(timeout / 6).saturating_sub(tick).saturating_sub(margin(timeout))
}

/// The tick to reckon with, and what to tell the user about the setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TickChoice {
    pub(crate) tick: Duration,
    pub(crate) warning: Option<String>,
}

/// Chooses the tick from the user's setting and from what the server made of the timeout asked for.
///
/// A server grants 2 to 20 ticks unless told otherwise, so a timeout that it changed gives its tick away. Its
/// own limits may have been set by hand, so what is inferred may make the tick longer than the setting, which
/// is safe, but never shorter.
pub(crate) fn choose_tick(setting: Option<Duration>, asked: Duration, granted: Duration) -> TickChoice {
    let (inferred, limit) = match granted.cmp(&asked) {
        std::cmp::Ordering::Less => (Some(granted / 20), "maxSessionTimeout"),
        std::cmp::Ordering::Greater => (Some(granted / 2), "minSessionTimeout"),
        std::cmp::Ordering::Equal => (None, ""),
    };
    let assumed = setting.unwrap_or(DEFAULT_TICK);
    let tick = assumed.max(inferred.unwrap_or_default()).min(granted / 2);
    let warning = match (setting, inferred) {
        (Some(set), Some(inferred)) if set != inferred => Some(format!(
            "the tick is set to {}, but the server's answer (asked {}, granted {}) points to a tickTime of {}, \
             unless its {limit} was set by hand; reckoning with {}",
            words::duration(set),
            words::duration(asked),
            words::duration(granted),
            words::duration(inferred),
            words::duration(tick)
        )),
        _ => None,
    };
    TickChoice { tick, warning }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn margin_is_a_twentieth_at_least_200_ms_and_less_where_the_timeout_is_short() {
        for (timeout, expected) in [(30_000, 1_500), (10_000, 500), (4_000, 200), (2_000, 200), (1_000, 100)]
        {
            assert_eq!(margin(ms(timeout)), ms(expected), "{timeout}");
        }
    }

    #[test]
    fn survivable_outage_of_the_defaults() {
        assert_eq!(survivable_outage(30 * SECOND, DEFAULT_TICK), ms(20_500 - 1_000 - 500));
        assert_eq!(survivable_outage(ms(600), ms(900)), Duration::ZERO);
    }

    #[test]
    fn tick_is_the_setting_but_longer_when_the_server_gives_it_away_and_at_most_half_the_timeout() {
        for (setting, asked, granted, tick, warns) in [
            (None, 30_000, 30_000, 3_000, false),
            (None, 4_000, 4_000, 2_000, false),
            (Some(200), 4_000, 4_000, 200, false),
            (None, 100_000, 40_000, 3_000, false),
            (None, 200_000, 100_000, 5_000, false),
            (None, 1_000, 4_000, 2_000, false),
            (Some(200), 1_000, 4_000, 2_000, true),
            (Some(200), 9_000, 4_000, 200, false),
            (Some(2_000), 100_000, 40_000, 2_000, false),
            (Some(3_000), 100_000, 40_000, 3_000, true),
        ] {
            let choice = choose_tick(setting.map(ms), ms(asked), ms(granted));
            assert_eq!(choice.tick, ms(tick), "{setting:?} {asked} {granted}");
            assert_eq!(choice.warning.is_some(), warns, "{setting:?} {asked} {granted}");
        }
    }

    #[test]
    fn intervals_are_a_sixth_of_the_timeout_or_shorter_to_fit_the_tick() {
        for (timeout, tick, interval) in [
            (30_000, 3_000, 4_000),
            (30_000, 0, 2_500),
            (30_000, 5_000, 5_000),
            (30_000, 6_000, 3_000),
            (6_000, 3_000, 1_000),
        ] {
            assert_eq!(heartbeat_interval(ms(timeout), ms(tick)), ms(interval), "{timeout} {tick}");
        }
        assert_eq!(heartbeat_interval(Duration::ZERO, Duration::ZERO), Duration::ZERO);
    }
}
