//! Never two holders: checked over all that a scenario's actors told, by one clock.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Play;

/// One grant, as its holder's own code saw it.
#[derive(Debug, Clone)]
struct Hold {
    actor: String,
    root: String,
    token: Option<i64>,
    /// When the holder was told that it holds.
    from: u64,
    /// When it stopped: it began to release, was told of a loss, or ceased to be able to do anything.
    until: Option<u64>,
    /// Handles on the grant.
    handles: u32,
}

/// All grants of a scenario.
#[derive(Default)]
pub(super) struct Holds {
    all: Vec<Hold>,
    /// When actors were frozen: from then on they could not be told, nor do anything.
    frozen: BTreeMap<String, Vec<u64>>,
}

impl Holds {
    pub(super) fn held(&mut self, actor: &str, root: &str, token: Option<i64>, at: u64) {
        let same = |hold: &&mut Hold| {
            hold.actor == actor
                && hold.root == root
                && token.is_some()
                && hold.token == token
                && hold.until.is_none()
        };
        match self.all.iter_mut().find(same) {
            Some(hold) => hold.handles += 1,
            None => self.all.push(Hold {
                actor: actor.to_owned(),
                root: root.to_owned(),
                token,
                from: at,
                until: None,
                handles: 1,
            }),
        }
    }

    pub(super) fn released(&mut self, actor: &str, root: &str, at: u64) {
        let open = |hold: &&mut Hold| hold.actor == actor && hold.root == root && hold.until.is_none();
        if let Some(hold) = self.all.iter_mut().rev().find(open) {
            hold.handles -= 1;
            if hold.handles == 0 {
                hold.until = Some(at);
            }
        }
    }

    pub(super) fn all_over(&mut self, actor: &str, at: u64) {
        for hold in self.all.iter_mut().filter(|hold| hold.actor == actor && hold.until.is_none()) {
            hold.until = Some(at);
        }
    }

    pub(super) fn frozen(&mut self, actor: &str, at: u64) {
        self.frozen.entry(actor.to_owned()).or_default().push(at);
    }
}

impl Play<'_> {
    /// That no two of ours held at once, and that tokens rose with the grants.
    pub(super) fn check_exclusion(&self) -> Result<(), String> {
        let mut holds = self.holds.all.clone();
        holds.sort_by_key(|hold| hold.from);
        for hold in &mut holds {
            if let Some(lost) = self.told_lost(hold) {
                let frozen = self.holds.frozen.get(&hold.actor).into_iter().flatten().copied();
                let frozen = frozen.filter(|at| (hold.from..lost).contains(at)).min();
                let end = frozen.unwrap_or(lost);
                hold.until = Some(hold.until.map_or(end, |until| until.min(end)));
            }
        }
        for (at, earlier) in holds.iter().enumerate() {
            for later in holds[at + 1..].iter().filter(|later| later.root == earlier.root) {
                let overlap = earlier.until.unwrap_or(u64::MAX).saturating_sub(later.from);
                if overlap > 0 && !self.player(&earlier.actor)?.is_peer {
                    let overlap = Duration::from_nanos(overlap);
                    return Err(format!(
                        "two holders of {} for {overlap:?}: {earlier:?} and {later:?}",
                        earlier.root
                    ));
                }
                if earlier.token.zip(later.token).is_some_and(|(a, b)| a >= b) && !self.was_wiped() {
                    return Err(format!("a token did not rise: {earlier:?} and {later:?}"));
                }
            }
        }
        Ok(())
    }

    /// When the holder was told that this grant is lost.
    fn told_lost(&self, hold: &Hold) -> Option<u64> {
        let player = self.players.get(&hold.actor)?;
        player.actor.look(|inbox| {
            let of_this = |line: &&crate::protocol::Line| line.token.is_some() && line.token == hold.token;
            inbox.events("lost").filter(of_this).filter_map(|line| line.at).min()
        })
    }
}
