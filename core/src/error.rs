//! One error type for the whole engine: a coarse code that says what to do, and a message for people.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::queue::LostReason;
use crate::zk::ZkError;

/// What the caller should do. The same words in every language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// An argument can't be right. Mend the call; trying again will not help.
    InvalidArgument,
    /// The deadline passed before the lock was free. Try again later, or allow more time.
    TimedOut,
    /// The lock is held by somebody else, and the call was not to wait.
    NotAcquired,
    /// The lock was held and is no longer. Stop the work that it guards, and leave its block or release its handle.
    /// Only then acquire again, for a new grant: until then an owner that acquires again gets this error at once.
    LockLost,
    /// The lock is held, but its lease is not known to last as long as was asked. Wait for the connection to come
    /// back before the next step, or do less in it.
    LeaseTooShort,
    /// The lock belongs to another owner, which alone may release it, or has to hand it over first.
    NotOwner,
    /// ZooKeeper could not be reached, or did not answer. Try again.
    ConnectionLost,
    /// ZooKeeper refuses our credentials, or an ACL or a setting of the servers forbids the operation. Mend the
    /// configuration.
    NotPermitted,
    /// The path is used in a way that does not go together with this call. Use another path or naming.
    Conflict,
    /// The client was closed. Make a new one.
    Closed,
    /// The process was forked after the client had started. Make a client in the child before its first use
    /// in the parent, or start the child afresh instead of by fork.
    Forked,
    /// The process or the machine has no file descriptor or thread left. Allow it more, or find out what uses them up.
    OutOfResources,
    /// Something that should not happen did. Please report it, with the message.
    Internal,
}

impl ErrorCode {
    /// Every code, in the order of their declaration.
    pub const ALL: &'static [Self] = &[
        Self::InvalidArgument,
        Self::TimedOut,
        Self::NotAcquired,
        Self::LockLost,
        Self::LeaseTooShort,
        Self::NotOwner,
        Self::ConnectionLost,
        Self::NotPermitted,
        Self::Conflict,
        Self::Closed,
        Self::Forked,
        Self::OutOfResources,
        Self::Internal,
    ];

    /// The code's name as every language spells it, such as `TIMED_OUT`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::TimedOut => "TIMED_OUT",
            Self::NotAcquired => "NOT_ACQUIRED",
            Self::LockLost => "LOCK_LOST",
            Self::LeaseTooShort => "LEASE_TOO_SHORT",
            Self::NotOwner => "NOT_OWNER",
            Self::ConnectionLost => "CONNECTION_LOST",
            Self::NotPermitted => "NOT_PERMITTED",
            Self::Conflict => "CONFLICT",
            Self::Closed => "CLOSED",
            Self::Forked => "FORKED",
            Self::OutOfResources => "OUT_OF_RESOURCES",
            Self::Internal => "INTERNAL",
        }
    }

    /// What the caller should do, in one sentence.
    #[must_use]
    pub const fn advice(self) -> &'static str {
        match self {
            Self::InvalidArgument => "mend the argument; trying again will not help",
            Self::TimedOut => "try again later, or allow more time",
            Self::NotAcquired => "try again later, or wait for the lock",
            Self::LockLost => {
                "stop the work that the lock guards, leave its block or release its handle, and then acquire again for a new grant"
            }
            Self::LeaseTooShort => {
                "wait for the connection to come back before the next step, or do less in it"
            }
            Self::NotOwner => "release it where it was acquired, or hand it over first",
            Self::ConnectionLost => "check that ZooKeeper can be reached, and try again",
            Self::NotPermitted => {
                "check the client's credentials, the ACL of the path, and the servers' settings"
            }
            Self::Conflict => "use another path, or the naming that the path is used with",
            Self::Closed => "make a new client",
            Self::Forked => {
                "make the client in the child and use none in the parent before the fork, or start the child afresh (spawn)"
            }
            Self::OutOfResources => {
                "allow the process more open files or threads (ulimit), or find out what uses them up"
            }
            Self::Internal => "please report this message",
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error of the engine.
///
/// Match on [`code`](Self::code). The message is for people and may change; it names the path, the holder and
/// the time waited where they are known.
#[derive(Clone)]
pub struct Error(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    code: ErrorCode,
    message: String,
    path: Option<String>,
    holder: Option<String>,
    waited: Option<Duration>,
    lost: Option<LostReason>,
    cause: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

/// The result of an engine call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error with a code and a message.
    #[must_use]
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Self(Box::new(Details {
            code,
            message: message.into(),
            path: None,
            holder: None,
            waited: None,
            lost: None,
            cause: None,
        }))
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorCode::InvalidArgument, message)
    }

    pub(crate) fn closed() -> Self {
        Self::new(ErrorCode::Closed, "the client is closed")
    }

    pub(crate) fn forked() -> Self {
        Self::new(
            ErrorCode::Forked,
            "this process was forked after the client had started, and has no connection of its own",
        )
    }

    pub(crate) fn lock_lost(path: &str, reason: LostReason) -> Self {
        let mut error = Self::new(ErrorCode::LockLost, format!("the lock was lost: {}", reason.explain()));
        error.0.lost = Some(reason);
        error.at(path)
    }

    /// The owner acquires again what it has lost and has not given up.
    pub(crate) fn not_given_up(path: &str, reason: LostReason) -> Self {
        let message = format!(
            "this owner still has a handle on the lock, which was lost: {}. Leave the block that lost it, or release \
             the lost handle, before it is acquired again",
            reason.explain()
        );
        let mut error = Self::new(ErrorCode::LockLost, message);
        error.0.lost = Some(reason);
        error.at(path)
    }

    /// An answer of ZooKeeper that ends the call, while `doing` something.
    pub(crate) fn from_zk(error: &ZkError, doing: &str) -> Self {
        let code = match error {
            ZkError::NoAuth | ZkError::InvalidAcl | ZkError::AuthFailed | ZkError::Refused(_) => {
                ErrorCode::NotPermitted
            }
            ZkError::ConnectionLost
            | ZkError::SessionExpired
            | ZkError::NotReadOnly
            | ZkError::Throttled
            | ZkError::Unexpected(_) => ErrorCode::ConnectionLost,
            ZkError::BadArguments(_) | ZkError::NoChroot(_) => ErrorCode::InvalidArgument,
            ZkError::NoChildrenForEphemerals | ZkError::QuotaExceeded => ErrorCode::Conflict,
            ZkError::NoNode | ZkError::NodeExists | ZkError::NotEmpty | ZkError::BadVersion => {
                ErrorCode::Internal
            }
        };
        Self::new(code, format!("{doing}: {error}")).because(error.clone())
    }

    pub(crate) fn because(mut self, cause: impl std::error::Error + Send + Sync + 'static) -> Self {
        self.0.cause = Some(Arc::new(cause));
        self
    }

    pub(crate) fn at(mut self, path: impl Into<String>) -> Self {
        self.0.path = Some(path.into());
        self
    }

    pub(crate) fn held_by(mut self, holder: Option<String>) -> Self {
        self.0.holder = holder;
        self
    }

    pub(crate) fn after(mut self, waited: Duration) -> Self {
        self.0.waited = Some(waited);
        self
    }

    /// What the caller should do.
    #[must_use]
    pub fn code(&self) -> ErrorCode {
        self.0.code
    }

    /// What happened, without the path, the holder and the time waited.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The path that the call was about, without the namespace.
    #[must_use]
    pub fn path(&self) -> Option<&str> {
        self.0.path.as_deref()
    }

    /// Who held the lock, as its node's data says.
    #[must_use]
    pub fn holder(&self) -> Option<&str> {
        self.0.holder.as_deref()
    }

    /// How long the call had waited.
    #[must_use]
    pub fn waited(&self) -> Option<Duration> {
        self.0.waited
    }

    /// Why the lock was lost, for [`ErrorCode::LockLost`].
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.lost
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Details { code, message, path, holder, waited, .. } = &*self.0;
        if let Some(path) = path {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)?;
        if let Some(waited) = waited {
            write!(f, " after {:.3} s", waited.as_secs_f64())?;
        }
        if let Some(holder) = holder {
            write!(f, "; held by {holder}")?;
        }
        write!(f, " [{code}: {}]", code.advice())
    }
}

/// As `Display`: this is what a `main` that returns an error, or a failed `expect`, shows to a person.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {
    /// The answer of ZooKeeper or of the operating system that the error comes from, where there is one. The message
    /// tells it too.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.cause.as_deref().map(|cause| cause as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_names_path_holder_and_time_waited() {
        let error = Error::new(ErrorCode::TimedOut, "not granted")
            .at("/locks/a")
            .held_by(Some("ledger on host-1, pid 7".to_owned()))
            .after(Duration::from_millis(2_003));
        assert_eq!(
            error.to_string(),
            "/locks/a: not granted after 2.003 s; held by ledger on host-1, pid 7 \
             [TIMED_OUT: try again later, or allow more time]"
        );
    }

    #[test]
    fn an_answer_of_zookeeper_is_the_source_of_its_error() {
        use std::error::Error as _;
        let error = Error::from_zk(&ZkError::NoAuth, "entering the queue").at("/locks/a");
        let source = error.source().expect("a cause");
        assert_eq!(source.downcast_ref(), Some(&ZkError::NoAuth));
        assert!(error.to_string().contains(&source.to_string()));
        assert!(Error::closed().source().is_none());
    }

    #[test]
    fn codes_are_distinct_words() {
        let words: std::collections::BTreeSet<_> = ErrorCode::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(words.len(), ErrorCode::ALL.len());
    }

    #[test]
    fn the_list_for_users_is_complete() {
        let page = include_str!("../../docs/errors.md");
        for code in ErrorCode::ALL {
            let row = format!("| `{code}` | {} |", code.advice());
            assert!(page.contains(&row), "docs/errors.md has no row {row:?}");
        }
        for reason in LostReason::ALL {
            assert!(
                page.contains(&format!("| `{reason}` |")),
                "docs/errors.md does not say what {reason} is"
            );
        }
    }
}
