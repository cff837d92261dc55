//! Memory shared with another process: a sealed memfd, mapped for reading and writing.
//!
//! The seals keep its size: without them a peer could shrink the file, and touching what is gone kills with SIGBUS.

#![allow(
    unsafe_code,
    reason = "a mapping is made, handed out as a raw pointer, and unmapped"
)]

use std::ffi::{CStr, c_void};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// The size is fixed, and so are the seals.
const SEALS: SealFlag = SealFlag::F_SEAL_SHRINK
    .union(SealFlag::F_SEAL_GROW)
    .union(SealFlag::F_SEAL_SEAL);

/// A shared mapping. Unmapped when dropped; the memory is freed when no process maps it any more.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    len: NonZeroUsize,
}

// SAFETY: it owns the mapping, which is not tied to a thread, and hands out only a raw pointer.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

impl SharedMemory {
    /// Fresh zeroed memory of `len` bytes, and the descriptor to pass on.
    pub(crate) fn create(name: &CStr, len: usize) -> io::Result<(Self, OwnedFd)> {
        let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let size = i64::try_from(len).map_err(io::Error::other)?;
        nix::unistd::ftruncate(&fd, size)?;
        fcntl(&fd, FcntlArg::F_ADD_SEALS(SEALS))?;
        let memory = Self::map(&fd, len)?;
        Ok((memory, fd))
    }

    /// The memory behind a descriptor that a peer has passed. `accepts` judges its size.
    ///
    /// # Errors
    /// In words: it is no sealed memory, or of a size that is not accepted, or cannot be mapped.
    pub(crate) fn adopt(fd: &OwnedFd, accepts: impl FnOnce(usize) -> bool) -> Result<Self, String> {
        let seals = fcntl(fd, FcntlArg::F_GET_SEALS)
            .map_err(|errno| format!("it is no memory that can be sealed ({errno})"))?;
        let seals = SealFlag::from_bits_truncate(seals);
        if !seals.contains(SEALS) {
            return Err(format!("its size is not sealed ({seals:?})"));
        }
        // After the seals were seen, nobody changes it.
        let size = nix::sys::stat::fstat(fd)
            .map_err(|errno| format!("its size is unknown ({errno})"))?
            .st_size;
        let len = usize::try_from(size).unwrap_or(0);
        if !accepts(len) {
            return Err(format!("a size of {size} bytes makes no sense"));
        }
        Self::map(fd, len).map_err(|error| format!("mmap: {error}"))
    }

    fn map(fd: &impl AsFd, len: usize) -> io::Result<Self> {
        let len = NonZeroUsize::new(len).ok_or_else(|| io::Error::other("no bytes"))?;
        // SAFETY: a new mapping at an address of the system's choice touches no memory of anybody else.
        let start = unsafe {
            mmap(
                None,
                len,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                fd,
                0,
            )
        }?;
        Ok(Self {
            start: start.cast(),
            len,
        })
    }

    /// Aligned to a page; valid for [`SharedMemory::len`] bytes for as long as this lives. Others write there too.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and whoever held a pointer held this.
        let result = unsafe { munmap(self.start.cast::<c_void>(), self.len.get()) };
        debug_assert!(result.is_ok(), "{result:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_maps_another_sees() {
        let (ours, fd) = SharedMemory::create(c"test", 8192).unwrap();
        let theirs = SharedMemory::adopt(&fd, |len| len == 8192).unwrap();
        // SAFETY: within the mapping, and nobody else writes.
        unsafe { ours.start().write_volatile(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { theirs.start().read_volatile() }, 7);
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        let fd = memfd_create(c"test", MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&fd, 8192).unwrap();
        let refused = SharedMemory::adopt(&fd, |_| true).unwrap_err();
        assert!(refused.contains("not sealed"), "{refused}");
        let (_, fd) = SharedMemory::create(c"test", 4096).unwrap();
        let refused = SharedMemory::adopt(&fd, |len| len == 8192).unwrap_err();
        assert!(refused.contains("4096 bytes"), "{refused}");
        let file: OwnedFd = std::fs::File::open("/proc/self/exe").unwrap().into();
        let refused = SharedMemory::adopt(&file, |_| true).unwrap_err();
        assert!(refused.contains("sealed"), "{refused}");
        let (socket, _) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(SharedMemory::adopt(&socket.into(), |_| true).is_err());
    }
}
