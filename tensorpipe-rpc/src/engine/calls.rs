//! Calls made from here: the table of those that wait for an answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use tensorpipe::{Error, Incoming, Message, ResetCode};
use tokio::sync::Notify;

use super::{Body, Engine, to_body, to_message};
use crate::codec::Encoded;
use crate::error::CallError;
use crate::header::{FailureCode, Header, Kind};

/// Calls under way from which on further ones leave together, at the price of a turn of the pipe's own task; below, each
/// leaves at once, on its caller's.
const TOGETHER_FROM: usize = 8;

/// Stands for a message number that is not known yet.
const UNSENT: u64 = u64::MAX;

/// Stands for the number of a message whose time passed before it was sent.
const GIVEN_UP: u64 = u64::MAX - 1;

/// How a call ended, still encoded.
pub(crate) enum Outcome {
    Value(Body),
    ServiceError(Body),
    Failed(CallError),
    /// Only for the question whether the server has a service.
    NotBound(FailureCode, Arc<str>),
}

/// A call that waits for its answer.
pub(crate) struct CallSlot {
    pub(crate) id: u64,
    /// The number of its message on the pipe.
    message: AtomicU64,
    /// The number of its reply's.
    reply: AtomicU64,
    pub(super) deadline: Option<(Instant, Duration)>,
    state: Mutex<State>,
    /// Its message leaves with the pipe's next turn: the first poll need not drive.
    soon: AtomicBool,
}

enum State {
    Waiting(Option<Waker>),
    Done(Outcome),
    Taken,
}

impl CallSlot {
    /// Whether its message leaves without this poll's help. Once.
    pub(crate) fn leaves_soon(&self) -> bool {
        self.soon.swap(false, Ordering::Relaxed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The time that it has.
    pub(super) fn bound(&self) -> Duration {
        self.deadline.map(|(_, after)| after).unwrap_or_default()
    }

    /// Its message is queued. Returns `false` if its time has passed before.
    fn sent_as(&self, message: u64) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let set = self
            .message
            .compare_exchange(UNSENT, message, success, failure);
        set.is_ok()
    }

    /// Returns whether its message is not queued yet: then it is taken back as soon as it is.
    fn give_up(&self) -> bool {
        let (success, failure) = (Ordering::AcqRel, Ordering::Acquire);
        let set = self
            .message
            .compare_exchange(UNSENT, GIVEN_UP, success, failure);
        set.is_ok()
    }

    /// The number of its message, once that is queued.
    fn message(&self) -> Option<u64> {
        let message = self.message.load(Ordering::Acquire);
        (message < GIVEN_UP).then_some(message)
    }

    pub(super) fn complete(&self, outcome: Outcome) {
        let waker = {
            let mut state = self.state();
            let State::Waiting(waker) = &mut *state else {
                return;
            };
            let waker = waker.take();
            *state = State::Done(outcome);
            waker
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Takes the outcome. Otherwise `waker` is woken when it is there, or, with `None`, nobody.
    pub(crate) fn poll(&self, waker: Option<&Waker>) -> Option<Outcome> {
        let mut state = self.state();
        match &mut *state {
            State::Waiting(waiting) => {
                match (waiting, waker) {
                    (Some(known), Some(waker)) => known.clone_from(waker),
                    (waiting, waker) => *waiting = waker.cloned(),
                }
                None
            }
            State::Done(_) => match std::mem::replace(&mut *state, State::Taken) {
                State::Done(outcome) => Some(outcome),
                _ => None,
            },
            State::Taken => None,
        }
    }
}

/// A call to be made.
pub(crate) struct Outgoing {
    pub(crate) id: u64,
    pub(crate) encoded: Encoded,
    pub(crate) header_len: usize,
    pub(crate) deadline: Option<(Instant, Duration)>,
}

#[derive(Default)]
pub(crate) struct Calls {
    next_id: AtomicU64,
    table: Mutex<Table>,
    /// Wakes whoever watches deadlines: there is an earlier one.
    pub(super) earlier: Notify,
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) slots: HashMap<u64, Arc<CallSlot>>,
    /// Replies whose tensors are on their way, by message number.
    reading: HashMap<u64, (Header, Arc<CallSlot>)>,
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

    fn complete(&self, slot: &CallSlot, outcome: Outcome) {
        self.table().slots.remove(&slot.id);
        slot.complete(outcome);
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
        done.into_iter()
            .for_each(|(slot, error)| slot.complete(Outcome::Failed(error)));
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
        self.table().reading.clear();
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
        } = outgoing;
        let slot = Arc::new(CallSlot {
            id,
            message: AtomicU64::new(UNSENT),
            reply: AtomicU64::new(UNSENT),
            deadline,
            state: Mutex::new(State::Waiting(None)),
            soon: AtomicBool::new(false),
        });
        let (earlier, soon) = {
            let mut table = self.calls.table();
            let soon = table.slots.len() >= TOGETHER_FROM;
            table.slots.insert(id, slot.clone());
            let earlier = deadline.is_some_and(|(at, _)| table.look_by(at));
            (earlier, soon)
        };
        if earlier {
            self.calls.earlier.notify_one();
        }
        // The number is known before anybody can answer, refuse or cut off the message.
        let mut late = false;
        let note = |message| late = !slot.sent_as(message);
        // Where many calls are under way, others are likely to be made at once: they leave together.
        let message = to_message(encoded, header_len, &self.pipe.peer_limits());
        slot.soon.store(soon, Ordering::Relaxed);
        let sent = if soon {
            self.pipe.send_soon(message, note)
        } else {
            self.pipe.send_noting(message, note)
        };
        match sent {
            Ok(message) if late => {
                self.pipe
                    .reset(message, ResetCode::Deadline, "its deadline passed");
            }
            Ok(_) => {}
            Err(Error::GoingAway { .. }) => self
                .calls
                .complete(&slot, Outcome::Failed(CallError::ShuttingDown)),
            Err(error) => {
                let failed = CallError::Connection {
                    error,
                    may_have_run: false,
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
            self.reset_call(slot, ResetCode::Cancelled, "the call was dropped");
        }
    }

    /// Takes back the request, and what of the reply is on its way.
    pub(super) fn reset_call(&self, slot: &CallSlot, code: ResetCode, reason: &str) {
        if slot.give_up() {
            return;
        }
        if let Some(message) = slot.message() {
            self.pipe.reset(message, code, reason);
        }
        let reply = slot.reply.load(Ordering::Acquire);
        let reading = self.calls.take_reading(reply);
        if reading.is_some() {
            self.pipe.stop(reply, code, reason);
        }
    }

    pub(super) fn reply_arrives(&self, header: Header, incoming: Incoming) {
        let id = incoming.id();
        let slot = {
            let mut table = self.calls.table();
            // A call that was given up meanwhile: its reply is skipped.
            let Some(slot) = table.slots.get(&header.call).cloned() else {
                return;
            };
            let first = |old| (old == UNSENT).then_some(id);
            let order = (Ordering::AcqRel, Ordering::Acquire);
            if slot.reply.fetch_update(order.0, order.1, first).is_err() {
                // It is being answered already.
                return;
            }
            table.reading.insert(id, (header, slot.clone()));
            slot
        };
        match incoming.accept() {
            Some(message) => {
                self.calls.take_reading(id);
                self.reply_complete(&header, &slot, message);
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
    ) {
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
                Kind::Call | Kind::Bind | Kind::Tarpc(_) => return,
            },
        };
        self.calls.complete(slot, outcome);
    }
}

fn failure(code: FailureCode, body: &Body, slot: &CallSlot) -> Outcome {
    let text = &body.metadata[..body.metadata.len().min(16 << 10)];
    let text: Arc<str> = String::from_utf8_lossy(text).into();
    Outcome::Failed(match code {
        FailureCode::Panicked => CallError::Panicked(text),
        FailureCode::Overloaded => CallError::Overloaded(text),
        FailureCode::Unimplemented => CallError::Unimplemented(text),
        FailureCode::BadArguments => CallError::BadArguments(text),
        FailureCode::Deadline => CallError::Deadline {
            after: slot.bound(),
        },
        FailureCode::ShuttingDown => CallError::ShuttingDown,
        FailureCode::BadReply => CallError::BadReply(text),
        FailureCode::Mismatch | FailureCode::NoService => return Outcome::NotBound(code, text),
        FailureCode::Other(_) => CallError::Other(text),
    })
}
