//! Calls handled here: admission on the header, then the handler, then the reply.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rustc_hash::FxHashMap;
use tensorpipe::ambient;
use tensorpipe::engine::{EnginePipe, Held};
use tensorpipe::{Device, Error, Incoming, Message, MessageStats, Misuse, Pipe, ResetCode};

use super::admission::{Admitted, Counts, MethodIndex};
use super::running::{A_HANDLER, Running, Speed};
use super::streams::{StreamTable, UnreadBudget};
use super::{Body, Engine, to_body, unread_of};
use crate::caught::{catch_panic, drop_quietly, ignore_panic};
use crate::codec::{Arguments, REPLY_HEADER};
use crate::context::{CallContext, Caller, scoped};
use crate::error::no_place;
use crate::header::{FailureCode, Header, Kind, WAITS};
use crate::lock::lock;
use crate::observe::{instrument, metrics, of_failure};
use crate::placement::Placement;
use crate::remote::{UNRESOLVED, decoding, split_waits};
use crate::schema::Method;
use crate::server::{ConnectionQuota, ServerShared};
use crate::service::HandlerFuture;

/// How many replies may wait for a caller who does not take them, beyond the limit on calls: room for calls just finished.
const REPLIES_BEYOND: usize = 64;

/// The longest description of a service that is read, in bytes. It is decoded and compared by the thread that drives: others wait for it.
const BIND_MAX: u64 = 4 << 20;

/// Longer bodies, in bytes, are decoded on another thread: by this one other connections would wait for milliseconds.
const DECODED_HERE: usize = 1 << 20;

/// What one connection of a server handles.
pub(crate) struct Serving {
    pub(super) server: Arc<ServerShared>,
    /// The server's number for this connection.
    pub(super) id: u64,
    pub(super) caller: Arc<Caller>,
    table: Mutex<Table>,
    /// Held while a large body is decoded.
    decoding: Arc<tokio::sync::Mutex<()>>,
    pub(super) counts: Arc<Counts>,
    pub(super) streams: Arc<StreamTable>,
    /// The budget that it shares with the engine.
    pub(super) unread: Arc<UnreadBudget>,
}

/// Lists a call in `running`, by the number of its message, while it waits or runs on a task of its own. A cancel finds it there.
pub(super) struct Listed {
    engine: Arc<Engine>,
    pub(super) id: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some(serving) = &self.engine.serving
            && !self.engine.is_inherited()
        {
            // Not under the lock: the last handle of a call ends its span, and a subscriber hears of that.
            let removed = serving.table().running.remove(&self.id);
            drop(removed);
        }
    }
}

#[derive(Default)]
pub(super) struct Table {
    /// Admitted calls whose tensors are on their way, by message number. They keep the engine alive, even when its server is gone.
    /// Each leaves the table when it is complete, at its deadline, or when the pipe ends.
    pub(super) receiving: FxHashMap<u64, (Header, Admitted, Arc<Engine>)>,
    /// Calls that wait, or whose handlers run.
    running: FxHashMap<u64, CallContext>,
}

impl Serving {
    pub(crate) fn new(
        server: Arc<ServerShared>,
        id: u64,
        pipe: &Pipe,
        quota: Arc<ConnectionQuota>,
    ) -> Self {
        Self {
            unread: unread_of(pipe, &server.limits),
            counts: Arc::new(Counts {
                server: server.clone(),
                quota,
            }),
            server,
            id,
            caller: Arc::new(Caller::new(pipe)),
            table: Mutex::default(),
            decoding: Arc::default(),
            streams: Arc::default(),
        }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// A copy of the calls that run, so that they are told without the lock.
    fn running(&self) -> Vec<CallContext> {
        self.table().running.values().cloned().collect()
    }
}

impl Engine {
    /// Whether the peer has left so many replies unread that it gets no more.
    pub(super) fn is_behind(&self) -> bool {
        let serving = self.serving.as_ref();
        let calls = serving.map_or(0, |serving| serving.server.limits.calls_per_connection);
        let most = calls.saturating_add(REPLIES_BEYOND);
        let unwritten = self.pipe.unwritten();
        // Requests of this end do not count as replies: each call under way, and a message of the stream that goes with it.
        let has_too_many = || unwritten > most.saturating_add(2 * self.calls.under_way());
        unwritten >= self.pipe.queued_writes() || unwritten > most && has_too_many()
    }

    pub(super) fn call_arrives(self: &Arc<Self>, header: Header, incoming: Incoming) {
        let Some(serving) = &self.serving else {
            let text = "serves nothing: this is a client";
            return self.reply_failure(header.call, FailureCode::NoService, text);
        };
        if (self.pipe.peer_limits().metadata as usize) < REPLY_HEADER {
            return incoming.refuse(
                "the caller's `Limits::metadata` has no room for the header of an answer; raise it",
            );
        }
        let size = incoming.metadata().len() as u64 + incoming.byte_len();
        if header.kind == Kind::Bind && size > BIND_MAX {
            drop(incoming);
            let text = format!("a description of {size} bytes is longer than {BIND_MAX}");
            return self.reply_failure(header.call, FailureCode::BadArguments, text);
        }
        let id = incoming.id();
        serving.caller.record_peer(&self.pipe);
        match serving.admit(&header, incoming.metadata()) {
            Err((code, text)) => {
                metrics::refused(of_failure(code).0);
                serving.server.refused(serving.caller.peer(), code, &text);
                // Dropping the message tells the peer that the tensors are not wanted.
                drop(incoming);
                self.reply_failure(header.call, code, text);
            }
            Ok(mut admitted) => {
                if incoming.is_whole() {
                    let transfer = match &admitted.context.inner.handler_trace {
                        Some(_) => incoming.stats(),
                        None => MessageStats::default(),
                    };
                    if let Some(message) = incoming.accept() {
                        self.handle(id, &header, admitted, message, transfer, None);
                    }
                    return;
                }
                self.promise(&mut admitted);
                let deadline = admitted.context.deadline();
                let call = (header, admitted, self.clone());
                serving.table().receiving.insert(id, call);
                match incoming.accept() {
                    Some(message) => self.call_complete(id, message, MessageStats::default(), None),
                    // The call was given up between its admission and the read.
                    None if !serving.table().receiving.contains_key(&id) => {
                        self.pipe
                            .stop(id, ResetCode::Deadline, "its deadline passed");
                    }
                    None => self.calls.check_by(deadline),
                }
            }
        }
    }

    /// All of a call is here, or never will be.
    pub(super) fn call_complete(
        self: &Arc<Self>,
        id: u64,
        message: Result<Message, Error>,
        transfer: MessageStats,
        held: Option<Held>,
    ) {
        let Some(serving) = &self.serving else { return };
        let Some((header, mut admitted, _)) = serving.table().receiving.remove(&id) else {
            return;
        };
        admitted.begun = None;
        self.handle(id, &header, admitted, message, transfer, held);
    }

    /// `held`: the call's part of the receive budget.
    fn handle(
        self: &Arc<Self>,
        id: u64,
        header: &Header,
        admitted: Admitted,
        message: Result<Message, Error>,
        transfer: MessageStats,
        held: Option<Held>,
    ) {
        if let Some(handler_trace) = &admitted.context.inner.handler_trace
            && message.is_ok()
        {
            handler_trace.complete(transfer);
        }
        let body = match message.map(|message| to_body(message, header)) {
            // The caller gave it up, or the pipe ended: nobody waits for a reply.
            Err(Error::Reset { .. }) => return,
            Err(error @ Error::OutOfMemory { .. }) => {
                return self.fail_admitted(&admitted, FailureCode::Overloaded, error.to_string());
            }
            Err(error) => {
                let (code, text) = match no_place(&error) {
                    Some(misuse) => (FailureCode::NoPlace, self.words(&admitted, misuse)),
                    None => (FailureCode::BadArguments, error.to_string()),
                };
                return self.fail_admitted(&admitted, code, text);
            }
            Ok(None) => {
                let text = "the call's body is missing";
                return self.fail_admitted(&admitted, FailureCode::BadArguments, text);
            }
            Ok(Some(body)) => body,
        };
        match admitted.target {
            None => match header.kind {
                Kind::Fetch => self.fetch(id, admitted, &body),
                Kind::Share => self.share(&admitted, &body),
                Kind::Claim => self.claim(&admitted, &body),
                _ => self.bind(&admitted, body),
            },
            Some(_) if header.flags & WAITS != 0 => self.run_after(id, admitted, body, held),
            Some(_) => self.run(id, admitted, body, held),
        }
    }

    /// Says why an argument's tensor cannot be on its device, with the argument's name if it can be no other.
    fn words(&self, admitted: &Admitted, misuse: &Misuse) -> String {
        // The client's map may have named this device for other arguments. Its inverse came with the call, unless an attribute of the
        // result overrides it.
        let may_be_mapped = |device: &Device| match admitted.placement.as_deref() {
            None => false,
            Some(Placement::Each(pairs)) => pairs.iter().any(|(ours, _)| ours == device),
            Some(Placement::All(_)) => true,
        };
        let name = match misuse {
            Misuse::NoAllocator { device, .. } if !may_be_mapped(device) => self
                .method(admitted)
                .and_then(|method| method.places.name(*device)),
            _ => None,
        };
        match name {
            Some(name) => format!("{name} has no place: {misuse}"),
            None => misuse.to_string(),
        }
    }

    /// The method that is called.
    pub(super) fn method(&self, admitted: &Admitted) -> Option<&'static Method> {
        let serving = self.serving.as_ref()?;
        Some(serving.called(admitted.target?).1)
    }

    /// Runs a call that waits for others.
    fn run_after(
        self: &Arc<Self>,
        id: u64,
        admitted: Admitted,
        mut body: Body,
        held: Option<Held>,
    ) {
        let Some(mut calls) = split_waits(&mut body.metadata) else {
            let text = "which calls it waits for is cut short";
            return self.fail_admitted(&admitted, FailureCode::BadArguments, text);
        };
        calls.retain(|call| self.owned.is_pending(*call) && *call != admitted.call);
        if calls.is_empty() {
            return self.run(id, admitted, body, held);
        }
        // The body stays counted in the receive budget until those calls have ended.
        let held = self.hold_whole(&body, held);
        let held = match held.and_then(|mut held| held.wait().map(|()| held)) {
            Ok(held) => held,
            Err(error) => {
                return self.fail_admitted(&admitted, FailureCode::Overloaded, error.to_string());
            }
        };
        self.when_ended(id, admitted, calls, move |engine, mut admitted| {
            admitted.begun = None;
            engine.run(id, admitted, body, Some(held));
        });
    }

    /// Counts all of a call that waits, also what came in one piece, or in a lender's memory of which this is a copy. `held` is counted.
    fn hold_whole(&self, body: &Body, held: Option<Held>) -> Result<Held, Error> {
        let own = body.own_bytes();
        let Some(mut held) = held else {
            return self.pipe.hold(own);
        };
        match own.saturating_sub(held.bytes()) {
            0 => {}
            missing => held.grow(missing)?,
        }
        Ok(held)
    }

    /// Registers a call that is not answered before the next message comes: that may be a call that waits for its result.
    fn promise(&self, admitted: &mut Admitted) {
        if admitted.pending.is_none() && self.method(admitted).is_some_and(|method| method.promises)
        {
            admitted.pending = Some(self.owned.begin(admitted.call));
        }
    }

    /// Lists a call that waits, or runs on a task of its own, so that a cancel finds it, and a call that waits for its result.
    pub(super) fn list(self: &Arc<Self>, id: u64, admitted: &mut Admitted) {
        self.promise(admitted);
        if let (Some(serving), None) = (&self.serving, &admitted.listed) {
            let context = admitted.context.clone();
            serving.table().running.insert(id, context);
            let engine = self.clone();
            admitted.listed = Some(Listed { engine, id });
        }
    }

    fn run(self: &Arc<Self>, id: u64, mut admitted: Admitted, body: Body, held: Option<Held>) {
        // In a simulation all follows from its seed, which other threads do not know.
        if body.metadata.len() <= DECODED_HERE || ambient::is_virtual(self.pipe.runtime()) {
            return self.run_here(id, admitted, body, held, ());
        }
        let Some(serving) = &self.serving else { return };
        let held = match self.hold_whole(&body, held) {
            Ok(held) => Some(held),
            Err(error) => {
                return self.fail_admitted(&admitted, FailureCode::Overloaded, error.to_string());
            }
        };
        self.list(id, &mut admitted);
        admitted.begun = None;
        // One body of a connection at a time, so that a peer has one thread at most, and a server as many as there are cores.
        let (turn, threads) = (serving.decoding.clone(), serving.server.decoding.clone());
        let engine = self.clone();
        self.pipe.runtime().spawn(async move {
            let context = admitted.context.clone();
            let turns = async { (turn.lock_owned().await, threads.acquire_owned().await) };
            tokio::select! {
                biased;
                () = context.cancelled() => engine.late_or_given_up(&admitted),
                turns = turns => {
                    let decodes = engine.clone();
                    engine.pipe.spawn_blocking(move || {
                        decodes.run_here(id, admitted, body, held, turns);
                    });
                }
            }
        });
    }

    /// Ends a call that waits no more: it was cancelled, or its time is up.
    pub(super) fn late_or_given_up(&self, admitted: &Admitted) {
        match admitted.context.inner.cancel.is_set() {
            true => self.given_up(admitted),
            false => self.reply_deadline_exceeded(admitted),
        }
    }

    /// `turns` are given back once the arguments are decoded: the handler may block.
    fn run_here(
        self: &Arc<Self>,
        id: u64,
        admitted: Admitted,
        body: Body,
        held: Option<Held>,
        turns: impl Sized,
    ) {
        // Another call's handler may be driving the pipe here.
        let context = admitted.context.clone();
        context.within(|| self.run_within(id, admitted, body, held, turns));
    }

    fn run_within(
        self: &Arc<Self>,
        id: u64,
        admitted: Admitted,
        body: Body,
        held: Option<Held>,
        turns: impl Sized,
    ) {
        let (Some(serving), Some(target)) = (&self.serving, admitted.target) else {
            return;
        };
        if admitted.context.inner.cancel.is_set() {
            // Its stream broke while its tensors came, and it was answered then.
            return self.given_up(&admitted);
        }
        let MethodIndex { service, method } = target;
        let served = &serving.server.services[service];
        let body_refers = body.references;
        let arguments = Arguments::new(body.metadata, body.payloads, body.tensors).counting();
        let context = &admitted.context;
        let was_held = held.is_some();
        if was_held {
            context.inner.held.keep(held);
        }
        let speed = &served.speed[method];
        let make = || {
            let handler = served.service.call(method, arguments, context);
            match context.inner.handler_trace.is_some() {
                true => instrument(context.clone(), handler),
                false => handler,
            }
        };
        let made = match body_refers {
            false => catch_panic(make),
            true => {
                let (made, missed) = decoding(self.clone(), None, || catch_panic(make));
                if missed {
                    self.fail_admitted(&admitted, FailureCode::Unresolved, UNRESOLVED);
                    return drop_quietly(made.ok(), A_HANDLER);
                }
                made
            }
        };
        drop(turns);
        if was_held {
            // A batched handler has taken it out by now. For any other the count ends here: the handler owns the arguments.
            context.inner.held.keep(None);
        }
        match made {
            Ok(handler) => self.poll_handler(id, admitted, handler, speed),
            Err(panic) => self.reply_panic(&admitted, panic),
        }
    }

    /// Polls a handler once, if its first polls are short, and spawns it if it is not ready then.
    #[inline]
    pub(super) fn poll_handler(
        self: &Arc<Self>,
        id: u64,
        mut admitted: Admitted,
        handler: HandlerFuture,
        speed: &Arc<Speed>,
    ) {
        let mut handler = Some(handler);
        if speed.is_short() {
            let begun = admitted.begun.unwrap_or_else(ambient::now);
            let mut cx = Context::from_waker(Waker::noop());
            // Most handlers are ready at the first poll. A future that wraps the handler would cost one more allocation.
            let poll = || {
                let Some(running) = &mut handler else {
                    return Poll::Pending;
                };
                let polled = running.as_mut().poll(&mut cx);
                if polled.is_ready() {
                    drop_quietly(handler.take(), A_HANDLER);
                }
                polled
            };
            let polled = catch_panic(|| speed.watched.watch(poll));
            let ended = ambient::now();
            let took = ended - begun;
            speed.measured(took);
            speed.watched.took(took);
            // A reply is large, so it is not moved out of `polled`.
            if !matches!(polled, Ok(Poll::Pending)) {
                drop_quietly(handler, A_HANDLER);
                let late = admitted.context.deadline().is_some_and(|at| at <= ended);
                return match polled {
                    Ok(Poll::Pending) => {}
                    Ok(Poll::Ready(_)) if late => self.reply_deadline_exceeded(&admitted),
                    Ok(Poll::Ready(reply)) => self.reply(&admitted, reply),
                    Err(panic) => self.reply_panic(&admitted, panic),
                };
            }
        }
        let Some(handler) = handler else { return };
        self.list(id, &mut admitted);
        let handler = scoped(admitted.context.clone(), handler);
        let running = Running::new(self.clone(), admitted, handler, speed.clone());
        self.pipe.runtime().spawn(running);
    }

    /// Gives up calls whose time passed before all their bytes were here. Returns when the next one is due.
    pub(super) fn give_up_receiving(&self, now: Instant) -> Option<Instant> {
        let serving = self.serving.as_ref()?;
        let is_due = |admitted: &Admitted| admitted.context.deadline().is_some_and(|at| at <= now);
        let (due, next): (Vec<_>, _) = {
            let mut table = serving.table();
            let due = table.receiving.extract_if(|_, (_, call, _)| is_due(call));
            let due = due.collect();
            let left = table.receiving.values();
            let deadlines = left.filter_map(|(_, call, _)| call.context.deadline());
            (due, deadlines.min())
        };
        for (id, (_, admitted, _)) in due {
            ignore_panic(move || {
                self.pipe
                    .stop(id, ResetCode::Deadline, "its deadline passed");
                self.reply_deadline_exceeded(&admitted);
            });
        }
        next
    }

    /// Whether no further calls are handled here.
    pub(crate) fn stops_serving(&self) -> bool {
        let serving = self.serving.as_ref();
        serving.is_some_and(|serving| serving.server.is_draining())
    }

    /// No further calls come: wakes handlers that wait for more calls, such as batches.
    pub(crate) fn tell_running(&self) {
        let Some(serving) = &self.serving else { return };
        for context in serving.running() {
            context.inner.cancel.wake();
        }
    }

    /// The caller no longer waits for the answer to message number `id`.
    pub(super) fn call_abandoned(&self, id: u64) {
        let Some(serving) = &self.serving else { return };
        let (receiving, running) = {
            let mut table = serving.table();
            (table.receiving.remove(&id), table.running.get(&id).cloned())
        };
        if let Some(context) = running {
            context.inner.cancel.set();
        }
        // What a call lets go of is somebody else's code.
        ignore_panic(|| drop(receiving));
    }

    /// The pipe has ended.
    pub(super) fn abandon_all(&self) {
        let Some(serving) = &self.serving else { return };
        let receiving = std::mem::take(&mut serving.table().receiving);
        for context in serving.running() {
            context.inner.cancel.set();
        }
        serving.server.forget(serving.id);
        for call in receiving.into_values() {
            ignore_panic(|| drop(call));
        }
    }
}
