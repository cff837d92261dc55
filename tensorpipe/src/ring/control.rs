//! What the two ends of a ring tell each other, and where its bytes lie.
//!
//! One counter of bytes for each end; counters only grow. Invariant: no word here decides by itself which memory is touched. Each end
//! checks what the other wrote, and masks or bounds each offset that it derives.
//!
//! # Rewinding
//!
//! Byte number `n` lies at offset `(n - origin) % capacity`. Of a ring that is empty each time that some KiB were written, the producer
//! moves the origin to the next byte, so little traffic stays in few pages and cache lines. The consumer takes the origin together with
//! the count that it belongs to: the origin is stored before the count is released, and stays while anything is unread. Measured with 1000
//! connections: `tp-bench connections`; RESULTS, "Many connections".
//!
//! # Sleeping
//!
//! An end that wants to sleep says so and polls once more; an end that has moved bytes checks whether the other sleeps. Both orders are
//! store, full fence, load, so at least one of the two sees the other (Dekker). The end that clears the flag wakes the sleeper, by means of
//! the ring's owner. `tensorpipe-loom` checks both, and that bytes arrive whole, in every order of the two ends' steps.
//!
//! # From afar
//!
//! Only the two flags are changed by both ends. So a ring needs no shared memory: each end may have its own copy of [`Control`], into which
//! the other end writes its words remotely, behind the bytes that they count (RDMA: `WRITE_WITH_IMM`). Such a [`RingMemory`] is not
//! [`SHARED`](RingMemory::SHARED): no end sees whether the other sleeps. So each end calls `wake` whenever it has written or read bytes,
//! and `wake` carries the words, too.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// Flag in a counter: its end is done. Counts stay far below it.
pub(super) const DONE: u64 = 1 << 63;

/// A pair of cache lines for itself: neighbouring lines are fetched together.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct CachePadded<T>(pub(super) T);

/// What the producer says.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Produced {
    /// Bytes written so far, and [`DONE`] when none will follow.
    pub(super) written: AtomicU64,
    /// The number of a byte that lies at the start of the ring.
    pub(super) origin: AtomicU64,
}

/// What the two ends tell each other.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Control {
    pub(super) produced: CachePadded<Produced>,
    /// Bytes read so far, and [`DONE`] when nobody reads any more.
    pub(super) read: CachePadded<AtomicU64>,
    // On cache lines apart from the counters: they change only when an end sleeps. By exchanges only, which have one order that the model
    // checker knows of, too.
    pub(super) consumer_sleeps: CachePadded<AtomicU32>,
    pub(super) producer_sleeps: CachePadded<AtomicU32>,
}

/// Where a ring lives.
pub(crate) trait RingMemory {
    /// Whether both ends see the same [`Control`]. If not, `wake` has to carry the words to the other end.
    const SHARED: bool = true;
    /// Bytes copied before the other end may see them: small enough for both ends to copy at the same time, large enough
    /// for the counters not to matter. (8 KiB is 8 % slower for 1 MiB, 64 KiB no faster.)
    const STRIDE: usize = 16 << 10;
    /// While more bytes are written at once, a sleeping consumer is woken after this many. Not if it fell asleep on the producer's
    /// processor: there it would run at once, take what is there, and sleep again. (Woken for each stride, both ends of an echo of 60 KiB
    /// on one processor changed places 11 times.)
    const WAKE: usize = 4 * Self::STRIDE;
    /// Bytes after which a producer looks whether the ring is empty, to rewind it.
    const REWIND: usize = 4 << 10;

    fn control(&self) -> &Control;
    /// A power of two.
    fn capacity(&self) -> usize;
    /// Where byte number `n` lies, if number `origin` lies at the start.
    fn offset(&self, n: u64, origin: u64) -> usize {
        (n.wrapping_sub(origin) & (self.capacity() as u64 - 1)) as usize
    }
    /// The number of the processor that this runs on, if the system says so.
    fn processor(&self) -> Option<u32> {
        None
    }
    /// Gives the memory of the bytes back to the system for now; afterwards they may be anything.
    fn give_back(&self) {}
    /// Copies into the ring; `at + bytes.len() <= capacity`.
    fn put(&self, at: usize, bytes: &[u8]);
    /// Copies out of the ring; `at + bytes.len() <= capacity`.
    fn take(&self, at: usize, bytes: &mut [u8]);
}

/// The other end has broken the rules of the ring, or is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A counter with an impossible value.
    Counter,
    /// Nobody reads any more.
    NoReader,
}

/// The flag of a sleeping end: not 0. It tells the end's processor, as a hint.
pub(super) fn asleep_on(processor: Option<u32>) -> u32 {
    processor.map_or(u32::MAX, |number| number.saturating_add(1))
}

/// Wakes the other end if it sleeps. Called after the counter was stored.
pub(super) fn wake_sleeper<P: RingMemory>(sleeps: &AtomicU32, wake: &mut impl FnMut()) {
    if !P::SHARED {
        return wake();
    }
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
        wake();
    }
}
