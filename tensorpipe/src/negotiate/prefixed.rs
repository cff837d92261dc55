//! A connection some of whose bytes have been read already.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::transports::Connection;

/// Gives `first`, then what the connection gives.
pub(super) struct Prefixed {
    first: Vec<u8>,
    given: usize,
    connection: Box<dyn Connection>,
}

impl Prefixed {
    /// The connection itself where nothing has been read.
    pub(super) fn over(first: Vec<u8>, connection: Box<dyn Connection>) -> Box<dyn Connection> {
        if first.is_empty() {
            return connection;
        }
        Box::new(Self {
            first,
            given: 0,
            connection,
        })
    }
}

impl Connection for Prefixed {
    fn ends(&self) -> String {
        self.connection.ends()
    }

    fn wakes(&self) -> u64 {
        self.connection.wakes()
    }

    fn can_be_hot(&self) -> bool {
        self.connection.can_be_hot()
    }

    fn looks_cost(&self) -> bool {
        self.connection.looks_cost()
    }

    fn set_hot(&mut self, hot: bool) {
        self.connection.set_hot(hot);
    }

    fn look(&mut self) -> bool {
        self.given < self.first.len() || self.connection.look()
    }
}

impl AsyncRead for Prefixed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let rest = &self.first[self.given..];
        if rest.is_empty() {
            return Pin::new(&mut *self.connection).poll_read(cx, buf);
        }
        let len = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..len]);
        self.given += len;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Prefixed {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.connection).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.connection).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.connection.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.connection).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.connection).poll_shutdown(cx)
    }
}
