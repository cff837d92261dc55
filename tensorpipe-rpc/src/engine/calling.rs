//! Making a call: what is sent of it, and when that leaves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tensorpipe::{Error, Message, ResetCode};

use super::calls::Outcome;
use super::slot::CallSlot;
use super::streams::CallStreams;
use super::{Engine, is_bare, to_message};
use crate::codec::Encoded;
use crate::error::CallError;
use crate::header::WAITS;
use crate::observe::Noted;
use crate::remote::Handle;
use crate::spare;

/// Calls under way from which on further ones leave together, at the price of a turn of the pipe's own task; below, each
/// leaves at once, on its caller's.
const TOGETHER_FROM: usize = 8;

/// A call to be made.
pub(crate) struct Outgoing {
    pub(crate) id: u64,
    pub(crate) encoded: Encoded,
    pub(crate) header_len: usize,
    pub(crate) deadline: Option<(Instant, Duration)>,
    pub(crate) streams: Option<Arc<CallStreams>>,
    pub(crate) pins: Vec<Arc<Handle>>,
    pub(crate) noted: Option<Arc<Noted>>,
}

/// What a call becomes.
enum Content {
    /// A message of this metadata alone.
    Bare(Vec<u8>),
    Message(Message),
}

impl Content {
    fn byte_len(&self) -> u64 {
        match self {
            Self::Bare(metadata) => metadata.len() as u64,
            Self::Message(message) => message.metadata.len() as u64 + message.byte_len(),
        }
    }
}

impl Engine {
    /// Sends a call. Its slot gets the outcome.
    pub(crate) fn call(&self, outgoing: Outgoing) -> Arc<CallSlot> {
        let Outgoing {
            id,
            encoded,
            header_len,
            deadline,
            streams,
            pins,
            noted,
        } = outgoing;
        if self.calls.is_draining() {
            let slot = Arc::new(CallSlot::new(id, deadline, false, streams, pins, noted));
            slot.fail(CallError::ShuttingDown);
            return slot;
        }
        let waits = encoded.metadata[2] & WAITS != 0;
        let peer = self.pipe.peer_limits();
        let content = match is_bare(&encoded, header_len, &peer) {
            true => Content::Bare(encoded.metadata),
            false => Content::Message(to_message(encoded, header_len, &peer)),
        };
        if let Some(noted) = &noted {
            noted.becomes(content.byte_len());
        }
        let has_parts = matches!(content, Content::Message(_));
        let slot = Arc::new(CallSlot::new(id, deadline, has_parts, streams, pins, noted));
        let answers = self.pipe.came_together();
        let (earlier, many) = {
            let mut table = self.calls.table();
            let many = table.follows(answers) || table.slots.len() >= TOGETHER_FROM;
            table.slots.insert(id, slot.clone());
            let earlier = deadline.is_some_and(|(at, _)| table.look_by(at));
            (earlier, many)
        };
        // A call that was given the result of another one is seldom the last of its chain.
        let soon = many || waits;
        if earlier {
            self.calls.earlier.notify_one();
        }
        // The number is known before anybody can answer, refuse or cut off the message.
        let mut late = false;
        let note = |message| late = !slot.sent_as(message);
        // Where many calls are under way, others are likely to be made at once: they leave together.
        slot.set_leaves_soon(many);
        let sent = match content {
            Content::Bare(metadata) => {
                let sent = self.pipe.send_metadata(&metadata, soon, note);
                spare::keep(metadata);
                sent
            }
            Content::Message(message) if soon => self.pipe.send_soon(message, note),
            Content::Message(message) => self.pipe.send_noting(message, note),
        };
        match sent {
            Ok(message) if late => {
                self.pipe
                    .reset(message, ResetCode::Deadline, "its deadline passed");
            }
            Ok(message) => {
                if let Some(noted) = &slot.noted {
                    noted.queued(message, &self.pipe);
                }
            }
            Err(error) => {
                let failed = match error {
                    Error::GoingAway { .. } => CallError::ShuttingDown,
                    error => CallError::Connection {
                        error,
                        may_have_run: false,
                    },
                };
                self.calls.complete(&slot, Outcome::Failed(failed));
            }
        }
        slot
    }
}
