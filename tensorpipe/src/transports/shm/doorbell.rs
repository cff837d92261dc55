//! Wakes the other end: one byte on the connection's socket.
//!
//! Invariant: whoever has taken down the flag of an end that sleeps wakes it. A system that is short of memory may refuse
//! the byte, so it is owed until it has left: nobody else would send it. One that refuses it for another reason, as a sandbox
//! may that began after the connection, ends the connection: the peer would sleep on what it has been sent.

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
    /// `again` wakes the connection, which then [rings](Self::ring_if_due).
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

    // Cold beside what an end that is awake does: inlined it costs each message 20 ns.
    #[cold]
    #[inline(never)]
    pub(super) fn ring(&mut self, socket: BorrowedFd<'_>) {
        if self.try_ring(socket).is_some() {
            self.is_owed = true;
            self.again.set(AGAIN);
        }
    }

    /// Why the wake-up has not left, if the peer needs it.
    fn try_ring(&mut self, socket: BorrowedFd<'_>) -> Option<io::Error> {
        self.rung += 1;
        // If the socket is full, more wake-ups than it needs wait there already; if the peer is gone, that is seen elsewhere.
        let is_no_matter = |error: &io::Error| {
            matches!(
                error.kind(),
                io::ErrorKind::WouldBlock
                    | io::ErrorKind::BrokenPipe
                    | io::ErrorKind::ConnectionReset
                    | io::ErrorKind::NotConnected
            )
        };
        send(socket).err().filter(|error| !is_no_matter(error))
    }

    /// Whether a wake-up is owed, and it is time to try again.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_owed && self.again.has_rung()
    }

    /// Rings again where that is due.
    ///
    /// # Errors
    /// Why it never will, where that is no lack of memory.
    #[inline]
    pub(super) fn ring_if_due(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        match self.is_due() {
            false => Ok(()),
            true => self.ring_again(socket),
        }
    }

    #[cold]
    fn ring_again(&mut self, socket: BorrowedFd<'_>) -> io::Result<()> {
        self.is_owed = false;
        self.again.stop();
        match self.try_ring(socket) {
            Some(error) if !is_short_of_memory(&error) => return Err(error),
            Some(_) => {
                self.is_owed = true;
                self.again.set(AGAIN);
            }
            None => {}
        }
        Ok(())
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
