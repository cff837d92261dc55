//! Wakes the other end: one byte on the connection's socket.
//!
//! Invariant: whoever has taken down the flag of an end that sleeps wakes it. A system that is short of memory may refuse
//! the byte, so it is owed until it has left: nobody else would send it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use socket2::SockRef;

use super::alarm::Alarm;

/// After which the system may have memory again.
const AGAIN: Duration = Duration::from_millis(1);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Doorbell {
    rung: u64,
    is_owed: bool,
    again: Alarm,
}

impl Doorbell {
    /// `again` wakes the connection, which then [looks](Self::look).
    pub(super) fn new(again: Alarm) -> Self {
        Self {
            rung: 0,
            is_owed: false,
            again,
        }
    }

    /// How often it was rung.
    pub(super) fn rung(&self) -> u64 {
        self.rung
    }

    pub(super) fn ring(&mut self, socket: BorrowedFd<'_>) {
        self.rung += 1;
        match send(socket) {
            Err(error) if is_short_of_memory(&error) => {
                self.is_owed = true;
                self.again.set(AGAIN);
            }
            // If the socket is full, more wake-ups than it needs wait there already; if the peer is gone, that is seen
            // elsewhere.
            _ => {}
        }
    }

    /// Whether a wake-up is owed, and it is time to look.
    pub(super) fn is_due(&self) -> bool {
        self.is_owed && self.again.has_rung()
    }

    /// Rings again where that is due.
    pub(super) fn look(&mut self, socket: BorrowedFd<'_>) {
        if self.is_due() {
            self.is_owed = false;
            self.again.stop();
            self.ring(socket);
        }
    }

    /// The connection is dropped: its end wakes the peer.
    pub(super) fn close(&mut self) {
        self.again.cancel();
    }
}

fn is_short_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Not tokio's write: it asks its reactor first, which may not know yet that the socket can be written.
fn send(socket: BorrowedFd<'_>) -> io::Result<usize> {
    #[cfg(test)]
    if REFUSED.with(|left| {
        left.get()
            .checked_sub(1)
            .inspect(|less| left.set(*less))
            .is_some()
    }) {
        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    SockRef::from(&socket).send_with_flags(&[1], flags)
}

#[cfg(test)]
thread_local! {
    /// So many of this thread's next wake-ups the system refuses.
    pub(super) static REFUSED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}
