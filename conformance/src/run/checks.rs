//! Claims about what has happened.

use std::time::Duration;

use forelock_testkit::Op;

use super::Play;
use crate::scenario::{Check, Moment, Term, operations};

/// Sent whether or not anything happens.
const HEARTBEATS: [Op; 3] = [Op::Ping, Op::Sync, Op::Connect];

impl Play<'_> {
    pub(super) fn check(&self, check: &Check) -> Result<(), String> {
        match check {
            Check::Compare(a, comparison, b) => {
                let (left, right) = (self.value(a)?, self.value(b)?);
                if comparison.holds(left, right) {
                    Ok(())
                } else {
                    Err(format!("they are {left} and {right}"))
                }
            }
            Check::Before(a, b) => {
                let (a, b) = (self.moment(a)?, self.moment(b)?);
                let late = Duration::from_nanos(a.saturating_sub(b));
                if a < b { Ok(()) } else { Err(format!("it is {late:?} after")) }
            }
            Check::After(a, limits, b) => {
                let (a, b) = (self.moment(a)?, self.moment(b)?);
                let Some(gap) = a.checked_sub(b).map(Duration::from_nanos) else {
                    return Err(format!("it is {:?} before", Duration::from_nanos(b - a)));
                };
                if self.in_time(gap, limits, b, a) { Ok(()) } else { Err(format!("it is {gap:?} after")) }
            }
            Check::Elapsed(of, limits) => {
                let moment = |what: &str| self.moment(&Moment { what: what.to_owned(), ..of.clone() });
                let (from, to) = (moment("started")?, moment("ended")?);
                let took = Duration::from_nanos(to.saturating_sub(from));
                if self.in_time(took, limits, from, to) { Ok(()) } else { Err(format!("it took {took:?}")) }
            }
        }
    }

    /// The number that a term stands for.
    pub(super) fn value(&self, term: &Term) -> Result<i64, String> {
        let grant = |actor: &String| {
            let grant = self.grants.get(actor).copied();
            grant.ok_or_else(|| format!("nothing was granted to {actor}"))
        };
        let told = |value: Option<i64>| value.ok_or_else(|| "the agent does not tell".to_owned());
        let number = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        match term {
            Term::Number(number) => Ok(*number),
            Term::Name(name) => self
                .names
                .get(name)
                .copied()
                .ok_or_else(|| format!("nothing is called {name}: `let {name} = …`")),
            Term::Token(actor) => told(grant(actor)?.token),
            Term::Epoch(actor) => told(grant(actor)?.epoch),
            Term::Sequence(actor) => told(grant(actor)?.sequence),
            Term::Session(actor) => self.session(actor),
            Term::Requests(actor, kind) => {
                let player = self.player(actor)?;
                let entries = player.proxy.journal().since(player.mark);
                let ops = kind.as_deref().map(operations).transpose()?;
                let counts = |op: Op| ops.as_ref().map_or(!HEARTBEATS.contains(&op), |ops| ops.contains(&op));
                Ok(number(entries.requests().filter(|entry| entry.op().is_some_and(counts)).count()))
            }
            Term::Events(actor) => {
                let player = self.player(actor)?;
                Ok(number(player.proxy.journal().since(player.mark).events().count()))
            }
        }
    }

    /// When something happened last.
    fn moment(&self, moment: &Moment) -> Result<u64, String> {
        let Moment { what, actor, detail } = moment;
        let detail_fits = |other: Option<&str>| detail.is_none() || detail.as_deref() == other;
        let mut at = self
            .happened
            .iter()
            .filter(|event| {
                event.what == *what && event.actor == *actor && detail_fits(event.detail.as_deref())
            })
            .map(|event| event.at)
            .next_back();
        if let Some(player) = self.players.get(actor) {
            // What agents tell of their own accord.
            let told = player.actor.look(|inbox| {
                let fitting = inbox.events.iter().filter(|line| match line.event.as_deref() {
                    Some("state") => line.state.as_deref() == Some(what),
                    Some(event) => event == what && detail_fits(line.path.as_deref()),
                    None => false,
                });
                fitting.filter_map(|line| line.at).next_back()
            });
            at = at.max(told);
        }
        at.ok_or_else(|| {
            format!(
                "there was no {what}({actor}{})",
                detail.as_ref().map_or(String::new(), |d| format!(" {d}"))
            )
        })
    }
}
