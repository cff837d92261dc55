//! Main memory that is filled in several ranges at once: each is memory of its own until all of them are gone.
//!
//! Invariant: ranges are given out in order, each once, so that none lies in another; nobody has the whole meanwhile.

#![allow(
    unsafe_code,
    reason = "ranges of one allocation have owners of their own"
)]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{BufferMut, Memory};

/// See the module's documentation.
pub(crate) struct Windows {
    whole: Arc<Whole>,
    /// Up to here it is given out.
    given: usize,
}

struct Whole {
    start: NonNull<u8>,
    len: usize,
    /// Keeps the bytes, and is not looked at while there are windows.
    memory: BufferMut,
}

// SAFETY: it owns the memory, which is any thread's; the pointer is into that.
unsafe impl Send for Whole {}
// SAFETY: its bytes are reached through windows alone, each of which has its own.
unsafe impl Sync for Whole {}

impl Windows {
    /// `None` for memory that the CPU cannot write.
    pub(crate) fn over(mut memory: BufferMut) -> Option<Self> {
        let bytes = memory.as_bytes_mut()?;
        let len = bytes.len();
        let start = NonNull::from(bytes).cast();
        Some(Self {
            whole: Arc::new(Whole { start, len, memory }),
            given: 0,
        })
    }

    /// The next `len` bytes; `None` where fewer are left.
    pub(crate) fn next(&mut self, len: usize) -> Option<BufferMut> {
        let start = self.given;
        let end = start
            .checked_add(len)
            .filter(|end| *end <= self.whole.len)?;
        self.given = end;
        let whole = self.whole.clone();
        BufferMut::from_memory(Arc::new(Window { whole, start, len }), len).ok()
    }

    /// All of it, where no window is left.
    pub(crate) fn into_whole(self) -> Option<BufferMut> {
        Arc::into_inner(self.whole).map(|whole| whole.memory)
    }
}

/// A range of it.
struct Window {
    whole: Arc<Whole>,
    start: usize,
    len: usize,
}

impl Window {
    fn at(&self) -> *mut u8 {
        // SAFETY: the range lies in the whole, as `next` has seen to.
        unsafe { self.whole.start.as_ptr().add(self.start) }
    }
}

impl Memory for Window {
    fn len(&self) -> usize {
        self.len
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        // SAFETY: so many initialised bytes are there as long as the whole is, and no other window has them.
        Some(unsafe { std::slice::from_raw_parts(self.at(), self.len) })
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and this is its only holder.
        Some(unsafe { std::slice::from_raw_parts_mut(self.at(), self.len) })
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

    #[test]
    fn each_range_is_given_out_once_and_the_whole_when_none_is_left() {
        let mut windows = Windows::over(BufferMut::zeroed(10)).unwrap();
        let (mut one, mut other) = (windows.next(4).unwrap(), windows.next(6).unwrap());
        assert!(windows.next(1).is_none());
        other.as_bytes_mut().unwrap().fill(2);
        one.as_bytes_mut().unwrap().fill(1);
        drop((one, other));
        let whole = windows.into_whole().unwrap().freeze();
        assert_eq!(whole.as_bytes().unwrap(), [1, 1, 1, 1, 2, 2, 2, 2, 2, 2]);
        let mut windows = Windows::over(BufferMut::zeroed(10)).unwrap();
        let kept = windows.next(4);
        assert!(windows.into_whole().is_none());
        drop(kept);
    }
}
