//! The smallest pipe around the real hand-overs: it drives like `tensorpipe/src/pipe/core.rs`.

use std::task::Waker;

use super::hand_over::{HandOver, Round};
use super::poller::Poller;
use super::shared::Shared;
use super::turn::Turn;
use crate::sync::{AtomicU32, AtomicUsize, Mutex, Ordering, lock};

/// In one go: one that finds nothing, and one more.
const LOOKS: u32 = 2;

pub(super) struct Core {
    pub(super) poller: Poller,
    pub(super) shared: Mutex<Shared>,
    io: HandOver<Io>,
    turn: Turn,
    pub(super) hot: Hot,
    /// How many deliveries wait for the handler.
    deliveries: AtomicUsize,
    /// What the connection has, in messages.
    arrived: AtomicU32,
    /// What the application wants to be sent, and what has left.
    written: AtomicU32,
    sent: AtomicU32,
    /// Called with each message.
    handler: Option<fn(&Self, u32)>,
}

/// A connection that always asks to be woken.
pub(super) struct Hot;

impl Hot {
    pub(super) fn heat(&self) {}
}

/// What whoever drives has to itself.
#[derive(Default)]
struct Io {
    read: u32,
}

impl Core {
    pub(super) fn new(handler: Option<fn(&Self, u32)>) -> Self {
        Self {
            poller: Poller::default(),
            shared: Mutex::default(),
            io: HandOver::new(Io::default()),
            turn: Turn::default(),
            hot: Hot,
            deliveries: AtomicUsize::new(0),
            arrived: AtomicU32::new(0),
            written: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            handler,
        }
    }

    pub(super) fn drive(&self) {
        if self.turn.is_here() {
            return self.io.kick();
        }
        self.io
            .drive(&self.poller, |io| self.round(io), || self.deliver());
    }

    fn deliver(&self) {
        let next = || {
            let next = self.next_delivery();
            next.map(|message| self.handler.map(|handler| handler(self, message)))
                .is_some()
        };
        self.turn
            .deliver(next, || self.deliveries.load(Ordering::SeqCst) > 0);
    }

    fn next_delivery(&self) -> Option<u32> {
        let mut shared = lock(&self.shared);
        let next = shared.deliveries.pop_front()?;
        self.deliveries
            .store(shared.deliveries.len(), Ordering::SeqCst);
        Some(next)
    }

    fn round(&self, io: &mut Io) -> Round {
        let written = self.written.load(Ordering::Relaxed);
        self.sent.store(written, Ordering::Relaxed);
        let arrived = self.arrived.load(Ordering::Relaxed);
        let mut round = Round::Idle;
        let mut wakes = Vec::new();
        while round == Round::Idle && io.read < arrived {
            let mut shared = lock(&self.shared);
            shared.received += 1;
            wakes.append(&mut shared.waiting);
            if self.handler.is_some() {
                shared.deliveries.push_back(io.read);
                self.deliveries
                    .store(shared.deliveries.len(), Ordering::SeqCst);
                if !self.turn.is_taken() {
                    round = Round::More;
                }
            }
            io.read += 1;
        }
        wakes.into_iter().for_each(|(_, _, waker)| waker.wake());
        round
    }

    /// Looks whether there is something to do.
    pub(super) fn look(&self) -> bool {
        let look = |io: &mut Io| io.read < self.arrived.load(Ordering::Relaxed);
        self.io.look(LOOKS, look)
    }

    /// Nobody looks again instead of sleeping: how long that pays is a matter of time, which a model has not.
    pub(super) fn look_again(&self, _: u64, _: &mut bool, _: &Waker) -> bool {
        false
    }

    pub(super) fn stop_looking(&self, _: u64, _: &mut bool) {}

    /// The peer sends a message: the connection has it, and wakes the poller.
    pub(super) fn arrive(&self) {
        // Relaxed: that a round sees it is up to what hands over.
        self.arrived.fetch_add(1, Ordering::Relaxed);
        self.poller.notify();
    }

    /// The application sends a message.
    pub(super) fn write(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
        self.drive();
    }

    /// How many messages have left.
    pub(super) fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    /// How many messages have come in.
    pub(super) fn received(&self) -> u32 {
        lock(&self.shared).received
    }
}
