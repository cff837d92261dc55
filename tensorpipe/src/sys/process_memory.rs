//! Reading the memory of another process of this machine.
//!
//! Invariant: bytes that were read belong to that process, not to a later one with the same pid. The kernel gives the pid for the other end
//! of a socket. A pidfd made at the same time tells afterwards whether the process still [runs](Process::runs); while it does, no other
//! process gets its pid.

#![allow(unsafe_code, reason = "nix has no form of `PR_SET_PTRACER`")]

use std::io::IoSliceMut;
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

use super::peer;
use crate::error::SystemError;

/// A process whose memory is read.
#[derive(Debug)]
pub(crate) struct Process {
    pid: Pid,
    /// Readable once it has ended.
    pidfd: OwnedFd,
}

/// Why memory was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryReadError {
    /// The process has ended.
    Ended,
    /// It has no memory there, or memory that cannot be read this way.
    Unmapped,
    /// The system does not allow this process to read it.
    Denied(Errno),
}

impl Process {
    /// The process that connected `socket`, or listened for it. To be sure, wait for an answer on that socket: then the pidfd belongs
    /// to that process.
    ///
    /// # Errors
    /// What the system says; `ESRCH` for a process that cannot be seen from here.
    pub(crate) fn behind(socket: impl AsFd) -> Result<Self, SystemError> {
        let pid = peer::of_socket(&socket)?.pid;
        if pid <= 0 {
            let source = Errno::ESRCH.into();
            return Err(SystemError::new("getsockopt", "SO_PEERCRED", source));
        }
        Ok(Self {
            pid: Pid::from_raw(pid),
            pidfd: peer::pidfd(&socket)?,
        })
    }

    /// Fills `dest` from the process's memory at `from`. After an error, parts of `dest` may be overwritten. After the last read,
    /// check that the process still [runs](Self::runs): otherwise the bytes may be another process's.
    ///
    /// # Errors
    /// See [`MemoryReadError`].
    pub(crate) fn read(&self, from: u64, dest: &mut [u8]) -> Result<(), MemoryReadError> {
        let from = usize::try_from(from).map_err(|_| MemoryReadError::Unmapped)?;
        from.checked_add(dest.len())
            .ok_or(MemoryReadError::Unmapped)?;
        let mut done = 0;
        while done < dest.len() {
            let remote = RemoteIoVec {
                base: from + done,
                len: dest.len() - done,
            };
            let mut local = [IoSliceMut::new(&mut dest[done..])];
            match process_vm_readv(self.pid, &mut local, &[remote]) {
                Ok(0) | Err(Errno::EFAULT) => {
                    return self.runs().and(Err(MemoryReadError::Unmapped));
                }
                Ok(len) => done += len,
                Err(Errno::EINTR) => {}
                // ESRCH, too: it may run without the thread by which it is read.
                Err(errno) => return self.runs().and(Err(MemoryReadError::Denied(errno))),
            }
        }
        Ok(())
    }

    /// Whether it has not ended.
    ///
    /// # Errors
    /// [`MemoryReadError::Ended`].
    pub(crate) fn runs(&self) -> Result<(), MemoryReadError> {
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        loop {
            match poll(&mut fds, PollTimeout::ZERO) {
                Ok(0) => return Ok(()),
                Ok(_) => return Err(MemoryReadError::Ended),
                // A signal interrupted the call.
                Err(Errno::EINTR) => {}
                // Without an answer, it may be any process.
                Err(errno) => return Err(MemoryReadError::Denied(errno)),
            }
        }
    }
}

/// Whether this process may read other processes' memory at all: it tries to read its own.
///
/// # Errors
/// What the system says: the call is missing, or filtered.
pub(crate) fn probe() -> Result<(), Errno> {
    let (here, mut there) = ([0xa5_u8; 16], [0; 16]);
    let remote = RemoteIoVec {
        base: here.as_ptr().expose_provenance(),
        len: here.len(),
    };
    let len = process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut there)], &[remote])?;
    match len == here.len() && std::hint::black_box(here) == there {
        true => Ok(()),
        false => Err(Errno::EIO),
    }
}

/// The reason in words, for the person who can change it.
pub(crate) fn why(errno: Errno) -> String {
    let reason = match errno {
        Errno::ENOSYS => {
            "this kernel has no such call (CONFIG_CROSS_MEMORY_ATTACH), or a seccomp filter hides it"
        }
        Errno::EPERM => match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
            .as_deref()
            .map(str::trim)
        {
            Ok("1") => {
                "kernel.yama.ptrace_scope is 1, so a process is read by its ancestors only; have it make its channel with `CmaChannel::readable_by_all`, or set that to 0"
            }
            Ok("2") => {
                "kernel.yama.ptrace_scope is 2, so reading needs CAP_SYS_PTRACE; give it, or set that to 0"
            }
            Ok("3") => {
                "kernel.yama.ptrace_scope is 3, so no process is read; start the machine with 0"
            }
            _ => {
                "a seccomp filter or a security module forbids it, or the process has changed its rights (it is not dumpable, or has capabilities that the reader lacks)"
            }
        },
        Errno::ESRCH => {
            "the process runs, but its main thread has ended, by which it is read; have that thread wait for the others"
        }
        _ => "",
    };
    match reason {
        "" => format!("process_vm_readv: {errno}"),
        reason => format!("process_vm_readv: {errno}: {reason}"),
    }
}

/// Lets every process of this user read this one's memory, where Yama would allow only its ancestors. Without Yama, they already can.
pub(crate) fn allow_any_ptracer() {
    // SAFETY: the call takes numbers, and touches no memory.
    let set = unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
    // EINVAL: there is no Yama.
    if let Err(errno) = Errno::result(set)
        && errno != Errno::EINVAL
    {
        tracing::warn!(%errno, "other processes may not be able to read this one's memory");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    fn myself() -> Process {
        let (one, _two) = UnixStream::pair().unwrap();
        Process::behind(&one).unwrap()
    }

    #[test]
    fn memory_is_read_where_it_is() {
        probe().unwrap();
        let source: Vec<u8> = (0..100_000).map(|i| (i * 7) as u8).collect();
        let mut dest = vec![0; source.len()];
        let from = source.as_ptr().expose_provenance() as u64;
        myself().read(from, &mut dest).unwrap();
        assert!(source == dest);
        myself().read(from, &mut []).unwrap();
    }

    #[test]
    fn addresses_of_nothing_are_refused() {
        let mut dest = [0; 64];
        for from in [0, 8, u64::MAX - 8, u64::MAX - 100, 1 << 63] {
            assert_eq!(
                myself().read(from, &mut dest),
                Err(MemoryReadError::Unmapped)
            );
        }
    }

    #[test]
    fn what_was_a_process_is_not_read() {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        // SAFETY: the call takes two numbers, and touches no memory.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        assert!(fd >= 0);
        // SAFETY: the call has just made this descriptor.
        let pidfd: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd as i32) };
        // The ended process's pidfd with the pid of another process, as if the pid had been reused.
        let reused = Process {
            pid: Pid::this(),
            pidfd: pidfd.try_clone().unwrap(),
        };
        let gone = Process { pid, pidfd };
        let source = [3_u8; 64];
        let from = source.as_ptr().expose_provenance() as u64;
        let mut dest = [0; 64];
        let read = |process: &Process, dest: &mut [u8]| {
            process.read(from, dest)?;
            process.runs()
        };
        assert_eq!(read(&reused, &mut dest), Ok(()));
        child.kill().unwrap();
        // Nobody has waited for it yet, so it is a zombie.
        let mut ended = [PollFd::new(gone.pidfd.as_fd(), PollFlags::POLLIN)];
        assert_eq!(poll(&mut ended, PollTimeout::from(10_000_u16)), Ok(1));
        assert_eq!(read(&gone, &mut dest), Err(MemoryReadError::Ended));
        child.wait().unwrap();
        assert_eq!(read(&gone, &mut dest), Err(MemoryReadError::Ended));
        assert_eq!(read(&reused, &mut dest), Err(MemoryReadError::Ended));
        let nowhere = reused.read(8, &mut dest);
        assert_eq!(
            nowhere,
            Err(MemoryReadError::Ended),
            "it is not its memory that is missing"
        );
    }

    /// As of a process that has lost its main thread (`pthread_exit`).
    #[test]
    fn who_runs_without_memory_has_not_ended() {
        let mut child = Command::new("true").spawn().unwrap();
        let unused = Pid::from_raw(child.id().cast_signed());
        child.wait().unwrap();
        let process = Process {
            pid: unused,
            ..myself()
        };
        let from = [3_u8; 64].as_ptr().expose_provenance() as u64;
        let read = process.read(from, &mut [0; 64]);
        assert_eq!(read, Err(MemoryReadError::Denied(Errno::ESRCH)));
    }

    #[test]
    fn refusals_say_what_to_do() {
        assert!(why(Errno::ENOSYS).contains("seccomp"));
        assert!(why(Errno::EPERM).len() > 60);
        assert!(why(Errno::ESRCH).contains("main thread"));
        assert!(why(Errno::ENOMEM).contains("process_vm_readv"));
    }
}
