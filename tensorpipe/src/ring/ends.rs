//! A ring of bytes between one producer and one consumer that share nothing but memory.
//!
//! Counters only grow; the offset of byte number `n` is `n % capacity`. Invariant: `read <= written <= read + capacity`,
//! and the bytes between `read` and `written` belong to the consumer, all others to the producer. Each end keeps its own
//! counter to itself and only looks at the other's, so a peer that writes nonsense there is a [`Fault`], never a wild
//! access; a peer that dies at any instruction leaves a ring that is as valid as before it.
//!
//! # Sleeping
//!
//! An end that wants to sleep says so and looks once more; an end that has moved bytes looks whether the other sleeps.
//! Both orders are store, full fence, load, so at least one of the two sees the other (Dekker). Whoever takes the flag
//! down wakes: by what means is the owner's business. `tensorpipe-loom` checks both, and that bytes arrive whole, in every
//! order of the two ends' steps.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// In a counter: its end is done. Counters themselves stay far below.
pub(super) const DONE: u64 = 1 << 63;

/// A pair of cache lines for itself: neighbouring lines are fetched together.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Alone<T>(pub(super) T);

/// What the two ends tell each other.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Bytes written so far, and [`DONE`] when none will follow.
    pub(super) written: Alone<AtomicU64>,
    /// Bytes read so far, and [`DONE`] when nobody reads any more.
    pub(super) read: Alone<AtomicU64>,
    // Apart from the counters: these change only when somebody sleeps. By exchanges only, which have one order that the
    // model checker knows of, too.
    consumer_sleeps: Alone<AtomicU32>,
    producer_sleeps: Alone<AtomicU32>,
}

/// Where a ring lives.
pub(crate) trait Place {
    /// Bytes copied before the other end may see them: small enough for both ends to copy at the same time, large enough
    /// for the counters not to matter. (8 KiB is 8 % slower for 1 MiB, 64 KiB no faster.)
    const STRIDE: usize = 16 << 10;

    fn control(&self) -> &Control;
    /// A power of two.
    fn capacity(&self) -> usize;
    /// Where byte number `n` lies.
    fn offset(&self, n: u64) -> usize {
        (n & (self.capacity() as u64 - 1)) as usize
    }
    /// Copies into the ring; `at + bytes.len() <= capacity`.
    fn put(&self, at: usize, bytes: &[u8]);
    /// Copies out of the ring; `at + bytes.len() <= capacity`.
    fn take(&self, at: usize, bytes: &mut [u8]);
}

/// The other end has broken the rules of the ring, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A counter that cannot be.
    Counter,
    /// Nobody reads any more.
    NoReader,
}

/// The end that writes.
#[derive(Debug)]
pub(crate) struct Producer<P> {
    pub(super) place: P,
    written: u64,
    /// The consumer's counter when it was last looked at.
    read: u64,
}

/// The end that reads.
#[derive(Debug)]
pub(crate) struct Consumer<P> {
    pub(super) place: P,
    read: u64,
    /// The producer's counter when it was last looked at.
    written: u64,
    done: bool,
}

impl<P: Place> Producer<P> {
    /// Of a ring that has just been made.
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            written: 0,
            read: 0,
        }
    }

    fn room(&self) -> usize {
        self.place.capacity() - (self.written - self.read) as usize
    }

    /// Looks how far the consumer is.
    pub(super) fn look(&mut self) -> Result<(), Fault> {
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
        self.room() > 0 || self.look().is_err() || self.room() > 0
    }

    /// Writes what there is room for; 0 if there is none. Calls `wake` when the consumer sleeps.
    pub(crate) fn write<'a>(
        &mut self,
        pieces: impl IntoIterator<Item = &'a [u8]>,
        mut wake: impl FnMut(),
    ) -> Result<usize, Fault> {
        let begun = self.written;
        let mut published = begun;
        'all: for mut piece in pieces {
            while !piece.is_empty() {
                if self.room() < piece.len().min(P::STRIDE) {
                    self.look()?;
                    if self.room() == 0 {
                        break 'all;
                    }
                }
                let at = self.place.offset(self.written);
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
                    self.publish(&mut wake);
                }
            }
        }
        if self.written != published {
            self.publish(&mut wake);
        }
        Ok((self.written - begun) as usize)
    }

    fn publish(&self, wake: &mut impl FnMut()) {
        let control = self.place.control();
        control.written.0.store(self.written, Ordering::Release);
        wake_sleeper(&control.consumer_sleeps.0, wake);
    }

    /// Says that no more bytes will follow.
    pub(crate) fn finish(&self, mut wake: impl FnMut()) {
        let control = self.place.control();
        control
            .written
            .0
            .store(self.written | DONE, Ordering::Release);
        wake_sleeper(&control.consumer_sleeps.0, &mut wake);
    }

    /// Announces sleep until there is room. Returns whether to sleep: `false` if there is something to do.
    pub(crate) fn sleep(&mut self) -> bool {
        let sleeps = &self.place.control().producer_sleeps.0;
        sleeps.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.look().is_err() || self.room() > 0 {
            self.place
                .control()
                .producer_sleeps
                .0
                .swap(0, Ordering::Relaxed);
            return false;
        }
        true
    }
}

impl<P: Place> Consumer<P> {
    /// Of a ring that has just been made.
    pub(crate) fn new(place: P) -> Self {
        Self {
            place,
            read: 0,
            written: 0,
            done: false,
        }
    }

    /// Looks how far the producer is.
    pub(super) fn look(&mut self) -> Result<(), Fault> {
        let seen = self.place.control().written.0.load(Ordering::Acquire);
        let written = seen & !DONE;
        if written < self.written || written - self.read > self.place.capacity() as u64 {
            return Err(Fault::Counter);
        }
        self.written = written;
        self.done = seen & DONE != 0;
        Ok(())
    }

    /// Whether there are bytes now, or the end.
    pub(crate) fn is_ready(&mut self) -> bool {
        let has_something = |this: &Self| this.written != this.read || this.done;
        has_something(self) || self.look().is_err() || has_something(self)
    }

    /// Whether there are so many bytes now, half a ring full of them, the end, or a fault.
    pub(crate) fn has(&mut self, bytes: usize) -> bool {
        let bytes = bytes.min(self.place.capacity() / 2) as u64;
        let enough = |this: &Self| this.written - this.read >= bytes || this.done;
        enough(self) || self.look().is_err() || enough(self)
    }

    /// Reads what is there, as far as `bytes` has room; 0 if there is nothing. Calls `wake` when the producer sleeps and
    /// has room again.
    pub(crate) fn read(
        &mut self,
        bytes: &mut [u8],
        mut wake: impl FnMut(),
    ) -> Result<usize, Fault> {
        let mut filled = 0;
        while filled < bytes.len() {
            if self.written == self.read {
                self.look()?;
                if self.written == self.read {
                    break;
                }
            }
            let capacity = self.place.capacity();
            let at = self.place.offset(self.read);
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
                wake_sleeper(&control.producer_sleeps.0, &mut wake);
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
        sleeps.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.is_ready() {
            self.stay_awake();
            return false;
        }
        true
    }

    /// Takes the announcement back: the producer need not wake it.
    pub(crate) fn stay_awake(&self) {
        let sleeps = &self.place.control().consumer_sleeps.0;
        if sleeps.load(Ordering::Relaxed) != 0 {
            sleeps.swap(0, Ordering::Relaxed);
        }
    }

    /// Says that nobody reads any more.
    pub(crate) fn close(&self, mut wake: impl FnMut()) {
        let control = self.place.control();
        control.read.0.store(self.read | DONE, Ordering::Release);
        wake_sleeper(&control.producer_sleeps.0, &mut wake);
    }
}

fn wake_sleeper(sleeps: &AtomicU32, wake: &mut impl FnMut()) {
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
        wake();
    }
}
