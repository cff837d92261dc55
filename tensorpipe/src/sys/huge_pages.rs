//! Anonymous memory on huge pages, for blocks of 2 MiB and more.
//!
//! First touch of fresh memory costs one page fault per page: 104 ms for 256 MiB on 4 KiB pages, 12 ms on 2 MiB pages.
//! The system gives huge pages only to whole, aligned 2 MiB ranges, hence the alignment. Its zero pages arrive on first
//! touch, so a mapping takes no memory until it is filled.

#![allow(
    unsafe_code,
    reason = "mappings are made, advised and unmapped by system calls"
)]

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use nix::unistd::{SysconfVar, sysconf};

use super::fork::OnceBox;

/// Size and alignment of a huge page, in bytes.
pub(crate) const HUGE_PAGE: usize = 2 << 20;

/// Size of an ordinary page, in bytes: kernels for other processors have larger ones than 4 KiB.
pub(super) fn page() -> usize {
    static PAGE: OnceBox<usize> = OnceBox::new();
    *PAGE.get_or_init(|| {
        let size = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
        size.and_then(|size| size.try_into().ok()).unwrap_or(4096)
    })
}

/// Maps `len` zero bytes, aligned to [`HUGE_PAGE`].
pub(super) fn map(len: NonZeroUsize) -> Result<NonNull<u8>, Errno> {
    let page = page();
    let size = mapped_size(len, page).ok_or(Errno::ENOMEM)?;
    // Enough to contain an aligned range; the rest on both sides is unmapped at once.
    let reserved = size
        .checked_add(HUGE_PAGE - page)
        .and_then(NonZeroUsize::new)
        .ok_or(Errno::ENOMEM)?;
    // SAFETY: a new private mapping at an address of the system's choice touches no memory of anybody else.
    let mapped = unsafe {
        mmap_anonymous(
            None,
            reserved,
            ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
            MapFlags::MAP_PRIVATE,
        )
    }?
    .cast::<u8>();
    let before = mapped.as_ptr().align_offset(HUGE_PAGE);
    let after = reserved.get() - before - size;
    // SAFETY: mappings begin on a page, so `before <= HUGE_PAGE - page` and the result lies inside the mapping.
    let start = unsafe { mapped.add(before) };
    // SAFETY: `before + size <= reserved`, so the end lies inside the mapping or one past it.
    let end = unsafe { start.add(size) };
    // SAFETY: the `before` bytes in front belong to this mapping and nobody has seen them.
    unsafe { unmap_range(mapped, before) };
    // SAFETY: the same for the `after` bytes behind.
    unsafe { unmap_range(end, after) };
    // A system without huge pages refuses the advice; the memory is as good on small pages.
    // SAFETY: the range is ours, and the advice does not change what it holds.
    let _ = unsafe { madvise(start.cast::<c_void>(), size, MmapAdvise::MADV_HUGEPAGE) };
    Ok(start)
}

/// Gives back what [`map`] returned for the same `len`.
///
/// # Safety
/// `start` came from `map(len)`, is given back once, and nobody reads or writes there any more.
pub(super) unsafe fn unmap(start: NonNull<u8>, len: NonZeroUsize) {
    if let Some(size) = mapped_size(len, page()) {
        // SAFETY: by this function's contract the whole range is ours to give back.
        unsafe { unmap_range(start, size) }
    }
}

/// # Safety
/// The range is mapped, whole pages, and nobody uses it any more.
unsafe fn unmap_range(start: NonNull<u8>, len: usize) {
    if len > 0 {
        // SAFETY: by this function's contract.
        let result = unsafe { munmap(start.cast::<c_void>(), len) };
        // Can fail only for want of a mapping descriptor when it splits one, or by a filter; then the range stays reserved.
        debug_assert!(result != Err(Errno::EINVAL), "{result:?}");
    }
}

/// `len` rounded up to pages of this size; `None` beyond what one allocation may span.
fn mapped_size(len: NonZeroUsize, page: usize) -> Option<usize> {
    len.get()
        .checked_next_multiple_of(page)
        .filter(|size| *size <= isize::MAX as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is behind a mapping is unmapped by whole pages of this system.
    #[test]
    fn a_mapping_ends_on_a_page_however_large_pages_are() {
        let size = |len, page| mapped_size(NonZeroUsize::new(len).unwrap(), page);
        assert_eq!(size(HUGE_PAGE + 1, 4096), Some(HUGE_PAGE + 4096));
        assert_eq!(size(HUGE_PAGE + 1, 65536), Some(HUGE_PAGE + 65536));
        assert_eq!(size(HUGE_PAGE, 65536), Some(HUGE_PAGE));
        assert_eq!(size(isize::MAX as usize, 65536), None);
        assert!(page().is_power_of_two() && page() <= HUGE_PAGE);
    }
}
