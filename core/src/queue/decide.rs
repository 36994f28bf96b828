//! The one decision of the queue, as a pure function.

use super::ticket::{Guid, Ticket, in_order};

/// What a contender should do, given who stands in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Nobody is ahead: the lock is ours.
    Hold,
    /// Wait for this one to go.
    Wait {
        /// The name of the node in front.
        ahead: String,
        /// Whether it is the head of the queue, so that its deletion is the grant.
        ahead_is_head: bool,
        /// How many stand ahead.
        position: usize,
        /// The name of the node at the head.
        head: String,
    },
    /// Our own node is not there.
    Missing,
    /// The numbers are used up: read the czxid of every contender, and ask again.
    NeedCzxids,
}

/// Decides what the contender `me` should do in a mutex.
///
/// `me` is known by its GUID, since the number alone may not be unique once the parent's counter is used up.
pub(crate) fn decide(me: Guid, tickets: Vec<Ticket>) -> Decision {
    decide_skipping(me, tickets, 1)
}

/// As [`decide`], waiting for the one `steps` ahead; only 1 is right.
pub(crate) fn decide_skipping(me: Guid, tickets: Vec<Ticket>, steps: usize) -> Decision {
    if !tickets.iter().any(|ticket| ticket.guid == me) {
        return Decision::Missing;
    }
    let wrapped = super::ticket::numbers_are_used_up(&tickets);
    let Some(tickets) = in_order(tickets) else { return Decision::NeedCzxids };
    match tickets.iter().position(|ticket| ticket.guid == me) {
        None => Decision::Missing,
        Some(0) => Decision::Hold,
        Some(position) => {
            let index = position.saturating_sub(steps);
            Decision::Wait {
                ahead: tickets[index].name.clone(),
                // Behind a wrapped counter the list is always read again.
                ahead_is_head: index == 0 && !wrapped,
                position,
                head: tickets[0].name.clone(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ticket::Naming;
    use crate::tables::{Table, rows};

    /// Tickets are written `a5`, `b-3`, or `a5@70` with a czxid; the contender asking is `a`.
    #[test]
    fn table_of_decisions() {
        for Table { name, given, expected } in rows(include_str!("../../tables/decisions.txt")) {
            let tickets: Vec<_> = given.split_whitespace().map(ticket).collect();
            let found = match decide(Guid(u128::from(b'a')), tickets) {
                Decision::Hold => "hold".to_owned(),
                Decision::Missing => "missing".to_owned(),
                Decision::NeedCzxids => "need czxids".to_owned(),
                Decision::Wait { ahead, ahead_is_head, position, head } => format!(
                    "wait for {ahead}{} position {position} head {head}",
                    if ahead_is_head { " (grant)" } else { "" }
                ),
            };
            assert_eq!(found, expected, "{name}: {given}");
        }
    }

    fn ticket(word: &str) -> Ticket {
        let (number, czxid) = match word.split_once('@') {
            Some((number, czxid)) => (number, Some(czxid.parse().expect("a czxid"))),
            None => (word, None),
        };
        Ticket {
            name: number.to_owned(),
            naming: Naming::Curator,
            guid: Guid(u128::from(word.as_bytes()[0])),
            sequence: number[1..].parse().expect("a number"),
            czxid,
        }
    }
}
