//! What a client tells besides the states of its connection.

use std::fmt;

use super::listeners::Stream;

/// Something that people who run the service should know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A lock root was deleted and made again: its numbers started anew, its tokens go on.
    RootRecreated {
        /// The root's path, without the namespace.
        path: String,
        /// The czxid that it had before.
        before: i64,
        /// The czxid that it has now.
        now: i64,
    },
    /// Every server refuses the client's credentials, and there is no session. Operations fail with
    /// `NOT_PERMITTED` while connecting goes on; told again only after there was a connection in between.
    CredentialsRefused {
        /// What each server said.
        why: String,
    },
    /// The ensemble's transaction ids, and with them the tokens, went backwards: its data were wiped, or restored from
    /// an old copy. Noticed when a session grants a token that is smaller than one of the sessions before it.
    ///
    /// Storage that has seen the larger token refuses every new holder. Once no old holder can write any more, reset the
    /// largest token that it remembers, or fence with a new resource name.
    TransactionIdsWentBackwards {
        /// The largest token that was granted before.
        before: i64,
        /// The token that was granted now.
        now: i64,
    },
}

/// The events of a client from the moment of listening on, every one, in order. The stream ends when the client is
/// closed.
pub struct Events(Stream<Event>);

impl From<Stream<Event>> for Events {
    fn from(stream: Stream<Event>) -> Self {
        Self(stream)
    }
}

impl Events {
    /// A stream that has ended.
    pub(crate) fn ended() -> Self {
        Self(Stream::ended())
    }

    /// The next event, or none once the client is closed. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.next().await
    }

    /// The next event that has happened already, without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_next()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}
