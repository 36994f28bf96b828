//! What has been seen of the ensemble's transaction ids: roots that were made again, and an ensemble that was wiped.

use std::collections::{BTreeMap, VecDeque};

/// Which transaction made each root that was seen lately.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    czxids: BTreeMap<String, i64>,
    /// In the order in which they were first seen.
    order: VecDeque<String>,
}

impl Roots {
    /// How many are kept in mind: a service may lock a different path for each of its customers.
    const KEPT: usize = 4_096;

    /// Notes which transaction made a root. The one that had made it before, if it was made again since: a czxid
    /// only grows, so a smaller one is an answer that came late.
    pub(crate) fn seen(&mut self, root: &str, czxid: i64) -> Option<i64> {
        if let Some(known) = self.czxids.get_mut(root) {
            let before = *known;
            *known = before.max(czxid);
            return (before < czxid).then_some(before);
        }
        if self.order.len() == Self::KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.czxids.remove(&oldest);
        }
        self.czxids.insert(root.to_owned(), czxid);
        self.order.push_back(root.to_owned());
        None
    }
}

/// The largest tokens that were granted, to notice when the ensemble's transaction ids go backwards: its data were
/// wiped, or restored from an old copy.
///
/// A small id in some answer proves nothing, for the answer may be late, or that of a server that lags behind. But a
/// node that was made in one session was made after every grant of the sessions before it.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    /// The latest session that granted anything.
    session: u64,
    /// The largest token of that session.
    here: Option<i64>,
    /// The largest token of the sessions before it.
    earlier: Option<i64>,
}

impl Tokens {
    /// Notes the token of a grant of the client's session of this number. The larger one that was granted before, if
    /// the ids have gone backwards since; told once for each time that they do.
    pub(crate) fn granted(&mut self, session: u64, token: i64) -> Option<i64> {
        if session < self.session {
            // It was granted before that of the later session, and is noted only now.
            self.earlier = self.earlier.max(Some(token));
            return None;
        }
        if session > self.session {
            self.earlier = self.earlier.max(self.here.take());
            self.session = session;
        }
        self.here = self.here.max(Some(token));
        let before = self.earlier.filter(|earlier| token < *earlier);
        if before.is_some() {
            // From here on the new ids are the measure.
            self.earlier = None;
        }
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_root_made_again_is_noticed_once_and_late_answers_are_not() {
        let mut roots = Roots::default();
        let seen: Vec<_> = [5, 5, 9, 5, 9, 12].into_iter().map(|czxid| roots.seen("/a", czxid)).collect();
        assert_eq!(seen, [None, None, Some(5), None, None, Some(9)]);
        for other in 0..Roots::KEPT {
            assert_eq!(roots.seen(&format!("/{other}"), 1), None);
        }
        assert_eq!(roots.seen("/a", 20), None, "forgotten");
    }

    #[test]
    fn ids_that_go_backwards_are_noticed_in_a_later_session_alone() {
        for (name, grants, told) in [
            ("one session, noted in any order", vec![(1, 5), (1, 9), (1, 7)], vec![]),
            ("a later session goes on", vec![(1, 5), (2, 9), (3, 12)], vec![]),
            ("a grant of an earlier session is noted late", vec![(2, 9), (1, 5), (2, 10)], vec![]),
            ("wiped", vec![(1, 500), (2, 9)], vec![500]),
            ("wiped, and told once", vec![(1, 500), (2, 9), (2, 10), (3, 11)], vec![500]),
            ("wiped twice", vec![(1, 500), (2, 9), (3, 4)], vec![500, 9]),
            ("the largest counts", vec![(1, 500), (1, 400), (2, 450)], vec![500]),
            ("wiped, with the earlier grant noted late", vec![(2, 9), (1, 500), (2, 10)], vec![500]),
        ] {
            let mut tokens = Tokens::default();
            let seen: Vec<_> =
                grants.into_iter().filter_map(|(session, token)| tokens.granted(session, token)).collect();
            assert_eq!(seen, told, "{name}");
        }
    }
}
