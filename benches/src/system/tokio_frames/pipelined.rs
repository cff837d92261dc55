//! 64 calls in flight over one stream. For speed, no call has a task, a channel or a waker of its own.
//!
//! A frame is `{len: u32, id: u32}` and a body. After each read, an end handles every whole frame and then writes once, so
//! a write carries as many frames as the read brought. Answers come in the order of the calls. The client reads while it
//! writes, so two ends with full buffers do not wait for each other.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::GONE;
use crate::pattern;
use crate::plan::IN_FLIGHT;

/// The client's side of one connection.
pub(super) struct Pipelined {
    len: usize,
    /// Frames of calls, and how many bytes of them are written.
    outgoing: Vec<u8>,
    written: usize,
    incoming: Incoming,
    /// The received bodies, side by side.
    pub(super) answers: Vec<u8>,
    /// Calls made, and answered, in this round.
    asked: u64,
    answered: u64,
}

impl Pipelined {
    pub(super) fn new(len: usize) -> Result<Self> {
        Ok(Self {
            len,
            outgoing: Vec::new(),
            written: 0,
            incoming: Incoming::new(len)?,
            answers: Vec::new(),
            asked: 0,
            answered: 0,
        })
    }

    /// Makes `calls` calls with `body`.
    pub(super) async fn call<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        body: &[u8],
        calls: u64,
    ) -> Result<()> {
        self.answers.clear();
        (self.asked, self.answered) = (0, 0);
        poll_fn(|cx| self.poll_calls(stream, body, calls, cx)).await
    }

    /// Checks every byte of the answers to the last calls.
    pub(super) fn check(&self, calls: u64, round: u64) -> Result<()> {
        let (answered, bytes) = (self.answered, self.answers.len() as u64);
        ensure!(
            answered == calls && bytes == calls * self.len as u64,
            "{answered} answers of {bytes} bytes together"
        );
        for answer in self.answers.chunks_exact(self.len.max(1)) {
            if let Some(wrong) = pattern::mismatch(answer, round) {
                bail!("byte {wrong} is wrong");
            }
        }
        Ok(())
    }

    fn poll_calls<S: AsyncRead + AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        body: &[u8],
        calls: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<()>> {
        while self.answered < calls {
            self.ask(body, calls)?;
            if self.poll_write(stream, cx)?.is_ready() {
                self.outgoing.clear();
                self.written = 0;
            }
            let count = ready!(self.incoming.poll_read(stream, cx))?;
            self.take(count)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Takes every answer that is whole, after a read of `count` bytes.
    fn take(&mut self, count: usize) -> Result<()> {
        ensure!(count > 0, GONE);
        while let Some((id, body)) = self.incoming.next()? {
            ensure!(
                u64::from(id) == self.answered,
                "an answer to call {id} instead of {}",
                self.answered
            );
            self.answers.extend_from_slice(body);
            self.answered += 1;
        }
        Ok(())
    }

    /// Queues as many calls as may be in flight, for one write. Adds nothing while an earlier write is unfinished.
    fn ask(&mut self, body: &[u8], calls: u64) -> Result<()> {
        if !self.outgoing.is_empty() {
            return Ok(());
        }
        while self.asked < calls && self.asked - self.answered < IN_FLIGHT as u64 {
            push(&mut self.outgoing, u32::try_from(self.asked)?, body)?;
            self.asked += 1;
        }
        Ok(())
    }

    /// Ready when everything is written.
    fn poll_write<S: AsyncWrite + Unpin>(
        &mut self,
        stream: &mut S,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while self.written < self.outgoing.len() {
            let rest = &self.outgoing[self.written..];
            match ready!(Pin::new(&mut *stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Serves one connection to its end.
pub(super) async fn answer<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    len: usize,
    sum: bool,
) -> Result<()> {
    let mut incoming = Incoming::new(len)?;
    let mut outgoing = Vec::new();
    while poll_fn(|cx| incoming.poll_read(&mut stream, cx)).await? > 0 {
        while let Some((id, body)) = incoming.next()? {
            if sum {
                std::hint::black_box(pattern::sum(body));
            }
            push(&mut outgoing, id, body)?;
        }
        stream.write_all(&outgoing).await.context("write")?;
        outgoing.clear();
    }
    ensure!(
        incoming.start == incoming.end,
        "the stream ended within a frame"
    );
    Ok(())
}

fn push(outgoing: &mut Vec<u8>, id: u32, body: &[u8]) -> Result<()> {
    outgoing.extend_from_slice(&u32::try_from(body.len())?.to_le_bytes());
    outgoing.extend_from_slice(&id.to_le_bytes());
    outgoing.extend_from_slice(body);
    Ok(())
}

/// Bytes that were read and not yet handled.
struct Incoming {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    /// Length of every body.
    len: usize,
}

impl Incoming {
    fn new(len: usize) -> Result<Self> {
        let frame = HEADER.checked_add(len).context("a frame of that length")?;
        Ok(Self {
            memory: vec![0; READ.max(frame)],
            start: 0,
            end: 0,
            len,
        })
    }

    /// Reads once and appends; 0 at the end of the stream. The caller has already taken every whole frame.
    fn poll_read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        // A partial frame at the start stays where it is: otherwise each read would move all of it.
        if self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let mut into = ReadBuf::new(&mut self.memory[self.end..]);
        ready!(Pin::new(stream).poll_read(cx, &mut into))?;
        let count = into.filled().len();
        self.end += count;
        Poll::Ready(Ok(count))
    }

    /// The next whole frame: its id and its body.
    fn next(&mut self) -> Result<Option<(u32, &[u8])>> {
        let there = &self.memory[self.start..self.end];
        let Some((header, rest)) = there.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [l0, l1, l2, l3, i0, i1, i2, i3] = *header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        let agreed = self.len;
        ensure!(
            len as usize == agreed,
            "a frame of {len} bytes, agreed were {agreed}"
        );
        let Some(body) = rest.get(..agreed) else {
            return Ok(None);
        };
        self.start += HEADER + agreed;
        Ok(Some((u32::from_le_bytes([i0, i1, i2, i3]), body)))
    }
}

const HEADER: usize = 8;
/// Bytes of one read: more frames than are ever under way, if they are small.
const READ: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_call_is_answered_with_its_bytes_however_narrow_the_stream_is() -> Result<()> {
        // Reads of less than a header, of less than a body, and of more than everything in flight.
        for (len, room) in [(0, 5), (3, 7), (1000, 64), (1000, 1 << 20), (20_000, 4096)] {
            let (mut near, far) = tokio::io::duplex(room);
            let serving = tokio::spawn(answer(far, len, true));
            let mut client = Pipelined::new(len)?;
            for round in 0..2 {
                let mut body = vec![0; len];
                pattern::fill(&mut body, round);
                client.call(&mut near, &body, 1).await?;
                client.call(&mut near, &body, 200).await?;
                client.check(200, round)?;
                assert!(client.check(200, round + 1).is_err() || len == 0);
            }
            drop(near);
            serving.await??;
        }
        Ok(())
    }
}
