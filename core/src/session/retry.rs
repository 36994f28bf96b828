//! When to try again, and for how long.

use std::time::Duration;

use crate::env::Moment;

/// When to try again after an error that can be retried. One budget covers a whole call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RetryPolicy {
    /// Up to `attempts` times, after `base`, twice that, four times that and so on, never more than `cap`, each
    /// with up to half taken off at random.
    Exponential {
        /// The first delay.
        base: Duration,
        /// The longest delay.
        cap: Duration,
        /// How often to try again.
        attempts: u32,
    },
    /// Up to `attempts` times, `delay` apart.
    Times {
        /// How often to try again.
        attempts: u32,
        /// The time between two tries.
        delay: Duration,
    },
    /// Until `total` has passed since the first failure, `delay` apart.
    UntilElapsed {
        /// For how long to try again.
        total: Duration,
        /// The time between two tries.
        delay: Duration,
    },
    /// For ever, `delay` apart; within the call's deadline, if it has one.
    Forever {
        /// The time between two tries.
        delay: Duration,
    },
    /// Not at all.
    None,
}

impl Default for RetryPolicy {
    /// One second, three times, never more than 30 s apart.
    fn default() -> Self {
        Self::Exponential { base: Duration::from_secs(1), cap: Duration::from_secs(30), attempts: 3 }
    }
}

/// What is left of a policy within one call.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    policy: RetryPolicy,
    failures: u32,
    first_failure: Option<Moment>,
}

impl RetryBudget {
    pub(crate) fn new(policy: RetryPolicy) -> Self {
        Self { policy, failures: 0, first_failure: None }
    }

    /// Takes note of a failure at `now`. The delay before the next try, or none when the budget is used up.
    /// `fraction`, from zero up to one, is the jitter.
    pub(crate) fn failed(&mut self, now: Moment, fraction: f64) -> Option<Duration> {
        let first = *self.first_failure.get_or_insert(now);
        let so_far = self.failures;
        self.failures += 1;
        match self.policy {
            RetryPolicy::Exponential { base, cap, attempts } => {
                (so_far < attempts).then(|| jittered(backoff(base, cap, so_far), fraction))
            }
            RetryPolicy::Times { attempts, delay } => (so_far < attempts).then_some(delay),
            RetryPolicy::UntilElapsed { total, delay } => (now.since(first) < total).then_some(delay),
            RetryPolicy::Forever { delay } => Some(delay),
            RetryPolicy::None => None,
        }
    }
}

/// `base` doubled so many times, never more than `cap`.
pub(crate) fn backoff(base: Duration, cap: Duration, doublings: u32) -> Duration {
    base.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(cap)
}

/// Takes up to half of `delay` away.
pub(crate) fn jittered(delay: Duration, fraction: f64) -> Duration {
    delay.mul_f64(1.0 - fraction / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(policy: RetryPolicy, step: Duration, most: usize) -> Vec<u64> {
        let mut budget = RetryBudget::new(policy);
        let mut now = Moment::from_nanos(0);
        let mut delays = Vec::new();
        while delays.len() < most {
            let Some(delay) = budget.failed(now, 0.0) else { break };
            delays.push(u64::try_from(delay.as_millis()).expect("short"));
            now = now.plus(delay + step);
        }
        delays
    }

    #[test]
    fn policies_give_their_delays_and_then_stop() {
        let ms = Duration::from_millis;
        let none = Duration::ZERO;
        assert_eq!(delays(RetryPolicy::default(), none, 9), [1_000, 2_000, 4_000]);
        let capped = RetryPolicy::Exponential { base: ms(10), cap: ms(25), attempts: 40 };
        assert_eq!(delays(capped, none, 4), [10, 20, 25, 25]);
        assert_eq!(delays(capped, none, 99).len(), 40, "doubling does not overflow");
        assert_eq!(delays(RetryPolicy::Times { attempts: 2, delay: ms(5) }, none, 9), [5, 5]);
        assert_eq!(delays(RetryPolicy::UntilElapsed { total: ms(25), delay: ms(10) }, none, 9), [10, 10, 10]);
        assert_eq!(delays(RetryPolicy::Forever { delay: ms(1) }, none, 5).len(), 5);
        assert_eq!(delays(RetryPolicy::None, none, 9), [0_u64; 0]);
    }

    #[test]
    fn jitter_takes_away_up_to_half() {
        let second = Duration::from_secs(1);
        assert_eq!(jittered(second, 0.0), second);
        assert_eq!(jittered(second, 0.5), Duration::from_millis(750));
        assert!(jittered(second, 0.999) > Duration::from_millis(500));
    }
}
