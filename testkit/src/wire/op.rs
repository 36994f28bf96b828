//! The names of requests and of watch events.

use std::fmt;
use std::str::FromStr;

/// A name that is no operation's.
#[derive(Debug, Clone, thiserror::Error)]
#[error("no operation is called {0:?}")]
pub struct UnknownOp(String);

macro_rules! ops {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// The type of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Op {
            $($(#[$doc])* $name,)*
            /// A type without a name here.
            Other(i32),
        }

        impl Op {
            /// Every operation that has a name.
            pub const NAMED: &[Op] = &[$(Op::$name,)*];

            /// The operation with this type code.
            #[must_use]
            pub fn from_code(code: i32) -> Self {
                match code {
                    $($code => Op::$name,)*
                    other => Op::Other(other),
                }
            }

            /// The type code on the wire (for [`Op::Connect`], which has none there, the server's own).
            #[must_use]
            pub fn code(self) -> i32 {
                match self {
                    $(Op::$name => $code,)*
                    Op::Other(code) => code,
                }
            }
        }
    };
}

ops! {
    /// The first frame of a connection.
    Connect = -10,
    /// Ends the session.
    CloseSession = -11,
    /// Makes a node, answered with its path.
    Create = 1,
    /// Removes a node.
    Delete = 2,
    /// Asks for a node's stat.
    Exists = 3,
    /// Reads a node.
    GetData = 4,
    /// Writes a node.
    SetData = 5,
    /// Reads a node's ACL.
    GetAcl = 6,
    /// Writes a node's ACL.
    SetAcl = 7,
    /// Lists children.
    GetChildren = 8,
    /// Waits until the server has caught up with its leader.
    Sync = 9,
    /// Says that the session is alive.
    Ping = 11,
    /// Lists children, with the parent's stat.
    GetChildren2 = 12,
    /// Checks a node's version (only inside a multi).
    Check = 13,
    /// Several changes at once.
    Multi = 14,
    /// Makes a node, answered with its path and stat.
    Create2 = 15,
    /// Changes the ensemble.
    Reconfig = 16,
    /// Asks whether watches are set.
    CheckWatches = 17,
    /// Takes watches away.
    RemoveWatches = 18,
    /// Makes a container node.
    CreateContainer = 19,
    /// Removes an empty container (the server's own).
    DeleteContainer = 20,
    /// Makes a node with a time to live.
    CreateTtl = 21,
    /// Several reads at once.
    MultiRead = 22,
    /// Authenticates by scheme.
    Auth = 100,
    /// Sets watches anew after a reconnect.
    SetWatches = 101,
    /// A step of SASL authentication.
    Sasl = 102,
    /// Lists a session's ephemeral nodes.
    GetEphemerals = 103,
    /// Counts all nodes under a path.
    GetAllChildrenNumber = 104,
    /// Sets watches anew, persistent ones too.
    SetWatches2 = 105,
    /// Sets a persistent watch.
    AddWatch = 106,
    /// Asks who the client is to the server.
    WhoAmI = 107,
}

impl Op {
    /// The requests that make a node.
    pub const CREATES: [Op; 4] = [Op::Create, Op::Create2, Op::CreateContainer, Op::CreateTtl];
    /// The requests that list children.
    pub const LISTS: [Op; 2] = [Op::GetChildren, Op::GetChildren2];

    /// Whether the request makes a node.
    #[must_use]
    pub fn is_create(self) -> bool {
        Self::CREATES.contains(&self)
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Op {
    type Err = UnknownOp;

    /// Reads a name regardless of case, `-` and `_`: `getChildren2`, `get_children2`, `GETCHILDREN2`.
    fn from_str(text: &str) -> Result<Self, UnknownOp> {
        let plain: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
        let named = Op::NAMED.iter().find(|op| op.to_string().eq_ignore_ascii_case(&plain));
        named.copied().ok_or_else(|| UnknownOp(text.to_owned()))
    }
}

/// What a watch event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// The node was made.
    NodeCreated,
    /// The node was removed.
    NodeDeleted,
    /// The node's data was changed.
    NodeDataChanged,
    /// A child was made or removed.
    NodeChildrenChanged,
    /// A watch was taken away on request.
    WatchRemoved,
    /// A type without a name here; -1 is a change of the session's state.
    Other(i32),
}

impl EventKind {
    /// The event with this type code.
    #[must_use]
    pub fn from_code(code: i32) -> Self {
        match code {
            1 => Self::NodeCreated,
            2 => Self::NodeDeleted,
            3 => Self::NodeDataChanged,
            4 => Self::NodeChildrenChanged,
            5..=7 => Self::WatchRemoved,
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back_to_the_operation() {
        for &op in Op::NAMED {
            assert_eq!(Op::from_code(op.code()), op);
            assert_eq!(op.to_string().to_lowercase().parse::<Op>().expect("a name"), op);
        }
        assert_eq!("get_children2".parse::<Op>().expect("a name"), Op::GetChildren2);
        assert!("fly".parse::<Op>().is_err());
    }
}
