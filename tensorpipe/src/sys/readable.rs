//! A socket that its reactor watches for reading only.
//!
//! With edge-triggered events, a watcher for writing is also woken each time the peer reads. On a socket that carries only wake-ups, that
//! would double them.

#![allow(unsafe_code, reason = "the reactor is told a descriptor by its number")]

use std::io;
use std::os::unix::net::UnixStream;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Makes the current runtime watch `socket`, which is non-blocking.
///
/// # Panics
/// Outside of a runtime with a reactor.
pub(crate) fn watch(socket: UnixStream) -> io::Result<AsyncFd<UnixStream>> {
    // SAFETY: the descriptor is the stream's own, which keeps it open for as long as it lives and always names the same one.
    // Nothing hands out the stream itself to be changed.
    let watched = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
    watched.map_err(io::Error::from)
}
