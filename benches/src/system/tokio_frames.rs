//! The strongest fair hand-written competitor: one stream, length-prefixed frames, reused buffers.
//!
//! Calls go one after another: the client sends a frame only after the answer to the last one, so a read never reaches
//! into the next frame. [`Pipelined`] instead has 64 calls in flight.

mod pipelined;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::pipelined::Pipelined;
use super::socket::{Listener, Socket, connect, enlarge};
use crate::pattern;
use crate::plan::{Case, Plan, Transport, name};
use crate::system::{About, Client, Ready, Route, System, Trip};

/// The system `tokio`.
pub(crate) struct Tokio;

impl System for Tokio {
    type Client = Caller;

    const ABOUT: About = About {
        name: "tokio",
        words: "hand-written frames with a length over a stream of tokio's, reused buffers on both sides, in a pipeline one \
         write for all that a read brought",
        is_ours: false,
        cases: Case::CALLS,
        transports: &[Transport::Tcp, Transport::Unix],
    };

    async fn serve(plan: Plan, ready: Ready) -> Result<()> {
        let (listener, address) = Listener::bind(plan.transport).await?;
        ready.announce(address);
        let len = plan.len()?;
        loop {
            let stream = listener.accept().await?;
            enlarge(&stream)?;
            tokio::spawn(async move {
                let answered = match plan.case {
                    Case::Pipeline => pipelined::answer(stream, len, plan.sum).await,
                    _ => answer(stream, len, plan.sum).await,
                };
                if let Err(error) = answered {
                    eprintln!("tp-bench: tokio's server: {error:#}");
                }
            });
        }
    }

    async fn connect(plan: Plan, address: String) -> Result<Caller> {
        let stream = connect(plan.transport, &address).await?;
        enlarge(&stream)?;
        let len = plan.len()?;
        let is_pipelined = plan.case == Case::Pipeline;
        Ok(Caller {
            stream,
            transport: plan.transport,
            case: plan.case,
            sum: plan.sum,
            sent: Frame::new(len),
            received: Frame::new(len),
            pipelined: Pipelined::new(if is_pipelined { len } else { 0 })?,
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
    pipelined: Pipelined,
}

impl Caller {
    async fn acknowledged(&mut self) -> Result<()> {
        let ack = self.stream.read_u8().await.context(GONE)?;
        ensure!(ack == ACK, "an acknowledgement of {ack}");
        Ok(())
    }

    async fn receive(&mut self, kind: u64) -> Result<()> {
        let (found, _) = self.received.read(&mut self.stream).await?.context(GONE)?;
        ensure!(found == kind, "an answer of kind {found}");
        if self.sum {
            std::hint::black_box(pattern::sum(self.received.body()));
        }
        Ok(())
    }

    /// Sends a request without a body, about `round`.
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
            return self.acknowledged().await;
        }
        pattern::fill(self.sent.body_mut(), round);
        Ok(())
    }

    async fn touch(&mut self, _: Trip) -> Result<()> {
        if self.case == Case::Pipeline {
            return self
                .pipelined
                .call(&mut self.stream, self.sent.body(), 1)
                .await;
        }
        self.ask(PING, 0).await?;
        self.acknowledged().await
    }

    async fn round(&mut self) -> Result<()> {
        let len = self.sent.body().len() as u64;
        match self.case {
            Case::Echo | Case::Paced => {
                self.sent.set_header(ECHO, len);
                self.sent.write(&mut self.stream).await?;
                self.receive(ECHO).await
            }
            Case::Upload => {
                self.sent.set_header(UPLOAD, len);
                self.sent.write(&mut self.stream).await?;
                self.acknowledged().await
            }
            Case::Download => {
                self.ask(DOWNLOAD, 0).await?;
                self.receive(UPLOAD).await
            }
            Case::Pipeline => {
                let calls = self.calls_per_round();
                let pipelined = &mut self.pipelined;
                pipelined
                    .call(&mut self.stream, self.sent.body(), calls)
                    .await?;
                if self.sum {
                    std::hint::black_box(pattern::sum(&self.pipelined.answers));
                }
                Ok(())
            }
            other => bail!("tokio has no {}", name(other)),
        }
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        let wrong = match self.case {
            Case::Upload => {
                self.ask(VERIFY, round).await?;
                self.stream.read_u64_le().await.context(GONE)?
            }
            Case::Pipeline => return self.pipelined.check(self.calls_per_round(), round),
            _ => pattern::mismatch(self.received.body(), round).unwrap_or(ALL_RIGHT),
        };
        ensure!(wrong == ALL_RIGHT, "byte {wrong} is wrong");
        Ok(())
    }

    fn calls_per_round(&self) -> u64 {
        self.case.calls_per_round(self.sent.body().len() as u64)
    }

    fn route(&self) -> Route {
        Route::plain(name(self.transport))
    }
}

/// Serves one connection to its end.
async fn answer(mut stream: Socket, len: usize, sum: bool) -> Result<()> {
    let mut frame = Frame::new(len);
    while let Some((kind, word)) = frame.read(&mut stream).await? {
        if sum && has_body(kind) {
            std::hint::black_box(pattern::sum(frame.body()));
        }
        match kind {
            ECHO => frame.write(&mut stream).await?,
            UPLOAD | PING => stream.write_u8(ACK).await?,
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

/// `{kind: u64, word: u64}` and a body of a fixed length side by side, the body aligned to a cache line. A small one is one write
/// and one read; a large one is read to where it stays.
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

    fn whole(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..][..HEADER + self.len]
    }

    fn body(&self) -> &[u8] {
        &self.memory[self.start + HEADER..][..self.len]
    }

    fn body_mut(&mut self) -> &mut [u8] {
        &mut self.whole()[HEADER..]
    }

    fn set_header(&mut self, kind: u64, word: u64) {
        let header = &mut self.whole()[..HEADER];
        header[..8].copy_from_slice(&kind.to_le_bytes());
        header[8..].copy_from_slice(&word.to_le_bytes());
    }

    async fn write(&mut self, stream: &mut Socket) -> Result<()> {
        for chunk in self.whole().chunks(WRITE) {
            stream.write_all(chunk).await.context("write")?;
        }
        Ok(())
    }

    /// Reads a frame; `None` at the end of the stream. The body is left alone by a frame that has none.
    async fn read(&mut self, stream: &mut Socket) -> Result<Option<(u64, u64)>> {
        let len = self.len as u64;
        let whole = self.whole();
        let (mut have, mut wanted) = (0, HEADER);
        let word = |whole: &[u8], at: usize| {
            u64::from_le_bytes(whole[at..][..8].try_into().expect("8 bytes"))
        };
        while have < wanted {
            let to = whole.len().min(have + READ);
            let count = stream.read(&mut whole[have..to]).await.context("read")?;
            if count == 0 {
                ensure!(have == 0, "the stream ended within a frame");
                return Ok(None);
            }
            have += count;
            if wanted == HEADER && have >= HEADER && has_body(word(whole, 0)) {
                wanted = whole.len();
            }
        }
        let (kind, word) = (word(whole, 0), word(whole, 8));
        ensure!(
            !has_body(kind) || word == len,
            "a frame of {word} bytes, agreed were {len}"
        );
        Ok(Some((kind, word)))
    }
}

/// Whether such a frame has a body.
fn has_body(kind: u64) -> bool {
    !matches!(kind, VERIFY | STAGE | DOWNLOAD | PING)
}

const GONE: &str = "the server ended the connection";
const HEADER: usize = 16;
const LINE: usize = 64;
/// Bytes of one read and of one write. Measured on the loopback: 256 MiB take 38 ms this way, 50 ms with 4 MiB each, more than 80
/// ms with 256 KiB each. Other machines may want others.
const READ: usize = 64 << 10;
const WRITE: usize = 512 << 10;
/// The acknowledgement of an upload.
const ACK: u8 = 0x06;
/// The answer to `VERIFY` when there is no wrong byte.
const ALL_RIGHT: u64 = u64::MAX;
/// Kinds of frames.
const ECHO: u64 = 1;
const UPLOAD: u64 = 2;
/// Without a body. Its word is the round to compare the body received last with.
const VERIFY: u64 = 3;
/// Without a body. Its word is the round whose body the server prepares.
const STAGE: u64 = 4;
/// Without a body: asks for the prepared body.
const DOWNLOAD: u64 = 5;
/// Without a body: asks for an acknowledgement.
const PING: u64 = 6;
