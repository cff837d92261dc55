//! Calls made from here: the table of calls that wait for an answer, and all that ends a call. `calling.rs` makes calls.

use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{Error, Incoming, Message, MessageStats, ResetCode};
use tokio::sync::Notify;

use super::slot::CallSlot;
use super::streams::{CallStreams, ITEMS};
use super::{Body, Engine, to_body};
use crate::error::{CallError, PlaceError, printable};
use crate::header::{FailureCode, Header, Kind, REFERENCES};
use crate::lock::lock;
use crate::placement::{ReceivePlacement, naming};

/// How long a call may take where nobody says otherwise.
pub const DEFAULT_DEADLINE: Duration = Duration::from_secs(60);

/// How much of a server's words is shown, in bytes.
const SHOWN: usize = 16 << 10;

/// How a call ended, still encoded.
pub(crate) enum Outcome {
    Value(Body),
    ServiceError(Body),
    Failed(CallError),
    /// Only an answer to a bind: the server does not have the service, or defines it differently.
    NotBound(FailureCode, Arc<str>),
}

impl Outcome {
    /// Whether its body holds references.
    pub(crate) fn has_references(&self) -> bool {
        matches!(self, Self::Value(body) | Self::ServiceError(body) if body.references)
    }
}

#[derive(Default)]
pub(crate) struct Calls {
    next_id: AtomicU64,
    /// The peer handles no further calls.
    draining: AtomicBool,
    /// Calls without streams in a row that had no answer in time.
    missed: AtomicU32,
    table: Mutex<Table>,
    /// Wakes the watcher of deadlines: an earlier one was added.
    pub(super) earlier: Notify,
    /// Wakes the task that waits for the pipe to end, or for the peer to stop taking calls.
    pub(crate) closing: Notify,
}

/// What a message of the peer's belongs to while it is being read. The peer's own calls are not among these.
pub(super) enum Reading {
    Reply(Arc<CallSlot>),
    /// Items of a stream.
    Items(Arc<CallStreams>),
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) slots: FxHashMap<u64, Arc<CallSlot>>,
    /// Messages whose tensors are on their way, by their number.
    pub(super) reading: FxHashMap<u64, (Header, Reading)>,
    /// When the watcher of deadlines checks them next.
    pub(super) check_at: Option<Instant>,
}

impl Table {
    /// Returns whether `at` is earlier than the time for which the watcher is set.
    pub(super) fn check_by(&mut self, at: Instant) -> bool {
        let earlier = self.check_at.is_none_or(|check_at| at < check_at);
        if earlier {
            self.check_at = Some(at);
        }
        earlier
    }
}

impl Calls {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// A number for a new call.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls that wait for their answer.
    pub(crate) fn under_way(&self) -> usize {
        self.table().slots.len()
    }

    /// A message is complete, or will never be.
    pub(super) fn take_reading(&self, message: u64) -> Option<(Header, Reading)> {
        self.table().reading.remove(&message)
    }

    pub(super) fn is_reading(&self, message: u64) -> bool {
        self.table().reading.contains_key(&message)
    }

    /// The peer handles what it has been asked for, and nothing further.
    pub(super) fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
        self.closing.notify_one();
    }

    /// Whether the peer has said that it handles no further calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// How many calls had no answer within their deadlines since the last one that had.
    pub(crate) fn missed_in_a_row(&self) -> u32 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Counts one more, unless it has streams. A stream takes as long as its items do, and its server may have answered all the
    /// while.
    pub(super) fn missed_deadline(&self, slot: &CallSlot) {
        if slot.streams.is_none() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The peer has answered a call in time.
    fn reset_missed(&self) {
        // A load is cheaper than a store, which other cores have to see.
        if self.missed_in_a_row() > 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
    }

    /// A call that waits for its answer.
    pub(super) fn find(&self, call: u64) -> Option<Arc<CallSlot>> {
        self.table().slots.get(&call).cloned()
    }

    /// Gives the outcome back if nobody waits for it.
    pub(super) fn complete(&self, slot: &CallSlot, outcome: Outcome) -> Option<Outcome> {
        if !slot.is_removed() {
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
            // The peer does not want the tensors: its reply says why.
            return;
        }
        self.complete_where(|slot| {
            (slot.message() == Some(id)).then(|| match code {
                ResetCode::Closing => CallError::ShuttingDown,
                ResetCode::Deadline => CallError::Deadline {
                    after: slot.timeout(),
                    moving: true,
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

    /// The peer does not take messages from `next` on.
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
        // Not under the lock: dropping a call may drop the last handle of a reference, and a stream may hold another call's.
        drop(reading);
        self.closing.notify_one();
    }
}

impl Engine {
    /// A channel failed to send all of message number `id`. It is a call's, or holds stream items that must go over named channels.
    pub(super) fn unsent(&self, id: u64, error: &Error) {
        let is_call = |slot: &CallSlot| slot.message() == Some(id);
        let is_of = |slot: &&Arc<CallSlot>| {
            let streams = slot.streams.as_ref();
            is_call(slot) || streams.is_some_and(|streams| streams.has_sent(id))
        };
        let Some(slot) = self.calls.table().slots.values().find(is_of).cloned() else {
            return;
        };
        if !is_call(&slot) {
            let failed = CallError::Connection {
                error: naming(error.clone(), |_| Some(ITEMS.to_owned())),
                may_have_run: true,
            };
            return self.fail_streaming(slot.id, failed);
        }
        let failed = CallError::Connection {
            error: slot.naming(error.clone()),
            // Only a message that was refused before a byte moved has certainly not arrived.
            may_have_run: !matches!(error, Error::Misuse(_)),
        };
        self.calls.complete(&slot, Outcome::Failed(failed));
    }

    /// Nobody waits for the call any more.
    pub(crate) fn cancel(&self, slot: &CallSlot) {
        if self.is_inherited() {
            return;
        }
        let waited = self.calls.table().slots.remove(&slot.id).is_some();
        if waited {
            if let Some(trace) = &slot.trace {
                trace.cancelled();
            }
            self.reset_call(slot, ResetCode::Cancelled, "the call was dropped");
        }
        if let Some(streams) = &slot.streams {
            self.close_streams(streams);
        }
        // If the call was answered meanwhile, nobody took the answer.
        self.discard_outcome(slot, slot.outcome.abandon());
    }

    /// Whether tensors or payloads of a call, or of its answer, are on their way. False for calls with streams.
    pub(super) fn is_moving(&self, slot: &CallSlot) -> bool {
        let message = slot.message();
        let leaves = || message.is_some_and(|message| self.pipe.is_unwritten(message));
        slot.streams.is_none() && (slot.reply().is_some() || slot.has_parts && leaves())
    }

    /// Takes back the request, and stops a reply that is on its way.
    pub(super) fn reset_call(&self, slot: &CallSlot, code: ResetCode, reason: &str) {
        if slot.cancel_unsent() {
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
                // The reply is not read, so nobody finds its references.
                self.release(slot.id, None);
            }
        }
    }

    /// Nobody takes this outcome: gives the references in it back to their owner.
    pub(crate) fn discard_outcome(&self, slot: &CallSlot, outcome: Option<Outcome>) {
        if outcome.is_some_and(|outcome| outcome.has_references()) {
            self.release(slot.id, None);
        }
    }

    pub(super) fn reply_arrives(&self, header: Header, incoming: Incoming) {
        let (id, mut is_whole) = (incoming.id(), incoming.is_whole());
        let slot = {
            let mut table = self.calls.table();
            // The call was given up meanwhile, so its reply is skipped.
            let Entry::Occupied(slot) = table.slots.entry(header.call) else {
                drop(table);
                if header.flags & REFERENCES != 0 {
                    self.release(header.call, None);
                }
                return;
            };
            if !slot.get().try_set_reply(id) {
                // Another message answers the call already.
                return;
            }
            // Even a message that is here whole may have to move to another device.
            is_whole &= slot.get().receive_placement.is_none();
            if is_whole && slot.get().streams.is_none() {
                // Completed below: nobody needs to find it any more.
                slot.get().mark_removed();
                slot.remove()
            } else {
                let slot = slot.get().clone();
                if !is_whole {
                    let reading = Reading::Reply(slot.clone());
                    table.reading.insert(id, (header, reading));
                }
                slot
            }
        };
        let mut whole = MessageStats::default();
        if let Some(trace) = &slot.trace {
            trace.reply_arrives(
                &header,
                incoming.metadata(),
                incoming.byte_len(),
                &self.pipe,
            );
            whole = incoming.stats();
        }
        match ReceivePlacement::accept(slot.receive_placement.as_deref(), incoming) {
            Some(message) => {
                if !is_whole {
                    self.calls.take_reading(id);
                }
                self.reply_complete(id, &header, &slot, message, whole);
            }
            // The call was given up between the look-up in the table and the read.
            None if !self.calls.is_reading(id) => {
                self.pipe
                    .stop(id, ResetCode::Cancelled, "the call was dropped");
            }
            None => {}
        }
    }

    pub(super) fn reply_complete(
        &self,
        id: u64,
        header: &Header,
        slot: &CallSlot,
        mut message: Result<Message, Error>,
        transfer: MessageStats,
    ) {
        if let Some(receive_placement) = &slot.receive_placement {
            message = receive_placement.check(id, message, "the result");
        }
        if let (Some(trace), Ok(_)) = (&slot.trace, &message) {
            trace.reply_received(transfer, &self.pipe);
        }
        self.meter.read(&self.pipe);
        if message.is_err() && header.flags & REFERENCES != 0 {
            self.release(header.call, None);
        }
        let outcome = match message.map(|message| to_body(message, header)) {
            Err(error) => Outcome::Failed(CallError::of_pipe(
                error,
                slot.receive_placement.is_some(),
                true,
            )),
            Ok(None) => Outcome::Failed(CallError::Other("the reply's body is missing".into())),
            Ok(Some(body)) => match header.kind {
                Kind::Value => Outcome::Value(body),
                Kind::ServiceError => Outcome::ServiceError(body),
                Kind::Failure(code) => failure(code, &body, slot),
                _ => return,
            },
        };
        match outcome {
            // The server noticed the missed deadline before this end did.
            Outcome::Failed(CallError::Deadline { .. }) => self.calls.missed_deadline(slot),
            Outcome::Failed(CallError::Connection { .. }) => {}
            _ => self.calls.reset_missed(),
        }
        let outcome = match &slot.streams {
            Some(streams) => streams.hold(outcome),
            None => Some(outcome),
        };
        // `hold` keeps the outcome until the last item is here.
        let Some(outcome) = outcome else { return };
        self.discard_outcome(slot, self.calls.complete(slot, outcome));
        if let Some(message) = slot.message().filter(|_| slot.has_parts)
            && self.pipe.is_unwritten(message)
        {
            // If the server answers before it has read the request, this end need not keep the request.
            self.pipe
                .reset(message, ResetCode::Cancelled, "the call was answered");
        }
    }
}

/// How a call ends that the server answers with a failure. The text is the peer's, so it is shortened, and its control characters
/// are escaped.
fn failure(code: FailureCode, body: &Body, slot: &CallSlot) -> Outcome {
    let text: Arc<str> = printable(&body.metadata, SHOWN).into();
    Outcome::Failed(match code {
        FailureCode::Panicked => CallError::Panicked(text),
        FailureCode::Overloaded => CallError::Overloaded(text),
        FailureCode::Denied => CallError::Denied(text),
        FailureCode::Unimplemented => CallError::Unimplemented(text),
        FailureCode::BadArguments => CallError::BadArguments(text),
        FailureCode::Deadline => CallError::Deadline {
            after: slot.timeout(),
            moving: false,
        },
        FailureCode::ShuttingDown => CallError::ShuttingDown,
        FailureCode::BadReply => CallError::BadReply(text),
        FailureCode::Mismatch | FailureCode::NoService => return Outcome::NotBound(code, text),
        FailureCode::Unresolved => CallError::Unresolved(text),
        FailureCode::NoPlace | FailureCode::NoPlaceForResult => CallError::NoPlace {
            error: PlaceError::There(text),
            may_have_run: code == FailureCode::NoPlaceForResult,
        },
        FailureCode::BadItem | FailureCode::Other => CallError::Other(text),
    })
}
