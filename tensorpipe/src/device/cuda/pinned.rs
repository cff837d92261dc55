//! Main memory that the devices copy from and to while the CPU goes on. For other main memory, the driver copies within the call, and waits
//! for the device if the copy comes from there.

#![allow(unsafe_code, reason = "the driver gives memory as an address")]

use std::any::Any;
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::{Kept, enter, report};
use crate::device::{BufferMut, Memory};
use crate::sys::drop_thread;
use crate::sys::fork::Owner;

/// Bytes that are kept for later: the driver takes some 100 µs for each mebibyte to pin memory, and as long to unpin it. More is kept while
/// too much waits to be unpinned. Chosen.
const RETAIN: usize = 256 << 20;

/// The smallest allocation: a page.
const LEAST: usize = 4 << 10;

/// Longer allocations are rounded to pages, shorter ones to powers of two, so that they serve other lengths, too. Chosen: the longest piece of
/// a transfer.
const LONG: usize = 4 << 20;

/// Unused pinned memory. Cloning clones a handle.
#[derive(Clone, Default)]
pub(super) struct PinnedPool(Arc<Mutex<Free>>);

#[derive(Default)]
struct Free {
    by_len: BTreeMap<usize, Vec<Allocation>>,
    bytes: usize,
}

impl Drop for Free {
    /// The driver waits for all work of the devices; whoever has the last handle does not.
    fn drop(&mut self) {
        let mut kept = std::mem::take(&mut self.by_len).into_values().flatten();
        let Some(first) = kept.next() else { return };
        // A forked child has no thread for it, and frees nothing.
        let is_other_process = first.owner.is_other_process();
        let kept: Vec<_> = std::iter::once(first).chain(kept).collect();
        match is_other_process {
            true => drop(kept),
            false => drop_thread::drop_later(self.bytes, kept),
        }
    }
}

/// An allocation of the driver's, freed when it is dropped.
struct Allocation {
    start: NonNull<u8>,
    len: usize,
    owner: Owner,
    /// The driver frees it as a whole.
    context: Kept<CudaContext>,
}

// SAFETY: it owns the memory, which is any thread's.
unsafe impl Send for Allocation {}
// SAFETY: it gives out bytes by the usual rules of `&` and `&mut`.
unsafe impl Sync for Allocation {}

impl PinnedPool {
    fn lock(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `len` bytes with arbitrary content.
    pub(super) fn take(
        &self,
        context: &Arc<CudaContext>,
        len: usize,
    ) -> Result<BufferMut, DriverError> {
        let class = match len > LONG {
            true => len.checked_next_multiple_of(LEAST),
            false => len.checked_next_power_of_two(),
        };
        let class = class.filter(|class| *class <= isize::MAX as usize);
        let class = class.ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        let class = class.max(LEAST);
        let mut free = self.lock();
        let warm = free.by_len.get_mut(&class).and_then(Vec::pop);
        free.bytes -= warm.as_ref().map_or(0, |warm| warm.len);
        drop(free);
        let allocation = match warm {
            Some(warm) => warm,
            None => Allocation::new(context, class)?,
        };
        let pinned = Pinned {
            allocation: Some(allocation),
            len,
            pool: self.clone(),
        };
        let memory = BufferMut::from_memory(Arc::new(pinned), len);
        // Just made: nobody else holds it.
        memory.map_err(|_| DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE))
    }
}

impl Allocation {
    fn new(context: &Arc<CudaContext>, len: usize) -> Result<Self, DriverError> {
        let _here = enter(context);
        // SAFETY: it is freed once, in `drop`. It is reached by every device.
        let start = unsafe { result::malloc_host(len, sys::CU_MEMHOSTALLOC_PORTABLE) }?;
        let start = NonNull::new(start.cast::<u8>());
        let start = start.ok_or(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY))?;
        // A reader that comes before a writer must find bytes, and none of somebody else's.
        // SAFETY: all of it is there, and nobody has seen it.
        unsafe { start.write_bytes(0, len) };
        Ok(Self {
            start,
            len,
            owner: Owner::here(),
            context: Kept::new(context.clone()),
        })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.owner.is_other_process() {
            std::mem::forget(self.context.clone());
            return;
        }
        let _here = enter(&self.context);
        // SAFETY: made in `new`, and used by nobody from now on.
        let freed = unsafe { result::free_host(self.start.as_ptr().cast()) };
        report(&self.context, "cuMemFreeHost", freed);
    }
}

/// A part of an allocation; it returns to the pool.
pub(super) struct Pinned {
    /// `None` only while dropping.
    allocation: Option<Allocation>,
    len: usize,
    pool: PinnedPool,
}

impl Pinned {
    fn start(&self) -> NonNull<u8> {
        self.allocation
            .as_ref()
            .map_or(NonNull::dangling(), |allocation| allocation.start)
    }

    fn room(&self) -> usize {
        self.allocation.as_ref().map_or(0, |_| self.len)
    }
}

impl Memory for Pinned {
    fn is_private(&self) -> bool {
        true
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        // SAFETY: so many bytes are there, initialised, as long as the allocation is. A device writes them only while a `BufferMut`
        // is on its way through `download`, which shows them to nobody.
        Some(unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.room()) })
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as above, and nobody else has them.
        Some(unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.room()) })
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(allocation) = self.allocation.take() else {
            return;
        };
        // In a forked child, a thread that does not exist there may hold the pool's lock.
        if allocation.owner.is_other_process() {
            return drop(allocation);
        }
        let mut free = self.pool.lock();
        // It may be dropped on the thread that handles all events, where the driver would take too long.
        if free.bytes + allocation.len > RETAIN && !drop_thread::is_backlogged() {
            drop(free);
            return drop_thread::drop_later(allocation.len, allocation);
        }
        free.bytes += allocation.len;
        free.by_len
            .entry(allocation.len)
            .or_default()
            .push(allocation);
    }
}
