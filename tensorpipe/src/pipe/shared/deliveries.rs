//! What waits for the handler, in order.
//!
//! A handler that takes long stops nobody else from reading, and credit bounds only what the peer does not take back. The message and its
//! RESET both wait, and the credit is free again. So from [`UNDELIVERED`] or [`UNDELIVERED_BYTES`] on nothing more is read, until the
//! handler has got half of it.

use std::collections::VecDeque;

use super::Arrival;
use crate::error::Error;
use crate::message::Message;
use crate::pipe::budget::Held;
use crate::pipe::driver::tuning::{DELIVERY_BATCH, UNDELIVERED, UNDELIVERED_BYTES};
use crate::pipe::stats::MessageStats;
use crate::proto::Reason;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering};

/// One call of the handler.
pub(in crate::pipe) enum Delivery {
    Incoming(Arrival),
    /// Boxed: the others are small, and most messages are whole when they come.
    Message(Box<(u64, Result<Message, Error>, MessageStats, Held)>),
    Reset(Reason),
    Refused(Reason),
    /// A message of this side's.
    Failed(Box<(u64, Error)>),
    GoingAway(u64, String),
    Closed(Error),
}

// Each message moves one through two queues.
const _: () = assert!(size_of::<Delivery>() <= 72);

impl Delivery {
    /// What it keeps because of the peer alone, in bytes. A message that is complete is one that was asked for. Why one of this side's
    /// failed may be the peer's words.
    fn weight(&self) -> usize {
        match self {
            Self::Incoming(arrival) => arrival.weight(),
            Self::Reset(reason) | Self::Refused(reason) => reason.text.len(),
            Self::GoingAway(_, text) => text.len(),
            Self::Failed(failed) => failed.1.to_string().len(),
            Self::Message(..) | Self::Closed(_) => 0,
        }
    }
}

#[derive(Default)]
pub(in crate::pipe) struct Deliveries {
    queue: VecDeque<Delivery>,
    bytes: usize,
    waiting: Arc<Waiting>,
}

/// How many there are, for whoever does not hold the lock.
#[derive(Debug, Default)]
pub(in crate::pipe) struct Waiting {
    // Both are for whoever hands over the delivery lock, by exchanges, after having written here: plain stores are enough.
    queued: AtomicUsize,
    /// Of those taken, those whose turn comes after the one that is being given.
    taken: AtomicUsize,
    too_much: AtomicBool,
}

impl Waiting {
    pub(in crate::pipe) fn count(&self) -> usize {
        self.queued.load(Ordering::Acquire) + self.taken.load(Ordering::Acquire)
    }

    /// Of those taken so many are left. Only whoever has taken them says so.
    pub(in crate::pipe) fn set_taken(&self, left: usize) {
        self.taken.store(left, Ordering::Release);
    }

    /// Whether so much waits that no more is to be read.
    pub(in crate::pipe) fn is_too_much(&self) -> bool {
        self.too_much.load(Ordering::SeqCst)
    }
}

impl Deliveries {
    pub(in crate::pipe) fn waiting(&self) -> &Arc<Waiting> {
        &self.waiting
    }

    pub(super) fn push(&mut self, delivery: Delivery) {
        self.bytes += delivery.weight();
        self.queue.push_back(delivery);
        self.recount();
        if self.queue.len() >= UNDELIVERED || self.bytes >= UNDELIVERED_BYTES {
            self.waiting.too_much.store(true, Ordering::SeqCst);
        }
    }

    /// Moves the first ones to `taken`, which is empty, and whose memory the queue takes where it has none. They still count as
    /// waiting.
    pub(in crate::pipe) fn take(&mut self, taken: &mut VecDeque<Delivery>) {
        match self.queue.len() <= DELIVERY_BATCH {
            true => std::mem::swap(&mut self.queue, taken),
            false => taken.extend(self.queue.drain(..DELIVERY_BATCH)),
        }
        self.bytes -= taken.iter().map(Delivery::weight).sum::<usize>();
        self.waiting.set_taken(taken.len());
        self.recount();
        if self.waiting.is_too_much()
            && self.queue.len() <= UNDELIVERED / 2
            && self.bytes <= UNDELIVERED_BYTES / 2
        {
            self.waiting.too_much.store(false, Ordering::SeqCst);
        }
    }

    fn recount(&self) {
        self.waiting
            .queued
            .store(self.queue.len(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Misuse, ResetCode};

    fn fill(deliveries: &mut Deliveries, delivery: impl Fn() -> Delivery) -> usize {
        let mut pushed = 0;
        while !deliveries.waiting.is_too_much() {
            deliveries.push(delivery());
            pushed += 1;
        }
        pushed
    }

    fn reset(reason: usize) -> Delivery {
        Delivery::Reset(Reason::new(0, ResetCode::Cancelled, &"x".repeat(reason)))
    }

    fn failed(reason: usize) -> Delivery {
        Delivery::Failed(Box::new((0, Misuse::Other("x".repeat(reason)).into())))
    }

    fn take(deliveries: &mut Deliveries) -> usize {
        let mut taken = VecDeque::new();
        deliveries.take(&mut taken);
        taken.len()
    }

    #[test]
    fn many_are_too_much_until_half_of_them_are_gone() {
        let mut deliveries = Deliveries::default();
        assert_eq!(fill(&mut deliveries, || reset(0)), UNDELIVERED);
        while deliveries.waiting.is_too_much() {
            assert_eq!(take(&mut deliveries), DELIVERY_BATCH);
        }
        assert_eq!(deliveries.waiting.count(), UNDELIVERED / 2 + DELIVERY_BATCH);
        deliveries.waiting.set_taken(0);
        assert_eq!(deliveries.waiting.count(), UNDELIVERED / 2);
    }

    #[test]
    fn a_few_large_ones_are_too_much_until_half_of_their_bytes_are_gone() {
        for delivery in [reset, failed] {
            let mut deliveries = Deliveries::default();
            assert_eq!(fill(&mut deliveries, || delivery(1 << 20)), 16);
            while deliveries.waiting.is_too_much() {
                assert_eq!(take(&mut deliveries), DELIVERY_BATCH);
            }
            assert_eq!(deliveries.queue.len(), 8);
            while take(&mut deliveries) > 0 {}
            assert_eq!(deliveries.bytes, 0);
        }
    }
}
