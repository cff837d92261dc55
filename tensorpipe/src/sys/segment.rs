//! Memory that other processes may read: its maker cuts a [`Segment`] into [`Piece`]s, and a reader maps a [`Foreign`]. Memory of a device
//! is also a segment, if it has a descriptor to pass; it is not mapped here.
//!
//! Invariant: no two pieces overlap, so writing to a piece needs `&mut`, as with a `Box<[u8]>`. Other processes can only read: the segment
//! is sealed as soon as its maker has mapped it.
//!
//! # Trust
//!
//! The seal does not stop the maker's own mapping. A reader of a [`Foreign`] therefore relies on the other process not to write to memory
//! that it has lent until it is given back. That process runs as the same user, and could as well stop this one in a debugger. This crate
//! reads foreign bytes only to copy them, and never reads twice to make a decision.

#![allow(
    unsafe_code,
    reason = "ranges of a mapping are handed out as slices; who may write is decided by the seal and by `Piece`"
)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::fork::Owner;
use super::huge_pages::HUGE_PAGE;
use super::memfd::{self, Mapping, READ_ONLY};
use super::registrations::Registrations;
use crate::error::SystemError;
use crate::sync::{Arc, Mutex, Weak, lock};

/// Names a segment among all processes. It is random, so a process cannot ask for a segment that it was not told of.
pub(crate) type SegmentId = [u8; 16];

/// The kind of pages that a segment lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Of 2 MiB, set aside by the administrator (`vm.nr_hugepages`).
    Reserved,
    /// Of 2 MiB, assembled by the kernel.
    Huge,
    /// Of 4 KiB.
    Small,
}

/// Told when a segment is gone, if it still exists itself by then.
pub(crate) trait SegmentObserver: Send + Sync {
    /// Called on the thread that drops the segment: it must not block.
    fn gone(self: Arc<Self>, segment: SegmentId);
}

/// Shared memory of this process.
pub(crate) struct Segment {
    id: SegmentId,
    /// Declared before the mapping, so that they end first.
    registrations: Registrations,
    /// `None` for a device's memory.
    mapping: Option<Mapping>,
    len: usize,
    owner: Owner,
    fd: OwnedFd,
    pages: Pages,
    /// Told when the segment is gone.
    told: Mutex<Vec<Weak<dyn SegmentObserver>>>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} bytes, {:?})", self.len, self.pages)
    }
}

impl Segment {
    /// A new segment of `len` zero bytes, cut into pieces of `piece` bytes; a remainder at its end is not used. From 2 MiB on, it
    /// lies on huge pages, all filled, if the system has some; otherwise one byte of each whole 2 MiB is touched.
    pub(crate) fn cut(len: usize, piece: usize) -> Result<Vec<Piece>, SystemError> {
        Self::cut_from(len, piece, &SYSTEM)
    }

    fn cut_from(len: usize, piece: usize, system: &System) -> Result<Vec<Piece>, SystemError> {
        let segment = Arc::new(Self::new(len, system)?);
        let starts = (0..len / piece).map(|i| i * piece);
        let pieces = starts.map(|offset| Piece {
            segment: segment.clone(),
            range: offset..offset + piece,
        });
        Ok(pieces.collect())
    }

    fn new(len: usize, system: &System) -> Result<Self, SystemError> {
        let (fd, mapping, pages) = match Self::reserved(len, system) {
            Some((fd, mapping)) => (fd, mapping, Pages::Reserved),
            None => {
                let fd = memfd::create(c"tensorpipe", len, false)?;
                let mapping = Mapping::new(fd.as_fd(), len, true)?;
                let pages = if prefault(&mapping, system) {
                    Pages::Huge
                } else {
                    Pages::Small
                };
                (fd, mapping, pages)
            }
        };
        memfd::seal(&fd, READ_ONLY)?;
        Self::of(fd, len, Some(mapping), pages)
    }

    /// Memory of a device. A process that has this descriptor may map it there.
    #[allow(dead_code, reason = "for devices that are built in")]
    pub(crate) fn of_device(fd: OwnedFd, len: usize) -> Result<Arc<Self>, SystemError> {
        Ok(Arc::new(Self::of(fd, len, None, Pages::Huge)?))
    }

    fn of(
        fd: OwnedFd,
        len: usize,
        mapping: Option<Mapping>,
        pages: Pages,
    ) -> Result<Self, SystemError> {
        let mut id = SegmentId::default();
        getrandom::fill(&mut id).map_err(SystemError::of_random)?;
        Ok(Self {
            id,
            registrations: Registrations::default(),
            mapping,
            len,
            owner: Owner::here(),
            fd,
            pages,
            told: Mutex::default(),
        })
    }

    /// On huge pages that were set aside. Takes all of them now, so that none is missing later, here or at a reader.
    fn reserved(len: usize, system: &System) -> Option<(OwnedFd, Mapping)> {
        if !len.is_multiple_of(HUGE_PAGE) {
            return None;
        }
        let fd = (system.set_aside)(len).ok()?;
        (system.fill)(&fd, len).ok()?;
        let mapping = Mapping::new(fd.as_fd(), len, true).ok()?;
        Some((fd, mapping))
    }

    pub(crate) fn id(&self) -> SegmentId {
        self.id
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The registrations of the whole segment, which its pieces share.
    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        !self.owner.is_other_process()
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    /// The bytes of `range`; `None` for a device's memory.
    ///
    /// # Safety
    /// The range lies within the segment, and its piece writes nothing there while the result lives.
    pub(in crate::sys) unsafe fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        // SAFETY: inside the mapping, by this function's contract.
        let start = unsafe { self.mapping.as_ref()?.start().as_ptr().add(range.start) };
        // SAFETY: as above; the mapping lives as long as self and was zeroed at birth, and nobody writes.
        Some(unsafe { std::slice::from_raw_parts(start, range.len()) })
    }

    /// To be passed to a reader.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Tells `who` when the segment is gone.
    pub(crate) fn add_observer(&self, who: Weak<dyn SegmentObserver>) {
        let mut told = lock(&self.told);
        if told.len() == told.capacity() {
            told.retain(|who| who.strong_count() > 0);
        }
        told.push(who);
    }

    /// How many observers there are, including dead ones.
    #[cfg(test)]
    pub(crate) fn told(&self) -> usize {
        lock(&self.told).len()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if !self.is_here() {
            return;
        }
        for who in lock(&self.told).drain(..).filter_map(|who| who.upgrade()) {
            who.gone(self.id);
        }
        self.registrations.end_before(self.len, self.mapping.take());
    }
}

/// How the system provides pages: machines differ, and tests imitate them.
struct System {
    /// Creates memory on pages that were set aside; the pages may turn out to be missing.
    set_aside: fn(usize) -> Result<OwnedFd, SystemError>,
    fill: fn(&OwnedFd, usize) -> Result<(), SystemError>,
    collapse: fn(&Mapping) -> bool,
}

const SYSTEM: System = System {
    set_aside: |len| memfd::create(c"tensorpipe", len, true),
    fill: memfd::fill,
    collapse: memfd::collapse,
};

/// Touches one byte of each whole 2 MiB, then asks the kernel to make huge pages of them, which fills them. Returns whether it did.
fn prefault(mapping: &Mapping, system: &System) -> bool {
    let huge = mapping.len() / HUGE_PAGE;
    for page in 0..huge {
        // SAFETY: inside the mapping, which nobody else has seen; zeros are what it holds.
        let first = unsafe { mapping.start().as_ptr().add(page * HUGE_PAGE) };
        // SAFETY: as above. The kernel collapses only ranges of which a page is there.
        unsafe { first.write_volatile(0) };
    }
    huge > 0 && (system.collapse)(mapping)
}

/// A range of a [`Segment`] that no other piece overlaps.
#[derive(Debug)]
pub(crate) struct Piece {
    segment: Arc<Segment>,
    range: Range<usize>,
}

impl Piece {
    pub(crate) fn segment(&self) -> &Arc<Segment> {
        &self.segment
    }

    /// Where it begins within its segment, in bytes.
    pub(crate) fn offset(&self) -> usize {
        self.range.start
    }

    pub(crate) fn len(&self) -> usize {
        self.range.len()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the range lies within the mapping, which lives as long as self and was zeroed at birth. Only `bytes_mut` writes
        // there, since other processes cannot and no other piece overlaps.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive in this process. What other processes may read
        // is not their concern while nothing is lent: see `device::pool::lendable`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len()) }
    }

    fn start(&self) -> *mut u8 {
        let mapping = self.segment.mapping.as_ref();
        let start = mapping.map_or(std::ptr::null_mut(), |mapping| mapping.start().as_ptr());
        // SAFETY: pieces are cut within the mapping, which every segment that is cut has.
        unsafe { start.add(self.range.start) }
    }
}

/// A segment of another process, mapped to be read.
#[derive(Debug)]
pub(crate) struct Foreign {
    registrations: Registrations,
    mapping: Arc<Mapping>,
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let len = self.len();
        self.registrations.end_before(len, self.mapping.clone());
    }
}

impl Foreign {
    /// Maps memory that another process has passed, if it is sealed as segments are. Otherwise the reason in words.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> Result<Self, String> {
        let len = memfd::check(fd, READ_ONLY).map_err(|unfit| unfit.to_string())?;
        let mapping = Mapping::new(fd, len, false).map_err(|error| error.to_string())?;
        Ok(Self {
            registrations: Registrations::default(),
            mapping: Arc::new(mapping),
        })
    }

    pub(crate) fn registrations(&self) -> &Registrations {
        &self.registrations
    }

    pub(crate) fn len(&self) -> usize {
        self.mapping.len()
    }

    /// The bytes of `range`, which must have been lent to this process.
    ///
    /// # Panics
    /// When the range is outside.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.mapping.len(),
            "{range:?}"
        );
        // SAFETY: checked to lie within the mapping.
        let start = unsafe { self.mapping.start().as_ptr().add(range.start) };
        // SAFETY: the size is sealed, so every page is there, or comes when it is touched (`memfd::check`), for as long as
        // the mapping, which lives as long as self.
        // That nobody writes there is the lender's promise: see Trust, above.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }
}

#[cfg(test)]
mod tests;
