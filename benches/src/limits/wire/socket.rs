//! Sockets that are asked again and again, without waiting in the kernel.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use socket2::SockRef;

use super::End;

/// The two ends of a Unix socket, with buffers as large as the system gives.
pub(super) fn unix() -> io::Result<(Socket<UnixStream>, Socket<UnixStream>)> {
    let (near, far) = UnixStream::pair()?;
    for end in [&near, &far] {
        end.set_nonblocking(true)?;
        largest_buffers(end)?;
    }
    Ok((Socket(near), Socket(far)))
}

/// The two ends of a connection over the loopback.
pub(super) fn tcp() -> io::Result<(Socket<TcpStream>, Socket<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    for end in [&near, &far] {
        end.set_nonblocking(true)?;
        end.set_nodelay(true)?;
    }
    Ok((Socket(near), Socket(far)))
}

fn largest_buffers(socket: &impl AsFd) -> io::Result<()> {
    // The kernel cuts it down to what it allows.
    SockRef::from(socket).set_send_buffer_size(1 << 20)
}

pub(super) struct Socket<S>(S);

impl<S: Read + Write + Send> End for Socket<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let len = into.len().min(READ);
        not_now(self.0.read(&mut into[..len]))
    }

    fn write(&mut self, from: &[u8]) -> io::Result<Option<usize>> {
        not_now(self.0.write(&from[..from.len().min(WRITE)]))
    }
}

fn not_now(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        result => result.map(Some),
    }
}

/// Bytes of one call, as the hand-written peer takes them.
const READ: usize = 64 << 10;
const WRITE: usize = 512 << 10;
