//! Wakes the other end: one byte on the connection's socket.
//!
//! Invariant: an end that clears the flag of a sleeping peer wakes that peer. A system short of memory may refuse the byte. The byte is
//! then owed until it is sent, since nothing else would wake the peer. If the system refuses it for another reason, such as a sandbox that
//! began after the connection, the connection ends: otherwise the peer would sleep while bytes wait for it.

use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use socket2::SockRef;

use super::alarm::Alarm;

/// After so long, the system may have memory again.
const AGAIN: Duration = Duration::from_millis(1);

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Doorbell {
    rung: u64,
    is_owed: bool,
    again: Alarm,
}

impl Doorbell {
    /// `again` wakes the connection, which then calls [`ring_if_due`](Self::ring_if_due).
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

    // Rare compared with the path of an end that is awake: inlining it costs each message 20 ns.
    #[cold]
    #[inline(never)]
    pub(super) fn ring(&mut self, socket: BorrowedFd<'_>) {
        if self.try_ring(socket).is_some() {
            self.is_owed = true;
            self.again.set(AGAIN);
        }
    }

    /// Why the wake-up was not sent; `None` also if the peer does not need it.
    fn try_ring(&mut self, socket: BorrowedFd<'_>) -> Option<io::Error> {
        self.rung += 1;
        // A full socket already holds more wake-ups than the peer needs. A peer that is gone is noticed elsewhere.
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

    /// Whether a wake-up is owed and should be tried again now.
    #[inline]
    pub(super) fn is_due(&self) -> bool {
        self.is_owed && self.again.has_rung()
    }

    /// Tries again to send an owed wake-up, if it is time.
    ///
    /// # Errors
    /// If the wake-up failed for another reason than lack of memory.
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

    /// The connection is dropped: an owed wake-up is not tried again, since the end of the connection wakes the peer.
    pub(super) fn close(&mut self) {
        self.again.cancel();
    }
}

fn is_short_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Not tokio's write: that asks its reactor first, which may not know yet that the socket is writable.
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
    /// How many of this thread's next wake-ups the system refuses.
    pub(super) static REFUSED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}
