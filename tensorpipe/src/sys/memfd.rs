//! Anonymous memory that is passed between processes as a file descriptor, and the seals that its maker sets.
//!
//! A seal cannot be removed. [`FIXED`] keeps the size, so that a mapping is never cut off under its reader. With [`READ_ONLY`], only the
//! maker, who mapped it before, can write there, and nobody can punch holes.
//!
//! Touching a hole in ordinary memory fills it with zeros. If no page is left, the touching process dies with SIGBUS. Two cases need care:
//! - Pages that the administrator set aside (hugetlb) may run out. [`check`] accepts memory on those only if no page is missing and none
//!   can be taken out.
//! - Ordinary pages may run out if the system promises no more than it has (`vm.overcommit_memory` = 2). There, [`create`] allocates all
//!   pages, and [`check`] accepts no memory with missing ones.

#![allow(unsafe_code, reason = "memory is mapped and unmapped by system calls")]

use std::ffi::{CStr, c_void};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::fstat;
use nix::sys::statfs::{HUGETLBFS_MAGIC, fstatfs};

use super::fork::OnceBox;
use super::huge_pages::HUGE_PAGE;
use super::is_short;
use super::probe::Probe;
use crate::error::SystemError;

/// Keeps the size and the seals.
pub(crate) const FIXED: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// Each of these prevents new holes.
const UNPUNCHED: SealFlag = SealFlag::F_SEAL_WRITE.union(SealFlag::F_SEAL_FUTURE_WRITE);

/// As `FIXED`, and mappings made from now on cannot be written.
pub(crate) const READ_ONLY: SealFlag = FIXED.union(SealFlag::F_SEAL_FUTURE_WRITE);

/// How often a free aligned range is tried, since another thread may take it first. After that, an unaligned one has to do, on small pages.
const TRIES: usize = 8;

/// Since Linux 6.3: not executable for good. Older kernels refuse the flag.
const NOEXEC_SEAL: MFdFlags = MFdFlags::from_bits_retain(0x0008);

/// `len` zero bytes, not sealed yet. With `huge`, on pages of 2 MiB that the administrator has set aside.
pub(crate) fn create(name: &CStr, len: usize, huge: bool) -> Result<OwnedFd, SystemError> {
    let mut flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    flags.set(MFdFlags::MFD_HUGETLB, huge);
    let refused = |call, errno: Errno| SystemError::new(call, format!("{len} bytes"), errno.into());
    let fd = match memfd_create(name, flags | NOEXEC_SEAL) {
        Err(Errno::EINVAL) => memfd_create(name, flags),
        made => made,
    };
    let fd = fd.map_err(|errno| refused("memfd_create", errno))?;
    let size = i64::try_from(len).map_err(|_| refused("ftruncate", Errno::EFBIG))?;
    // Beyond this limit, the kernel sends SIGXFSZ, which ends the process.
    let limit = getrlimit(Resource::RLIMIT_FSIZE);
    if limit.is_ok_and(|(longest, _)| len as u64 > longest) {
        return Err(refused("ftruncate", Errno::EFBIG));
    }
    nix::unistd::ftruncate(&fd, size).map_err(|errno| refused("ftruncate", errno))?;
    if !huge && is_strict() {
        fill(&fd, len)?;
    }
    Ok(fd)
}

/// Whether the system may have no page for a hole. Read once. While it cannot be read, such as for want of descriptors: yes.
pub(crate) fn is_strict() -> bool {
    static STRICT: OnceBox<bool> = OnceBox::new();
    once_read(&STRICT)
}

fn once_read(strict: &OnceBox<bool>) -> bool {
    if let Some(known) = strict.get() {
        return *known;
    }
    let keep = |is_strict| *strict.get_or_init(|| is_strict);
    match overcommit() {
        Ok(mode) => keep(forbids_overcommit(&mode)),
        Err(error) if is_short(&error) => true,
        // A sandbox without `/proc/sys`: by default no system is.
        Err(_) => keep(false),
    }
}

fn overcommit() -> std::io::Result<String> {
    std::fs::read_to_string("/proc/sys/vm/overcommit_memory")
}

fn forbids_overcommit(mode: &str) -> bool {
    mode.trim() == "2"
}

/// Whether this system gives memory that can be passed on.
pub(crate) fn probe() -> Result<(), SystemError> {
    static PROBE: Probe = Probe::new();
    PROBE.outcome(|| {
        const LEN: usize = 4096;
        let fd = create(c"tensorpipe-probe", LEN, false)?;
        Mapping::new(fd.as_fd(), LEN, true)?;
        seal(&fd, FIXED)
    })
}

/// Allocates pages for all `len` bytes now, so that none is missing later.
pub(crate) fn fill(fd: &OwnedFd, len: usize) -> Result<(), SystemError> {
    let refused =
        |errno: Errno| SystemError::new("fallocate", format!("{len} bytes"), errno.into());
    let len = i64::try_from(len).map_err(|_| refused(Errno::EFBIG))?;
    let step = |start, len| fallocate(fd, FallocateFlags::empty(), start, len);
    in_steps(len, step).map_err(refused)
}

/// Bytes that are filled at once, in some 1 ms. Older kernels undo what an interrupted call has filled: with a profiler's timer, one call
/// for everything might never end.
const FILLED_AT_ONCE: i64 = HUGE_PAGE as i64;

/// Calls `fill` with the start and the length of each step, again if a signal interrupts it.
fn in_steps(len: i64, mut fill: impl FnMut(i64, i64) -> Result<(), Errno>) -> Result<(), Errno> {
    let mut done = 0;
    while done < len {
        let step = FILLED_AT_ONCE.min(len - done);
        match fill(done, step) {
            Ok(()) => done += step,
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Seals it. Writable mappings must be made before.
pub(crate) fn seal(fd: &OwnedFd, seals: SealFlag) -> Result<(), SystemError> {
    let sealed = fcntl(fd, FcntlArg::F_ADD_SEALS(seals));
    let refused = |errno: Errno| SystemError::new("fcntl", "F_ADD_SEALS", errno.into());
    sealed.map(drop).map_err(refused)
}

/// Why memory from another process cannot be relied on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfit {
    #[error("it is no sealable memory ({0}): pass a memfd made with MFD_ALLOW_SEALING")]
    Unsealable(Errno),
    #[error("it lacks the seals {0:?}")]
    Unsealed(SealFlag),
    #[error(
        "it lies on huge pages that were set aside, and its holes could not be filled: make it without MFD_HUGETLB"
    )]
    SetAside,
    #[error(
        "it has holes, for which this system may have no pages (`vm.overcommit_memory` is 2, or cannot be read): fill them before it is passed"
    )]
    Holes,
    #[error("{0}: {1}")]
    System(&'static str, Errno),
    #[error("its size is {0} bytes")]
    Size(i64),
    #[error("a size of {0} bytes makes no sense")]
    OddSize(usize),
    #[error(transparent)]
    Unmapped(#[from] SystemError),
}

/// The size of memory from another process, if it can be relied on: it has the seals `wanted`, and no access can hit a missing page.
pub(crate) fn check(fd: BorrowedFd<'_>, wanted: SealFlag) -> Result<usize, Unfit> {
    check_on(fd, wanted, is_strict())
}

fn check_on(fd: BorrowedFd<'_>, wanted: SealFlag, is_strict: bool) -> Result<usize, Unfit> {
    let seals = fcntl(fd, FcntlArg::F_GET_SEALS).map_err(Unfit::Unsealable)?;
    let seals = SealFlag::from_bits_retain(seals);
    let missing = wanted - seals;
    if !missing.is_empty() {
        return Err(Unfit::Unsealed(missing));
    }
    let stat = fstat(fd).map_err(|errno| Unfit::System("fstat", errno))?;
    let size = usize::try_from(stat.st_size).ok().filter(|len| *len > 0);
    let len = size.ok_or(Unfit::Size(stat.st_size))?;
    let system = fstatfs(fd).map_err(|errno| Unfit::System("fstatfs", errno))?;
    let is_whole = stat.st_blocks.saturating_mul(512) >= stat.st_size;
    // No holes are there, and new ones are prevented, which F_SEAL_SHRINK alone does not do.
    let stays_whole = is_whole && seals.intersects(UNPUNCHED);
    if system.filesystem_type() == HUGETLBFS_MAGIC && !stays_whole {
        return Err(Unfit::SetAside);
    }
    if is_strict && !is_whole {
        return Err(Unfit::Holes);
    }
    Ok(len)
}

/// A shared mapping of a whole file. A forked child does not inherit it, since the memory belongs to the parent.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: NonZeroUsize,
    origin: super::fork::Origin,
}

// SAFETY: a Mapping is an address range that it owns; what may be done there is up to its users' contracts.
unsafe impl Send for Mapping {}
// SAFETY: as above: it hands out its address, not references.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the `len` bytes of `fd`; from 2 MiB on, aligned to 2 MiB, so that huge pages fit.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: usize, writable: bool) -> Result<Self, SystemError> {
        let refused = |call, errno: Errno| {
            SystemError::new(call, format!("{len} bytes of shared memory"), errno.into())
        };
        let origin = super::fork::Origin::here()?;
        let len = NonZeroUsize::new(len).ok_or_else(|| refused("mmap", Errno::EINVAL))?;
        let mut protection = ProtFlags::PROT_READ;
        protection.set(ProtFlags::PROT_WRITE, writable);
        let start = map(fd, len, protection).map_err(|errno| refused("mmap", errno))?;
        let mapping = Self { start, len, origin };
        // SAFETY: the range is a mapping of ours, and the advice does not change what it holds.
        unsafe { madvise(start.cast(), len.get(), MmapAdvise::MADV_DONTFORK) }
            .map_err(|errno| refused("madvise", errno))?;
        Ok(mapping)
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// Returns the pages of a range to the system; every process that maps them then sees zeros. Keeps them if the system might have
    /// none later (checked anew), or if the range does not begin on one of its (larger) pages.
    pub(crate) fn discard(&self, range: Range<usize>) {
        let may_miss = || overcommit().map_or(true, |mode| forbids_overcommit(&mode));
        if !self.is_here() || range.end > self.len() || range.start >= range.end || may_miss() {
            return;
        }
        // SAFETY: the range is part of this mapping, of which there are addresses and no references; its bytes change, which those
        // who have mapped it may do at any time.
        let start = unsafe { self.start.add(range.start) };
        // SAFETY: as above.
        let removed = unsafe { madvise(start.cast(), range.len(), MmapAdvise::MADV_REMOVE) };
        if let Err(errno) = removed {
            tracing::debug!(%errno, "madvise(MADV_REMOVE): pages are kept");
        }
    }

    /// Whether this process made it: a forked child has no such mapping.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child, something else may be at that address.
        if self.is_here() {
            // SAFETY: mapped in `new` with this length, unmapped once, and `&mut self` is the last user.
            let result = unsafe { munmap(self.start.cast::<c_void>(), self.len.get()) };
            // A filter may deny it: then the range stays mapped.
            debug_assert!(result != Err(Errno::EINVAL), "{result:?}");
        }
    }
}

fn map(fd: BorrowedFd<'_>, len: NonZeroUsize, protection: ProtFlags) -> Result<NonNull<u8>, Errno> {
    if len.get() < HUGE_PAGE {
        // SAFETY: a new mapping at an address of the system's choice touches no memory of anybody else.
        let start = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd, 0) }?;
        return Ok(start.cast());
    }
    // A range that was free and aligned a moment ago. Never MAP_FIXED: if that fails (no huge pages are set aside), it may already
    // have unmapped something, and another thread may have mapped something else there.
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE;
    for _ in 0..TRIES {
        let Some(address) = free_range(len) else {
            break;
        };
        // SAFETY: a new mapping that replaces none touches no memory of anybody else.
        match unsafe { mmap(Some(address), len, protection, flags, fd, 0) } {
            Ok(start) => return Ok(start.cast()),
            // Another thread took the range.
            Err(Errno::EEXIST) => {}
            Err(_) => break,
        }
    }
    // SAFETY: as above.
    let start = unsafe { mmap(None, len, protection, MapFlags::MAP_SHARED, fd, 0) }?;
    Ok(start.cast())
}

/// An address where `len` bytes aligned to [`HUGE_PAGE`] currently have room.
fn free_range(len: NonZeroUsize) -> Option<NonZeroUsize> {
    let room = NonZeroUsize::new(len.get().checked_add(HUGE_PAGE)?)?;
    let (protection, flags) = (
        ProtFlags::PROT_NONE,
        MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE,
    );
    // SAFETY: a new mapping at an address of the system's choice touches no memory of anybody else.
    let found = unsafe { mmap_anonymous(None, room, protection, flags) }.ok()?;
    // SAFETY: mapped in the line above, and nobody has seen it.
    let _ = unsafe { munmap(found, room.get()) };
    NonZeroUsize::new(found.as_ptr().addr().checked_next_multiple_of(HUGE_PAGE)?)
}

/// Asks the kernel to make the pages of a mapping huge now. Returns whether it did.
pub(crate) fn collapse(mapping: &Mapping) -> bool {
    /// Linux 6.1; not in any crate yet.
    const MADV_COLLAPSE: i32 = 25;
    let (start, len) = (mapping.start(), mapping.len());
    // SAFETY: the range is a mapping of ours, and collapsing keeps what it holds.
    let result = unsafe { libc::madvise(start.as_ptr().cast(), len, MADV_COLLAPSE) };
    if result == 0 {
        return true;
    }
    // The system's own daemon may do it later.
    // SAFETY: as above.
    let _ = unsafe { madvise(start.cast(), len, MmapAdvise::MADV_HUGEPAGE) };
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::fork::tests::{in_a_child, open_at_most, opens_files_anyway};

    #[test]
    fn what_is_sealed_stays_and_what_is_not_is_named() {
        let fd = create(c"test", 8192, false).unwrap();
        let open = check(fd.as_fd(), FIXED).unwrap_err();
        assert!(open.to_string().contains("F_SEAL_SHRINK"), "{open}");
        let ours = Mapping::new(fd.as_fd(), 8192, true).unwrap();
        seal(&fd, READ_ONLY).unwrap();
        assert_eq!(check(fd.as_fd(), READ_ONLY).unwrap(), 8192);
        assert!(nix::unistd::ftruncate(&fd, 100).is_err());
        assert!(Mapping::new(fd.as_fd(), 8192, true).is_err());
        let theirs = Mapping::new(fd.as_fd(), 8192, false).unwrap();
        // SAFETY: both ranges are mapped, one byte each, and no reference to them exists.
        unsafe { ours.start().as_ptr().write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.start().as_ptr().read_volatile() }, 7);
    }

    #[test]
    fn files_and_empty_memory_are_refused() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let refused = check(file.as_fd(), FIXED).unwrap_err();
        assert!(matches!(refused, Unfit::Unsealable(_)), "{refused}");
        let empty = create(c"test", 0, false).unwrap();
        seal(&empty, READ_ONLY).unwrap();
        let refused = check(empty.as_fd(), FIXED).unwrap_err();
        assert!(matches!(refused, Unfit::Size(0)), "{refused}");
    }

    #[test]
    fn pages_that_were_set_aside_are_taken_where_none_can_be_missing() {
        let huge = || create(c"test", HUGE_PAGE, true);
        let Ok(open) = huge() else {
            println!("this system knows no such pages");
            return;
        };
        let refused = |fd: &OwnedFd, seals| {
            let unfit = check(fd.as_fd(), seals).unwrap_err();
            assert!(matches!(unfit, Unfit::SetAside), "{unfit}");
        };
        seal(&open, FIXED).unwrap();
        refused(&open, FIXED);
        let holes = huge().unwrap();
        seal(&holes, READ_ONLY).unwrap();
        refused(&holes, READ_ONLY);
        let whole = huge().unwrap();
        if fill(&whole, HUGE_PAGE).is_err() {
            println!("no huge pages are set aside");
            return;
        }
        seal(&whole, READ_ONLY).unwrap();
        assert_eq!(check(whole.as_fd(), READ_ONLY).unwrap(), HUGE_PAGE);
        let punch = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let punched = fallocate(&whole, punch, 0, HUGE_PAGE as i64);
        assert_eq!(punched, Err(Errno::EPERM));
    }

    #[test]
    fn signals_only_repeat_a_step() {
        let (len, mut filled, mut calls) = (2 * FILLED_AT_ONCE + 5, 0, 0);
        let filling = in_steps(len, |start, step| {
            calls += 1;
            if calls % 3 > 0 {
                return Err(Errno::EINTR);
            }
            assert!(start == filled && step <= FILLED_AT_ONCE);
            filled += step;
            Ok(())
        });
        assert_eq!((filling, filled, calls), (Ok(()), len, 9));
        let fails = in_steps(len, |_, _| Err(Errno::ENOSPC));
        assert_eq!(fails, Err(Errno::ENOSPC));
    }

    #[test]
    fn what_cannot_be_read_now_is_strict_until_it_can() {
        if opens_files_anyway() {
            return;
        }
        let known = OnceBox::new();
        assert!(in_a_child(|| {
            open_at_most(0);
            once_read(&known) && known.get().is_none()
        }));
        assert_eq!(once_read(&known), is_strict());
        assert!(known.get().is_some());
    }

    /// Such a system kills a process that touches a hole when no page is left.
    #[test]
    fn where_no_more_is_promised_than_there_is_memory_has_its_pages_at_once() {
        assert!(forbids_overcommit("2\n"));
        assert!(!forbids_overcommit("0\n") && !forbids_overcommit("1\n"));
        let fd = create(c"test", 1 << 20, false).unwrap();
        seal(&fd, FIXED).unwrap();
        assert_eq!(check_on(fd.as_fd(), FIXED, is_strict()).unwrap(), 1 << 20);
        if !is_strict() {
            let holes = check_on(fd.as_fd(), FIXED, true).unwrap_err();
            assert!(matches!(holes, Unfit::Holes), "{holes}");
        }
        fill(&fd, 1 << 20).unwrap();
        assert_eq!(check_on(fd.as_fd(), FIXED, true).unwrap(), 1 << 20);
    }

    #[test]
    fn long_mappings_are_aligned_and_leave_nothing_around_them() {
        let fd = create(c"tensorpipe-aligned", 5 << 20, false).unwrap();
        let mapping = Mapping::new(fd.as_fd(), 5 << 20, true).unwrap();
        assert_eq!(mapping.start().as_ptr().addr() % HUGE_PAGE, 0);
        drop(mapping);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("tensorpipe-aligned"), "{maps}");
    }

    /// A failed mapping must not remove one that another thread has made meanwhile.
    #[test]
    fn mappings_that_fail_harm_nobody() {
        use crate::sys::block::Block;
        use std::sync::atomic::{AtomicBool, Ordering};
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    // Most machines have no huge pages set aside.
                    if let Ok(fd) = create(c"test", 16 << 20, true) {
                        drop(Mapping::new(fd.as_fd(), 16 << 20, true));
                    }
                }
            });
            for _ in 0..2000 {
                let mut block = Block::zeroed(6 << 20);
                block.bytes_mut()[..]
                    .iter_mut()
                    .step_by(4096)
                    .for_each(|byte| *byte = 1);
            }
            ended.store(true, Ordering::Relaxed);
        });
    }
}
