//! One open pipe: what everybody holds a handle on.
//!
//! Two locks. `shared` (the protocol's state, operations, lanes) is held for short sections without system calls. `io`
//! (the connection and its buffers) is held by whoever drives, and taken only by trying: who fails leaves a kick, which the
//! holder sees before or after it lets go (`driver/`). So nobody ever waits for somebody else's system call.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::budget::Budget;
use super::driver::{self, BusyPoll, Driven, Driver, Round, Seen, runtime, wake_all};
use super::io::Io;
use super::peer_limits::PeerLimits;
use super::shared::{Shared, Taken, Waiting};
use super::stats::Counters;
use crate::config::Timeouts;
use crate::device::Pool;
use crate::error::Error;
use crate::route::Routes;
use crate::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, lock};
use crate::sys::fork::Owner;

/// An operation that is awaited.
pub(super) type Waiter = driver::Waiter<Core>;

/// For ever, for a clock that cannot count that far.
const FAR: Duration = Duration::from_secs(1 << 32);

/// The number of this process's next pipe.
static NEXT_ID: AtomicU64 = AtomicU64::new(0);

pub(crate) struct Core {
    owner: Owner,
    pub(crate) id: u64,
    pub(crate) name: Arc<str>,
    pub(crate) peer_name: Arc<str>,
    pub(crate) peer_limits: PeerLimits,
    pub(crate) route: Routes,
    pub(crate) pool: Pool,
    pub(crate) budget: Arc<Budget>,
    pub(crate) timeouts: Timeouts,
    pub(crate) queued_writes: usize,
    pub(crate) runtime: Handle,
    pub(crate) counters: Counters,
    pub(crate) shared: Mutex<Shared>,
    /// Who drives; the `io` lock is in it.
    pub(super) driver: Driver<Io>,
    /// There may be messages that are not handed over: `false` only where there is none.
    may_be_unwritten: AtomicBool,
    /// What waits for the handler, as `shared` knows it.
    deliveries: Arc<Waiting>,
}

/// What a [`Core`] is made of.
pub(crate) struct Parts {
    pub(crate) name: Arc<str>,
    pub(crate) peer_name: Arc<str>,
    pub(crate) route: Routes,
    pub(crate) pool: Pool,
    pub(crate) budget: Arc<Budget>,
    pub(crate) timeouts: Timeouts,
    pub(crate) queued_writes: usize,
    pub(crate) runtime: Handle,
    pub(crate) shared: Shared,
    pub(crate) connection: Box<dyn crate::transports::Connection>,
    /// What the peer has sent behind its handshake.
    pub(crate) leftover: Vec<u8>,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let polling = BusyPoll::new(parts.connection.can_be_hot(), parts.connection.looks_cost());
        Self {
            driver: Driver::new(polling, |waker| {
                Io::new(parts.connection, parts.leftover, waker)
            }),
            owner: Owner::here(),
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: parts.name,
            peer_name: parts.peer_name,
            peer_limits: PeerLimits::new(parts.shared.state.peer_limits()),
            route: parts.route,
            pool: parts.pool,
            budget: parts.budget,
            timeouts: parts.timeouts,
            queued_writes: parts.queued_writes,
            runtime: parts.runtime,
            counters: Counters::default(),
            deliveries: parts.shared.deliveries.waiting().clone(),
            shared: Mutex::new(parts.shared),
            may_be_unwritten: AtomicBool::new(false),
        }
    }

    /// Whether this is a forked child's copy, which lets go of everything without a word: see [`Owner`].
    pub(super) fn is_inherited(&self) -> bool {
        self.owner.is_elsewhere()
    }

    /// Moves whatever can be moved without waiting. Never waits; calls the handler and wakes operations.
    pub(crate) fn drive(self: &Arc<Self>) {
        self.driver.drive(self);
    }

    /// Sends what there is to be said, and leaves what may have come in to whoever waits for it.
    pub(super) fn send_out(self: &Arc<Self>) {
        let sent = self.hold_io().is_some_and(|mut io| io.send_out(self));
        if !sent || self.driver.is_kicked() {
            self.drive();
        }
    }

    /// The connection, for a message that leaves at once: unless the handler writes it, and more of its calls follow, whose
    /// answers leave together.
    pub(super) fn hold_io(&self) -> Option<MutexGuard<'_, Io>> {
        if self.answers_more() {
            return None;
        }
        self.driver.hold()
    }

    /// Messages that are not handed over. Most often there is none, and no lock is needed to see it.
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

    /// A message waits. Said under the lock of `shared`.
    pub(super) fn has_unwritten(&self) {
        self.may_be_unwritten.store(true, Ordering::Release);
    }

    /// Whether the handler is at work here, and called again when it is done.
    pub(super) fn answers_more(&self) -> bool {
        self.deliveries.count() > 0 && self.is_handling()
    }

    /// The handler has accepted a message, of which nothing else is to be said: see [`driver::DeliveryLock::accept`].
    pub(super) fn accept_later(&self, id: u64) -> bool {
        self.driver.delivery.accept(id)
    }

    /// Whether the handler is at work here.
    pub(super) fn is_handling(&self) -> bool {
        self.driver.delivery.is_held_here()
    }

    /// For how many messages I/O pauses, so that they can be delivered. While another thread is at it already (a handler
    /// that takes long), it goes on, as far as [`Core::has_too_many_deliveries`] lets it.
    pub(super) fn pauses_for(&self) -> usize {
        match self.deliveries.count() {
            0 => 0,
            _ if self.driver.delivery.is_held() => 0,
            deliveries => deliveries,
        }
    }

    /// Whether so much waits for the handler that no more is read. Whoever gives it the rest wakes somebody to go on.
    pub(super) fn has_too_many_deliveries(&self) -> bool {
        let too_many = self.deliveries.is_too_much();
        if too_many {
            // It is this side that does not listen.
            lock(&self.shared).state.heard(Instant::now());
        }
        too_many
    }

    /// Whether the background task calls the handler, since this thread cannot be within the runtime. Where the task is gone,
    /// nobody else would.
    fn leaves_deliveries(&self) -> bool {
        let waits = self.deliveries.count() > 0 && self.driver.listens();
        waits && !runtime::is_available() && self.driver.wakers.has_background()
    }

    /// Calls the handler for what has arrived.
    fn call_handler(self: &Arc<Self>) {
        if self.leaves_deliveries() {
            // Also if it drives just now.
            self.driver.kick();
            return self.driver.wakers.wake_background();
        }
        let enters = self.driver.listens() && runtime::is_available();
        let given_so_far = Cell::new(0);
        let mut next = Taken::new();
        let give = || {
            // Not held during the calls, which use the pipe.
            let (handler, goes_on, answers) = {
                let mut shared = lock(&self.shared);
                let were_too_many = self.deliveries.is_too_much();
                let finish = |id| shared.state.take_whole(id);
                let answers =
                    self.driver.delivery.finish_accepted(finish) && shared.state.has_control();
                let handler = shared.next_deliveries(&mut next);
                let goes_on = were_too_many && !self.deliveries.is_too_much();
                (handler, goes_on, answers)
            };
            if goes_on {
                self.driver.wakers.notify();
            }
            if answers {
                self.send_out();
            }
            let Some(handler) = handler else {
                return false;
            };
            // It spawns, sleeps and watches on the pipe's runtime, whoever drives.
            let _runtime = enters.then(|| self.runtime.enter());
            given_so_far.set(given_so_far.get() + next.len() as u32);
            let mut left = next.len();
            for delivery in next.drain(..) {
                left -= 1;
                self.deliveries.set_taken(left);
                let give = || delivery.give(self, &*handler);
                // Whoever drives is not whoever wrote the handler.
                if let Err(panic) = catch_unwind(AssertUnwindSafe(give)) {
                    self.handler_panicked(&*panic);
                }
            }
            true
        };
        let is_left = || self.deliveries.count() > 0;
        self.driver.delivery.deliver(give, is_left);
        self.driver.came(given_so_far.get());
    }

    /// Ends the pipe: every pending and later operation gets `error`, unless it has ended already.
    pub(crate) fn fail(self: &Arc<Self>, error: Error) {
        let mut wakes = Vec::new();
        let error = self.ending(error);
        lock(&self.shared).end(error, &mut wakes);
        wake_all(wakes);
        // Lets go of the connection.
        self.driver.wakers.wake_background();
        self.call_handler();
    }

    /// A message may be lost: the pipe ends.
    fn handler_panicked(self: &Arc<Self>, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("with no message");
        self.fail(Error::Ended {
            pipe: self.name.clone(),
            reason: format!("its handler panicked: {text}").into(),
        });
    }

    /// How a pipe ends that ends with `error`: so that everybody can tell that it has.
    pub(super) fn ending(&self, error: Error) -> Error {
        if error.ends_pipe() {
            return error;
        }
        Error::Ended {
            pipe: self.name.clone(),
            reason: error.to_string().into(),
        }
    }

    pub(crate) fn lost(&self, reason: impl Into<Arc<str>>) -> Error {
        Error::Lost {
            pipe: self.name.clone(),
            reason: reason.into(),
        }
    }

    /// When the background task has to act next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let shared = lock(&self.shared);
        let keep_alive = shared.state.next_timeout();
        [keep_alive, shared.linger_until]
            .into_iter()
            .flatten()
            .min()
    }

    pub(super) fn handle_timeout(self: &Arc<Self>, now: Instant) {
        let (silent, lingered, linger) = {
            let mut shared = lock(&self.shared);
            let silent = shared.state.handle_timeout(now).err();
            (
                silent,
                shared.linger_until.is_some_and(|until| now >= until),
                shared.linger,
            )
        };
        if let Some(silence) = silent {
            self.fail(Error::Silent {
                pipe: self.name.clone(),
                silence,
            });
        } else if lingered {
            self.fail(Error::Undelivered {
                pipe: self.name.clone(),
                linger,
            });
        }
    }

    /// Begins to close: what is written still leaves, for as long as `linger` at most.
    pub(crate) fn start_closing(self: &Arc<Self>, linger: Duration) {
        {
            let mut shared = lock(&self.shared);
            if shared.ended.is_some() || shared.linger_until.is_some() {
                return;
            }
            // An endless one is far enough away.
            let until = Instant::now().checked_add(linger);
            shared.linger_until = until.or_else(|| Instant::now().checked_add(FAR));
            shared.linger = linger;
            // A handler that closes has accepted these before.
            let finish = |id| shared.state.take_whole(id);
            self.driver.delivery.finish_accepted(finish);
            shared.start_closing();
        }
        // First, so that what is said now leaves before the background task sees that the peer has everything.
        self.drive();
        self.driver.wakers.wake_background();
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

    fn waiting(shared: &mut Shared) -> &mut Vec<driver::Waiting> {
        &mut shared.waiting
    }

    fn round(self: &Arc<Self>, io: &mut Io) -> Round {
        io.round(self)
    }

    fn deliver(self: &Arc<Self>) {
        self.call_handler();
    }

    fn poll(io: &mut Io, many: bool, sends: bool) -> Seen {
        io.look(many, sends)
    }

    fn can_wait(&self) -> bool {
        !lock(&self.shared).is_over() || self.leaves_deliveries()
    }

    fn much_has_moved(&self) -> bool {
        self.counters.much_has_moved()
    }

    fn is_inherited(&self) -> bool {
        self.is_inherited()
    }
}
