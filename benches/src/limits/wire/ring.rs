//! The connection of transport `shm` without a pipe on top: its rings, always hot.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use anyhow::{Result, ensure};
use tensorpipe::transports::{Connection, ShmTransport, Transport};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::End;

/// The two ends of a connection, open and hot.
///
/// # Errors
/// Where there is no shared memory.
pub(super) async fn pair() -> Result<(Ring, Ring)> {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let number = NAMES.fetch_add(1, Ordering::Relaxed);
    let name = format!("limits-{}-{number}", std::process::id());
    let transport = ShmTransport::new();
    let mut acceptor = transport.listen(&name).await?;
    let mut near = transport.connect(&name).await?;
    let mut far = poll_fn(|cx| acceptor.poll_accept(cx)).await?;
    // The listener's end opens with the first byte.
    near.write_all(&[1]).await?;
    ensure!(far.read_u8().await? == 1, "another byte came");
    for end in [&mut near, &mut far] {
        ensure!(end.can_poll(), "shared memory cannot be looked at");
        end.set_polled(true);
    }
    Ok((Ring(near), Ring(far)))
}

pub(super) struct Ring(Box<dyn Connection>);

impl End for Ring {
    fn read(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        let mut into = ReadBuf::new(into);
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.0).poll_read(cx, &mut into) {
            Poll::Ready(read) => read.map(|()| Some(into.filled().len())),
            Poll::Pending => Ok(None),
        }
    }

    fn write(&mut self, from: &[u8]) -> io::Result<Option<usize>> {
        let cx = &mut Context::from_waker(Waker::noop());
        match Pin::new(&mut self.0).poll_write(cx, from) {
            Poll::Ready(written) => written.map(Some),
            Poll::Pending => Ok(None),
        }
    }
}
