//! The queue of calls for the handler.
//!
//! A slow handler does not stop the pipe from reading, and credit does not bound the queue: when the peer resets a message, its credit is
//! free again while the message and its RESET both stay queued. So at [`UNDELIVERED`] calls or [`UNDELIVERED_BYTES`] the pipe stops
//! reading, until the handler has got half of them.

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
    /// A channel could not send a message of this side.
    Failed(Box<(u64, Error)>),
    GoingAway(u64, String),
    Closed(Error),
}

// Every message moves through two queues as one of these.
const _: () = assert!(size_of::<Delivery>() <= 72);

impl Delivery {
    /// The bytes that the peer can make this delivery keep. A complete message counts nothing, since this side asked for it. The error of a
    /// failed outgoing message may quote the peer.
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

/// The length of the queue, readable without the lock.
#[derive(Debug, Default)]
pub(in crate::pipe) struct Waiting {
    // A thread that writes these counts exchanges the delivery lock afterwards, so plain stores are enough.
    queued: AtomicUsize,
    /// Deliveries taken off the queue, behind the one that the handler is being given.
    taken: AtomicUsize,
    too_much: AtomicBool,
}

impl Waiting {
    pub(in crate::pipe) fn count(&self) -> usize {
        self.queued.load(Ordering::Acquire) + self.taken.load(Ordering::Acquire)
    }

    /// Sets how many taken deliveries are left. Only the thread that took them calls this.
    pub(in crate::pipe) fn set_taken(&self, left: usize) {
        self.taken.store(left, Ordering::Release);
    }

    /// Whether so much is queued that the pipe must stop reading.
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

    /// Moves the first deliveries, [`DELIVERY_BATCH`] at most, to `taken`, which is empty. If all of them fit, the two are swapped, so that
    /// the queue reuses the memory. Moved deliveries still count as waiting.
    pub(in crate::pipe) fn take(&mut self, taken: &mut VecDeque<Delivery>) {
        match self.queue.len() <= DELIVERY_BATCH {
            true => std::mem::swap(&mut self.queue, taken),
            false => taken.extend(self.queue.drain(..DELIVERY_BATCH)),
        }
        self.waiting.set_taken(taken.len());
        self.removed(taken.iter().map(Delivery::weight).sum());
    }

    /// Removes the messages of which the handler has not heard.
    pub(super) fn take_incoming(&mut self) -> Vec<Arrival> {
        let mut incoming = Vec::new();
        let mut weight = 0;
        for delivery in std::mem::take(&mut self.queue) {
            match delivery {
                Delivery::Incoming(arrival) => {
                    weight += arrival.weight();
                    incoming.push(arrival);
                }
                other => self.queue.push_back(other),
            }
        }
        self.removed(weight);
        incoming
    }

    fn removed(&mut self, bytes: usize) {
        self.bytes -= bytes;
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
