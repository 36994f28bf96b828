//! Tickets: the names of lock nodes, and their order in the queue.

use std::fmt;

/// How the lock nodes of a path are named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Naming {
    /// `_c_<guid>-lock-<number>`, as Curator's InterProcessMutex names them. Excludes Curator, and kazoo if it
    /// is given `extra_lock_patterns=("-lock-",)`.
    #[default]
    Curator,
    /// `<guid>__lock__<number>`, as kazoo's Lock names them. Excludes kazoo; stock Curator never waits for
    /// these.
    Kazoo,
    /// `_c_<guid>-lock-<epoch>-<number>`, where the epoch is the root's czxid: a number that never repeats.
    /// For Forelock alone, and refused on a root where nodes of other names stand.
    Epoch,
}

/// The 128 random bits that tell our node from all others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Guid(pub(crate) u128);

impl Guid {
    /// As Curator writes it, with hyphens.
    fn hyphenated(self) -> String {
        let hex = format!("{:032x}", self.0);
        format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Naming {
    /// The name of a new lock node, without the number that the server appends.
    pub(crate) fn prefix(self, guid: Guid, epoch: i64) -> String {
        match self {
            Self::Curator => format!("_c_{}-lock-", guid.hyphenated()),
            Self::Kazoo => format!("{:032x}__lock__", guid.0),
            Self::Epoch => format!("_c_{}-lock-{epoch}-", guid.hyphenated()),
        }
    }
}

/// A contender for a lock, read from the name of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) name: String,
    pub(crate) naming: Naming,
    pub(crate) guid: Guid,
    /// The server's number, a signed 32-bit counter of the parent.
    pub(crate) sequence: i32,
    /// Which transaction made the node. Known where it was read for the sake of the order.
    pub(crate) czxid: Option<i64>,
}

impl Ticket {
    /// Reads a ticket from a child's name. None for a foreign child, which is no contender.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        if let Some(rest) = name.strip_prefix("_c_") {
            let (guid, rest) = rest.split_at_checked(36)?;
            let rest = rest.strip_prefix("-lock-")?;
            let guid = parse_hyphenated(guid)?;
            // The number is negative once the counter has wrapped: `-2147483648`.
            let (naming, number) = match rest.char_indices().skip(1).find(|(_, c)| *c == '-') {
                None => (Naming::Curator, rest),
                Some((hyphen, _)) => {
                    rest[..hyphen].parse::<i64>().ok()?;
                    (Naming::Epoch, &rest[hyphen + 1..])
                }
            };
            let sequence = parse_number(number)?;
            return Some(Self { name: name.to_owned(), naming, guid, sequence, czxid: None });
        }
        let (guid, rest) = name.split_at_checked(32)?;
        let sequence = parse_number(rest.strip_prefix("__lock__")?)?;
        let guid = parse_hex(guid)?;
        Some(Self { name: name.to_owned(), naming: Naming::Kazoo, guid, sequence, czxid: None })
    }

    /// Reads the tickets among the names of a root's children.
    pub(crate) fn parse_all<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<Self> {
        names.into_iter().filter_map(|name| Self::parse(name)).collect()
    }
}

fn parse_hex(text: &str) -> Option<Guid> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    (plain && text.len() == 32).then(|| u128::from_str_radix(text, 16).ok().map(Guid))?
}

fn parse_hyphenated(text: &str) -> Option<Guid> {
    let hyphens = [8, 13, 18, 23];
    if !hyphens.iter().all(|&at| text.as_bytes().get(at) == Some(&b'-')) {
        return None;
    }
    parse_hex(&text.replace('-', ""))
}

/// The server's number as it prints it, padded with zeros to ten characters, a minus sign among them.
fn parse_number(text: &str) -> Option<i32> {
    let number: i32 = text.parse().ok()?;
    (text == format!("{number:010}")).then_some(number)
}

/// Whether the numbers no longer tell the order, because the parent's counter has reached its end.
pub(crate) fn numbers_are_used_up(tickets: &[Ticket]) -> bool {
    tickets.iter().any(|ticket| ticket.sequence == i32::MAX || ticket.sequence < 0)
}

/// Puts tickets in the order of the queue: by number, or all by the transaction that made them once the numbers
/// are used up. None if that transaction has not been read for every one of them. Never a mixture of the two.
pub(crate) fn in_order(mut tickets: Vec<Ticket>) -> Option<Vec<Ticket>> {
    if numbers_are_used_up(&tickets) {
        if tickets.iter().any(|ticket| ticket.czxid.is_none()) {
            return None;
        }
        tickets.sort_by_key(|ticket| ticket.czxid);
    } else {
        tickets.sort_by_key(|ticket| ticket.sequence);
    }
    Some(tickets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::{Table, rows};

    #[test]
    fn table_of_ticket_names() {
        for Table { name, given, expected } in rows(include_str!("../../tables/ticket_names.txt")) {
            let found = match Ticket::parse(given) {
                Some(ticket) => {
                    assert_eq!(ticket.name, given, "{name}");
                    format!("{:?} {}", ticket.naming, ticket.sequence)
                }
                None => "foreign".to_owned(),
            };
            assert_eq!(found, expected, "{name}: {given}");
        }
    }

    #[test]
    fn names_we_make_are_read_back() {
        let guid = Guid(0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978);
        for naming in [Naming::Curator, Naming::Kazoo, Naming::Epoch] {
            for number in ["0000000000", "2147483647", "-2147483648", "-000000001"] {
                let name = format!("{}{number}", naming.prefix(guid, 77));
                let ticket = Ticket::parse(&name).expect(&name);
                assert_eq!((ticket.naming, ticket.guid), (naming, guid));
                assert_eq!(ticket.sequence, number.parse::<i32>().expect("number"));
            }
        }
    }
}
