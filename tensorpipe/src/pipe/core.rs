//! One open pipe: what everybody holds a handle on.
//!
//! Two locks. `shared` (the protocol's state, operations, lanes) is held for short sections without system calls. `io`
//! (the connection and its buffers) is held by whoever drives, and taken only by trying: who fails leaves a kick, which the
//! holder sees before or after it lets go. So nobody ever waits for somebody else's system call.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use super::budget::Budget;
use super::io::Io;
use super::poller::Poller;
use super::shared::Shared;
use super::stats::Counters;
use super::waiter::wake_all;
use crate::config::Timeouts;
use crate::device::Pool;
use crate::error::Error;
use crate::route::Routes;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock, try_lock};

/// For ever, for a clock that cannot count that far.
const FAR: Duration = Duration::from_secs(1 << 32);

/// Rounds of work in one poll, before other tasks get their turn.
const ROUNDS: usize = 16;

pub(crate) struct Core {
    pub(crate) name: Arc<str>,
    pub(crate) peer_name: Arc<str>,
    pub(crate) route: Routes,
    pub(crate) pool: Pool,
    pub(crate) budget: Arc<Budget>,
    pub(crate) timeouts: Timeouts,
    pub(crate) queued_writes: usize,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) poller: Arc<Poller>,
    pub(crate) counters: Counters,
    pub(crate) shared: Mutex<Shared>,
    pub(super) io: Mutex<Io>,
    kick: AtomicBool,
    /// Somebody calls the handler: one at a time, so that messages keep their order.
    delivering: AtomicBool,
}

/// How a round of I/O ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Round {
    /// Nothing to do until the connection wakes the poller.
    Idle,
    /// Stopped early to let messages be delivered.
    More,
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
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) shared: Shared,
    pub(crate) connection: Box<dyn crate::transports::Connection>,
    /// What the peer has sent behind its handshake.
    pub(crate) leftover: Vec<u8>,
}

impl Core {
    pub(crate) fn new(parts: Parts) -> Self {
        let poller = Arc::new(Poller::default());
        Self {
            io: Mutex::new(Io::new(
                parts.connection,
                parts.leftover,
                poller.clone().into(),
            )),
            poller,
            name: parts.name,
            peer_name: parts.peer_name,
            route: parts.route,
            pool: parts.pool,
            budget: parts.budget,
            timeouts: parts.timeouts,
            queued_writes: parts.queued_writes,
            runtime: parts.runtime,
            counters: Counters::default(),
            shared: Mutex::new(parts.shared),
            kick: AtomicBool::new(false),
            delivering: AtomicBool::new(false),
        }
    }

    /// Moves whatever can be moved without waiting. Never waits; calls the handler and wakes operations.
    pub(crate) fn drive(self: &Arc<Self>) {
        self.kick.store(true, Ordering::SeqCst);
        if Turn::is_here(self) {
            // The handler wrote: whoever called it drives next, and all of its answers leave together.
            return;
        }
        self.poller.driving();
        for _ in 0..ROUNDS {
            let Some(mut io) = try_lock(&self.io) else {
                return;
            };
            let mut round = Round::Idle;
            while round == Round::Idle && self.kick.swap(false, Ordering::SeqCst) {
                round = io.round(self);
            }
            drop(io);
            self.deliver();
            if round == Round::More {
                self.kick.store(true, Ordering::SeqCst);
            }
            if !self.kick.load(Ordering::SeqCst) {
                return;
            }
        }
        // There is more, but it is others' turn.
        self.poller.notify();
    }

    /// For how many messages I/O pauses, so that they can be delivered. While another thread is at it already (a handler
    /// that takes long), it goes on: what may arrive meanwhile is bounded by the credit given.
    pub(super) fn pauses_for(&self, shared: &Shared) -> usize {
        if self.delivering.load(Ordering::SeqCst) {
            0
        } else {
            shared.deliveries()
        }
    }

    /// Calls the handler for what has arrived.
    fn deliver(self: &Arc<Self>) {
        loop {
            let Some(turn) = Turn::take(self) else {
                return;
            };
            loop {
                // Not in the loop's condition: the lock would be held during the call, which uses the pipe.
                let next = lock(&self.shared).next_delivery();
                let Some((handler, delivery)) = next else {
                    break;
                };
                // Whoever drives is not whoever wrote the handler.
                let given = catch_unwind(AssertUnwindSafe(|| delivery.give(self, &*handler)));
                if let Err(panic) = given {
                    self.handler_panicked(&*panic);
                }
            }
            drop(turn);
            // One that came in between the last look and the line above must not be left behind.
            if !lock(&self.shared).has_delivery() {
                return;
            }
        }
    }

    /// Ends the pipe: every pending and later operation gets `error`, unless it has ended already.
    pub(crate) fn fail(self: &Arc<Self>, error: Error) {
        let mut wakes = Vec::new();
        let error = self.ending(error);
        lock(&self.shared).end(error, &mut wakes);
        wake_all(wakes);
        // Lets go of the connection.
        self.poller.wake_background();
        self.deliver();
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
            shared.start_closing();
        }
        self.poller.wake_background();
        self.drive();
    }
}

thread_local! {
    /// The address of the pipe whose handler this thread is calling; 0 outside.
    static DELIVERING: Cell<usize> = const { Cell::new(0) };
}

/// The right to call the handler: one thread has it at a time. A handler may drive another pipe, whose handler is then
/// called inside this one's turn.
struct Turn<'a> {
    core: &'a Core,
    outer: usize,
}

impl<'a> Turn<'a> {
    /// `None` if somebody has it.
    fn take(core: &'a Arc<Core>) -> Option<Self> {
        if core.delivering.swap(true, Ordering::SeqCst) {
            return None;
        }
        let outer = DELIVERING.replace(Arc::as_ptr(core).addr());
        Some(Self { core, outer })
    }

    fn is_here(core: &Arc<Core>) -> bool {
        DELIVERING.get() == Arc::as_ptr(core).addr()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        DELIVERING.set(self.outer);
        self.core.delivering.store(false, Ordering::SeqCst);
    }
}
