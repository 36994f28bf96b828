//! What a client tells besides the states of its connection.

use std::fmt;

use super::listeners::Unread;

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
///
/// A listener that is slow holds nobody up: what it has not read yet is kept for it, with about a hundred bytes and the
/// texts for each event. One that has left 100,000 unread is told no more: its stream ends after those, and
/// [`has_overrun`](Self::has_overrun) says so. What is seen never has a gap.
///
/// With the feature `stream` it is a `futures_core::Stream`.
pub struct Events(Unread<Event>);

impl From<Unread<Event>> for Events {
    fn from(unread: Unread<Event>) -> Self {
        Self(unread)
    }
}

impl Events {
    /// A stream that has ended.
    pub(crate) fn ended() -> Self {
        Self(Unread::ended())
    }

    /// The next event, or none once the client is closed. Cancel safe.
    pub async fn next(&mut self) -> Option<Event> {
        self.0.next().await
    }

    /// The next event that has happened already, without waiting.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.try_next()
    }

    /// Whether the stream ends early because too much of it was left unread.
    #[must_use]
    pub fn has_overrun(&self) -> bool {
        self.0.has_overrun()
    }
}

#[cfg(feature = "stream")]
impl futures_core::Stream for Events {
    type Item = Event;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_next(cx)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("unread", &self.0.len()).finish_non_exhaustive()
    }
}
