//! What the two ends of a ring tell each other, and where its bytes lie.
//!
//! Counters of bytes, one for each end, that only grow. Invariant: no word here decides by itself where memory is touched: each
//! end checks what the other wrote, and masks or bounds what it makes of it.
//!
//! # Sleeping
//!
//! An end that wants to sleep says so and polls once more; an end that has moved bytes checks whether the other sleeps.
//! Both orders are store, full fence, load, so at least one of the two sees the other (Dekker). Whoever takes the flag
//! down wakes: by what means is the owner's business. `tensorpipe-loom` checks both, and that bytes arrive whole, in
//! every order of the two ends' steps.
//!
//! # From afar
//!
//! No word is changed by both ends, but for these two flags. So a ring needs no memory that both ends share. Each may have its own copy of
//! [`Control`], into which the other's words are written from afar, behind the bytes that they count (RDMA: `WRITE_WITH_IMM`). Such a
//! [`RingMemory`] is not [`SHARED`](RingMemory::SHARED): nobody can see whether the other end sleeps. So every end wakes whenever it has written or
//! read bytes, and whoever wakes carries the words, too.

use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// In a counter: its end is done. Counters themselves stay far below.
pub(super) const DONE: u64 = 1 << 63;

/// A pair of cache lines for itself: neighbouring lines are fetched together.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct CachePadded<T>(pub(super) T);

/// What the two ends tell each other.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Control {
    /// Bytes written so far, and [`DONE`] when none will follow.
    pub(super) written: CachePadded<AtomicU64>,
    /// Bytes read so far, and [`DONE`] when nobody reads any more.
    pub(super) read: CachePadded<AtomicU64>,
    // Apart from the counters: these change only when somebody sleeps. By exchanges only, which have one order that the
    // model checker knows of, too.
    pub(super) consumer_sleeps: CachePadded<AtomicU32>,
    pub(super) producer_sleeps: CachePadded<AtomicU32>,
}

/// Where a ring lives.
pub(crate) trait RingMemory {
    /// Whether both ends see the same [`Control`]. If not, `wake` is what tells the other end.
    const SHARED: bool = true;
    /// Bytes copied before the other end may see them: small enough for both ends to copy at the same time, large enough
    /// for the counters not to matter. (8 KiB is 8 % slower for 1 MiB, 64 KiB no faster.)
    const STRIDE: usize = 16 << 10;
    /// Bytes after which a consumer that sleeps is woken, where more are written at once. Not if it fell asleep on the producer's
    /// processor: there it would run at once, take what is there, and sleep again. (Woken for each stride, both ends of an echo of
    /// 60 KiB on one processor changed places 11 times.)
    const WAKE: usize = 4 * Self::STRIDE;

    fn control(&self) -> &Control;
    /// A power of two.
    fn capacity(&self) -> usize;
    /// Where byte number `n` lies.
    fn offset(&self, n: u64) -> usize {
        (n & (self.capacity() as u64 - 1)) as usize
    }
    /// The number of the processor that this runs on, if the system says so.
    fn processor(&self) -> Option<u32> {
        None
    }
    /// The bytes' memory is not needed for now; whatever they are afterwards.
    fn give_back(&self) {}
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

/// What an end that sleeps says: not 0. So is the number of its processor, which is a hint.
pub(super) fn asleep_on(processor: Option<u32>) -> u32 {
    processor.map_or(u32::MAX, |number| number.saturating_add(1))
}

/// After something was said.
pub(super) fn wake_sleeper<P: RingMemory>(sleeps: &AtomicU32, wake: &mut impl FnMut()) {
    if !P::SHARED {
        return wake();
    }
    fence(Ordering::SeqCst);
    if sleeps.load(Ordering::Relaxed) != 0 && sleeps.swap(0, Ordering::Relaxed) != 0 {
        wake();
    }
}
