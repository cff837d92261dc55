//! A connection that wraps a tcp connection: it scrambles every byte, may accept partial writes, and sends a goodbye.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tensorpipe::Identity;
use tensorpipe::transports::{Connection, TcpTransport};
use tensorpipe_tests::Over;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

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
    manners: Manners,
    /// Under way.
    saying: Option<Pin<Box<Sleep>>>,
    polled: bool,
}

/// How long a goodbye takes (the longest asks no timer), how many were begun and said, and who the peer has proved to be.
#[derive(Clone, Default)]
pub(crate) struct Manners {
    pub(crate) takes: Duration,
    /// Whoever is asked to say it panics.
    pub(crate) panics: bool,
    pub(crate) begun: Arc<AtomicUsize>,
    pub(crate) said: Arc<AtomicUsize>,
    /// One was asked for while it was told that somebody polls.
    pub(crate) polled: Arc<AtomicBool>,
    /// It always has something to say that nobody need be given.
    pub(crate) floods: Arc<AtomicBool>,
    pub(crate) identity: Option<Identity>,
}

/// A frame of a kind that nobody knows, which says that it may be skipped.
const SKIPPED: [u8; 8] = [0, 0, 0, 0, 200, 1, 0, 0];

/// Bytes of one record.
const RECORD: usize = 16 << 10;

impl Veiled {
    fn over(inner: Box<dyn Connection>, manners: &Manners) -> Box<dyn Connection> {
        Box::new(Self {
            inner,
            read: 0,
            written: 0,
            record: Vec::new(),
            sent: 0,
            manners: manners.clone(),
            saying: None,
            polled: false,
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
    fn endpoints(&self) -> String {
        format!("veiled {}", self.inner.endpoints())
    }

    fn identity(&self) -> Option<Identity> {
        self.manners.identity.clone()
    }

    fn wakes(&self) -> u64 {
        self.inner.wakes()
    }

    fn can_poll(&self) -> bool {
        self.inner.can_poll()
    }

    fn poll_is_syscall(&self) -> bool {
        self.inner.poll_is_syscall()
    }

    fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
        self.inner.set_polled(polled);
    }

    fn is_ready(&mut self) -> bool {
        self.manners.floods.load(Ordering::SeqCst) || self.inner.is_ready()
    }
}

impl AsyncRead for Veiled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.manners.floods.load(Ordering::SeqCst) {
            while buf.remaining() >= SKIPPED.len() {
                buf.put_slice(&SKIPPED);
            }
            return Poll::Ready(Ok(()));
        }
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
        self.manners.begun.fetch_add(1, Ordering::SeqCst);
        self.manners.polled.fetch_or(self.polled, Ordering::SeqCst);
        assert!(!self.manners.panics, "by design");
        ready!(self.poll_record(cx))?;
        let takes = self.manners.takes;
        if takes == Duration::MAX {
            return Poll::Pending;
        }
        let saying = self.saying.get_or_insert_with(|| Box::pin(sleep(takes)));
        ready!(saying.as_mut().poll(cx));
        self.manners.said.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}

/// Its transport.
pub(crate) fn veiled(manners: Manners) -> Over {
    let tcp = Over::new("veiled", TcpTransport::new());
    tcp.wrapping(move |inner| Veiled::over(inner, &manners))
}
