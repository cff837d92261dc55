//! The end of a ring that reads.
//!
//! As for [`Producer`](super::Producer), the other end's counter is checked before it is used.

use super::control::{DONE, Fault, RingMemory, asleep_on, wake_sleeper};
use crate::sync::{Ordering, fence};

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer<P> {
    pub(super) place: P,
    read: u64,
    /// The producer's counter when it was last read.
    written: u64,
    /// As the producer said then.
    origin: u64,
    done: bool,
}

impl<P: RingMemory> Consumer<P> {
    /// For a new ring.
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            read: 0,
            written: 0,
            origin: 0,
            done: false,
        }
    }

    /// Reads how far the producer is.
    pub(super) fn refresh(&mut self) -> Result<(), Fault> {
        let theirs = &self.place.control().produced.0;
        let seen = theirs.written.load(Ordering::Acquire);
        let written = seen & !DONE;
        if written < self.written || written - self.read > self.place.capacity() as u64 {
            return Err(Fault::Counter);
        }
        (self.written, self.done) = (written, seen & DONE != 0);
        self.origin = theirs.origin.load(Ordering::Relaxed);
        Ok(())
    }

    /// Bytes that it takes to be in the ring.
    #[cfg(test)]
    pub(super) fn available(&self) -> u64 {
        self.written - self.read
    }

    /// Whether there are bytes now, or the end.
    pub(crate) fn is_ready(&mut self) -> bool {
        let has_something = |this: &Self| this.written != this.read || this.done;
        has_something(self) || self.refresh().is_err() || has_something(self)
    }

    /// Whether there are so many bytes now, half a ring full of them, the end, or a fault.
    pub(crate) fn has_bytes(&mut self, bytes: usize) -> bool {
        let wanted = bytes.min(self.place.capacity() / 2) as u64;
        let enough = |this: &Self| this.written - this.read >= wanted || this.done;
        enough(self) || self.refresh().is_err() || enough(self)
    }

    /// Reads what is there, as far as `bytes` has room; 0 if there is nothing. Calls `wake` when the producer sleeps and
    /// has room again.
    pub(crate) fn read(
        &mut self,
        bytes: &mut [u8],
        mut wake: impl FnMut(),
    ) -> Result<usize, Fault> {
        let capacity = self.place.capacity();
        let mut filled = 0;
        while filled < bytes.len() {
            if self.written == self.read {
                self.refresh()?;
                if self.written == self.read {
                    break;
                }
            }
            let at = self.place.offset(self.read, self.origin);
            let len = (bytes.len() - filled)
                .min((self.written - self.read) as usize)
                .min(capacity - at)
                .min(P::STRIDE);
            self.place.take(at, &mut bytes[filled..filled + len]);
            self.read += len as u64;
            filled += len;
            let control = self.place.control();
            control.read.0.store(self.read, Ordering::Release);
            // A producer that waits for room wants more than a few bytes of it. The ring is read empty before its
            // consumer sleeps, so this comes in any case.
            if (self.written - self.read) as usize <= capacity / 2 {
                wake_sleeper::<P>(&control.producer_sleeps.0, &mut wake);
            }
        }
        Ok(filled)
    }

    /// Whether everything was read and nothing will follow.
    pub(crate) fn is_finished(&self) -> bool {
        self.done && self.written == self.read
    }

    /// Announces sleep until there are bytes. Returns whether to sleep: `false` if there is something to do.
    pub(crate) fn sleep(&mut self) -> bool {
        let sleeps = &self.place.control().consumer_sleeps.0;
        sleeps.swap(asleep_on(self.place.processor()), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_ready() {
            self.cancel_sleep();
            return false;
        }
        true
    }

    /// Takes the announcement back: the producer need not wake it.
    pub(crate) fn cancel_sleep(&self) {
        let sleeps = &self.place.control().consumer_sleeps.0;
        if sleeps.load(Ordering::Relaxed) != 0 {
            sleeps.swap(0, Ordering::Relaxed);
        }
    }

    /// Says that nobody reads any more.
    pub(crate) fn close(&self, mut wake: impl FnMut()) {
        let control = self.place.control();
        control.read.0.store(self.read | DONE, Ordering::Release);
        wake_sleeper::<P>(&control.producer_sleeps.0, &mut wake);
    }
}
