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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
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
    pub(crate) fn read(name: String) -> Option<Self> {
        let (naming, guid, sequence) = parse(&name)?;
        Some(Self { name, naming, guid, sequence, czxid: None })
    }

    /// As [`read`](Self::read), from a name that somebody else keeps.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        parse(name)?;
        Self::read(name.to_owned())
    }
}

/// What a lock node's name says. A crowd reads thousands of them at a time, so nothing is allocated.
fn parse(name: &str) -> Option<(Naming, Guid, i32)> {
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
        return Some((naming, guid, parse_number(number)?));
    }
    let (guid, rest) = name.split_at_checked(32)?;
    let sequence = parse_number(rest.strip_prefix("__lock__")?)?;
    Some((Naming::Kazoo, parse_hex(guid.bytes(), 0)?, sequence))
}

/// Adds hexadecimal digits, in small letters, to what was read before.
fn parse_hex(digits: impl Iterator<Item = u8>, before: u128) -> Option<Guid> {
    let mut guid = before;
    for digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        guid = guid << 4 | u128::from(value);
    }
    Some(Guid(guid))
}

fn parse_hyphenated(text: &str) -> Option<Guid> {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    let bytes = text.as_bytes();
    if !HYPHENS.iter().all(|&at| bytes.get(at) == Some(&b'-')) {
        return None;
    }
    let mut guid = 0;
    for part in [0..8, 9..13, 14..18, 19..23, 24..36] {
        Guid(guid) = parse_hex(bytes.get(part)?.iter().copied(), guid)?;
    }
    Some(Guid(guid))
}

/// The server's number as it prints it, padded with zeros to ten characters, a minus sign among them.
fn parse_number(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let padded = match text.len() {
        10 => true,
        // The largest negative numbers need one more, and no padding.
        11 => digits.len() == 10 && !digits.starts_with('0'),
        _ => false,
    };
    if !padded || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    // The server knows no negative zero.
    text.parse().ok().filter(|number| *number != 0 || digits.len() == text.len())
}

/// Whether the numbers no longer tell the order, because the parent's counter has reached its end.
pub(crate) fn numbers_are_used_up(tickets: &[Ticket]) -> bool {
    tickets.iter().any(|ticket| ticket.sequence == i32::MAX || ticket.sequence < 0)
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
