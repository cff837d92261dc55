//! Two rings, one for each direction, in one piece of shared memory, and larger places for their bytes, each in one of
//! its own.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use super::control::{Control, DONE, Place};
use crate::error::SystemError;
use crate::sync::Ordering;
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

/// Fresh memory for larger places, a power of two up to so many bytes, and the descriptor to pass on: bytes and nothing
/// else. Its size, twice as much, is sealed. The place of `n` bytes lies `n` bytes behind its start, so none overlaps
/// another; what of it nobody uses takes no memory.
pub(crate) fn create_place(capacity: usize) -> Result<(Mapping, OwnedFd), SystemError> {
    let fd = memfd::create(c"tensorpipe large ring", 2 * capacity, false)?;
    memfd::seal(&fd, memfd::FIXED)?;
    let memory = Mapping::new(fd.as_fd(), 2 * capacity, true)?;
    Ok((memory, fd))
}

/// The larger places behind a descriptor that a peer has passed, if the largest is as large as accepted.
///
/// # Errors
/// As [`adopt`].
pub(crate) fn adopt_place(
    fd: &OwnedFd,
    accepted: &RangeInclusive<usize>,
) -> Result<Mapping, Unfit> {
    let len = memfd::check(fd.as_fd(), memfd::FIXED)?;
    if !len.is_power_of_two() || !accepted.contains(&(len / 2)) {
        return Err(Unfit::OddSize(len));
    }
    Ok(Mapping::new(fd.as_fd(), len, true)?)
}

/// One of the two rings, or a larger place for its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Mapped {
    /// Keeps mapped what the pointers point to: the control block, and the bytes.
    memory: [Arc<Mapping>; 2],
    control: NonNull<Control>,
    data: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the pointers lie in `memory`, which is Send and kept alive here; access goes through atomics, and through raw
// copies of ranges that the ring's counters give to one end at a time.
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
            memory: [memory.clone(), memory],
            control,
            data,
            capacity,
        })
    }

    /// Whether so many bytes have been read, and no more: as the reader says, which need not be true.
    pub(crate) fn is_read_to(&self, count: u64) -> bool {
        let read = &self.control().read.0.count;
        read.load(Ordering::Relaxed) & !DONE == count
    }

    /// The same ring, with its bytes in the place of so many bytes in `places`; `None` if there is none.
    pub(crate) fn with_place(&self, places: Arc<Mapping>, capacity: usize) -> Option<Self> {
        let [memory, _] = &self.memory;
        if !capacity.is_power_of_two() || capacity > places.len() / 2 {
            return None;
        }
        // SAFETY: the place is the `capacity` bytes behind the first `capacity` ones, and the memory has twice as many at
        // least.
        let data = unsafe { places.start().add(capacity) };
        Some(Self {
            memory: [memory.clone(), places],
            control: self.control,
            data,
            capacity,
        })
    }

    /// The same ring, with its bytes in each of the places from so many bytes on in `places`.
    pub(crate) fn with_places(
        &self,
        places: &Arc<Mapping>,
        least: usize,
    ) -> impl Iterator<Item = Self> {
        let sizes = std::iter::successors(Some(least), |size| size.checked_mul(2));
        sizes.map_while(|size| self.with_place(places.clone(), size))
    }
}

impl Place for Mapped {
    fn control(&self) -> &Control {
        // SAFETY: it points to aligned memory of the size of a Control that lives as long as `self.memory`; a Control is
        // atomics and padding, for which every content is valid, and which others may change at any time.
        unsafe { self.control.as_ref() }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn processor(&self) -> Option<u32> {
        processors::current()
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
