//! The end of a ring that writes.
//!
//! It keeps its own counter to itself and only reads the other's, so a peer that writes nonsense there is a [`Fault`], never a wild
//! access. A peer that dies at any instruction leaves a ring that is as valid as before it.

use super::control::{DONE, Fault, RingMemory, asleep_on, wake_sleeper};
use crate::sync::{Ordering, fence};

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer<P> {
    pub(super) place: P,
    written: u64,
    /// The consumer's counter when it was last read.
    read: u64,
    /// As in [`Produced`](super::control::Produced).
    origin: u64,
    /// How many bytes are written when it is time to rewind.
    rewinds_at: u64,
    /// So much of the memory has been used since it was given back.
    used: u64,
}

impl<P: RingMemory> Producer<P> {
    /// For a new ring.
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            written: 0,
            read: 0,
            origin: 0,
            rewinds_at: P::REWIND as u64,
            used: 0,
        }
    }

    fn room(&self) -> usize {
        self.place.capacity() - (self.written - self.read) as usize
    }

    /// Reads how far the consumer is.
    pub(super) fn refresh(&mut self) -> Result<(), Fault> {
        let read = self.place.control().read.0.load(Ordering::Acquire);
        if read & DONE != 0 {
            return Err(Fault::NoReader);
        }
        if read < self.read || read > self.written {
            return Err(Fault::Counter);
        }
        self.read = read;
        Ok(())
    }

    /// Whether there is room now.
    pub(crate) fn is_ready(&mut self) -> bool {
        self.room() > 0 || self.refresh().is_err() || self.room() > 0
    }

    /// Writes what there is room for; 0 if there is none. Calls `wake` when the consumer sleeps.
    pub(crate) fn write<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        mut wake: impl FnMut(),
    ) -> Result<usize, Fault> {
        if self.written >= self.rewinds_at {
            self.rewind()?;
        }
        let begun = self.written;
        let (mut published, mut woken) = (begun, begun);
        'all: for mut piece in pieces {
            while !piece.is_empty() {
                if self.room() < piece.len().min(P::STRIDE) {
                    self.refresh()?;
                    if self.room() == 0 {
                        break 'all;
                    }
                }
                let at = self.place.offset(self.written, self.origin);
                let len = piece
                    .len()
                    .min(self.room())
                    .min(self.place.capacity() - at)
                    .min(P::STRIDE);
                let (now, later) = piece.split_at(len);
                self.place.put(at, now);
                self.written += len as u64;
                piece = later;
                if self.written - published >= P::STRIDE as u64 {
                    published = self.written;
                    self.publish();
                }
                if published - woken >= P::WAKE as u64 && self.is_on_other_processor() {
                    woken = published;
                    self.wake(&mut wake);
                }
            }
        }
        if self.written != published {
            self.publish();
        }
        if self.written != woken {
            self.wake(&mut wake);
        }
        self.used = self.used.max(self.written - self.origin);
        Ok((self.written - begun) as usize)
    }

    fn publish(&self) {
        let ours = &self.place.control().produced.0.written;
        ours.store(self.written, Ordering::Release);
    }

    /// If all is read, the next byte goes to the start.
    fn rewind(&mut self) -> Result<(), Fault> {
        self.rewinds_at = self.written + P::REWIND as u64;
        self.refresh()?;
        // From afar nobody sends the origin.
        if P::SHARED && self.read == self.written {
            self.origin = self.written;
            let ours = &self.place.control().produced.0.origin;
            ours.store(self.origin, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether the consumer, if it sleeps, is likely to run on another processor.
    fn is_on_other_processor(&self) -> bool {
        let sleeps = &self.place.control().consumer_sleeps.0;
        match sleeps.load(Ordering::Relaxed) {
            0 => !P::SHARED,
            there => self
                .place
                .processor()
                .is_none_or(|here| there != asleep_on(Some(here))),
        }
    }

    /// Wakes the consumer if it sleeps. Called after the last bytes were published.
    fn wake(&self, wake: &mut impl FnMut()) {
        wake_sleeper::<P>(&self.place.control().consumer_sleeps.0, wake);
    }

    /// Says that no more bytes will follow.
    pub(crate) fn finish(&self, mut wake: impl FnMut()) {
        let control = self.place.control();
        let ours = &control.produced.0.written;
        ours.store(self.written | DONE, Ordering::Release);
        wake_sleeper::<P>(&control.consumer_sleeps.0, &mut wake);
    }

    /// Announces sleep until there is room. Returns whether to sleep: `false` if there is something to do.
    pub(crate) fn sleep(&mut self) -> bool {
        let sleeps = &self.place.control().producer_sleeps.0;
        sleeps.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.refresh().is_err() || self.room() > 0 {
            self.place
                .control()
                .producer_sleeps
                .0
                .swap(0, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Whether the consumer has read all that was written, by its counter now. `false` where it breaks the rules, or is gone.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.refresh().is_ok() && self.read == self.written
    }

    /// Gives the memory of the bytes back to the system, if all of them have been read. Returns whether they have.
    pub(crate) fn give_back(&mut self) -> bool {
        let is_free = self.is_drained();
        if is_free {
            self.place.give_back();
            // What is written next goes to the start.
            (self.used, self.rewinds_at) = (0, self.written);
        }
        is_free
    }

    /// Bytes of the memory that were used since it was given back.
    pub(crate) fn used(&self) -> u64 {
        self.used.min(self.place.capacity() as u64)
    }

    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }
}
