//! The connection below during the handshake: a peer that has proved nothing may send only little.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use rustls::InvalidMessage;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transports::Connection;

/// The most bytes that a peer may send in a handshake: [`CHAIN_MOST`](super::config::CHAIN_MOST), 3 KiB around it, and one record of the
/// data that may follow at once. rustls reads 4 KiB at a time.
const MOST: usize = 32 << 10;

pub(super) struct Shaking {
    below: Box<dyn Connection>,
    left: usize,
}

impl Shaking {
    pub(super) fn new(below: Box<dyn Connection>) -> Self {
        Self { below, left: MOST }
    }

    /// The handshake is complete.
    pub(super) fn done(self) -> Box<dyn Connection> {
        self.below
    }
}

impl AsyncRead for Shaking {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            let error = rustls::Error::from(InvalidMessage::HandshakePayloadTooLarge);
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error)));
        }
        let before = buf.filled().len();
        ready!(Pin::new(&mut *self.below).poll_read(cx, buf))?;
        self.left = self.left.saturating_sub(buf.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Shaking {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.below).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.below).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.below.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.below).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.below).poll_shutdown(cx)
    }
}
