//! The data phase after the handshake: rustls between the pipe and the connection below.
//!
//! - **Reading.** By default rustls reads 4 KiB at a time. If the reader's buffer has room for several records, as for bulk data, a read
//!   puts them all into the far end of that buffer, and decrypts their content to its front. So an idle connection has no buffer for that.
//!   rustls keeps incomplete records, and content for which there was no room.
//! - **Failing.** Content that arrived intact before a bad record is delivered before the error.
//! - **Writing.** A write is encrypted and written in pieces of [`WRITE_PIECE`], until all of it is accepted or the connection would block.
//! - **Records without content** (tickets, key changes, mere padding) are discarded by rustls. It bounds only how many of one kind follow
//!   each other; [`FRUITLESS`] bounds all of them together.

use std::io::{self, IoSlice, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::{Connection as Session, PeerMisbehaved};
use smallvec::SmallVec;
use tokio::io::ReadBuf;

use crate::transports::Connection;

/// The most content in a record.
const RECORD: usize = 16 << 10;

/// A read takes several records if it has this much room.
const SEVERAL: usize = 2 * RECORD;

/// Bytes that are encrypted before they are written.
const WRITE_PIECE: usize = 64 << 10;

/// The most bytes of records without content in a row. An honest peer sends two tickets, and a key change after 2^24 records.
const FRUITLESS: usize = 32 << 10;

/// The connection has ended without `close_notify`.
const CUT: &str =
    "it was cut, or the peer's process is gone: TLS has said no goodbye (close_notify)";

/// See the module's documentation.
pub(super) struct Open {
    below: Box<dyn Connection>,
    session: Session,
    /// Bytes that have come since there was content.
    fruitless: usize,
    /// Reported once the content before it is read.
    failed: Option<io::Error>,
}

impl Open {
    pub(super) fn new(below: Box<dyn Connection>, session: impl Into<Session>) -> Self {
        let mut session = session.into();
        session.set_buffer_limit(Some(WRITE_PIECE));
        Self {
            below,
            session,
            fruitless: 0,
            failed: None,
        }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn set_polled(&mut self, polled: bool) {
        self.below.set_polled(polled);
    }

    pub(super) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let room = buf.initialize_unfilled();
        loop {
            // The rest of a record, or the end of the stream.
            if let Some(len) = self.content(room)? {
                buf.advance(len);
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = self.failed.take() {
                return Poll::Ready(Err(error));
            }
            let len = match room.len() {
                ..SEVERAL => ready!(self.read_some(cx))?,
                _ => ready!(self.read_several(cx, room))?,
            };
            if len > 0 {
                buf.advance(len);
                return Poll::Ready(Ok(()));
            }
        }
    }

    /// Lets rustls read in its own way. Returns 0: the caller still has to find out how much content that made.
    fn read_some(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let below = &mut *self.below;
        let read = self.session.read_tls(&mut Blocking { below, cx });
        let len = match read {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
            read => read?,
        };
        self.process(cx, len);
        Poll::Ready(Ok(0))
    }

    /// Reads into the far end of `room`. Content cannot reach there before it is decrypted: it is shorter than its records, and a
    /// record that has come in part adds a [`RECORD`] at most. Returns how much content is at the front.
    fn read_several(&mut self, cx: &mut Context<'_>, room: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut far = ReadBuf::new(&mut room[RECORD..]);
        ready!(Pin::new(&mut *self.below).poll_read(cx, &mut far))?;
        let end = RECORD + far.filled().len();
        let (mut from, mut to) = (RECORD, 0);
        loop {
            // At the end of the stream this reads nothing, which tells rustls about the end.
            let len = self.session.read_tls(&mut &room[from..end])?;
            from += len;
            self.process(cx, len);
            to += self.content(&mut room[to..from])?.unwrap_or_default();
            // Anything after its `close_notify` is ignored.
            if from == end || len == 0 || self.failed.is_some() {
                return Poll::Ready(Ok(to));
            }
        }
    }

    /// Decrypts `len` more bytes of records.
    fn process(&mut self, cx: &mut Context<'_>, len: usize) {
        self.fruitless += len;
        let processed = self.session.process_new_packets();
        let processed = processed.and_then(|state| match state.plaintext_bytes_to_read() {
            0 if self.fruitless > FRUITLESS => Err(PeerMisbehaved::TooManyEmptyFragments.into()),
            _ => Ok(()),
        });
        if let Err(error) = processed {
            // Sends the alert. Whether the peer gets it changes nothing.
            let _ = self.write_out(cx);
            self.failed = Some(io::Error::new(io::ErrorKind::InvalidData, error));
        }
    }

    /// Moves decrypted content into `room`; 0 is the end of the stream. `None`: there is no more for now.
    fn content(&mut self, room: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.reader().read(room) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Ok(len) => {
                self.fruitless = 0;
                Ok(Some(len))
            }
            // rustls says it with an address of its documentation.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(io::Error::new(error.kind(), CUT))
            }
            Err(error) => Err(error),
        }
    }

    pub(super) fn poll_write_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut slices = SmallVec::<[_; 8]>::from_slice(slices);
        let mut rest = &mut slices[..];
        IoSlice::advance_slices(&mut rest, 0);
        let mut taken = 0;
        while !rest.is_empty() {
            let len = self.session.writer().write_vectored(rest)?;
            IoSlice::advance_slices(&mut rest, len);
            taken += len;
            match self.write_out(cx) {
                Poll::Ready(written) => written?,
                Poll::Pending if taken == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        Poll::Ready(Ok(taken))
    }

    /// Writes encrypted bytes.
    fn write_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.session.wants_write() {
            let below = &mut *self.below;
            match self.session.write_tls(&mut Blocking { below, cx }) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => written?,
            };
        }
        Poll::Ready(Ok(()))
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.write_out(cx))?;
        Pin::new(&mut *self.below).poll_flush(cx)
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Repeating it changes nothing.
        self.session.send_close_notify();
        ready!(self.write_out(cx))?;
        match ready!(Pin::new(&mut *self.below).poll_shutdown(cx)) {
            // The peer closed first.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            shut => Poll::Ready(shut),
        }
    }
}

/// The connection below, as rustls expects it: instead of waiting, it returns `WouldBlock`.
struct Blocking<'a, 'b> {
    below: &'a mut dyn Connection,
    cx: &'a mut Context<'b>,
}

fn or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(result) => result,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}

impl Read for Blocking<'_, '_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut buf = ReadBuf::new(bytes);
        or_would_block(Pin::new(&mut *self.below).poll_read(self.cx, &mut buf))?;
        Ok(buf.filled().len())
    }
}

impl Write for Blocking<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.below).poll_write(self.cx, bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        or_would_block(Pin::new(&mut *self.below).poll_write_vectored(self.cx, slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        or_would_block(Pin::new(&mut *self.below).poll_flush(self.cx))
    }
}
