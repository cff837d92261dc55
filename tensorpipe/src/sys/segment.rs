//! Memory that other processes may read: a [`Segment`], cut into [`Piece`]s, at its maker's; a [`Foreign`] at a reader's.
//!
//! Invariant: a piece is the only one over its range, so writing to it needs `&mut`, as with a `Box<[u8]>`. What is in other
//! processes is read-only: the segment is sealed as soon as its maker has mapped it.
//!
//! # Trust
//!
//! The seal does not stop the maker's own mapping. So whoever reads a [`Foreign`] relies on the other process not to write
//! to what it has lent before it is given back. That process runs as the same user, who may as well stop this one in a
//! debugger; this crate reads foreign bytes only to copy them, and never twice to decide something.

#![allow(
    unsafe_code,
    reason = "ranges of a mapping are handed out as slices; who may write is decided by the seal and by `Piece`"
)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::huge_pages::HUGE_PAGE;
use super::memfd::{self, Mapping, READ_ONLY};
use crate::error::SystemError;
use crate::sync::{Arc, Mutex, lock};

/// What names a segment among all processes: random, so that nobody asks for one that it was not told of.
pub(crate) type SegmentId = [u8; 16];

/// What sort of pages a segment lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    /// Of 2 MiB, set aside by the administrator (`vm.nr_hugepages`).
    Reserved,
    /// Of 2 MiB, put together by the kernel.
    Huge,
    /// Of 4 KiB.
    Small,
}

type Hook = Box<dyn FnOnce() + Send>;

/// Shared memory of this process.
pub(crate) struct Segment {
    id: SegmentId,
    mapping: Mapping,
    fd: OwnedFd,
    pages: Pages,
    /// To be called when it is gone.
    hooks: Mutex<Vec<Hook>>,
}

impl std::fmt::Debug for Segment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Segment({} bytes, {:?})", self.mapping.len(), self.pages)
    }
}

impl Segment {
    /// A new segment of `len` bytes, all zero, as pieces of `piece` bytes; what is left at its end is not used. From 2 MiB on
    /// all of it is touched, and on huge pages where the system has some.
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
        let mut id = SegmentId::default();
        getrandom::fill(&mut id)
            .map_err(|error| SystemError::new("getrandom", "", std::io::Error::other(error)))?;
        let (fd, mapping, pages) = match Self::reserved(len, system) {
            Some((fd, mapping)) => (fd, mapping, Pages::Reserved),
            None => {
                let fd = memfd::create(c"tensorpipe", len, false)?;
                let mapping = Mapping::new(fd.as_fd(), len, true)?;
                let pages = if warm(&mapping, system) {
                    Pages::Huge
                } else {
                    Pages::Small
                };
                (fd, mapping, pages)
            }
        };
        memfd::seal(&fd, READ_ONLY)?;
        let hooks = Mutex::default();
        Ok(Self {
            id,
            mapping,
            fd,
            pages,
            hooks,
        })
    }

    /// On pages that were set aside. All of them are taken now, so that none is missing later, here or at a reader.
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
        self.mapping.len()
    }

    pub(crate) fn pages(&self) -> Pages {
        self.pages
    }

    /// The bytes of `range`.
    ///
    /// # Safety
    /// The range lies within the segment, and its piece writes nothing there while the result lives.
    pub(in crate::sys) unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        // SAFETY: inside the mapping, by this function's contract.
        let start = unsafe { self.mapping.start().as_ptr().add(range.start) };
        // SAFETY: as above; the mapping lives as long as self and was zeroed at birth, and nobody writes.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// To be passed to a reader.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Has `hook` called when the segment is gone, from whichever thread lets go of it: it must not block.
    pub(crate) fn when_gone(&self, hook: impl FnOnce() + Send + 'static) {
        lock(&self.hooks).push(Box::new(hook));
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        for hook in lock(&self.hooks).drain(..) {
            hook();
        }
    }
}

/// What decides about pages: machines differ, and tests play them.
struct System {
    /// Memory on pages that were set aside, which need not be there yet.
    set_aside: fn(usize) -> Result<OwnedFd, SystemError>,
    fill: fn(&OwnedFd, usize) -> Result<(), SystemError>,
    collapse: fn(&Mapping) -> bool,
}

const SYSTEM: System = System {
    set_aside: |len| memfd::create(c"tensorpipe", len, true),
    fill: memfd::fill,
    collapse: memfd::collapse,
};

/// Gets pages for all of a mapping, huge ones where it is long enough; whether they are.
fn warm(mapping: &Mapping, system: &System) -> bool {
    let huge = mapping.len() / HUGE_PAGE;
    for page in 0..huge {
        // SAFETY: inside the mapping, which nobody else has seen; zeros are what it holds.
        let first = unsafe { mapping.start().as_ptr().add(page * HUGE_PAGE) };
        // SAFETY: as above. The kernel collapses only ranges of which a page is there.
        unsafe { first.write_volatile(0) };
    }
    huge > 0 && (system.collapse)(mapping)
}

/// A range of a [`Segment`] that nobody else has.
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
        // SAFETY: the range lies within the mapping, which lives as long as self and was zeroed at birth; only `bytes_mut`
        // writes there, since other processes cannot and no other piece overlaps.
        unsafe { std::slice::from_raw_parts(self.start(), self.len()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive in this process. What other processes may read
        // is not their concern while nothing is lent: see `device::pool::lendable`.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len()) }
    }

    fn start(&self) -> *mut u8 {
        // SAFETY: pieces are cut within the mapping.
        unsafe { self.segment.mapping.start().as_ptr().add(self.range.start) }
    }
}

/// A segment of another process, mapped to be read.
#[derive(Debug)]
pub(crate) struct Foreign(Mapping);

impl Foreign {
    /// Maps what another process has passed, if it is sealed as a segment is; else why not, in words.
    pub(crate) fn map(fd: BorrowedFd<'_>) -> Result<Self, String> {
        let len = memfd::check(fd, READ_ONLY).map_err(|unfit| unfit.to_string())?;
        let mapping = Mapping::new(fd, len, false).map_err(|error| error.to_string())?;
        Ok(Self(mapping))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The bytes of `range`, which must have been lent to this process.
    ///
    /// # Panics
    /// When the range is outside.
    pub(crate) fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(
            range.start <= range.end && range.end <= self.0.len(),
            "{range:?}"
        );
        // SAFETY: checked to lie within the mapping.
        let start = unsafe { self.0.start().as_ptr().add(range.start) };
        // SAFETY: the size is sealed, so every page is there, or comes when it is touched (`memfd::check`), for as long as
        // the mapping, which lives as long as self.
        // That nobody writes there is the lender's promise: see Trust, above.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicU64, Ordering};

    #[test]
    fn pieces_do_not_overlap_and_a_reader_sees_them() {
        let mut pieces = Segment::cut(1 << 20, 300_000).unwrap();
        assert_eq!(pieces.len(), 3);
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert!(piece.bytes().iter().all(|byte| *byte == 0));
            piece.bytes_mut().fill(i as u8 + 1);
        }
        let segment = pieces[0].segment().clone();
        assert_eq!((segment.len(), segment.pages()), (1 << 20, Pages::Small));
        let foreign = Foreign::map(segment.fd()).unwrap();
        for (i, piece) in pieces.iter().enumerate() {
            let range = piece.offset()..piece.offset() + piece.len();
            let seen = foreign.bytes(range);
            assert!(seen.iter().all(|byte| *byte == i as u8 + 1));
        }
        drop((pieces, segment));
        assert_eq!(foreign.bytes(0..1), [1], "the reader keeps the memory");
    }

    #[test]
    fn long_segments_are_whole_and_on_some_pages() {
        let pieces = Segment::cut(6 << 20, 6 << 20).unwrap();
        let segment = pieces[0].segment();
        println!("{segment:?}");
        assert!(pieces[0].bytes().iter().all(|byte| *byte == 0));
        let foreign = Foreign::map(segment.fd()).unwrap();
        assert!(foreign.bytes(0..6 << 20).iter().all(|byte| *byte == 0));
    }

    /// Such as one has: ordinary pages pass for others.
    const PLENTY: System = System {
        set_aside: |len| memfd::create(c"test", len, false),
        fill: memfd::fill,
        collapse: |_| true,
    };

    const LEN: usize = 4 << 20;

    fn refused(call: &'static str, errno: i32) -> SystemError {
        SystemError::new(call, "", std::io::Error::from_raw_os_error(errno))
    }

    fn whole(len: usize, system: &System) -> Pages {
        let mut pieces = Segment::cut_from(len, len, system).unwrap();
        let segment = pieces[0].segment().clone();
        let foreign = Foreign::map(segment.fd()).unwrap();
        assert!(foreign.bytes(0..len).iter().all(|byte| *byte == 0));
        pieces[0].bytes_mut()[len - 1] = 7;
        assert_eq!(foreign.bytes(len - 1..len), [7]);
        segment.pages()
    }

    #[test]
    fn pages_that_were_set_aside_come_first() {
        assert_eq!(whole(LEN, &PLENTY), Pages::Reserved);
        assert_eq!(whole(LEN + 4096, &PLENTY), Pages::Huge, "no multiple");
    }

    /// A control group without any: they can be made, and mapped, and whoever touched them would be killed.
    #[test]
    fn pages_that_were_set_aside_and_cannot_be_had_are_not_touched() {
        let none = System {
            fill: |_, _| Err(refused("fallocate", libc::ENOSPC)),
            ..PLENTY
        };
        assert_eq!(whole(LEN, &none), Pages::Huge);
    }

    #[test]
    fn small_pages_come_last() {
        let old = System {
            set_aside: |_| Err(refused("memfd_create", libc::EINVAL)),
            collapse: |_| false,
            ..PLENTY
        };
        assert_eq!(whole(LEN, &old), Pages::Small);
        assert_eq!(whole(4096, &PLENTY), Pages::Small);
    }

    #[test]
    fn hooks_are_called_with_the_last_piece() {
        static CALLED: AtomicU64 = AtomicU64::new(0);
        let mut pieces = Segment::cut(8192, 4096).unwrap();
        pieces[0].segment().when_gone(|| {
            CALLED.fetch_add(1, Ordering::SeqCst);
        });
        pieces.pop();
        assert_eq!(CALLED.load(Ordering::SeqCst), 0);
        pieces.pop();
        assert_eq!(CALLED.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_forked_child_gives_nothing_back_and_unmaps_nothing() {
        use crate::sys::ledger::{Debts, Ledger};
        use nix::sys::wait::{WaitStatus, waitpid};
        use nix::unistd::{ForkResult, fork};
        let mut pieces = Segment::cut(1 << 20, 1 << 20).unwrap();
        pieces[0].bytes_mut().fill(3);
        let ledger = Ledger::new().unwrap();
        let debts = Debts::map(ledger.fd()).unwrap();
        let loan = ledger.offer(pieces[0].segment(), 0..1 << 20).unwrap();
        let entry = loan.entry();
        assert!(debts.take(entry));
        // SAFETY: the child only drops what it has inherited, and leaves at once.
        match unsafe { fork() }.unwrap() {
            ForkResult::Child => {
                debts.give_back(entry);
                ledger.withdraw(entry);
                let is_out = !loan.is_back();
                drop((loan, debts, ledger, pieces));
                // SAFETY: ends the child without running what the parent has registered.
                unsafe { libc::_exit(i32::from(!is_out)) }
            }
            ForkResult::Parent { child } => {
                let status = waitpid(child, None).unwrap();
                assert!(matches!(status, WaitStatus::Exited(_, 0)), "{status:?}");
            }
        }
        assert!(!loan.is_back() && ledger.is_out());
        assert!(pieces[0].bytes().iter().all(|byte| *byte == 3));
        debts.give_back(entry);
        assert!(loan.is_back());
    }

    #[test]
    fn what_is_not_sealed_is_not_mapped() {
        let open = memfd::create(c"open", 4096, false).unwrap();
        let refused = Foreign::map(open.as_fd()).unwrap_err();
        assert!(refused.contains("lacks the seals"), "{refused}");
        memfd::seal(&open, memfd::FIXED).unwrap();
        let refused = Foreign::map(open.as_fd()).unwrap_err();
        assert!(refused.contains("FUTURE_WRITE"), "{refused}");
    }
}
