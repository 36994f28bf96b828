//! The one decision of the queue, as a pure function.

use super::listing::Queue;
use super::ticket::{Guid, Ticket};

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
/// `me` is known by its GUID, since the number alone may not be unique once the parent's counter is used up. The queue is
/// only scanned, since a crowd shares one listing and each of its members decides for itself.
pub(crate) fn decide(me: Guid, queue: &Queue) -> Decision {
    let Some(mine) = queue.find(me) else { return Decision::Missing };
    if queue.used_up && queue.tickets.iter().any(|ticket| ticket.czxid.is_none()) {
        return Decision::NeedCzxids;
    }
    let mine = place(queue, mine);
    let mut position = 0;
    let mut ends: Option<(&Ticket, &Ticket)> = None;
    for other in queue.tickets.iter().filter(|other| place(queue, other) < mine) {
        position += 1;
        let (head, predecessor) = ends.unwrap_or((other, other));
        ends = Some((
            if place(queue, other) < place(queue, head) { other } else { head },
            if place(queue, other) > place(queue, predecessor) { other } else { predecessor },
        ));
    }
    let Some((head, predecessor)) = ends else { return Decision::Hold };
    Decision::Wait {
        ahead: predecessor.name.clone(),
        // Behind a counter that is used up the list is always read again.
        ahead_is_head: position == 1 && !queue.used_up,
        position,
        head: head.name.clone(),
    }
}

/// A contender's place in the queue: by number, or by the transaction that made it once the numbers are used up; never by
/// a mixture of the two. No two contenders share a place, whatever their numbers.
fn place<'a>(queue: &Queue, ticket: &'a Ticket) -> (i64, &'a str) {
    let order = if queue.used_up { ticket.czxid.unwrap_or(i64::MAX) } else { i64::from(ticket.sequence) };
    (order, &ticket.name)
}

/// A planted bug: as [`decide`], waiting for the one before the predecessor.
#[cfg(any(test, feature = "simulation"))]
pub(crate) fn decide_skipping_one(me: Guid, queue: &Queue) -> Decision {
    let decision = decide(me, queue);
    let Decision::Wait { ahead, position, head, .. } = &decision else { return decision };
    let Some(predecessor) = queue.tickets.iter().find(|ticket| ticket.name == *ahead) else {
        return decision;
    };
    match decide(predecessor.guid, queue) {
        Decision::Wait { ahead, ahead_is_head, .. } => {
            Decision::Wait { ahead, ahead_is_head, position: *position, head: head.clone() }
        }
        _ => decision,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ticket::Naming;
    use crate::tables::{Table, rows};
    use crate::zk::Stat;

    /// Tickets are written `a5`, `b-3`, or `a5@70` with a czxid; the contender asking is `a`.
    #[test]
    fn table_of_decisions() {
        for Table { name, given, expected } in rows(include_str!("../../tables/decisions.txt")) {
            let tickets: Vec<_> = given.split_whitespace().map(ticket).collect();
            let queue = Queue::new(tickets, Stat::default());
            let found = match decide(Guid(u128::from(b'a')), &queue) {
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
