//! Bytes between processes of one machine, optionally with a file descriptor, and packet sockets under names in this network namespace.
//! Nothing here blocks.

#![allow(
    unsafe_code,
    reason = "file descriptors arrive as numbers, and are taken over"
)]

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    connect, listen, recvmsg, sendmsg, socket,
};

/// A socket for packets that arrive whole and in order, or its listener.
#[derive(Debug)]
pub(crate) struct PacketSocket(OwnedFd);

/// A received packet.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) len: usize,
    pub(crate) fd: Option<OwnedFd>,
    /// A descriptor was sent and could not be taken: too many are open.
    pub(crate) fd_lost: bool,
}

const FLAGS: SockFlag = SockFlag::SOCK_CLOEXEC.union(SockFlag::SOCK_NONBLOCK);

impl PacketSocket {
    /// Listens under `name`, an abstract name: no file has it, and other network namespaces do not see it.
    pub(crate) fn listen(name: &str) -> Result<Self, Errno> {
        let socket = Self::new()?;
        bind(
            socket.0.as_raw_fd(),
            &UnixAddr::new_abstract(name.as_bytes())?,
        )?;
        listen(&socket.0, Backlog::MAXCONN)?;
        Ok(socket)
    }

    /// Connects without waiting: `EAGAIN` if too many connections wait to be accepted.
    pub(crate) fn connect(name: &str) -> Result<Self, Errno> {
        let socket = Self::new()?;
        connect(
            socket.0.as_raw_fd(),
            &UnixAddr::new_abstract(name.as_bytes())?,
        )?;
        Ok(socket)
    }

    fn new() -> Result<Self, Errno> {
        socket(AddressFamily::Unix, SockType::SeqPacket, FLAGS, None).map(Self)
    }

    /// The next connection; `EAGAIN` if there is none.
    pub(crate) fn accept(&self) -> Result<Self, Errno> {
        let accepted = accept4(self.0.as_raw_fd(), FLAGS)?;
        // SAFETY: the call has just made this descriptor, and nobody else knows it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(accepted) }))
    }

    /// Sends a packet; `EAGAIN` if the peer does not read.
    pub(crate) fn send(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> Result<(), Errno> {
        send(self.as_fd(), bytes, fd).map(drop)
    }

    /// Receives a packet into `bytes`; of length 0 when the peer has closed. One that is too long is `EMSGSIZE`.
    pub(crate) fn recv(&self, bytes: &mut [u8]) -> Result<Packet, Errno> {
        recv(self.as_fd(), bytes)
    }
}

/// Sends bytes, and a descriptor beside them. Returns how many bytes were sent: all of a packet, some of a stream.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fd: Option<BorrowedFd<'_>>,
) -> Result<usize, Errno> {
    let slices = [IoSlice::new(bytes)];
    let raw = fd.map(|fd| [fd.as_raw_fd()]);
    let control = raw.as_ref().map(|raw| ControlMessage::ScmRights(raw));
    sendmsg::<()>(
        socket.as_raw_fd(),
        &slices,
        control.as_slice(),
        MsgFlags::MSG_NOSIGNAL,
        None,
    )
}

/// Receives a packet, or the available bytes of a stream.
pub(crate) fn recv(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> Result<Packet, Errno> {
    let mut slices = [IoSliceMut::new(bytes)];
    let mut space = nix::cmsg_space!([i32; 4]);
    let received = recvmsg::<()>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let (len, flags) = (received.bytes, received.flags);
    // `RecvMsg::cmsgs` returns none if not all of them had room; the descriptors that had room would then stay open.
    let mut fds: Vec<OwnedFd> = numbers(&space)
        // SAFETY: the kernel has just made these descriptors for this process, and nobody else knows them.
        .map(|raw| unsafe { OwnedFd::from_raw_fd(raw) })
        .collect();
    if flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(Errno::EMSGSIZE);
    }
    Ok(Packet {
        len,
        fd_lost: flags.contains(MsgFlags::MSG_CTRUNC),
        // More than one makes no sense: the others are closed.
        fd: if fds.len() == 1 { fds.pop() } else { None },
    })
}

/// The descriptors in a control buffer that was zeroed before the system wrote to it: one control message holds all that the sender passed.
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

// The layout that `numbers` assumes.
const _: () = assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_level) == 8);
const _: () = assert!(std::mem::offset_of!(libc::cmsghdr, cmsg_type) == 12);

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    std::array::from_fn(|i| bytes[i])
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn packets_keep_their_borders_and_carry_a_descriptor() {
        let name = format!("tensorpipe-test-{}", std::process::id());
        let listener = PacketSocket::listen(&name).unwrap();
        assert_eq!(listener.accept().unwrap_err(), Errno::EAGAIN);
        let one = PacketSocket::connect(&name).unwrap();
        let two = listener.accept().unwrap();
        let file = std::fs::File::open("/dev/null").unwrap();
        one.send(b"first", None).unwrap();
        one.send(b"second", Some(file.as_fd())).unwrap();
        one.send(&[7; 300], None).unwrap();
        let mut bytes = [0; 256];
        let first = two.recv(&mut bytes).unwrap();
        assert_eq!(
            (&bytes[..first.len], first.fd.is_none()),
            (&b"first"[..], true)
        );
        let second = two.recv(&mut bytes).unwrap();
        assert_eq!(
            (&bytes[..second.len], second.fd.is_some()),
            (&b"second"[..], true)
        );
        assert_eq!(two.recv(&mut bytes).unwrap_err(), Errno::EMSGSIZE);
        assert_eq!(two.recv(&mut bytes).unwrap_err(), Errno::EAGAIN);
        drop(one);
        assert_eq!(two.recv(&mut bytes).unwrap().len, 0);
        drop((two, listener));
        assert_eq!(
            PacketSocket::connect(&name).unwrap_err(),
            Errno::ECONNREFUSED
        );
    }

    /// This includes descriptors for which there was no room, and those that came with them.
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
            let packet = recv(theirs.as_fd(), &mut bytes).unwrap();
            assert_eq!(
                (&bytes[..packet.len], packet.fd.is_some()),
                (&b"many"[..], false)
            );
            passed.set_nonblocking(true).unwrap();
            let end = passed.read(&mut bytes);
            assert_eq!(end.ok(), Some(0), "one of {many} is still open");
        }
    }
}
