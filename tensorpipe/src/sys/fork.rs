//! Whether this process is still the one that made something, without a system call.
//!
//! The kernel wipes one page at a fork: a child finds 0 there, and takes a number that no ancestor had.

#![allow(
    unsafe_code,
    reason = "the page is mapped by a system call and seen as an atomic number"
)]

use std::num::NonZeroUsize;
use std::sync::OnceLock;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous};

use crate::error::SystemError;
use crate::sync::{AtomicU64, Ordering};

/// The process in which something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin(u64);

impl Origin {
    /// This process. Fails where the kernel cannot wipe pages (before Linux 4.14).
    pub(crate) fn here() -> Result<Self, SystemError> {
        page().cloned().map(current).map(Self)
    }

    /// Whether this is that process, and not a forked child of it.
    pub(crate) fn is_here(self) -> bool {
        page().is_ok_and(|page| page.load(Ordering::Relaxed) == self.0)
    }
}

fn current(page: &AtomicU64) -> u64 {
    /// Copied at a fork: a child goes on where its parent was.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let found = page.load(Ordering::Relaxed);
    if found != 0 {
        return found;
    }
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    let set = page.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed);
    set.map_or_else(|found| found, |_| next)
}

fn page() -> Result<&'static &'static AtomicU64, SystemError> {
    static PAGE: OnceLock<Result<&'static AtomicU64, SystemError>> = OnceLock::new();
    PAGE.get_or_init(make).as_ref().map_err(Clone::clone)
}

fn make() -> Result<&'static AtomicU64, SystemError> {
    const PAGE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();
    let refused = |call, errno: nix::errno::Errno| SystemError::new(call, "", errno.into());
    let (protection, flags) = (
        ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        MapFlags::MAP_PRIVATE,
    );
    // SAFETY: a new private mapping at an address of the system's choice touches no memory of anybody else.
    let start = unsafe { mmap_anonymous(None, PAGE, protection, flags) }
        .map_err(|errno| refused("mmap", errno))?;
    // SAFETY: the page is ours, and nobody has seen it.
    unsafe { madvise(start, PAGE.get(), MmapAdvise::MADV_WIPEONFORK) }
        .map_err(|errno| refused("madvise", errno))?;
    // SAFETY: the page is zeroed, aligned, lives as long as the process, and is only used as this number.
    Ok(unsafe { start.cast::<AtomicU64>().as_ref() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_is_somebody_else() {
        let here = Origin::here().unwrap();
        assert!(here.is_here());
        // SAFETY: the child only reads memory, and leaves at once without running anything of this process.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => {
                let is_new = !here.is_here() && Origin::here().is_ok_and(|new| new != here);
                // SAFETY: ends the child without running what the parent has registered.
                unsafe { libc::_exit(i32::from(!is_new)) }
            }
            nix::unistd::ForkResult::Parent { child } => {
                let status = nix::sys::wait::waitpid(child, None).unwrap();
                let well = matches!(status, nix::sys::wait::WaitStatus::Exited(_, 0));
                assert!(well, "{status:?}");
            }
        }
        assert!(here.is_here());
    }
}
