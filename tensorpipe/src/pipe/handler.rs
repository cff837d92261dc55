//! Messages pushed instead of fetched: for whoever builds calls on a pipe.

use std::sync::Arc;

use super::budget::Held;
use super::core::{Core, Deliver};
use super::inbound::Incoming;
use super::shared::Delivery;
use super::stats::MessageStats;
use crate::error::{Error, ResetCode};
use crate::message::Message;

/// Receives everything of a pipe, on whichever task drives it, one call at a time, in order.
///
/// Methods must not block: what takes longer than some microseconds belongs on a task of its own. Behind one that does, up to
/// 4096 calls wait (16 MiB of messages), then the peer. Methods may write to the pipe, start reads, and close it. A panic
/// is caught, and ends the pipe.
pub trait Handler: Send + Sync + 'static {
    /// Whether messages are expected at any time, or only while an operation is awaited ([`Awaiting`](crate::engine::Awaiting)): then others
    /// may be seen some 50 to 100 ms late. Where they are, its methods are called within the pipe's runtime, whoever drives.
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

    /// A channel could not send a part of message `id` of ours, which is abandoned: the peer has heard of it as of a reset. By default
    /// nobody minds.
    fn failed(&self, id: u64, error: &Error) {
        let _ = (id, error);
    }

    /// The peer will not look at our messages from `next` on.
    fn going_away(&self, next: u64, reason: &str);

    /// The pipe has ended. Nothing follows.
    fn closed(&self, error: &Error);
}

impl<H: Handler> Deliver for H {
    fn give(&self, core: &Arc<Core>, delivery: Delivery) {
        match delivery {
            Delivery::Incoming(arrival) => self.incoming(Incoming::new(core.clone(), arrival)),
            Delivery::Message(come) => {
                let (id, message, stats, held) = *come;
                self.message_with_stats(id, message, stats, held);
            }
            Delivery::Reset(id, code, reason) => self.reset(id, code, &reason),
            Delivery::Refused(id, code, reason) => self.refused(id, code, &reason),
            Delivery::Failed(failed) => self.failed(failed.0, &failed.1),
            Delivery::GoingAway(next, reason) => self.going_away(next, &reason),
            Delivery::Closed(error) => self.closed(&error),
        }
    }
}
