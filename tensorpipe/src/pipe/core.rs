//! One open pipe: the object behind every handle.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::budget::{Announcements, Budget};
use super::credit_ahead::Credit;
use super::driver::tuning::MESSAGES_OF_SLICE;
use super::driver::{self, BusyPoll, Driven, Driver, Readiness, Rest, Round, runtime, wake_all};
use super::io::{Common, Io};
use super::shared::{Delivery, PipePermit, Shared, SharedParts, ShutdownState};
use super::stats::Counters;
use crate::address::SettledPeer;
use crate::ambient;
use crate::config::Timeouts;
use crate::device::{Allocators, Buffer, Destination};
use crate::error::{Error, Misuse};
use crate::proto::PipeState;
use crate::proto::wire::hello::WireLimits;
use crate::route::{ChannelChoice, Routes};
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, lock, try_lock};
use crate::sys::fork::Owner;

/// An operation that is awaited.
pub(super) type Waiter = driver::Waiter<Arc<Core>>;

/// Stands in for an endless linger, which the clock cannot represent.
const FAR: Duration = Duration::from_secs(1 << 32);

/// For so many deliveries memory is kept between calls of the handler.
const NEXT_KEPT: usize = 64;

/// The number of this process's next pipe.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Core {
    owner: Owner,
    pub(crate) id: u64,
    common: Common,
    pub(crate) peer_name: Arc<str>,
    pub(super) peer_limits: WireLimits,
    pub(crate) route: Routes,
    /// Who is at the other end, once that is certain.
    pub(crate) settled: SettledPeer,
    pub(crate) allocators: Allocators,
    pub(crate) budget: Arc<Budget>,
    pub(crate) timeouts: Timeouts,
    pub(crate) queued_writes: usize,
    pub(crate) runtime: Handle,
    /// Locked while the handler is called.
    calls: Mutex<Calls>,
    /// The handler, for whoever tells it of a stalled runtime: what blocks that may be a call of it.
    told: Mutex<Option<Arc<dyn Deliver>>>,
    /// A hint that needs no lock: `false` means that no message is unwritten.
    may_be_unwritten: AtomicBool,
    /// The engine has asked for [`Deliver::asked`].
    asked: AtomicBool,
}

/// The calls of the handler.
#[derive(Default)]
struct Calls {
    /// What messages are pushed to: from `push_to` until it has been told that the pipe ended.
    handler: Option<Arc<dyn Deliver>>,
    /// Taken off the queue. Empty between calls, with memory for the queue to reuse.
    next: VecDeque<Delivery>,
}

/// Receives what the pipe pushes; implemented for every `Handler`.
pub(super) trait Deliver: Send + Sync {
    fn give(&self, core: &Arc<Core>, delivery: Delivery);

    /// As [`Handler::stalled`](super::engine::Handler::stalled).
    fn stalled(&self);

    /// As [`Handler::asked`](super::engine::Handler::asked).
    fn asked(&self);
}

/// What a [`Core`] is made of.
pub(crate) struct CoreParts {
    pub(crate) name: Arc<str>,
    pub(crate) peer_name: Arc<str>,
    pub(crate) route: Routes,
    pub(crate) settled: SettledPeer,
    pub(crate) state: PipeState<Buffer, Destination>,
    pub(crate) choice: ChannelChoice,
    pub(crate) allocators: Allocators,
    pub(crate) budget: Arc<Budget>,
    pub(crate) credit: Credit,
    pub(crate) timeouts: Timeouts,
    pub(crate) queued_writes: usize,
    pub(crate) runtime: Handle,
    /// The pipe's permit from its listener.
    pub(crate) permit: Option<PipePermit>,
    pub(crate) connection: Box<dyn crate::transports::Connection>,
    /// Bytes that came behind the peer's handshake.
    pub(crate) leftover: Vec<u8>,
}

impl Core {
    pub(crate) fn new(parts: CoreParts) -> Self {
        let polling = BusyPoll::new(
            parts.connection.can_poll(),
            parts.connection.poll_is_syscall(),
        );
        let driver = Driver::new(polling, |waker| {
            Io::new(parts.connection, parts.leftover, waker)
        });
        let peer_limits = *parts.state.peer_limits();
        let allocators = parts.allocators.clone();
        let shared = Shared::new(SharedParts {
            name: parts.name.clone(),
            wakers: driver.wakers.clone(),
            state: parts.state,
            allocators: parts.allocators,
            announcements: Announcements::new(&parts.budget),
            credit: parts.credit,
            runtime: parts.runtime.clone(),
            permit: parts.permit,
            choice: parts.choice,
        });
        Self {
            owner: Owner::here(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            common: Common {
                name: parts.name,
                deliveries: shared.deliveries.waiting().clone(),
                shared: Mutex::new(shared),
                driver,
                counters: Counters::default(),
            },
            peer_name: parts.peer_name,
            peer_limits,
            route: parts.route,
            settled: parts.settled,
            allocators,
            budget: parts.budget,
            timeouts: parts.timeouts,
            queued_writes: parts.queued_writes,
            runtime: parts.runtime,
            calls: Mutex::default(),
            told: Mutex::default(),
            may_be_unwritten: AtomicBool::new(false),
            asked: AtomicBool::new(false),
        }
    }

    /// Whether this is a forked child's copy, which is dropped without sending anything: see [`Owner`].
    pub(super) fn is_inherited(&self) -> bool {
        self.owner.is_other_process()
    }

    /// Runs `change` on the shared state under the lock; then wakes the tasks that it collected, without the lock.
    pub(super) fn update<T>(&self, change: impl FnOnce(&mut Shared, &mut Vec<Waker>) -> T) -> T {
        let mut wakes = Vec::new();
        let changed = change(&mut lock(&self.shared), &mut wakes);
        wake_all(wakes);
        changed
    }

    /// Moves whatever can be moved without waiting. Never waits; calls the handler and wakes operations.
    pub(crate) fn drive(self: &Arc<Self>) {
        self.driver.drive(self);
    }

    /// Sends pending output. Input that may have come is left to the task that waits for it.
    pub(super) fn send_out(self: &Arc<Self>) {
        let sent = self.hold_io().is_some_and(|mut io| io.send_out(self));
        if !sent || self.driver.is_kicked() {
            self.drive();
        }
    }

    /// The connection, to send a message at once. `None` while another thread has it, or while the handler writes and more of its calls are
    /// queued: their answers then leave together.
    pub(super) fn hold_io(&self) -> Option<MutexGuard<'_, Io>> {
        if self.answers_more() {
            return None;
        }
        self.driver.hold()
    }

    /// The number of unwritten messages. It is mostly zero, and that is seen without the lock.
    pub(super) fn unwritten(&self) -> usize {
        if !self.may_be_unwritten.load(Ordering::Acquire) {
            return 0;
        }
        let shared = lock(&self.shared);
        let unwritten = shared.state.unwritten();
        self.may_be_unwritten
            .store(unwritten > 0, Ordering::Release);
        unwritten
    }

    /// Notes that a message waits to be written. The caller holds the lock of `shared`.
    pub(super) fn mark_unwritten(&self) {
        self.may_be_unwritten.store(true, Ordering::Release);
    }

    /// Whether this thread is inside a call of the handler, and more calls of it are queued.
    pub(super) fn answers_more(&self) -> bool {
        self.deliveries.count() > 0 && self.is_handling()
    }

    /// Whether this thread is inside a call of the handler.
    pub(super) fn is_handling(&self) -> bool {
        self.driver.delivery.is_held_here()
    }

    /// Whether the handler is to be called.
    fn has_calls(&self) -> bool {
        self.deliveries.count() > 0 || self.asked.load(Ordering::SeqCst)
    }

    /// Whether deliveries are left to the background task, because this thread cannot enter a runtime any more, or [leaves
    /// them](runtime::leave_handlers). Without that task nobody else would deliver, so then they are not.
    fn leaves_deliveries(&self) -> bool {
        let waits = self.has_calls() && self.driver.listens();
        waits && !runtime::calls_handlers() && self.driver.wakers.has_background()
    }

    /// Calls the handler for what has arrived, a slice of it at most.
    fn call_handler(self: &Arc<Self>) -> Rest {
        if !self.has_calls() {
            self.driver.record_batch(0);
            return Rest::None;
        }
        if self.leaves_deliveries() {
            // The kick is for a background task that is driving just now.
            self.driver.kick();
            self.driver.wakers.wake_background();
            return Rest::Left;
        }
        let at_home = runtime::is_home(self.id);
        let enters = !at_home && self.driver.listens() && runtime::is_available();
        let given_so_far = Cell::new(0);
        let mut gone = None;
        let give = || {
            let Calls { handler, next } = &mut *lock(&self.calls);
            // What a panic has left.
            next.clear();
            // This lock is not held during the handler's calls, which use the pipe.
            let goes_on = {
                let mut shared = lock(&self.shared);
                let were_too_many = self.deliveries.is_too_much();
                shared.deliveries.take(next);
                were_too_many && !self.deliveries.is_too_much()
            };
            if goes_on {
                self.driver.wakers.notify();
            }
            let asked =
                self.asked.load(Ordering::Relaxed) && self.asked.swap(false, Ordering::SeqCst);
            if next.is_empty() && !asked {
                return false;
            }
            // Whichever thread drives, the handler spawns tasks and timers on the pipe's runtime.
            let _runtime = enters.then(|| (self.runtime.enter(), runtime::RuntimeGuard::of(None)));
            given_so_far.set(given_so_far.get() + next.len() as u32 + u32::from(asked));
            self.counters.count_deliveries(next.len());
            while let Some(delivery) = next.pop_front() {
                self.deliveries.set_taken(next.len());
                let is_last = matches!(delivery, Delivery::Closed(_));
                if let Some(called) = handler {
                    self.catch(|| called.give(self, delivery));
                }
                if is_last {
                    // The handler may own this pipe, so it is dropped after the locks are released.
                    gone = handler.take().zip(lock(&self.told).take());
                }
            }
            if let (Some(called), true) = (handler, asked) {
                self.catch(|| called.asked());
            }
            if next.capacity() > NEXT_KEPT {
                *next = VecDeque::new();
            }
            true
        };
        let has_enough = || given_so_far.get() >= MESSAGES_OF_SLICE;
        let rest = self
            .driver
            .delivery
            .deliver(give, || self.has_calls(), has_enough);
        self.driver.record_batch(given_so_far.get());
        drop(gone);
        rest
    }

    /// Tells those who wait for the pipe elsewhere that its runtime does not run.
    pub(super) fn tell_stalled(self: &Arc<Self>) {
        self.driver.poll_anyway();
        self.close_in_time();
        self.driver.wakers.wake_waiting();
        // The runtime may have a thread that sleeps: the task that was asked may be what blocks another one.
        self.driver.wakers.wake_background();
        let handler = lock(&self.told).clone();
        if let Some(handler) = handler {
            handler.stalled();
        }
    }

    /// Has the handler called, like for a message that has come.
    pub(super) fn ask(&self) {
        self.asked.swap(true, Ordering::SeqCst);
        // A task that polls sees the kick.
        self.driver.kick();
        self.driver.wakers.wake_background();
    }

    /// From now on messages are pushed to `handler`, queued ones first. `listens`: it expects messages at any time.
    pub(super) fn push_to(
        self: &Arc<Self>,
        handler: Arc<dyn Deliver>,
        listens: bool,
    ) -> Result<(), Misuse> {
        // If it is locked, a handler is being called right now.
        let calls = try_lock(&self.calls).filter(|_| !lock(&self.shared).has_handler);
        let Some(mut calls) = calls else {
            return Err(Misuse::Other(format!(
                "pipe {} has a handler already",
                self.name
            )));
        };
        calls.handler = Some(handler.clone());
        *lock(&self.told) = Some(handler);
        if listens {
            self.driver.listen();
        }
        lock(&self.shared).start_pushing();
        drop(calls);
        self.drive();
        Ok(())
    }

    /// Ends the pipe: every pending and later operation gets `error`, unless it has ended already.
    pub(crate) fn fail(self: &Arc<Self>, error: Error) {
        let error = self.ending(error);
        self.update(|shared, wakes| shared.end(error, wakes));
        // Lets go of the connection.
        self.driver.kick();
        self.driver.wakers.wake_background();
        // No more come behind the end.
        while self.call_handler() == Rest::ForLater {}
    }

    /// Calls the handler. A panic of it must not hit the driving task, which may be somebody else's code.
    fn catch(self: &Arc<Self>, call: impl FnOnce()) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(call)) {
            self.handler_panicked(&*panic);
        }
    }

    /// The message given to the handler may be lost, so the pipe ends.
    fn handler_panicked(self: &Arc<Self>, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("with no message");
        self.fail(Error::Ended {
            pipe: self.name.clone(),
            reason: format!("its handler panicked: {text}").into(),
        });
    }

    pub(super) fn handle_timeout(self: &Arc<Self>, now: Instant) {
        let ended = {
            let mut shared = lock(&self.shared);
            let silent = shared.state.handle_timeout(now).err();
            shared.tidy_ahead(now);
            let pipe = self.name.clone();
            let silent = silent.map(|silence| Error::Silent { pipe, silence });
            silent.or_else(|| shared.lingered(now))
        };
        if let Some(error) = ended {
            self.fail(error);
        }
    }

    /// Keeps the bounds of a close while the pipe's runtime does not run. Its silence is not judged: that runtime's sockets do not tell
    /// what has come.
    fn close_in_time(self: &Arc<Self>) {
        let now = ambient::now();
        if lock(&self.shared).lingered(now).is_some() {
            // What has come by now counts before that is judged. Once the pipe has ended, this lets go of its connection.
            self.driver.drive_now(self);
        }
        let (ended, shutdown) = {
            let shared = lock(&self.shared);
            let lingered = || shared.lingered(now).map(|_| self.unattended(shared.linger));
            let ended = shared.closed_in_full().or_else(lingered);
            (ended.filter(|_| !shared.is_over()), shared.shutdown)
        };
        if let Some(error) = ended {
            self.fail(error);
            self.drive();
        }
        if matches!(shutdown, ShutdownState::Until(until) if until <= now) {
            // Drops the connection.
            self.drive();
            self.update(Shared::shutdown_done);
        }
    }

    /// How a pipe ends whose close took too long while its runtime did not run. That may be the reason, or the peer.
    fn unattended(&self, linger: Duration) -> Error {
        Error::Ended {
            pipe: self.name.clone(),
            reason: format!(
                "within {linger:?} of its closing the peer did not confirm all that was written, and the runtime that it was made on does not run: something blocks its thread, or nobody runs it"
            )
            .into(),
        }
    }

    /// Begins to close: what is written still leaves, for as long as `linger` at most. A pipe that closes already keeps its bound.
    pub(crate) fn start_closing(self: &Arc<Self>, linger: Duration) {
        // A goodbye of a forked child would be the parent's to its peer.
        if self.is_inherited() {
            return;
        }
        {
            let mut shared = lock(&self.shared);
            if shared.ended.is_some() || shared.linger_until.is_some() {
                return;
            }
            shared.linger_until = after(linger);
            shared.linger = linger;
            shared.start_closing();
        }
        self.driver.closes();
        // Drive before the wake: the closing frames must leave before the background task finds that the peer has everything.
        self.driver.drive_now(self);
        self.driver.wakers.wake_background();
    }

    /// As [`Core::start_closing`]. If this bound is earlier than that of a pipe that closes already, it counts.
    pub(crate) fn close_within(self: &Arc<Self>, linger: Duration) {
        self.start_closing(linger);
        if self.is_inherited() {
            return;
        }
        {
            let mut shared = lock(&self.shared);
            let until = after(linger);
            if shared.linger_until <= until {
                return;
            }
            shared.linger_until = until;
            shared.linger = linger;
        }
        self.driver.wakers.wake_background();
    }
}

/// When a `linger` that begins now is over.
fn after(linger: Duration) -> Option<Instant> {
    let now = ambient::now();
    // An endless one overflows the clock.
    now.checked_add(linger).or_else(|| now.checked_add(FAR))
}

impl Deref for Core {
    type Target = Common;

    fn deref(&self) -> &Common {
        &self.common
    }
}

impl Driven for Core {
    type Work = Io;
    type Shared = Shared;

    fn driver(&self) -> &Driver<Io> {
        &self.driver
    }

    fn shared(&self) -> &Mutex<Shared> {
        &self.shared
    }

    fn waiting(shared: &mut Shared) -> &mut driver::Waiting {
        &mut shared.waiting
    }

    fn round(self: &Arc<Self>, io: &mut Io) -> Round {
        io.round(self)
    }

    fn deliver(self: &Arc<Self>) -> Rest {
        self.call_handler()
    }

    fn poll(io: &mut Io, many: bool, sends: bool) -> Readiness {
        io.poll(many, sends)
    }

    fn can_wait(&self) -> bool {
        !lock(&self.shared).is_over() || self.leaves_deliveries()
    }

    fn is_slice_over(&self) -> bool {
        self.counters.is_slice_over()
    }

    fn is_inherited(&self) -> bool {
        self.is_inherited()
    }
}
