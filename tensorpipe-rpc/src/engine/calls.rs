//! All that ends a call that was made from here. `calling.rs` makes calls.

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::ambient;
use tensorpipe::engine::EnginePipe;
use tensorpipe::{Error, Incoming, Message, MessageStats, ResetCode};

use super::slot::CallSlot;
use super::streams::ITEMS;
use super::table::{Answers, Calls};
use super::{Body, Engine, to_body};
use crate::caught::ignore_panic;
use crate::error::{CallError, PlaceError, printable};
use crate::header::{FailureCode, Header, Kind, REFERENCES};
use crate::lock::Ordering;
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

impl Calls {
    /// The peer did not take message number `id`.
    pub(super) fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        if code == ResetCode::Skipped {
            // The peer does not want the tensors: its reply says why.
            return;
        }
        let slot = self.find_by_message(id);
        let Some(slot) = slot.filter(|slot| self.give_up(slot)) else {
            return;
        };
        let error = match code {
            ResetCode::Closing => CallError::ShuttingDown,
            ResetCode::Overloaded => CallError::Overloaded(reason.into()),
            ResetCode::Deadline => {
                self.missed_deadline(&slot);
                CallError::late(slot.taken(ambient::now()), true)
            }
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
        };
        ignore_panic(move || slot.fail(error));
    }

    /// The peer does not take messages from `next` on.
    pub(super) fn going_away(&self, next: u64) {
        self.fail_where(|slot| {
            let unseen = slot.message().is_some_and(|message| message >= next);
            unseen.then_some(CallError::ShuttingDown)
        });
    }

    pub(super) fn closed(&self, error: &Error) {
        self.fail_where(|slot| {
            Some(CallError::Connection {
                error: error.clone(),
                may_have_run: slot.message().is_some(),
            })
        });
        ignore_panic(|| self.closing.notify_one());
        let reading = std::mem::take(&mut self.table().reading);
        // Not under the lock: dropping a call may drop the last handle of a reference, and a stream may hold another call's.
        for message in reading.into_values() {
            ignore_panic(|| drop(message));
        }
    }
}

impl Engine {
    /// A channel failed to send all of message number `id`. It is a call's, or holds stream items that must go over named channels.
    pub(super) fn unsent(&self, id: u64, error: &Error) {
        let Some(slot) = self.calls.find_by_message(id) else {
            let has_sent = |slot: &&Arc<CallSlot>| {
                let streams = slot.streams.as_ref();
                streams.is_some_and(|streams| streams.has_sent(id))
            };
            let slot = self.calls.table().slots.values().find(has_sent).cloned();
            let Some(slot) = slot else { return };
            let failed = CallError::Connection {
                error: naming(error.clone(), |_| Some(ITEMS.to_owned())),
                may_have_run: true,
            };
            return self.fail_streaming(slot.id, failed);
        };
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
        self.at_once(|| {
            if self.calls.give_up(slot) {
                if let Some(trace) = &slot.trace {
                    trace.cancelled();
                }
                self.reset_call(slot, ResetCode::Cancelled, "the call was dropped");
            }
            if let Some(streams) = &slot.streams {
                self.close_streams(streams);
            }
            // If the call was answered meanwhile, nobody took the answer.
            self.discard_outcome(slot.id, slot.outcome.abandon());
        });
    }

    /// Nobody awaits the call any more, but others refer to its result.
    pub(crate) fn make_orphan(&self, slot: &CallSlot) {
        slot.make_orphan();
        self.discard_untaken(slot, slot.outcome.abandon());
    }

    /// As [`discard_outcome`](Self::discard_outcome). What an orphan promised is released by those who refer to it.
    fn discard_untaken(&self, slot: &CallSlot, outcome: Option<Outcome>) {
        if !slot.is_orphan() || !matches!(outcome, Some(Outcome::Value(_))) {
            self.discard_outcome(slot.id, outcome);
        }
    }

    /// Whether tensors or payloads of a call, or of its answer, are on their way. False for calls with streams.
    pub(super) fn is_moving(&self, slot: &CallSlot) -> bool {
        let message = slot.message();
        let leaves = || message.is_some_and(|message| self.pipe.is_unwritten(message));
        slot.streams.is_none() && (slot.reply().is_some() || slot.has_parts && leaves())
    }

    /// Takes back the request, and stops a reply that is on its way.
    pub(super) fn reset_call(&self, slot: &CallSlot, code: ResetCode, reason: &str) {
        let on_its_way = self.calls.on_its_way(slot);
        if let Some(request) = on_its_way.request {
            self.pipe.reset(request, code, reason);
        }
        if let Some((reply, header)) = on_its_way.reply {
            self.pipe.stop(reply, code, reason);
            if header.flags & REFERENCES != 0 {
                // The reply is not read, so nobody finds its references.
                self.release(slot.id, None);
            }
        }
    }

    /// Nobody takes this outcome: gives the references in it back to their owner.
    pub(crate) fn discard_outcome(&self, call: u64, outcome: Option<Outcome>) {
        if outcome.is_some_and(|outcome| outcome.has_references()) {
            self.release(call, None);
        }
    }

    pub(super) fn reply_arrives(&self, header: Header, incoming: Incoming) {
        let id = incoming.id();
        let (slot, is_whole) = match self.calls.answer(id, header, incoming.is_whole()) {
            Answers::Call { slot, is_whole } => (slot, is_whole),
            // Its reply is skipped.
            Answers::Nobody if header.flags & REFERENCES != 0 => {
                return self.release(header.call, None);
            }
            Answers::Nobody | Answers::Answered | Answers::Unasked => return,
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
            _ => {
                self.calls.reset_missed();
                if slot.is_sent_once() || header.flags & REFERENCES != 0 {
                    self.calls.has_served.store(true, Ordering::Relaxed);
                }
            }
        }
        let outcome = match &slot.streams {
            Some(streams) => streams.hold(outcome),
            None => Some(outcome),
        };
        // `hold` keeps the outcome until the last item is here.
        let Some(outcome) = outcome else { return };
        self.discard_untaken(slot, self.calls.complete(slot, outcome));
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
        FailureCode::Panicked => CallError::Panicked {
            message: text,
            method: Arc::default(),
        },
        FailureCode::Overloaded => CallError::Overloaded(text),
        FailureCode::Denied => CallError::Denied(text),
        FailureCode::Unimplemented => CallError::Unimplemented(text),
        FailureCode::BadArguments => CallError::BadArguments(text),
        // Perhaps before the caller's bound: the server has one of its own.
        FailureCode::Deadline => CallError::late(slot.taken(ambient::now()), false),
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
