//! The two ends of a ring: they move bytes, poll for a while, and sleep until a doorbell rings.

use loom::sync::Notify;

use super::consumer::Consumer;
use super::control::Fault;
use super::memory::Memory;
use super::producer::Producer;
use crate::sync::{AtomicBool, Ordering};

/// The most bytes of one read or write.
const PIECE: usize = 3;

/// Two doorbells, and whether one end is gone.
pub(super) struct Line {
    consumer: Notify,
    producer: Notify,
    gone: AtomicBool,
}

impl Line {
    pub(super) fn new() -> Self {
        Self {
            consumer: Notify::new(),
            producer: Notify::new(),
            gone: AtomicBool::new(false),
        }
    }

    pub(super) fn wake_consumer(&self) {
        self.consumer.notify();
    }

    pub(super) fn wake_producer(&self) {
        self.producer.notify();
    }

    /// One end is gone; in reality the system tells the other end.
    pub(super) fn hang_up(&self) {
        self.gone.store(true, Ordering::Release);
        self.consumer.notify();
        self.producer.notify();
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Writes all of `bytes`, unless the other end goes. Polls a given number of times for room before it sleeps. Returns
    /// how many bytes were written.
    pub(super) fn send(
        &self,
        producer: &mut Producer<Memory>,
        bytes: &[u8],
        looks: u32,
    ) -> Result<usize, Fault> {
        let mut sent = 0;
        while sent < bytes.len() {
            let piece = &bytes[sent..bytes.len().min(sent + PIECE)];
            let (first, second) = piece.split_at(1);
            let wrote = producer.write([first, second], || self.wake_consumer())?;
            sent += wrote;
            if wrote > 0 || (0..looks).any(|_| producer.is_ready()) {
                continue;
            }
            if producer.sleep() {
                if self.is_gone() {
                    break;
                }
                self.producer.wait();
            }
        }
        Ok(sent)
    }

    /// Reads up to `most` bytes or the end, unless the other end goes. Polls a given number of times before it sleeps.
    pub(super) fn receive(
        &self,
        consumer: &mut Consumer<Memory>,
        most: usize,
        looks: u32,
    ) -> Result<Vec<u8>, Fault> {
        let (mut got, mut gone) = (Vec::new(), false);
        while got.len() < most && !consumer.is_finished() {
            let mut bytes = [0; PIECE];
            let bytes = &mut bytes[..PIECE.min(most - got.len())];
            let read = consumer.read(bytes, || self.wake_producer())?;
            got.extend_from_slice(&bytes[..read]);
            if read > 0 || consumer.is_finished() {
                continue;
            }
            if gone {
                // The last read came after the peer was found to be gone, so all of the peer's bytes were seen.
                break;
            }
            if looks > 0 {
                consumer.cancel_sleep();
            }
            if (0..looks).any(|_| consumer.is_ready()) {
                continue;
            }
            if consumer.sleep() {
                gone = self.is_gone();
                if !gone {
                    self.consumer.wait();
                }
            }
        }
        Ok(got)
    }
}
