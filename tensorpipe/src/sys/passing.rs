//! File descriptors passed over Unix sockets.

#![allow(unsafe_code, reason = "the system hands out descriptors as numbers")]

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, MsgFlags, recvmsg, sendmsg};

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
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut pieces, Some(&mut room), flags)?.bytes;
    let mut found = None;
    // `RecvMsg::cmsgs` would give none where there was no room for all: those that there was room for would stay open.
    for fd in numbers(&room) {
        // SAFETY: the system has just made this descriptor for us, and nobody else knows its number.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        found.get_or_insert(fd);
    }
    Ok((received, found))
}

/// The descriptors in what a system wrote into a buffer of zeros: all of a sender's are in one control message.
fn numbers(control: &[u8]) -> impl Iterator<Item = i32> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let field = |at| i32::from_ne_bytes(array(&control[at..]));
    let len = usize::from_ne_bytes(array(control));
    let is_ours = (field(8), field(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let end = if is_ours { len.min(control.len()) } else { 0 };
    let numbers = control.get(HEADER..end).unwrap_or_default();
    numbers
        .chunks_exact(4)
        .map(|number| i32::from_ne_bytes(array(number)))
}

// As `numbers` reads it.
const _: () = assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_level) == 8);
const _: () = assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_type) == 12);

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
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

    /// Also those for which there was no room, and those that came with them.
    #[test]
    fn descriptors_that_nobody_asked_for_are_closed() {
        for many in [2, 4, 5, 200] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let (mut passed, other) = UnixStream::pair().unwrap();
            let fds = vec![other.as_raw_fd(); many];
            let rights = [ControlMessage::ScmRights(&fds)];
            let (fd, none) = (ours.as_raw_fd(), MsgFlags::empty());
            sendmsg::<()>(fd, &[IoSlice::new(b"many")], &rights, none, None).unwrap();
            drop(other);
            let mut bytes = [0; 8];
            let (len, fd) = recv_fd(theirs.as_fd(), &mut bytes).unwrap();
            assert_eq!((&bytes[..len], fd.is_some()), (&b"many"[..], true));
            drop(fd);
            passed.set_nonblocking(true).unwrap();
            let end = passed.read(&mut bytes);
            assert_eq!(end.ok(), Some(0), "one of {many} is still open");
        }
    }
}
