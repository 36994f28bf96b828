//! What happens again and again is logged now and then.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::env::Moment;

/// How often the same is logged at most.
const INTERVAL: Duration = Duration::from_secs(60);
/// How many keys are kept in mind.
const KEPT: usize = 4_096;

/// Lets each key pass once a minute, and counts what it holds back.
#[derive(Debug, Default)]
pub(crate) struct LogLimit(Mutex<BTreeMap<String, Passed>>);

#[derive(Debug)]
struct Passed {
    at: Moment,
    held_back: u64,
}

impl LogLimit {
    /// Whether to log what has just happened to `key`, and how often the same was held back since it was last logged.
    pub(crate) fn pass(&self, key: &str, now: Moment) -> Option<u64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(passed) = known.get_mut(key) {
            if now.since(passed.at) < INTERVAL {
                passed.held_back += 1;
                return None;
            }
            passed.at = now;
            return Some(std::mem::take(&mut passed.held_back));
        }
        if known.len() == KEPT {
            known.retain(|_, passed| now.since(passed.at) < INTERVAL);
        }
        if known.len() == KEPT
            && let Some(oldest) = known.iter().min_by_key(|(_, passed)| passed.at).map(|(key, _)| key.clone())
        {
            known.remove(&oldest);
        }
        known.insert(key.to_owned(), Passed { at: now, held_back: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn each_key_passes_once_a_minute_and_what_was_held_back_is_counted() {
        let limit = LogLimit::default();
        let passed: Vec<_> = (0..900).filter_map(|n| limit.pass("/a", at(n * 100))).collect();
        assert_eq!(passed, [0, 599]);
        assert_eq!(limit.pass("/b", at(90_000)), Some(0));
        assert_eq!(limit.pass("/a", at(120_000)), Some(299));
    }

    #[test]
    fn only_so_many_keys_are_kept_in_mind() {
        let limit = LogLimit::default();
        for n in 0..3 * KEPT as u64 {
            assert_eq!(limit.pass(&format!("/{n}"), at(n)), Some(0));
        }
        assert_eq!(limit.0.lock().expect("alone").len(), KEPT);
        assert_eq!(limit.pass(&format!("/{}", 3 * KEPT - 1), at(20_000)), None, "the latest are kept");
    }
}
