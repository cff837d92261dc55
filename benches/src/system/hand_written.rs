//! The strongest honest hand-written competitor: one stream, frames with a length, buffers that are reused.
//!
//! A frame is `{kind: u64, word: u64}` and a body; header and body lie side by side in one buffer, so that a small
//! frame is one write and one read, and a large one is read straight to where it stays. The client sends a frame
//! only after the answer to the one before, so what a read brings never reaches into the next frame.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::socket::{Listener, Socket};
use crate::pattern;
use crate::plan::{Case, Plan, Transport};
use crate::system::{Client, Kind, Ready, Route, System};

/// The system `tokio`.
pub(crate) struct Tokio;

impl System for Tokio {
    type Client = Caller;

    const NAME: &'static str = "tokio";
    const ABOUT: &'static str =
        "hand-written frames with a length over a stream of tokio's, reused buffers on both sides";
    const KIND: Kind = Kind::Baseline;
    const CASES: &'static [Case] = &[Case::Echo, Case::Paced, Case::Upload, Case::Download];
    const TRANSPORTS: &'static [Transport] = &[Transport::Tcp, Transport::Unix];

    async fn serve(plan: Plan, ready: Ready) -> Result<()> {
        let (listener, address) = Listener::bind(plan.transport).await?;
        ready.announce(address);
        let len = plan.len()?;
        loop {
            let stream = listener.accept().await?;
            stream.enlarge()?;
            tokio::spawn(async move {
                if let Err(error) = answer(stream, len, plan.sum).await {
                    eprintln!("tp-bench: tokio's server: {error:#}");
                }
            });
        }
    }

    async fn connect(plan: Plan, address: String) -> Result<Caller> {
        let stream = Socket::connect(plan.transport, &address).await?;
        stream.enlarge()?;
        let len = plan.len()?;
        Ok(Caller {
            stream,
            transport: plan.transport,
            case: plan.case,
            sum: plan.sum,
            sent: Frame::new(len),
            received: Frame::new(len),
        })
    }
}

/// The client's side of one connection.
pub(crate) struct Caller {
    stream: Socket,
    transport: Transport,
    case: Case,
    sum: bool,
    sent: Frame,
    received: Frame,
}

impl Caller {
    async fn receive(&mut self, kind: u64) -> Result<()> {
        let (found, _) = self.received.read(&mut self.stream).await?.context(GONE)?;
        ensure!(found == kind, "an answer of kind {found}");
        if self.sum {
            std::hint::black_box(pattern::sum(self.received.body()));
        }
        Ok(())
    }

    /// A question without a body, about `round`.
    async fn ask(&mut self, kind: u64, round: u64) -> Result<()> {
        let mut question = Frame::new(0);
        question.set_header(kind, round);
        question.write(&mut self.stream).await
    }
}

impl Client for Caller {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        if self.case == Case::Download {
            self.ask(STAGE, round).await?;
            let ack = self.stream.read_u8().await.context(GONE)?;
            ensure!(ack == ACK, "an acknowledgement of {ack}");
        } else {
            pattern::fill(self.sent.body_mut(), round);
        }
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        let len = self.sent.body().len() as u64;
        match self.case {
            Case::Echo | Case::Paced => {
                self.sent.set_header(ECHO, len);
                self.sent.write(&mut self.stream).await?;
                self.receive(ECHO).await?;
            }
            Case::Upload => {
                self.sent.set_header(UPLOAD, len);
                self.sent.write(&mut self.stream).await?;
                let ack = self.stream.read_u8().await.context(GONE)?;
                ensure!(ack == ACK, "an acknowledgement of {ack}");
            }
            Case::Download => {
                self.ask(DOWNLOAD, 0).await?;
                self.receive(UPLOAD).await?;
            }
            Case::Pipeline => bail!("tokio has no {}", self.case.name()),
        }
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        let wrong = match self.case {
            Case::Upload => {
                self.ask(VERIFY, round).await?;
                self.stream.read_u64_le().await.context(GONE)?
            }
            Case::Echo | Case::Paced | Case::Download | Case::Pipeline => {
                pattern::mismatch(self.received.body(), round).unwrap_or(ALL_RIGHT)
            }
        };
        ensure!(wrong == ALL_RIGHT, "byte {wrong} is wrong");
        Ok(())
    }

    fn route(&self) -> Route {
        Route::plain(self.transport.name())
    }
}

async fn answer(mut stream: Socket, len: usize, sum: bool) -> Result<()> {
    let mut frame = Frame::new(len);
    while let Some((kind, word)) = frame.read(&mut stream).await? {
        if sum && has_body(kind) {
            std::hint::black_box(pattern::sum(frame.body()));
        }
        match kind {
            ECHO => frame.write(&mut stream).await?,
            UPLOAD => stream.write_u8(ACK).await?,
            VERIFY => {
                let wrong = pattern::mismatch(frame.body(), word).unwrap_or(ALL_RIGHT);
                stream.write_u64_le(wrong).await?;
            }
            STAGE => {
                pattern::fill(frame.body_mut(), word);
                stream.write_u8(ACK).await?;
            }
            DOWNLOAD => {
                frame.set_header(UPLOAD, len as u64);
                frame.write(&mut stream).await?;
            }
            _ => bail!("a frame of kind {kind}"),
        }
    }
    Ok(())
}

fn has_body(kind: u64) -> bool {
    !matches!(kind, VERIFY | STAGE | DOWNLOAD)
}

/// A header and a body of a fixed length, side by side, the body aligned to a cache line.
struct Frame {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Frame {
    fn new(len: usize) -> Self {
        let memory = vec![0; HEADER + LINE + len];
        let start = memory[HEADER..].as_ptr().align_offset(LINE).min(LINE);
        Self { memory, start, len }
    }

    fn body(&self) -> &[u8] {
        &self.memory[self.start + HEADER..][..self.len]
    }

    fn body_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start + HEADER..][..self.len]
    }

    fn set_header(&mut self, kind: u64, word: u64) {
        let header = &mut self.memory[self.start..][..HEADER];
        header[..8].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&word.to_le_bytes());
    }

    fn header(&self) -> (u64, u64) {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&self.memory[self.start + at..][..8]);
            u64::from_le_bytes(word)
        };
        (word(0), word(8))
    }

    async fn write(&self, stream: &mut Socket) -> Result<()> {
        let bytes = &self.memory[self.start..][..HEADER + self.len];
        for chunk in bytes.chunks(WRITE) {
            stream.write_all(chunk).await.context("write")?;
        }
        Ok(())
    }

    /// Reads a frame; `None` at the end of the stream. The body is left alone by a frame that has none.
    async fn read(&mut self, stream: &mut Socket) -> Result<Option<(u64, u64)>> {
        let whole = &mut self.memory[self.start..][..HEADER + self.len];
        let mut have = 0;
        let mut wanted = HEADER;
        while have < wanted {
            let to = whole.len().min(have + READ);
            let count = stream.read(&mut whole[have..to]).await.context("read")?;
            if count == 0 {
                ensure!(have == 0, "the stream ended within a frame");
                return Ok(None);
            }
            have += count;
            if wanted == HEADER && have >= HEADER {
                let kind = u64::from_le_bytes(whole[..8].try_into().expect("8 bytes"));
                if has_body(kind) {
                    wanted = whole.len();
                }
            }
        }
        let header = self.header();
        let (kind, word) = header;
        ensure!(
            !has_body(kind) || word == self.len as u64,
            "a frame of {word} bytes, agreed were {}",
            self.len
        );
        Ok(Some(header))
    }
}

const HEADER: usize = 16;
const LINE: usize = 64;
/// Bytes of one read and of one write, found by trying on the loopback: 256 MiB take 38 ms this way, 50 ms with 4 MiB
/// each, more than 80 ms with 256 KiB each. Other machines may want others.
const READ: usize = 64 << 10;
const WRITE: usize = 512 << 10;
/// Kinds of frames. Without a body are `VERIFY`, whose word is the round to compare the body received last with, `STAGE`,
/// whose word is the round whose body shall be laid ready, and `DOWNLOAD`, which asks for it.
const ECHO: u64 = 1;
const UPLOAD: u64 = 2;
const VERIFY: u64 = 3;
const STAGE: u64 = 4;
const DOWNLOAD: u64 = 5;
/// The acknowledgement of an upload.
const ACK: u8 = 0x06;
/// The answer to `VERIFY` when there is no wrong byte.
const ALL_RIGHT: u64 = u64::MAX;
const GONE: &str = "the server ended the connection";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_starts_on_a_cache_line() {
        for len in [0, 1, 64, 4096, 1 << 20] {
            let frame = Frame::new(len);
            assert_eq!(frame.body().len(), len);
            assert_eq!(frame.body().as_ptr().addr() % LINE, 0);
        }
    }

    async fn pair() -> Result<(Socket, Socket)> {
        let (listener, address) = Listener::bind(Transport::Unix).await?;
        let near = Socket::connect(Transport::Unix, &address).await?;
        Ok((near, listener.accept().await?))
    }

    #[tokio::test]
    async fn a_peer_that_sends_another_length_is_refused() -> Result<()> {
        let (mut sender, mut receiver) = pair().await?;
        let mut frame = Frame::new(8);
        frame.set_header(UPLOAD, 9);
        frame.write(&mut sender).await?;
        let error = Frame::new(8)
            .read(&mut receiver)
            .await
            .expect_err("9 is not 8");
        assert_eq!(error.to_string(), "a frame of 9 bytes, agreed were 8");
        Ok(())
    }

    #[tokio::test]
    async fn an_end_within_a_frame_is_told_from_an_end_after_one() -> Result<()> {
        for (sent, ended_well) in [(0, true), (5, false), (17, false)] {
            let (mut sender, mut receiver) = pair().await?;
            sender.write_all(&[1; 17][..sent]).await?;
            drop(sender);
            let read = Frame::new(64).read(&mut receiver).await;
            assert_eq!(read.is_ok(), ended_well, "{sent} bytes: {read:?}");
        }
        Ok(())
    }
}
