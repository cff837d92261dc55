//! One allocation of main memory: zeroed at birth, aligned, owned like a `Box<[u8]>`.
//!
//! Blocks below 2 MiB come from the allocator, larger ones are mappings on huge pages that take no memory until they
//! are touched. Which of the two follows from the length alone, so freeing needs no record of it.

#![allow(
    unsafe_code,
    reason = "64-byte aligned memory comes from std::alloc or a mapping and is handed out as slices"
)]

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;

use super::huge_pages;
pub(crate) use super::huge_pages::HUGE_PAGE;
use super::registrations::Registrations;
use crate::error::SystemError;

/// The alignment of all memory that this crate allocates, in bytes: a cache line, and enough for AVX-512. Blocks of
/// 2 MiB and more are aligned to 2 MiB.
pub const ALIGNMENT: usize = 64;

/// Blocks of fewer bytes are aligned here, not by the allocator.
const SMALL: usize = 4096;

/// What every allocator aligns to.
const SMALL_ALIGNMENT: usize = 16;

/// Roughly the bytes that a block costs beside its content: alignment, the allocator's header, the handle on it.
const BESIDE: usize = 160;

/// The most bytes of a block of `len` bytes that are resident once its first `touched` bytes were touched: the system backs whole pages,
/// huge ones where they fit. Memory from the allocator is touched whole when it is zeroed.
pub(crate) fn resident(len: usize, touched: usize) -> usize {
    match len {
        ..SMALL => len + BESIDE,
        SMALL..HUGE_PAGE => len,
        _ if touched <= len - len % HUGE_PAGE => touched.next_multiple_of(HUGE_PAGE),
        _ => touched.next_multiple_of(huge_pages::page()).min(len),
    }
}

/// One allocation of ours.
pub(crate) struct Block {
    start: NonNull<u8>,
    len: usize,
    registrations: Registrations,
}

// SAFETY: a Block owns its allocation exclusively, like a Box<[u8]>; nothing in it is tied to a thread.
unsafe impl Send for Block {}
// SAFETY: shared access only hands out `&[u8]`.
unsafe impl Sync for Block {}

/// What it frees.
struct Allocation {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: as of `Block`.
unsafe impl Send for Allocation {}

impl Block {
    /// `len` zero bytes.
    ///
    /// # Panics
    /// When the system has no such memory, as `vec!` would abort. For a length from a peer, use [`Block::try_zeroed`].
    pub(crate) fn zeroed(len: usize) -> Self {
        Self::try_zeroed(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// `len` zero bytes, or why there are none.
    pub(crate) fn try_zeroed(len: usize) -> Result<Self, SystemError> {
        let refused =
            |call, errno: Errno| SystemError::new(call, format!("{len} bytes"), errno.into());
        let start = match NonZeroUsize::new(len) {
            None => NonNull::<u128>::dangling().cast(),
            Some(size) if len >= HUGE_PAGE => {
                huge_pages::map(size).map_err(|errno| refused("mmap", errno))?
            }
            Some(_) if len < SMALL => small(len).ok_or_else(|| refused("malloc", Errno::ENOMEM))?,
            Some(_) => {
                // SAFETY: the layout's size is not zero in this arm.
                let start = unsafe { alloc_zeroed(Self::layout(len)) };
                NonNull::new(start).ok_or_else(|| refused("malloc", Errno::ENOMEM))?
            }
        };
        let registrations = Registrations::default();
        Ok(Self {
            start,
            len,
            registrations,
        })
    }

    fn layout(len: usize) -> Layout {
        // Only for blocks below HUGE_PAGE, whose size cannot overflow.
        Layout::from_size_align(len, ALIGNMENT).unwrap_or_else(|_| panic!("capacity overflow"))
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Kept as long as the block, so that memory that a pool hands out again is still registered.
    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: start points to `len` initialised bytes (or dangles with len 0) that live as long as self.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let (start, len) = (self.start, self.len);
        // Ends the registrations first: a network card must not reach unmapped memory.
        self.registrations
            .end_before(len, Allocation { start, len });
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match NonZeroUsize::new(self.len) {
            None => {}
            // SAFETY: mapped in `try_zeroed` with the same length, unmapped once, and `&mut self` is the last user.
            Some(size) if self.len >= HUGE_PAGE => unsafe { huge_pages::unmap(self.start, size) },
            // SAFETY: allocated in `try_zeroed` with the same length, and freed once.
            Some(_) if self.len < SMALL => unsafe { free_small(self.start, self.len) },
            // SAFETY: allocated in `try_zeroed` with the same layout, and freed once.
            Some(_) => unsafe { dealloc(self.start.as_ptr(), Block::layout(self.len)) },
        }
    }
}

/// The layout of an allocation with room for aligning it here: allocating small sizes without alignment is many times as fast as
/// `posix_memalign`.
fn small_layout(len: usize) -> Layout {
    Layout::from_size_align(len + ALIGNMENT, SMALL_ALIGNMENT)
        .unwrap_or_else(|_| panic!("capacity overflow"))
}

/// `len` zero bytes, aligned. The byte before them holds their distance from the allocation's start.
fn small(len: usize) -> Option<NonNull<u8>> {
    // SAFETY: the layout's size is not zero.
    let start = NonNull::new(unsafe { alloc(small_layout(len)) })?;
    let skip = ALIGNMENT - start.addr().get() % ALIGNMENT;
    // SAFETY: `skip` is at most ALIGNMENT, so `len` bytes of the allocation follow.
    let aligned = unsafe { start.add(skip) };
    // SAFETY: `skip` is at least SMALL_ALIGNMENT, so the byte before is the allocation's, too.
    let before = unsafe { aligned.sub(1) };
    // SAFETY: a byte of the allocation, which nobody else knows yet.
    unsafe { before.write(skip as u8) };
    // SAFETY: within the allocation, as above.
    unsafe { aligned.write_bytes(0, len) };
    Some(aligned)
}

/// # Safety
/// `start` comes from [`small`] with the same length, and is not used any more.
unsafe fn free_small(start: NonNull<u8>, len: usize) {
    // SAFETY: of the same allocation, as in `small`.
    let before = unsafe { start.sub(1) };
    // SAFETY: `small` wrote it there, and hands out what follows only.
    let skip = unsafe { before.read() };
    // SAFETY: so far behind the start of the allocation.
    let start = unsafe { start.sub(usize::from(skip)) };
    // SAFETY: allocated with this layout, and freed once, as the caller says.
    unsafe { dealloc(start.as_ptr(), small_layout(len)) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_large_blocks_are_zeroed_aligned_and_writable_to_the_end() {
        for len in [
            1,
            63,
            64,
            65,
            SMALL - 1,
            SMALL,
            HUGE_PAGE - 1,
            HUGE_PAGE,
            HUGE_PAGE + 1,
            5 << 20,
        ] {
            let mut block = Block::zeroed(len);
            let align = if len >= HUGE_PAGE {
                HUGE_PAGE
            } else {
                ALIGNMENT
            };
            assert_eq!(block.bytes().as_ptr() as usize % align, 0, "{len}");
            assert!(block.bytes().iter().all(|byte| *byte == 0), "{len}");
            block.bytes_mut().fill(7);
            assert_eq!((block.bytes()[0], block.bytes()[len - 1]), (7, 7));
        }
        assert_eq!(Block::zeroed(0).bytes(), b"");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        for len in [usize::MAX, isize::MAX as usize, 1 << 60] {
            let error = Block::try_zeroed(len).err().unwrap();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("mmap {len} bytes: "))
            );
        }
    }

    #[test]
    fn an_untouched_mapping_takes_no_memory() {
        let block = Block::zeroed(64 << 20);
        let mut resident = vec![1u8; block.len() / 4096];
        // SAFETY: the range is the block's own, and the vector has a byte for each of its pages.
        let result = unsafe {
            libc::mincore(
                block.start.as_ptr().cast(),
                block.len(),
                resident.as_mut_ptr(),
            )
        };
        assert_eq!(result, 0);
        assert!(resident.iter().all(|page| page & 1 == 0));
    }
}
