//! A connection that wraps another one, as TLS does: it changes every byte and takes what it can.
#![allow(missing_docs, reason = "a test")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, Error};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A key stream that both ends compute: what is lost, doubled or moved by a byte turns into noise.
fn key(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

struct Veiled {
    inner: Box<dyn Connection>,
    read: u64,
    written: u64,
    /// Veiled and not yet written: at most one record.
    record: Vec<u8>,
    sent: usize,
}

/// Bytes of one record.
const RECORD: usize = 16 << 10;

impl Veiled {
    fn over(inner: Box<dyn Connection>) -> Box<dyn Connection> {
        Box::new(Self {
            inner,
            read: 0,
            written: 0,
            record: Vec::new(),
            sent: 0,
        })
    }

    fn poll_record(&mut self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.record.len() {
            let rest = &self.record[self.sent..];
            let len = ready!(Pin::new(&mut *self.inner).poll_write(cx, rest))?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += len;
        }
        self.record.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl Connection for Veiled {
    fn ends(&self) -> String {
        format!("veiled {}", self.inner.ends())
    }
}

impl AsyncRead for Veiled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut *self.inner).poll_read(cx, buf))?;
        for byte in &mut buf.filled_mut()[before..] {
            *byte ^= key(self.read);
            self.read += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Veiled {
    /// Takes a record and keeps it: as with TLS, only a flush (or the next write) makes sure that it leaves.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_record(cx))?;
        let taken = bytes.len().min(RECORD);
        for byte in &bytes[..taken] {
            this.record.push(byte ^ key(this.written));
            this.written += 1;
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_record(cx))?;
        Pin::new(&mut *self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_record(cx))?;
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}

struct VeiledTransport(TcpTransport);

struct VeiledAcceptor(Box<dyn Acceptor>);

impl Acceptor for VeiledAcceptor {
    fn address(&self) -> String {
        self.0.address()
    }

    fn poll_accept(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Box<dyn Connection>, Error>> {
        self.0.poll_accept(cx).map_ok(Veiled::over)
    }
}

impl Transport for VeiledTransport {
    fn name(&self) -> &'static str {
        "veiled"
    }

    fn domain(&self) -> Vec<u8> {
        self.0.domain()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move { self.0.connect(address).await.map(Veiled::over) })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let acceptor = self.0.listen(address).await?;
            Ok(Box::new(VeiledAcceptor(acceptor)) as Box<dyn Acceptor>)
        })
    }
}

fn context() -> Context {
    let transport: Arc<dyn Transport> = Arc::new(VeiledTransport(TcpTransport::new()));
    let channel: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let builder = Context::builder()
        .transports([transport])
        .channels([channel]);
    builder.build().unwrap()
}

tensorpipe::pipe_conformance!(pipes, context, "veiled://127.0.0.1:0");
