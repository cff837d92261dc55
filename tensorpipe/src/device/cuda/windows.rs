//! Main memory that is filled in several ranges at once. Each range is memory of its own until all of them are gone.
//!
//! The whole is allocated when the first byte of any range arrives, and is counted page by page as bytes arrive. A huge page counts once,
//! whichever of its ranges comes first.
//!
//! Invariant: ranges that were given out do not overlap, so each byte has one owner; nobody has the whole meanwhile.

#![allow(
    unsafe_code,
    reason = "ranges of one allocation have owners of their own"
)]

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Buffer, BufferMut, Destination, Memory, Pool};
use crate::error::SystemError;
use crate::sync::{Mutex, lock};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Windows(Arc<Whole>);

#[derive(Debug)]
struct Whole(Mutex<Filling>);

#[derive(Debug)]
struct Filling {
    /// Owns the bytes, which nobody accesses here while there are windows.
    dest: Destination,
    /// The start of the bytes, once they are allocated.
    start: Option<NonNull<u8>>,
    /// Huge pages that were counted, by their start.
    pages: BTreeSet<usize>,
    /// Ranges that were given out: their start, and their end.
    taken: BTreeMap<usize, usize>,
}

// SAFETY: it owns the memory, which is any thread's; the pointer is into that.
unsafe impl Send for Filling {}

impl Windows {
    /// `dest` is main memory that the CPU can write.
    pub(crate) fn over(dest: Destination) -> Self {
        Self(Arc::new(Whole(Mutex::new(Filling {
            dest,
            start: None,
            pages: BTreeSet::new(),
            taken: BTreeMap::new(),
        }))))
    }

    /// A range of it, which takes memory when its first byte arrives.
    pub(crate) fn range(&self, range: Range<usize>) -> Destination {
        let whole = self.0.clone();
        Destination::within(range.len(), Place { whole, range })
    }

    /// Whether `filled` is all of this range of this memory. Otherwise it is to be treated like any other memory.
    pub(crate) fn has(&self, range: Range<usize>, filled: &Buffer) -> bool {
        let window = filled.memory().as_any().downcast_ref::<Window>();
        let is_it = window
            .is_some_and(|window| Arc::ptr_eq(&window.whole, &self.0) && window.range == range);
        is_it && filled.len() == range.len()
    }

    /// All of it, if no window is left.
    pub(crate) fn into_whole(self) -> Option<BufferMut> {
        let filling = Arc::into_inner(self.0)?.0.into_inner();
        filling
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .dest
            .into_memory()
    }
}

/// The place of a range of which no byte has arrived yet.
#[derive(Debug)]
pub(crate) struct Place {
    whole: Arc<Whole>,
    range: Range<usize>,
}

impl Place {
    /// As [`Destination::cost`], of bytes of this range.
    pub(crate) fn cost(&self, bytes: Range<usize>, pool: &Pool) -> Result<u64, SystemError> {
        let mut filling = lock(&self.whole.0);
        let Filling { dest, pages, .. } = &mut *filling;
        let (mut at, end) = (self.range.start + bytes.start, self.range.start + bytes.end);
        let mut cost = 0;
        while at < end {
            let page = dest.page(at);
            at = page.end;
            if pages.insert(page.start) {
                cost += dest.cost(page, pool)?;
            }
        }
        Ok(cost)
    }

    /// The memory of this range, which is given out once.
    pub(crate) fn open(&self, pool: &Pool) -> Result<BufferMut, SystemError> {
        let refused =
            |words| SystemError::new("allocate", "a range of a tensor", io::Error::other(words));
        let mut filling = lock(&self.whole.0);
        let Filling {
            dest, start, taken, ..
        } = &mut *filling;
        dest.open(pool)?;
        let whole = match *start {
            Some(whole) => whole,
            None => {
                let bytes = dest.as_bytes_mut();
                let bytes =
                    bytes.ok_or_else(|| refused("it is no main memory that can be written"))?;
                *start.insert(NonNull::from(bytes).cast())
            }
        };
        let Range { start, end } = self.range;
        let before = taken.range(..end).next_back();
        if end > dest.len() || start > end || before.is_some_and(|(_, before)| *before > start) {
            return Err(refused("others have it"));
        }
        taken.insert(start, end);
        drop(filling);
        let window = Window {
            whole: self.whole.clone(),
            at: at(whole, start),
            range: start..end,
        };
        BufferMut::from_memory(Arc::new(window), end - start)
            .map_err(|_| refused("it cannot be written"))
    }
}

/// The address of a range in the whole.
fn at(whole: NonNull<u8>, start: usize) -> NonNull<u8> {
    // SAFETY: the caller has compared it with the length.
    unsafe { whole.add(start) }
}

/// A range of it.
struct Window {
    /// Keeps the whole alive.
    whole: Arc<Whole>,
    at: NonNull<u8>,
    range: Range<usize>,
}

// SAFETY: it is the only owner of its bytes, which are any thread's.
unsafe impl Send for Window {}
// SAFETY: shared, it only hands out `&[u8]`.
unsafe impl Sync for Window {}

impl Memory for Window {
    fn len(&self) -> usize {
        self.range.len()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        // SAFETY: so many initialised bytes are there as long as the whole is, and no other window has them.
        Some(unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.range.len()) })
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and this is its only holder.
        Some(unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.range.len()) })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::block::HUGE_PAGE;

    fn opened(windows: &Windows, range: Range<usize>, pool: &Pool) -> Option<BufferMut> {
        let mut dest = windows.range(range);
        dest.open(pool).ok()?;
        dest.into_memory()
    }

    #[test]
    fn each_byte_is_given_out_once_and_the_whole_when_no_range_is_left() {
        let pool = Pool::default();
        let windows = Windows::over(BufferMut::zeroed(10).into());
        let mut other = opened(&windows, 4..10, &pool).unwrap();
        for taken in [4..10, 9..10, 3..5, 0..10, 0..11, 10..11] {
            assert!(
                opened(&windows, taken.clone(), &pool).is_none(),
                "{taken:?}"
            );
        }
        let mut one = opened(&windows, 0..4, &pool).unwrap();
        other.as_bytes_mut().unwrap().fill(2);
        one.as_bytes_mut().unwrap().fill(1);
        let (one, other) = (one.freeze(), other.freeze());
        assert!(windows.has(0..4, &one) && windows.has(4..10, &other));
        assert!(!windows.has(0..4, &Buffer::copy_from_slice(&[1; 4])));
        for (range, wrong) in [(0..4, &other), (4..8, &one), (0..3, &one.slice(0..3))] {
            assert!(!windows.has(range.clone(), wrong), "{range:?}");
        }
        drop((one, other));
        let whole = windows.into_whole().unwrap().freeze();
        assert_eq!(whole.as_bytes().unwrap(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        let windows = Windows::over(BufferMut::zeroed(10).into());
        let kept = opened(&windows, 0..4, &pool);
        assert!(windows.into_whole().is_none());
        drop(kept);
    }

    /// The peer decides the order in which ranges arrive.
    #[test]
    fn nothing_counts_before_its_first_byte_and_a_page_counts_once() {
        let (pool, half) = (Pool::default(), HUGE_PAGE / 2);
        let windows = Windows::over(Destination::pooled(6 * half));
        let cost = |range| {
            let mut dest = windows.range(range);
            let cost = dest.cost(0..dest.len(), &pool).unwrap();
            dest.open(&pool).unwrap();
            cost as usize
        };
        assert_eq!(pool.stats().taken, 0);
        assert_eq!(cost(half..2 * half), HUGE_PAGE, "its second half alone");
        assert_eq!(pool.stats().taken, 1);
        assert_eq!(cost(0..half), 0);
        assert_eq!(cost(3 * half..6 * half), 2 * HUGE_PAGE);
        assert_eq!(cost(2 * half..3 * half), 0);
        // Memory that was used before is resident as a whole.
        let _used = windows;
        drop(pool.take(4 * HUGE_PAGE));
        let warm = Windows::over(Destination::pooled(4 * HUGE_PAGE));
        let cost = |range| warm.range(range).cost(0..1, &pool).unwrap() as usize;
        assert_eq!((cost(half..half + 1), cost(0..1)), (4 * HUGE_PAGE, 0));
    }
}
