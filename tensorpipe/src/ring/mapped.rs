//! Two rings, one for each direction, in one piece of shared memory.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::control::{Control, RingMemory};
use crate::error::SystemError;
use crate::sys::copy::copy_raw;
use crate::sys::memfd::{self, Mapping, Unfit};
use crate::sys::processors;

/// Where things lie: the control blocks of both rings in the first page, then the bytes of the first, then of the second.
#[derive(Debug)]
pub(crate) struct Layout {
    control: [usize; 2],
    data: usize,
}

/// The one layout there is.
pub(crate) const LAYOUT: Layout = Layout {
    control: [1024, 2048],
    data: 4096,
};

// Both fit in front of the data, aligned, and apart.
const _: () = assert!(size_of::<Control>() <= 1024);
const _: () = assert!(1024 % align_of::<Control>() == 0);

impl Layout {
    /// Bytes of memory for two rings.
    pub(crate) fn size(&self, capacity: usize) -> usize {
        self.data + 2 * capacity
    }

    /// The capacity of the rings in so much memory, if that is a size which [`Layout::size`] returns.
    pub(crate) fn capacity(&self, size: usize) -> Option<usize> {
        let capacity = size.checked_sub(self.data)? / 2;
        (capacity.is_power_of_two() && self.size(capacity) == size).then_some(capacity)
    }
}

/// Fresh memory for two rings, and the descriptor to pass on. Its size is sealed: without that a peer could shrink it,
/// and touching what is gone kills with SIGBUS.
pub(crate) fn create(capacity: usize) -> Result<(Mapping, OwnedFd), SystemError> {
    let fd = memfd::create(c"tensorpipe rings", LAYOUT.size(capacity), false)?;
    memfd::seal(&fd, memfd::FIXED)?;
    let memory = Mapping::new(fd.as_fd(), LAYOUT.size(capacity), true)?;
    Ok((memory, fd))
}

/// The memory behind a descriptor that a peer has passed, if its rings are as large as accepted.
///
/// # Errors
/// It is no sealed memory of ordinary pages, or of another size, or cannot be mapped.
pub(crate) fn adopt(fd: &OwnedFd, accepted: &RangeInclusive<usize>) -> Result<Mapping, Unfit> {
    let len = memfd::check(fd.as_fd(), memfd::FIXED)?;
    let capacity = LAYOUT.capacity(len);
    if !capacity.is_some_and(|capacity| accepted.contains(&capacity)) {
        return Err(Unfit::OddSize(len));
    }
    Ok(Mapping::new(fd.as_fd(), len, true)?)
}

/// One of the two rings.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    /// Keeps mapped what the pointers point to.
    memory: Arc<Mapping>,
    control: NonNull<Control>,
    data: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the pointers lie in `memory`, which is Send and kept alive here. Access goes through atomics, and through raw copies of
// ranges that the ring's counters give to one end at a time.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Ring number 0 or 1 of `memory`; `None` if it has another size than two rings take.
    pub(crate) fn new(memory: Arc<Mapping>, number: usize) -> Option<Self> {
        let capacity = LAYOUT.capacity(memory.len())?;
        let start = memory.start();
        let control = *LAYOUT.control.get(number)?;
        // SAFETY: the control blocks lie in front of the data, and `capacity` follows from the memory's size.
        let control = unsafe { start.add(control) }.cast();
        // SAFETY: both data areas lie within the memory, as its size says.
        let data = unsafe { start.add(LAYOUT.data + number * capacity) };
        Some(Self {
            memory,
            control,
            data,
            capacity,
        })
    }
}

impl RingMemory for Mapped {
    fn control(&self) -> &Control {
        // SAFETY: it points to aligned memory of the size of a Control that lives as long as `self.memory`. A Control is atomics
        // and padding: every content is valid, and others may change it at any time.
        unsafe { self.control.as_ref() }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn processor(&self) -> Option<u32> {
        processors::current()
    }

    fn give_back(&self) {
        let start = self.data.addr().get() - self.memory.start().addr().get();
        self.memory.discard(start..start + self.capacity);
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert!(bytes.len() <= self.capacity && at <= self.capacity - bytes.len());
        // SAFETY: within the data.
        let to = unsafe { self.data.add(at) };
        // SAFETY: the range was just checked to lie within the data. Another process may write there at the same time
        // only if it breaks the protocol; the copy then holds some bytes or others, as raw copies may.
        unsafe { copy_raw(bytes.as_ptr(), to.as_ptr(), bytes.len()) }
    }

    // Streaming stores, which leave the caches alone, were measured here: no faster for 16 and 256 MiB, slower for 1 MiB.
    fn take(&self, at: usize, bytes: &mut [u8]) {
        assert!(bytes.len() <= self.capacity && at <= self.capacity - bytes.len());
        // SAFETY: within the data.
        let from = unsafe { self.data.add(at) };
        // SAFETY: as for `put`.
        unsafe { copy_raw(from.as_ptr(), bytes.as_mut_ptr(), bytes.len()) }
    }
}
