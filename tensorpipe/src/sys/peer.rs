//! Which process is at the other end of a Unix socket, by the kernel's word and not the peer's.

#![allow(
    unsafe_code,
    reason = "`pidfd_open` is called by number, and gives a descriptor to take over"
)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, sockopt};
use nix::sys::stat::fstat;
use nix::sys::statfs::{FsType, fstatfs};

use super::probe::Probe;
use crate::error::SystemError;
use crate::sync::{AtomicU64, Ordering};

/// A process at the other end of a connected Unix socket.
#[derive(Debug)]
pub(crate) struct Peer {
    /// The user as whom it connected or listened.
    pub(crate) user: u32,
    /// Its pid in this process's namespace; 0 if it has none there.
    pub(crate) pid: i32,
}

/// Who is at the other end.
pub(crate) fn of_socket(socket: impl AsFd) -> Result<Peer, SystemError> {
    let credentials = getsockopt(&socket, sockopt::PeerCredentials);
    let credentials =
        credentials.map_err(|errno| SystemError::new("getsockopt", "SO_PEERCRED", errno.into()))?;
    Ok(Peer {
        user: credentials.uid(),
        pid: credentials.pid(),
    })
}

/// Tells a process from others that run at the same time, where its pid means something. Since Linux 6.9, from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessIdentity {
    pid: i32,
    /// Device and inode of its pidfd. Before Linux 6.9, all pidfds have the same.
    file: (u64, u64),
}

impl ProcessIdentity {
    pub(crate) fn is(&self, pid: u32) -> bool {
        u32::try_from(self.pid) == Ok(pid)
    }
}

impl Peer {
    /// With its [`pidfd`].
    pub(crate) fn identity(&self, process: impl AsFd) -> Result<ProcessIdentity, SystemError> {
        if self.pid <= 0 && !has_own_number(&process) {
            // It is in another pid namespace. Nothing tells two of those apart, so each call counts as another process.
            static NEXT: AtomicU64 = AtomicU64::new(0);
            return Ok(ProcessIdentity {
                pid: 0,
                file: (0, NEXT.fetch_add(1, Ordering::Relaxed)),
            });
        }
        let stat = fstat(process);
        let stat = stat.map_err(|errno| SystemError::new("fstat", "a pidfd", errno.into()))?;
        Ok(ProcessIdentity {
            pid: self.pid,
            file: (stat.st_dev, stat.st_ino),
        })
    }
}

/// Whether no other process has the inode of this pidfd, as since Linux 6.9.
fn has_own_number(process: impl AsFd) -> bool {
    /// `PID_FS_MAGIC`: "PIDF".
    const PIDFS: FsType = FsType(0x5049_4446);
    fstatfs(process).is_ok_and(|system| system.filesystem_type() == PIDFS)
}

/// A descriptor that becomes readable when the process at the other end has ended. Call this while the connection stands: later, the pid
/// may belong to another process.
pub(crate) fn pidfd(socket: impl AsFd) -> Result<OwnedFd, SystemError> {
    // Since Linux 6.5.
    if let Ok(fd) = getsockopt(&socket, sockopt::PeerPidfd) {
        return Ok(fd);
    }
    let refused = |errno: Errno| SystemError::new("pidfd_open", "", errno.into());
    let pid = of_socket(&socket)?.pid;
    if pid <= 0 {
        return Err(refused(Errno::ESRCH));
    }
    // SAFETY: the call takes two numbers, and touches no memory.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = Errno::result(fd).map_err(refused)?;
    // SAFETY: the call has just made this descriptor; descriptors are ints.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether the process of a [`pidfd`] has ended.
pub(crate) fn has_ended(process: impl AsFd) -> bool {
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    poll(&mut ended, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Whether the kernel reports the end of another process; without that, nothing is lent.
pub(crate) fn probe() -> Result<(), SystemError> {
    static PROBE: Probe = Probe::new();
    PROBE.outcome(|| {
        let pair = UnixStream::pair();
        let (one, _two) = pair.map_err(|error| SystemError::new("socketpair", "", error))?;
        pidfd(&one).map(drop)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of its connections must count as the same borrower's.
    #[test]
    fn a_process_of_another_pid_namespace_is_itself_again() {
        let (one, two) = UnixStream::pair().unwrap();
        let mut peer = of_socket(&one).unwrap();
        peer.pid = 0;
        let identity = |socket| peer.identity(pidfd(socket).unwrap()).unwrap();
        assert_eq!(
            identity(&one) == identity(&two),
            has_own_number(pidfd(&one).unwrap())
        );
    }

    #[test]
    fn this_process_is_found_at_the_other_end() {
        let (one, two) = UnixStream::pair().unwrap();
        let peer = of_socket(&one).unwrap();
        assert_eq!(
            (peer.user, peer.pid),
            (
                crate::sys::machine::user(),
                std::process::id().cast_signed()
            )
        );
        let process = pidfd(&one).unwrap();
        let identity = |socket| peer.identity(pidfd(socket).unwrap()).unwrap();
        assert_eq!(identity(&one), identity(&two));
        assert!(!has_ended(&process), "it runs");
    }
}
