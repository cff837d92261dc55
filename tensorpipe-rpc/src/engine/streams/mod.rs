//! The streams of one call: its incoming items, and the credit to send items of its own.
//!
//! A call has at most one stream each way. Items are messages of their own that name the call. The receiver says how many items and
//! bytes it takes in all ([`Tally`]), and grants more as the application consumes them. So the unread items of a stalled reader are
//! bounded, and no stream holds up other calls. The unread items of all streams of a connection are bounded too ([`UnreadBudget`]).
//!
//! - Small items that are ready together share a message. None waits for one that is not ready.
//! - Credit counts from the beginning of the stream. So it needs no acknowledgement, and nothing is counted twice.
//! - Items keep the order of their messages, even if a later message is complete first.
//! - The handler's own future drives its stream: deadline, cancel, panic and drain apply to it as to the call.
//! - A server that stops sends DRAINING and not GOAWAY: credit and items of calls under way still come.
//! - Granted credit cannot be revoked. When the room that all streams of a connection share is used up, streams get smaller grants.
//!   An item larger than its grant stays with its sender until there is room, or its reader waits for it. At most a quarter of the
//!   pipe's 1024 messages may wait so. Beyond that, a call fails as one that may have run.

mod arriving;
mod credits;
mod held;
mod inbox;
mod required;
mod unread;

pub(crate) use credits::{Credits, SendCredit};
pub(crate) use inbox::{Batch, Inbox, Received};
pub(crate) use required::Required;
pub(crate) use unread::{StreamPermit, UnreadBudget};

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::task::Waker;

use tensorpipe::engine::{EnginePipe, Outbound};
use tensorpipe::fork::Owner;
use tensorpipe::{Error, Message, ResetCode};

use self::held::HeldOutcome;
use super::Outcome;
use crate::codec::{Encoded, REPLY_HEADER};
use crate::context::CallContext;
use crate::lock::{AtomicBool, Mutex, Ordering, lock};
use crate::observe::StreamTraffic;
use crate::placement::{Placement, ReceivePlacement, naming, tensor_of};
use crate::schema::Streams;

/// Items and bytes, counted from the beginning of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) items: u64,
    pub(crate) bytes: u64,
}

/// How errors name the tensors of a message of items.
pub(super) const ITEMS: &str = "the stream's items";

/// What a sender may send before its reader has granted anything.
pub(crate) const INITIAL_WINDOW: Tally = Tally {
    items: 64,
    bytes: 256 << 10,
};

/// How much a reader leaves unread, unless told otherwise.
pub(crate) const WINDOW: Tally = Tally {
    items: 1024,
    bytes: 4 << 20,
};

/// Both directions of one call, at one of its ends.
pub(crate) struct CallStreams {
    pub(crate) call: u64,
    /// Which streams the call's method has.
    pub(crate) kinds: Streams,
    /// Whether this end made the call.
    is_caller: bool,
    /// Incoming items.
    pub(crate) inbox: Option<Inbox>,
    /// Credit for outgoing items.
    pub(crate) credits: Option<Credits>,
    /// Where tensors of incoming items are to land, if somebody said so.
    receive_placement: Option<Arc<ReceivePlacement>>,
    /// Where tensors of outgoing items are to land.
    pub(crate) placement: Option<Placement>,
    /// The outgoing items go over one of these channels, if the caller said so.
    pub(crate) required: Option<Box<Required>>,
    /// Counts the traffic of both streams, if the caller asked.
    pub(crate) traffic: Option<StreamTraffic>,
    /// The stream is in the budget's queue for room.
    waits: AtomicBool,
    /// A call handled here has its answer.
    answered: AtomicBool,
    /// The call's outcome, kept while bytes of items are on their way.
    held: HeldOutcome,
}

impl CallStreams {
    /// One end's streams: `is_caller` at the caller, not at the handler. Incoming tensors land at `receive_placement`, outgoing
    /// ones at `placement`.
    pub(crate) fn new(
        call: u64,
        is_caller: bool,
        kinds: Streams,
        wants_stats: bool,
        receive_placement: Option<Arc<ReceivePlacement>>,
        placement: Option<Placement>,
        unread: &Arc<UnreadBudget>,
    ) -> Self {
        let (receives, sends) = match is_caller {
            true => (kinds.reply, kinds.argument),
            false => (kinds.argument, kinds.reply),
        };
        Self {
            call,
            kinds,
            is_caller,
            inbox: receives.then(|| Inbox::new(WINDOW, unread.clone())),
            credits: sends.then(Credits::new),
            receive_placement,
            placement,
            required: None,
            traffic: wants_stats.then(StreamTraffic::default),
            waits: AtomicBool::new(false),
            answered: AtomicBool::new(false),
            held: HeldOutcome::default(),
        }
    }

    /// Keeps the outcome until all items are here. Gives it back if they are.
    pub(crate) fn hold(&self, outcome: Outcome) -> Option<Outcome> {
        match (&self.inbox, &outcome) {
            (Some(inbox), Outcome::Value(_) | Outcome::ServiceError(_)) => {
                self.held.hold(outcome, inbox)
            }
            _ => Some(outcome),
        }
    }

    /// The outcome that is still held. For who ends the call in another way.
    pub(super) fn take_held(&self) -> Option<Outcome> {
        self.held.take()
    }

    /// Marks the call as answered. Returns `false` if it was already.
    pub(super) fn begin_answer(&self) -> bool {
        !self.answered.swap(true, Ordering::AcqRel)
    }

    /// Whether message number `message` holds items of this end that must go over named channels.
    pub(super) fn has_sent(&self, message: u64) -> bool {
        let required = self.required.as_ref();
        required.is_some_and(|required| required.has_sent(message))
    }

    /// The call has ended: nobody reads the items that this end sends.
    pub(super) fn no_more_sent(&self) {
        if let Some(credits) = &self.credits {
            credits.close();
        }
    }
}

/// The streams of the calls that one connection handles, by the number that the caller gave the call. The caller could choose numbers
/// that collide, so the hash has a secret.
#[derive(Default)]
pub(crate) struct StreamTable {
    calls: Mutex<HashMap<u64, CallContext>>,
}

impl StreamTable {
    /// A call with streams begins. `None` if another of its number is under way.
    pub(crate) fn open(self: &Arc<Self>, call: u64, context: &CallContext) -> Option<StreamGuard> {
        match lock(&self.calls).entry(call) {
            Entry::Occupied(_) => return None,
            Entry::Vacant(place) => _ = place.insert(context.clone()),
        }
        let table = self.clone();
        let owner = Owner::here();
        Some(StreamGuard { owner, table, call })
    }

    /// The call of that number, if it has streams.
    fn context(&self, call: u64) -> Option<CallContext> {
        lock(&self.calls).get(&call).cloned()
    }
}

/// The streams of a call that is under way. Dropped when it has ended.
pub(crate) struct StreamGuard {
    owner: Owner,
    table: Arc<StreamTable>,
    call: u64,
}

impl Drop for StreamGuard {
    fn drop(&mut self) {
        if self.owner.is_other_process() {
            return;
        }
        let context = lock(&self.table.calls).remove(&self.call);
        let Some(inner) = context.as_ref().map(|context| &context.inner) else {
            return;
        };
        // A call's context keeps its engine reachable.
        if let (Some(streams), Some(engine)) = (&inner.streams, inner.caller.engine()) {
            engine.close_streams(streams);
        }
    }
}

/// The size of a message, as both ends count it.
pub(crate) fn size_of(message: &Message) -> u64 {
    let payloads = message.payloads.iter();
    let payloads = payloads.map(|part| part.metadata.len() + part.as_bytes().len());
    let tensors = message.tensors.iter();
    let tensors = tensors.map(|part| part.metadata.len() + part.tensor.byte_len());
    (message.metadata.len() + payloads.sum::<usize>() + tensors.sum::<usize>()) as u64
}

impl super::Engine {
    /// The next items of a call, as [`Inbox::take`]. Reads a held message now if the reader waits for it.
    pub(crate) fn take_items(&self, streams: &Arc<CallStreams>, waker: Option<&Waker>) -> Received {
        let Some(inbox) = &streams.inbox else {
            return Received::Finished;
        };
        loop {
            match inbox.take(waker) {
                Received::Held(message) => self.read_items(streams, *message),
                received => return received,
            }
        }
    }

    /// Sends a message of `items` items, as [`Engine::send`](super::Engine::send).
    pub(crate) fn send_items(
        &self,
        streams: &CallStreams,
        items: u8,
        encoded: Encoded,
    ) -> Result<(u64, u64), Error> {
        let count = encoded.tensors.len();
        let name = |tensor| Some(tensor_of(ITEMS, tensor, count));
        let required = streams.required.as_ref();
        let prepare = |outbound: &mut Outbound<'_>| {
            outbound.require(required.map(|required| required.channels.clone()));
            outbound.pace();
        };
        let sent = self.send(encoded, REPLY_HEADER, prepare, |message, bytes| {
            if let Some(required) = required {
                required.sent_as(message);
            }
            if let Some(traffic) = &streams.traffic {
                traffic.sent(items, bytes);
            }
        });
        sent.map_err(|error| naming(error, name))
    }

    /// The application has consumed a batch: grants its sender more, and reads messages that wait for room.
    pub(crate) fn consumed(&self, streams: &CallStreams, batch: &Batch) {
        let Some(inbox) = &streams.inbox else { return };
        if let Some(allowed) = inbox.consumed(batch) {
            self.send_credit(streams, allowed);
        }
        self.read_held();
    }

    /// Reads messages that wait for room, as long as there is some.
    fn read_held(&self) {
        // A message that cannot be read ends its stream, which gives room back and comes here again.
        self.unread.one_at_a_time(|| {
            while let Some((streams, message)) = self.unread.next() {
                self.read_items(&streams, *message);
            }
        });
    }

    /// Nobody reads the call's items any more. Items on their way are stopped.
    pub(crate) fn close_streams(&self, streams: &CallStreams) {
        streams.no_more_sent();
        self.close_inbox(streams);
        // Last: an outcome that comes from now on is not held.
        self.discard_outcome(streams.call, streams.take_held());
    }

    /// Closes the incoming direction alone.
    pub(crate) fn close_inbox(&self, streams: &CallStreams) {
        let Some(inbox) = &streams.inbox else { return };
        for message in inbox.close() {
            if self.calls.take_reading(message).is_some() {
                self.pipe
                    .stop(message, ResetCode::Cancelled, "the stream was dropped");
            }
        }
        self.read_held();
    }
}
