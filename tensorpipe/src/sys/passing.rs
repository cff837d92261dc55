//! File descriptors passed over Unix sockets.

#![allow(unsafe_code, reason = "the system hands out descriptors as numbers")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

/// Sends all of `bytes` with `fd` beside them. `bytes` is short and the socket has just been made, so it never waits.
pub(crate) fn send_fd(socket: BorrowedFd<'_>, bytes: &[u8], fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd.as_raw_fd()];
    let sent = sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(bytes)],
        &[ControlMessage::ScmRights(&fds)],
        MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT,
        None,
    )?;
    if sent == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::other("the socket took only a part"))
    }
}

/// Receives bytes and at most one descriptor; more of them are closed. 0 bytes: the peer is gone.
pub(crate) fn recv_fd(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut room = cmsg_space!([i32; 4]);
    let mut pieces = [IoSliceMut::new(bytes)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut room), flags)?;
    let mut found = None;
    for message in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(fds) = message {
            for fd in fds {
                // SAFETY: the system has just made this descriptor for us, and nobody else knows its number.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                found.get_or_insert(fd);
            }
        }
    }
    Ok((received.bytes, found))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_descriptor_arrives_with_its_bytes() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut passed, other) = UnixStream::pair().unwrap();
        send_fd(ours.as_fd(), b"here", other.as_fd()).unwrap();
        drop(other);
        let mut bytes = [0; 8];
        let (len, fd) = recv_fd(theirs.as_fd(), &mut bytes).unwrap();
        assert_eq!(&bytes[..len], b"here");
        drop(UnixStream::from(fd.unwrap()));
        assert_eq!(
            passed.read(&mut bytes).unwrap(),
            0,
            "the last one is closed"
        );
        assert_eq!(
            recv_fd(theirs.as_fd(), &mut bytes).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        drop(ours);
        assert_eq!(recv_fd(theirs.as_fd(), &mut bytes).unwrap().0, 0);
    }
}
