//! Calls made from here: the table of those that wait for an answer.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tensorpipe::{Error, Message, MessageStats, ResetCode};
use tokio::sync::Notify;

use super::arrived::Arrived;
use super::failures::failure;
use super::slot::CallSlot;
use super::streams::CallStreams;
use super::{Body, Engine, is_bare, to_body, to_message};
use crate::codec::Encoded;
use crate::error::CallError;
use crate::header::{FailureCode, Header, Kind, REFERENCES, WAITS};
use crate::observe::Noted;
use crate::remote::Handle;
use crate::spare;

/// Answers that came together, after which as many calls are likely to be made.
const MANY_ANSWERS: u32 = 32;

/// Calls under way from which on further ones leave together, at the price of a turn of the pipe's own task; below, each
/// leaves at once, on its caller's.
const TOGETHER_FROM: usize = 8;

/// The time that a call has where nobody says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// How a call ended, still encoded.
pub(crate) enum Outcome {
    Value(Body),
    ServiceError(Body),
    Failed(CallError),
    /// Only for the question whether the server has a service.
    NotBound(FailureCode, Arc<str>),
}

impl Outcome {
    /// Whether its body holds references.
    pub(crate) fn has_references(&self) -> bool {
        matches!(self, Self::Value(body) | Self::ServiceError(body) if body.references)
    }
}

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

#[derive(Default)]
pub(crate) struct Calls {
    next_id: AtomicU64,
    /// The peer handles no further calls.
    draining: AtomicBool,
    table: Mutex<Table>,
    /// Wakes whoever watches deadlines: there is an earlier one.
    pub(super) earlier: Notify,
    /// Tells the one that waits for it that the pipe has ended, or that the peer handles no further calls.
    pub(crate) over: Notify,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) slots: FxHashMap<u64, Arc<CallSlot>>,
    /// Replies whose tensors are on their way, by message number.
    reading: FxHashMap<u64, (Header, Arc<CallSlot>)>,
    /// When the watcher of deadlines looks next.
    pub(super) look_at: Option<Instant>,
}

impl Table {
    /// Returns whether that is earlier than the watcher of deadlines knows.
    pub(super) fn look_by(&mut self, at: Instant) -> bool {
        let earlier = self.look_at.is_none_or(|look_at| at < look_at);
        if earlier {
            self.look_at = Some(at);
        }
        earlier
    }
}

impl Calls {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new call.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls that wait for their answer.
    pub(crate) fn under_way(&self) -> usize {
        self.table().slots.len()
    }

    /// A reply is complete or will never be.
    pub(super) fn take_reading(&self, message: u64) -> Option<(Header, Arc<CallSlot>)> {
        self.table().reading.remove(&message)
    }

    /// The peer handles what it has been asked for, and nothing further.
    pub(super) fn draining(&self) {
        self.draining.store(true, Ordering::Release);
        self.over.notify_one();
    }

    /// Whether the peer has said that it handles no further calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// A call that waits for its answer.
    pub(super) fn find(&self, call: u64) -> Option<Arc<CallSlot>> {
        self.table().slots.get(&call).cloned()
    }

    /// Gives the outcome back if nobody waits for it.
    pub(super) fn complete(&self, slot: &CallSlot, outcome: Outcome) -> Option<Outcome> {
        if !slot.is_taken_out() {
            let removed = self.table().slots.remove(&slot.id);
            drop(removed);
        }
        slot.complete(outcome)
    }

    fn complete_where(&self, mut which: impl FnMut(&CallSlot) -> Option<CallError>) {
        let mut done = Vec::new();
        self.table().slots.retain(|_, slot| match which(slot) {
            Some(error) => {
                done.push((slot.clone(), error));
                false
            }
            None => true,
        });
        done.into_iter().for_each(|(slot, error)| slot.fail(error));
    }

    /// The peer did not take message number `id`.
    pub(super) fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        if code == ResetCode::Skipped {
            // The tensors are not wanted: the reply says why.
            return;
        }
        self.complete_where(|slot| {
            (slot.message() == Some(id)).then(|| match code {
                ResetCode::Closing => CallError::ShuttingDown,
                ResetCode::Deadline => CallError::Deadline {
                    after: slot.bound(),
                },
                code => {
                    let error = Error::Refused {
                        code,
                        reason: reason.into(),
                    };
                    CallError::Connection {
                        error,
                        may_have_run: false,
                    }
                }
            })
        });
    }

    /// The peer does not look at messages from `next` on.
    pub(super) fn going_away(&self, next: u64) {
        self.complete_where(|slot| {
            let unseen = slot.message().is_some_and(|message| message >= next);
            unseen.then_some(CallError::ShuttingDown)
        });
    }

    pub(super) fn closed(&self, error: &Error) {
        self.complete_where(|slot| {
            Some(CallError::Connection {
                error: error.clone(),
                may_have_run: slot.message().is_some(),
            })
        });
        let reading = std::mem::take(&mut self.table().reading);
        // Not under the lock: a call may be the last to hold a reference.
        drop(reading);
        self.over.notify_one();
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
        let came_together = self.pipe.came_together() >= MANY_ANSWERS;
        let (earlier, many) = {
            let mut table = self.calls.table();
            let many = table.slots.len() >= TOGETHER_FROM || came_together;
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

    /// Nobody waits for the call any more.
    pub(crate) fn cancel(&self, slot: &CallSlot) {
        let waited = self.calls.table().slots.remove(&slot.id).is_some();
        if waited {
            if let Some(noted) = &slot.noted {
                noted.cancelled();
            }
            self.reset_call(slot, ResetCode::Cancelled, "the call was dropped");
        }
        if let Some(streams) = &slot.streams {
            self.close_streams(streams);
        }
        // Answered, and nobody looked.
        self.let_go(slot, slot.abandon());
    }

    /// Takes back the request, and what of the reply is on its way.
    pub(super) fn reset_call(&self, slot: &CallSlot, code: ResetCode, reason: &str) {
        if slot.give_up() {
            return;
        }
        if let Some(message) = slot.message() {
            self.pipe.reset(message, code, reason);
        }
        if let Some(reply) = slot.reply()
            && let Some((header, _)) = self.calls.take_reading(reply)
        {
            self.pipe.stop(reply, code, reason);
            if header.flags & REFERENCES != 0 {
                // Nobody will find them in it.
                self.release(slot.id, None);
            }
        }
    }

    /// Nobody looks at this outcome: nor at the references in it.
    pub(crate) fn let_go(&self, slot: &CallSlot, outcome: Option<Outcome>) {
        if outcome.is_some_and(|outcome| outcome.has_references()) {
            self.release(slot.id, None);
        }
    }

    pub(super) fn reply_arrives(&self, header: Header, incoming: Arrived<'_>) {
        let (id, is_whole) = (incoming.id(), incoming.is_whole());
        let slot = {
            let mut table = self.calls.table();
            // A call that was given up meanwhile: its reply is skipped.
            let Entry::Occupied(slot) = table.slots.entry(header.call) else {
                drop(table);
                if header.flags & REFERENCES != 0 {
                    self.release(header.call, None);
                }
                return;
            };
            if !slot.get().answered_by(id) {
                // It is being answered already.
                return;
            }
            if is_whole && slot.get().streams.is_none() {
                // Completed below: nobody need find it any more.
                slot.get().take_out();
                slot.remove()
            } else {
                let slot = slot.get().clone();
                if !is_whole {
                    table.reading.insert(id, (header, slot.clone()));
                }
                slot
            }
        };
        let mut whole = MessageStats::default();
        if let Some(noted) = &slot.noted {
            noted.reply_arrives(
                &header,
                incoming.metadata(),
                incoming.parts_len(),
                &self.pipe,
            );
            whole = incoming.in_frame();
        }
        match incoming.accept() {
            Some(message) => {
                if !is_whole {
                    self.calls.take_reading(id);
                }
                self.reply_complete(&header, &slot, message, whole);
            }
            // Given up between the look at the table and the read.
            None if !self.calls.table().reading.contains_key(&id) => {
                self.pipe
                    .stop(id, ResetCode::Cancelled, "the call was dropped");
            }
            None => {}
        }
    }

    pub(super) fn reply_complete(
        &self,
        header: &Header,
        slot: &CallSlot,
        message: Result<Message, Error>,
        came: MessageStats,
    ) {
        if let (Some(noted), Ok(_)) = (&slot.noted, &message) {
            noted.reply_came(came, &self.pipe);
        }
        self.meter.read(&self.pipe);
        if message.is_err() && header.flags & REFERENCES != 0 {
            self.release(header.call, None);
        }
        let outcome = match message.map(|message| to_body(message, header)) {
            Err(error) => Outcome::Failed(CallError::Connection {
                error,
                may_have_run: true,
            }),
            Ok(None) => Outcome::Failed(CallError::Other("the reply's body is missing".into())),
            Ok(Some(body)) => match header.kind {
                Kind::Value => Outcome::Value(body),
                Kind::ServiceError => Outcome::ServiceError(body),
                Kind::Failure(code) => failure(code, &body, slot),
                _ => return,
            },
        };
        let outcome = match &slot.streams {
            Some(streams) => streams.hold(outcome),
            None => Some(outcome),
        };
        // Otherwise with the last item.
        let Some(outcome) = outcome else { return };
        self.let_go(slot, self.calls.complete(slot, outcome));
        if let Some(message) = slot.message().filter(|_| slot.has_parts)
            && self.pipe.is_unwritten(message)
        {
            // A server that answers what it has not read does not make this side keep it.
            self.pipe
                .reset(message, ResetCode::Cancelled, "the call was answered");
        }
    }
}
