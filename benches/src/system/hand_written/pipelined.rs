//! 64 calls under way over one stream: no task, no channel and no waker for a call, which nobody writes by hand who wants
//! to be fast.
//!
//! A frame is `{len: u32, id: u32}` and a body. Whoever has read something handles every whole frame in it and then writes
//! once, so that a write carries as many frames as the read before it brought. Answers come in the order of the calls. The
//! client reads while it writes, so two ends that both have full buffers do not wait for each other.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::GONE;
use crate::pattern;
use crate::plan::{IN_FLIGHT, Plan, Transport, pipelined};
use crate::system::socket::Socket;
use crate::system::{Client, Route, Trip};

/// The client's side of one connection.
pub(crate) struct Pipelined<S = Socket> {
    stream: S,
    transport: Transport,
    sum: bool,
    body: Vec<u8>,
    /// Frames of calls, and how many bytes of them are written.
    outgoing: Vec<u8>,
    written: usize,
    incoming: Incoming,
    /// The bodies that came, side by side.
    answers: Vec<u8>,
    /// Calls made, and answered, in this round.
    asked: u64,
    answered: u64,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Pipelined<S> {
    pub(super) fn new(stream: S, plan: &Plan) -> Result<Self> {
        let len = plan.len()?;
        Ok(Self {
            stream,
            transport: plan.transport,
            sum: plan.sum,
            body: vec![0; len],
            outgoing: Vec::new(),
            written: 0,
            incoming: Incoming::new(len)?,
            answers: Vec::new(),
            asked: 0,
            answered: 0,
        })
    }

    async fn call(&mut self, calls: u64) -> Result<()> {
        self.answers.clear();
        (self.asked, self.answered) = (0, 0);
        poll_fn(|cx| self.poll_calls(calls, cx)).await
    }

    fn poll_calls(&mut self, calls: u64, cx: &mut Context<'_>) -> Poll<Result<()>> {
        while self.answered < calls {
            self.ask(calls)?;
            if self.poll_write(cx)?.is_ready() {
                self.outgoing.clear();
                self.written = 0;
            }
            let count = ready!(self.incoming.poll_read(&mut self.stream, cx))?;
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

    /// As many calls as may be under way, for one write. While another one is stuck nothing is added to it.
    fn ask(&mut self, calls: u64) -> Result<()> {
        if !self.outgoing.is_empty() {
            return Ok(());
        }
        while self.asked < calls && self.asked - self.answered < IN_FLIGHT as u64 {
            push(&mut self.outgoing, u32::try_from(self.asked)?, &self.body)?;
            self.asked += 1;
        }
        Ok(())
    }

    /// Ready when everything is written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.outgoing.len() {
            let rest = &self.outgoing[self.written..];
            match ready!(Pin::new(&mut self.stream).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.written += count,
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Client for Pipelined<S> {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        pattern::fill(&mut self.body, round);
        Ok(())
    }

    async fn touch(&mut self, _: Trip) -> Result<()> {
        self.call(1).await
    }

    async fn round(&mut self) -> Result<()> {
        self.call(self.calls_per_round()).await?;
        if self.sum {
            std::hint::black_box(pattern::sum(&self.answers));
        }
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        let len = self.body.len();
        let calls = self.calls_per_round();
        let expected = len as u64 * calls;
        ensure!(
            self.answered == calls && self.answers.len() as u64 == expected,
            "{} answers of {} bytes",
            self.answered,
            self.answers.len()
        );
        for answer in self.answers.chunks_exact(len.max(1)) {
            if let Some(wrong) = pattern::mismatch(answer, round) {
                anyhow::bail!("byte {wrong} is wrong");
            }
        }
        Ok(())
    }

    fn calls_per_round(&self) -> u64 {
        pipelined(self.body.len() as u64)
    }

    fn route(&self) -> Route {
        Route::plain(self.transport.name())
    }
}

/// Serves one connection to its end.
///
/// # Errors
/// When the peer says something else, or the connection breaks.
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
    ensure!(incoming.is_empty(), "the stream ended within a frame");
    Ok(())
}

fn push(outgoing: &mut Vec<u8>, id: u32, body: &[u8]) -> Result<()> {
    outgoing.extend_from_slice(&u32::try_from(body.len())?.to_le_bytes());
    outgoing.extend_from_slice(&id.to_le_bytes());
    outgoing.extend_from_slice(body);
    Ok(())
}

/// What was read and not yet handled.
struct Incoming {
    memory: Vec<u8>,
    start: usize,
    end: usize,
    /// Of every body.
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

    fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Reads once, behind what is there; 0 at the end of the stream. Every whole frame has been taken before.
    fn poll_read(
        &mut self,
        stream: &mut (impl AsyncRead + Unpin),
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        // What has come of a long frame stays where it is: else each read would move all of it.
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
        ensure!(
            len as usize == self.len,
            "a frame of {len} bytes, agreed were {}",
            self.len
        );
        let Some(body) = rest.get(..self.len) else {
            return Ok(None);
        };
        self.start += HEADER + self.len;
        Ok(Some((u32::from_le_bytes([i0, i1, i2, i3]), body)))
    }
}

const HEADER: usize = 8;
/// Bytes of one read: more frames than are ever under way, if they are small.
const READ: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use tokio::io::DuplexStream;

    use super::*;
    use crate::plan::Case;
    use crate::plan::tests::plan;

    fn client(stream: DuplexStream, bytes: u64) -> Result<Pipelined<DuplexStream>> {
        Pipelined::new(stream, &plan("tokio", Case::Pipeline, bytes))
    }

    #[tokio::test]
    async fn every_call_is_answered_with_its_bytes_however_narrow_the_stream_is() -> Result<()> {
        // Less than a header, less than a body, more than everything that is under way.
        for (bytes, room) in [(0, 5), (3, 7), (1000, 64), (1000, 1 << 20), (20_000, 4096)] {
            let (near, far) = tokio::io::duplex(room);
            let serving = tokio::spawn(answer(far, bytes, true));
            let mut client = client(near, bytes as u64)?;
            for round in 0..2 {
                client.prepare(round).await?;
                client.touch(Trip::Bare).await?;
                client.round().await?;
                client.check(round).await?;
                assert!(client.check(round + 1).await.is_err() || bytes == 0);
            }
            drop(client);
            serving.await??;
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_write_carries_as_many_calls_as_may_be_under_way() -> Result<()> {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut client = client(near, 0)?;
        let calling = tokio::spawn(async move { client.round().await });
        let mut incoming = Incoming::new(0)?;
        poll_fn(|cx| incoming.poll_read(&mut far, cx)).await?;
        let mut ids = Vec::new();
        while let Some((id, _)) = incoming.next()? {
            ids.push(id);
        }
        assert_eq!(ids, (0..IN_FLIGHT as u32).collect::<Vec<_>>());
        // One answer makes room for one call.
        far.write_all(&[0; HEADER]).await?;
        poll_fn(|cx| incoming.poll_read(&mut far, cx)).await?;
        assert_eq!(incoming.next()?.map(|(id, _)| id), Some(IN_FLIGHT as u32));
        assert!(incoming.is_empty());
        drop(far);
        let ended = calling.await?.expect_err("most have no answer");
        assert!(!ended.to_string().is_empty());
        Ok(())
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_an_error() -> Result<()> {
        let mut another_length = Vec::new();
        push(&mut another_length, 0, &[1; 9])?;
        let mut another_call = Vec::new();
        push(&mut another_call, 5, &[1; 8])?;
        for (sent, expected) in [
            (another_length, "a frame of 9 bytes, agreed were 8"),
            (another_call, "an answer to call 5 instead of 0"),
            (Vec::new(), GONE),
        ] {
            let (near, mut far) = tokio::io::duplex(1 << 20);
            far.write_all(&sent).await?;
            far.shutdown().await?;
            let error = client(near, 8)?.round().await.expect_err(expected);
            assert_eq!(error.to_string(), expected);
        }
        let (mut near, far) = tokio::io::duplex(64);
        near.write_all(&[8, 0, 0]).await?;
        drop(near);
        let error = answer(far, 8, false).await.expect_err("half a header");
        assert_eq!(error.to_string(), "the stream ended within a frame");
        Ok(())
    }
}
