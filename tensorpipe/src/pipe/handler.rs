//! Messages pushed instead of fetched: for whoever builds calls on a pipe.

use std::sync::Arc;

use super::arrival::Arrival;
use super::budget::Held;
use super::core::Core;
use super::incoming::Incoming;
use super::stats::MessageStats;
use crate::error::{Error, ResetCode};
use crate::message::Message;

/// Receives everything of a pipe, on whichever task drives it, one call at a time, in order.
///
/// Methods must not block: what takes longer than some microseconds belongs on a task of its own. Behind one that does, up to
/// 4096 calls wait (16 MiB of messages), then the peer. Methods may write to the pipe, start reads, and close it. A panic
/// is caught, and ends the pipe.
pub trait Handler: Send + Sync + 'static {
    /// Whether messages are expected at any time, or only while an operation is awaited ([`Pipe::awaiting`]): then others
    /// may be seen some 50 ms late. Where they are, its methods are called within the pipe's runtime, whoever drives.
    ///
    /// [`Pipe::awaiting`]: super::Pipe::awaiting
    fn listens(&self) -> bool {
        true
    }

    /// A message is there: take it with [`Incoming::accept`], read it on a task of your own, refuse it, or drop it.
    fn incoming(&self, incoming: Incoming);

    /// A message taken with [`Incoming::accept`] is complete, or never will be.
    fn message(&self, id: u64, message: Result<Message, Error>);

    /// The same, with how its payloads and tensors came, and what they take of
    /// [`Limits::receive_budget`](crate::Limits::receive_budget) for as long as that is kept. Calls [`Handler::message`].
    fn message_with_stats(
        &self,
        id: u64,
        message: Result<Message, Error>,
        stats: MessageStats,
        held: Held,
    ) {
        let _ = (stats, held);
        self.message(id, message);
    }

    /// The peer abandons message `id`, which may have been read long ago: what it asked for is not wanted any more.
    fn reset(&self, id: u64, code: ResetCode, reason: &str);

    /// The peer did not take message `id` of ours, or not all of it.
    fn refused(&self, id: u64, code: ResetCode, reason: &str);

    /// The peer will not look at our messages from `next` on.
    fn going_away(&self, next: u64, reason: &str);

    /// The pipe has ended. Nothing follows.
    fn closed(&self, error: &Error);
}

/// One call of the handler.
pub(super) enum Delivery {
    Incoming(Arrival),
    /// Boxed: the others are small, and most messages are whole when they come.
    Message(Box<(u64, Result<Message, Error>, MessageStats, Held)>),
    Reset(u64, ResetCode, String),
    Refused(u64, ResetCode, String),
    GoingAway(u64, String),
    Closed(Error),
}

impl Delivery {
    /// What it keeps because of the peer alone, in bytes. A message that is complete is one that was asked for.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Incoming(arrival) => arrival.weight(),
            Self::Reset(.., text) | Self::Refused(.., text) | Self::GoingAway(_, text) => {
                text.len()
            }
            Self::Message(..) | Self::Closed(_) => 0,
        }
    }

    pub(super) fn give(self, core: &Arc<Core>, handler: &dyn Handler) {
        match self {
            Self::Incoming(arrival) => handler.incoming(Incoming::new(core.clone(), arrival)),
            Self::Message(come) => {
                let (id, message, stats, held) = *come;
                handler.message_with_stats(id, message, stats, held);
            }
            Self::Reset(id, code, reason) => handler.reset(id, code, &reason),
            Self::Refused(id, code, reason) => handler.refused(id, code, &reason),
            Self::GoingAway(next, reason) => handler.going_away(next, &reason),
            Self::Closed(error) => handler.closed(&error),
        }
    }
}
