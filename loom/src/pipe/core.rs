//! A minimal pipe around the real driver and dispatcher. Its loop follows `tensorpipe/src/pipe/core.rs`.

use std::cell::Cell;
use std::task::Waker;

use super::dispatch::{Pushed, Submitted, When, dispatch, dispatch_queued};
use super::driver::runtime;
use super::driver::{
    BusyPoll, Driven, Driver, Interest, Readiness, Rest, Round, Waiting, take_waiting,
};
use super::io::{Io, Line};
use super::shared::Shared;
use crate::sync::{Arc, AtomicU32, AtomicUsize, Mutex, Ordering, lock};

pub(super) struct Core {
    pub(super) shared: Mutex<Shared>,
    pub(super) driver: Driver<Io>,
    /// Whether the connection can be busy-polled.
    able: bool,
    line: Arc<Line>,
    /// How many deliveries wait for the handler.
    deliveries: AtomicUsize,
    /// Messages written by way of a round of driving, and how many of them have left.
    written: AtomicU32,
    sent: AtomicU32,
    /// Messages sent directly. Access is no step of a model: it is read only when no other thread runs.
    short: std::sync::atomic::AtomicU32,
    /// Whether a round ends after each message, as if it were time to yield.
    has_enough: bool,
    /// Reading pauses while this many deliveries wait for the handler.
    too_many: usize,
    /// After so many messages a thread leaves further ones to a task that it wakes.
    enough: u32,
    /// Called with each message.
    handler: Option<fn(&Arc<Self>, u32)>,
    /// How often the handler was called. Like `short`, no step of a model.
    delivered: std::sync::atomic::AtomicU32,
}

/// A message, of two bytes.
const MESSAGE: &[u8] = b"ab";

impl Core {
    /// A pipe whose connection always asks to be woken.
    pub(super) fn new(handler: Option<fn(&Arc<Self>, u32)>) -> Self {
        Self::with(false, usize::MAX, handler)
    }

    /// A pipe whose connection can be busy-polled.
    pub(super) fn that_can_be_polled(handler: Option<fn(&Arc<Self>, u32)>) -> Self {
        Self::with(true, usize::MAX, handler)
    }

    /// A pipe whose connection takes one byte in each write.
    pub(super) fn that_sends_in_part() -> Self {
        Self::with(false, 1, None)
    }

    /// A pipe that handles at most one message in a slice.
    pub(super) fn that_has_enough() -> Self {
        Self {
            has_enough: true,
            ..Self::new(None)
        }
    }

    /// A pipe that reads no further message until its handler has taken the last one.
    pub(super) fn that_waits_for_its_handler() -> Self {
        Self {
            too_many: 1,
            ..Self::new(Some(|_, _| ()))
        }
    }

    /// A pipe of which no thread delivers two messages in a row.
    pub(super) fn that_delivers_one_at_a_time() -> Self {
        Self {
            enough: 1,
            ..Self::new(Some(|_, _| ()))
        }
    }

    fn with(able: bool, takes: usize, handler: Option<fn(&Arc<Self>, u32)>) -> Self {
        let line = Arc::new(Line::new(able));
        Self {
            shared: Mutex::default(),
            driver: Driver::new(BusyPoll::new(able, false), |_| Io::new(line.clone(), takes)),
            able,
            line,
            deliveries: AtomicUsize::new(0),
            written: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            short: std::sync::atomic::AtomicU32::new(0),
            has_enough: false,
            too_many: usize::MAX,
            enough: u32::MAX,
            handler,
            delivered: std::sync::atomic::AtomicU32::new(0),
        }
    }

    pub(super) fn drive(self: &Arc<Self>) {
        self.driver.drive(self);
    }

    /// Polls once. Returns whether there is something to do.
    pub(super) fn poll(&self) -> bool {
        self.driver.poll::<Self>()
    }

    fn next_delivery(&self) -> Option<u32> {
        let mut shared = lock(&self.shared);
        let next = shared.deliveries.pop_front()?;
        let left = shared.deliveries.len();
        self.deliveries.store(left, Ordering::Release);
        drop(shared);
        if left + 1 == self.too_many {
            self.driver.wakers.notify();
        }
        Some(next)
    }

    fn send_and_receive(&self, io: &mut Io) -> Round {
        // Here and below: skipping this for a connection that cannot be polled saves the models steps.
        let polled = self.able && self.driver.is_polling();
        if self.able {
            io.set_polled(polled);
        }
        io.send(self);
        let written = self.written.load(Ordering::Relaxed);
        self.sent.store(written, Ordering::Relaxed);
        let mut round = Round::Idle;
        let mut wakes = Vec::new();
        while round == Round::Idle
            && self.deliveries.load(Ordering::Acquire) < self.too_many
            && let Some(message) = io.next()
        {
            if self.able {
                self.driver.record_arrival();
            }
            let mut shared = lock(&self.shared);
            shared.received += 1;
            let received = u64::from(shared.received);
            wakes.extend(take_waiting(&mut shared.waiting, Interest::Read(received)));
            if self.handler.is_some() {
                shared.deliveries.push_back(message);
                self.deliveries
                    .store(shared.deliveries.len(), Ordering::Release);
                if !self.driver.delivery.is_held() {
                    round = match polled {
                        true => Round::Deliver,
                        false => Round::DeliverAndContinue,
                    };
                }
            }
            if self.has_enough {
                round = Round::Yield;
            }
        }
        wakes.into_iter().for_each(Waker::wake);
        round
    }

    /// The peer sends a message.
    pub(super) fn arrive(&self) {
        if self.line.arrive() {
            self.driver.wakers.notify();
        }
    }

    /// Like [`arrive`](Self::arrive), but wakes nobody: only a thread that drives anyway notices.
    pub(super) fn arrive_unseen(&self) {
        self.line.arrive();
    }

    /// The application writes a message and drives.
    pub(super) fn write(self: &Arc<Self>) {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.drive();
    }

    /// The application sends a message, which leaves at once if it can.
    pub(super) fn submit(self: &Arc<Self>, when: When, watched: bool) -> Submitted {
        let submitted = self.send_or_queue(when, watched);
        // The same steps as in `tensorpipe/src/pipe/outbound/mod.rs` and in its callers.
        if !self.driver.delivery.is_held_here() && self.driver.is_kicked() {
            self.drive();
        }
        if submitted.drive {
            self.drive();
        }
        submitted
    }

    fn send_or_queue(self: &Arc<Self>, when: When, watched: bool) -> Submitted {
        let mut shared = lock(&self.shared);
        let Some(mut io) = self.driver.hold() else {
            drop(shared);
            self.written.fetch_add(1, Ordering::Relaxed);
            return Submitted {
                id: u64::MAX,
                batched: false,
                over: true,
                drive: true,
            };
        };
        let pushed = Pushed {
            id: shared.state.write(),
            queue_was_empty: io.is_all_written(),
            pending: false,
            watched,
        };
        io.push(MESSAGE);
        dispatch(self, shared, io, pushed, when)
    }

    /// The protocol queues a message, which leaves like that of [`write_soon`](Self::write_soon).
    pub(super) fn queue_soon(self: &Arc<Self>) {
        self.written.fetch_add(1, Ordering::Relaxed);
        let waits = (self.driver.hold()).is_some_and(|io| dispatch_queued(self, io, 1));
        if !waits || self.driver.is_kicked() {
            self.drive();
        }
    }

    /// The application sends a message that leaves with the next drive. The background task is woken for it.
    pub(super) fn write_soon(self: &Arc<Self>) {
        self.submit(When::Coalesce(1), false);
    }

    /// The handler sends a message, which leaves at once or with the round that follows.
    pub(super) fn answer(self: &Arc<Self>) {
        self.submit(When::Now, false);
    }

    /// Whether this thread runs the handler and will call it again afterwards.
    pub(super) fn answers_more(&self) -> bool {
        self.driver.delivery.is_held_here() && self.deliveries.load(Ordering::Acquire) > 0
    }

    pub(super) fn mark_unwritten(&self) {}

    pub(super) fn count_sent(&self, messages: u32) {
        self.short.fetch_add(messages, Ordering::Relaxed);
    }

    /// Whether a caller that asks for the outcome of this write learns that it is over.
    pub(super) fn is_written(&self, Submitted { id, over, .. }: Submitted) -> bool {
        over || matches!(lock(&self.shared).writes.get(&id), Some(Some(Ok(()))))
    }

    /// How many messages have left.
    pub(super) fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed) + self.short.load(Ordering::Relaxed)
    }

    /// How many messages the handler was given.
    pub(super) fn delivered(&self) -> u32 {
        self.delivered.load(Ordering::Relaxed)
    }

    /// How many messages have come in.
    pub(super) fn received(&self) -> u32 {
        lock(&self.shared).received
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

    fn waiting(shared: &mut Shared) -> &mut Waiting {
        &mut shared.waiting
    }

    fn round(self: &Arc<Self>, io: &mut Io) -> Round {
        self.send_and_receive(io)
    }

    fn deliver(self: &Arc<Self>) -> Rest {
        let given = Cell::new(0);
        let next = || {
            let Some(message) = self.next_delivery() else {
                return false;
            };
            given.set(given.get() + 1);
            self.delivered.fetch_add(1, Ordering::Relaxed);
            if let Some(handler) = self.handler {
                handler(self, message);
            }
            true
        };
        let is_left = || self.deliveries.load(Ordering::Acquire) > 0;
        let has_enough = || given.get() >= self.enough;
        self.driver.delivery.deliver(next, is_left, has_enough)
    }

    fn poll(io: &mut Io, _: bool, sends: bool) -> Readiness {
        io.poll(sends)
    }

    fn can_wait(&self) -> bool {
        true
    }

    fn is_slice_over(&self) -> bool {
        runtime::is_slice_over()
    }

    fn is_inherited(&self) -> bool {
        false
    }
}
