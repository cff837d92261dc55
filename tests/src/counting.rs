//! An allocator that counts held bytes, peak bytes and allocations, over all threads.
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: Counting = Counting::new();
//! ```
#![allow(
    unsafe_code,
    reason = "a global allocator has to be unsafe; it forwards to the system's"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// See the module's documentation.
#[derive(Debug)]
pub struct Counting {
    held: AtomicUsize,
    most: AtomicUsize,
    allocations: AtomicU64,
    /// Live pieces by size; the last entry counts all larger ones.
    pieces: [AtomicI64; Self::SIZES],
}

impl Counting {
    /// Pieces smaller than this are counted by size, larger ones together.
    pub const SIZES: usize = 8192;

    /// An allocator with all counters at zero.
    #[expect(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self {
            held: AtomicUsize::new(0),
            most: AtomicUsize::new(0),
            allocations: AtomicU64::new(0),
            pieces: [const { AtomicI64::new(0) }; Self::SIZES],
        }
    }

    /// Bytes that are allocated and not freed.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The peak of held bytes while `work` ran, minus the bytes held before it.
    pub fn most_during(&self, work: impl FnOnce()) -> usize {
        let before = self.held();
        self.most.store(before, Ordering::Relaxed);
        work();
        self.most.load(Ordering::Relaxed) - before
    }

    /// Number of allocations and reallocations.
    pub fn allocations(&self) -> u64 {
        self.allocations.load(Ordering::Relaxed)
    }

    /// How many pieces of each size are allocated and not freed.
    pub fn pieces(&self) -> impl Iterator<Item = i64> {
        self.pieces
            .iter()
            .map(|pieces| pieces.load(Ordering::Relaxed))
    }

    fn took(&self, len: usize) {
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.count(len, 1);
        let held = self.held.fetch_add(len, Ordering::Relaxed) + len;
        self.most.fetch_max(held, Ordering::Relaxed);
    }

    fn gave_back(&self, len: usize) {
        self.count(len, -1);
        self.held.fetch_sub(len, Ordering::Relaxed);
    }

    fn count(&self, len: usize, pieces: i64) {
        self.pieces[len.min(Self::SIZES - 1)].fetch_add(pieces, Ordering::Relaxed);
    }
}

// SAFETY: every call goes unchanged to the system's allocator; counting touches only atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.took(layout.size());
        // SAFETY: the caller keeps to the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.took(layout.size());
        // SAFETY: the caller keeps to the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        self.gave_back(layout.size());
        // SAFETY: `at` came from `System`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        self.took(len);
        self.gave_back(layout.size());
        // SAFETY: `at` came from `System`, with this layout; the caller answers for `len`.
        unsafe { System.realloc(at, layout, len) }
    }
}
