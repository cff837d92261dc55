//! A socket that its reactor watches for reading alone.
//!
//! With edge-triggered events, whoever watches for writing too is woken each time that the peer reads. For a socket that carries nothing
//! but wake-ups that is one wake-up too many for each.

#![allow(unsafe_code, reason = "the reactor is told a descriptor by its number")]

use std::io;
use std::os::unix::net::UnixStream;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Has the current runtime watch `socket`, which does not block.
///
/// # Panics
/// Outside of a runtime with a reactor.
pub(crate) fn watch(socket: UnixStream) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: the descriptor is the stream's own, which keeps it open for as long as it lives and always names the same one.
    // Nothing hands out the stream itself to be changed.
    let watched = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
    watched.map_err(io::Error::from)
}
