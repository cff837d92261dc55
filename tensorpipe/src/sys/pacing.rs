//! A bound on how fast a socket sends.

#![allow(
    unsafe_code,
    reason = "no crate in use knows SO_MAX_PACING_RATE with 64 bits"
)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// At most `bytes_per_second` leave this TCP socket from now on; the kernel keeps the time, and short bursts are above it.
pub(crate) fn set_max_pacing_rate(socket: BorrowedFd<'_>, bytes_per_second: u64) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the pointer and the length are those of one `u64`.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            std::ptr::from_ref(&bytes_per_second).cast(),
            size_of::<u64>() as libc::socklen_t,
        )
    };
    if set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
