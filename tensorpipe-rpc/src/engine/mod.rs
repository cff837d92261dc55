//! The call engine of one pipe: calls made from here, and calls handled here.
//!
//! The task that drives the pipe calls the engine through [`Handler`]. On that task the engine decodes headers, admits calls, polls
//! each handler once and completes calls. A short call needs no other task.
//!
//! - **Header**, at the front of the message's metadata: `crate::header` lists its fields. The body follows. A body becomes a
//!   payload when it is above 32 KiB, or longer than the peer takes as metadata.
//! - **Bind.** A client first sends its description of the service. The server answers with a number, or with the difference.
//! - **Admission**, on the header: draining, service and method known, calls of this connection, calls of all. A refused call's
//!   tensors are skipped.
//! - **Handlers.** A method first runs on a task of its own. While the running mean of its first polls is below 20 µs, the task that
//!   drives the pipe polls it once. It is spawned only if it is not ready then. Panics are caught in both places. No method runs within
//!   the making or dropping of a call, stream or reference, since the program may hold a lock that the method takes.
//! - **Deadlines** travel as time left. A client has one watcher for each connection, not a timer for each call. The server clamps
//!   them.
//! - **Cancel** is a RESET of the call's message. It also works long after the message was read, and needs no credit.
//! - **Shutdown** sends GOAWAY, lets calls under way end and their replies get across, then closes. Calls that arrive after
//!   GOAWAY fail with `ShuttingDown`; they did not run.
//!
//! The engine owns the pipe; the pipe's handler holds the engine weakly. The last client, call or connection that is dropped closes
//! the pipe in good order.

mod admission;
mod calling;
mod calls;
mod collected;
mod control;
mod deadlines;
mod envelope;
#[cfg(test)]
pub(crate) mod foreign_code;
mod oneshot;
#[cfg(test)]
mod races;
mod references;
mod releases;
mod replying;
mod running;
mod serving;
mod slot;
mod streams;
mod table;

pub(crate) use admission::MethodIndex;
pub(crate) use calling::{CallData, CallOptions, Deadline, Request};
pub use calls::DEFAULT_DEADLINE;
pub(crate) use calls::Outcome;
use envelope::outbound;
pub(crate) use envelope::{Body, ResendableCall, spill_large_body, to_body};
pub(crate) use replying::bind_request;
pub(crate) use running::Speed;
pub(crate) use serving::Serving;
pub(crate) use slot::CallSlot;
pub(crate) use streams::{Batch, CallStreams, Received, SendCredit, UnreadBudget};

use std::any::Any;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rustc_hash::FxHashMap;
use tensorpipe::ambient;
use tensorpipe::engine::{EnginePipe, Handler, Held, Outbound, When, leave_handlers};
use tensorpipe::fork::Owner;
use tensorpipe::{Error, Incoming, Message, MessageStats, Misuse, Pipe, ResetCode};

use crate::caught::ignore_panic;
use crate::codec::Encoded;
use crate::header::{FailureCode, Header, Kind};
use crate::limits::ServerLimits;
use crate::lock::lock;
use crate::observe::metrics::Meter;
use crate::observe::should_log;
use crate::remote::{Owned, Release};
use crate::schema::Schema;
use collected::Collected;
use table::{Calls, Reading};

/// See the module's documentation. Dropping the last handle closes the pipe in good order.
pub(crate) struct Engine {
    owner: Owner,
    pub(crate) pipe: Pipe,
    pub(crate) calls: Arc<Calls>,
    pub(crate) serving: Option<Serving>,
    /// How much more of streams may lie unread.
    pub(crate) unread: Arc<UnreadBudget>,
    /// The peer's numbers for the services that this end has bound, by the address of their schema.
    bound: Mutex<FxHashMap<usize, u32>>,
    /// The URL by which the peer was reached.
    pub(crate) peer_url: OnceLock<String>,
    /// The replicas of which the peer is one.
    pub(crate) replicas: OnceLock<Weak<dyn Any + Send + Sync>>,
    /// Values that the peer refers to.
    pub(crate) owned: Arc<Owned>,
    meter: Meter,
    later: Mutex<control::Deferred>,
    /// Releases that have not left: no more than the references that this end held.
    releases: Collected<Release>,
    me: Weak<Self>,
}

impl Engine {
    /// Whether this engine is a forked child's copy. The parent's calls go on, so the child sends nothing.
    pub(crate) fn is_inherited(&self) -> bool {
        self.owner.is_other_process()
    }

    /// Does what a program asks for at once: it makes or drops a call, a reference, a stream or a connection. It may hold a lock that its own
    /// handlers take, so none of them begins within `work`.
    pub(crate) fn at_once<T>(&self, work: impl FnOnce() -> T) -> T {
        match self.serving {
            Some(_) => leave_handlers(work),
            None => work(),
        }
    }

    /// Puts an engine on a pipe that has no handler.
    pub(crate) fn start(pipe: Pipe, serving: Option<Serving>) -> Result<Arc<Self>, Misuse> {
        let unread = match &serving {
            Some(serving) => serving.unread.clone(),
            None => unread_of(&pipe, &ServerLimits::default()),
        };
        let engine = Arc::new_cyclic(|me| Self {
            owner: Owner::here(),
            unread,
            me: me.clone(),
            later: Mutex::default(),
            releases: Collected::default(),
            calls: Arc::default(),
            serving,
            bound: Mutex::default(),
            peer_url: OnceLock::new(),
            replicas: OnceLock::new(),
            owned: Arc::default(),
            meter: Meter::opened(),
            pipe: pipe.clone(),
        });
        if let Some(serving) = &engine.serving {
            serving.caller.set_engine(&engine);
        }
        let receiver = Receiver::new(&engine);
        // If this fails, another engine handles the pipe and meters it.
        engine
            .at_once(|| pipe.set_handler(Arc::new(receiver)))
            .inspect_err(|_| engine.meter.close())?;
        Calls::watch_deadlines(&engine);
        Ok(engine)
    }

    /// The peer's number for a service, if this end has bound it before.
    pub(crate) fn bound(&self, schema: &'static Schema) -> Option<u32> {
        lock(&self.bound)
            .get(&std::ptr::from_ref(schema).addr())
            .copied()
    }

    pub(crate) fn set_bound(&self, schema: &'static Schema, service: u32) {
        lock(&self.bound).insert(std::ptr::from_ref(schema).addr(), service);
    }

    /// Sends `encoded`, whose metadata begins with a header of `header_len` bytes. `prepare` says what else is to be known of the message.
    /// `numbered` gets its number and length before anybody can answer it. Returns both.
    pub(crate) fn send(
        &self,
        mut encoded: Encoded,
        header_len: usize,
        prepare: impl FnOnce(&mut Outbound<'_>),
        numbered: impl FnOnce(u64, u64),
    ) -> Result<(u64, u64), Error> {
        spill_large_body(&mut encoded, header_len, &self.pipe.peer_limits());
        outbound(encoded, |outbound| {
            prepare(outbound);
            let len = outbound.byte_len();
            let numbered = |message| numbered(message, len);
            Ok((self.pipe.submit(outbound, When::Now, numbered)?.id, len))
        })
    }

    /// Begins to close the pipe. Data already written, perhaps a reply of many seconds, has `at_least` to get across, and never
    /// less than the pipe lingers.
    pub(crate) fn start_closing(&self, at_least: Duration) {
        let within = at_least.max(self.pipe.linger());
        // Goes on in the background.
        let _ = self.at_once(|| self.pipe.close_within(within).now_or_never());
    }
}

/// The budget for unread items of one pipe's streams.
fn unread_of(pipe: &Pipe, limits: &ServerLimits) -> Arc<UnreadBudget> {
    // A held message uses one of the pipe's message slots, so at most a quarter of them may be held.
    let most_held = pipe.window_messages() / 4;
    UnreadBudget::new(limits.unread_items, most_held as usize)
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        if let Some(serving) = &self.serving
            && serving.server.is_draining()
        {
            self.start_closing(serving.server.limits.drain);
        }
        // The watcher of deadlines sees that the connection is gone.
        self.calls.earlier.notify_one();
        self.meter.read(&self.pipe);
    }
}

/// The pipe's handler. It holds the engine weakly: the engine holds the pipe.
struct Receiver {
    engine: Weak<Engine>,
    serves: bool,
    pipe: Arc<str>,
    /// When its calls were nudged last.
    nudged: Mutex<Option<Instant>>,
}

impl Receiver {
    fn new(engine: &Arc<Engine>) -> Self {
        Self {
            engine: Arc::downgrade(engine),
            serves: engine.serving.is_some(),
            pipe: engine.pipe.name().into(),
            nudged: Mutex::default(),
        }
    }
}

impl AsRef<Pipe> for Engine {
    fn as_ref(&self) -> &Pipe {
        &self.pipe
    }
}

impl Handler for Receiver {
    /// A client needs no callbacks outside its calls: whoever awaits a call drives the pipe.
    fn listens(&self) -> bool {
        self.serves
    }

    /// Decides on the header alone.
    fn incoming(&self, incoming: Incoming) {
        // Without an engine the pipe is closing: the message is skipped.
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        let header = match Header::decode(incoming.metadata()) {
            Ok(header) => header,
            Err(what) => {
                if should_log(("refused", what, "")) {
                    ignore_panic(|| tracing::warn!(pipe = %self.pipe, "refused {what}"));
                }
                return incoming.refuse(what);
            }
        };
        match header.kind {
            Kind::Call | Kind::Bind | Kind::Fetch | Kind::Share | Kind::Claim | Kind::Tarpc(_)
                if engine.is_behind() =>
            {
                // A failure reply would add to the backlog. A refused message keeps its credit until the peer has read the refusal,
                // which bounds this.
                incoming.refuse_overloaded("too many replies wait to be read by their caller");
            }
            Kind::Call | Kind::Bind | Kind::Fetch | Kind::Share | Kind::Claim => {
                engine.call_arrives(header, incoming);
            }
            Kind::Value | Kind::ServiceError | Kind::Failure(_) => {
                engine.reply_arrives(header, incoming)
            }
            Kind::Items(direction, count) => {
                engine.items_arrive(header, direction, count, incoming)
            }
            Kind::Credit(direction) => engine.credit_arrives(header, direction, incoming),
            Kind::End | Kind::Stop => engine.end_arrives(header, header.kind, incoming),
            Kind::Release => engine.release_arrives(header, incoming),
            Kind::Draining => {
                let _ = incoming.accept();
                engine.calls.set_draining();
            }
            // Answer with a failure: the sender of a small message does not hear that it was refused.
            Kind::Tarpc(_) => {
                engine.reply_failure(header.call, FailureCode::NoService, "no tarpc here")
            }
        }
    }

    fn message(
        &self,
        id: u64,
        message: Result<Message, Error>,
        transfer: MessageStats,
        held: Held,
    ) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        match engine.calls.take_reading(id) {
            Some((header, Reading::Reply(slot))) => {
                engine.reply_complete(id, &header, &slot, message, transfer);
            }
            Some((header, Reading::Items(streams))) => {
                engine.items_complete(&streams, id, header, message, transfer);
            }
            Some((header, Reading::Credit(streams))) => {
                engine.credit_complete(&streams, &header, message);
            }
            // A waiting call keeps its part of the budget. Replies and items have other bounds.
            None => engine.call_complete(id, message, transfer, Some(held)),
        }
    }

    fn reset(&self, id: u64, code: ResetCode, reason: &str) {
        if let Some(engine) = self.engine.upgrade() {
            engine.call_abandoned(id);
            ignore_panic(|| {
                tracing::trace!(pipe = %self.pipe, id, %code, reason, "the peer abandons a message");
            });
        }
    }

    fn refused(&self, id: u64, code: ResetCode, reason: &str) {
        if let Some(engine) = self.engine.upgrade() {
            engine.calls.refused(id, code, reason);
        }
    }

    fn failed(&self, id: u64, error: &Error) {
        if let Some(engine) = self.engine.upgrade() {
            engine.unsent(id, error);
        }
    }

    fn going_away(&self, next: u64, _: &str) {
        if let Some(engine) = self.engine.upgrade() {
            engine.calls.going_away(next);
        }
    }

    /// The watcher of deadlines does not run. Calls that left driving to the pipe's background task drive for themselves.
    fn stalled(&self) {
        let Some(engine) = self.engine.upgrade() else {
            return;
        };
        engine.calls.nudge();
        engine.send_releases(When::Now);
        let before = lock(&self.nudged).replace(ambient::now());
        // Whose time was up by the nudge before has had since then to find an answer that is here.
        if let Some(by) = before {
            engine.fail_due(by);
        }
    }

    fn asked(&self) {
        if let Some(engine) = self.engine.upgrade() {
            engine.send_releases(When::Now);
        }
    }

    fn closed(&self, error: &Error) {
        if let Some(engine) = self.engine.upgrade() {
            engine.calls.closed(error);
            engine.owned.close();
            engine.abandon_all();
            engine.meter.closed(&engine.pipe);
            if let (Some(serving), false) = (&engine.serving, matches!(error, Error::Closed { .. }))
            {
                serving.server.lost(&engine.pipe.peer(), error);
            }
        }
    }
}
