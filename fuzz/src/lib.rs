//! An allocator that knows how much is held, so that a target can say how much an input may cost.
//!
//! Invariant: `HELD` is what was allocated and not freed, over all threads; a target runs on one.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static HELD: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `target`, and panics if more than `limit` bytes, and eight for each byte of `data`, were held at once.
pub fn bounded(limit: usize, data: &[u8], target: fn(&[u8])) {
    let before = HELD.load(Ordering::Relaxed);
    MOST.store(before, Ordering::Relaxed);
    target(data);
    let most = MOST.load(Ordering::Relaxed) - before;
    let limit = limit + 8 * data.len();
    assert!(
        most <= limit,
        "{most} bytes were held for {} bytes of input, {limit} are allowed",
        data.len()
    );
}

fn took(len: usize) {
    let held = HELD.fetch_add(len, Ordering::Relaxed) + len;
    MOST.fetch_max(held, Ordering::Relaxed);
}

// SAFETY: everything is passed on to the system's allocator as it came; counting touches two atomics only.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps to the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        took(layout.size());
        // SAFETY: the caller keeps to the contract of `GlobalAlloc::alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `System`, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        took(len);
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `at` came from `System`, with this layout; the caller answers for `len`.
        unsafe { System.realloc(at, layout, len) }
    }
}
