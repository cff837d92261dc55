//! Calls one after another over one stream: the client sends a frame only after the answer to the one before, so what a
//! read brings never reaches into the next frame.

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::GONE;
use super::frame::{DOWNLOAD, ECHO, Frame, PING, STAGE, UPLOAD, VERIFY, has_body};
use crate::pattern;
use crate::plan::{Case, Plan, Transport};
use crate::system::socket::Socket;
use crate::system::{Client, Route, Trip};

/// The client's side of one connection.
pub(crate) struct InTurns {
    stream: Socket,
    transport: Transport,
    case: Case,
    sum: bool,
    sent: Frame,
    received: Frame,
}

impl InTurns {
    pub(super) fn new(stream: Socket, plan: &Plan) -> Result<Self> {
        let len = plan.len()?;
        Ok(Self {
            stream,
            transport: plan.transport,
            case: plan.case,
            sum: plan.sum,
            sent: Frame::new(len),
            received: Frame::new(len),
        })
    }

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

    /// A question without a body, about `round`.
    async fn ask(&mut self, kind: u64, round: u64) -> Result<()> {
        let mut question = Frame::new(0);
        question.set_header(kind, round);
        question.write(&mut self.stream).await
    }
}

impl Client for InTurns {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        if self.case == Case::Download {
            self.ask(STAGE, round).await?;
            self.acknowledged().await?;
        } else {
            pattern::fill(self.sent.body_mut(), round);
        }
        Ok(())
    }

    async fn touch(&mut self, _: Trip) -> Result<()> {
        self.ask(PING, 0).await?;
        self.acknowledged().await
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
                self.acknowledged().await?;
            }
            Case::Download => {
                self.ask(DOWNLOAD, 0).await?;
                self.receive(UPLOAD).await?;
            }
            _ => bail!("calls in turns have no {}", self.case.name()),
        }
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        let wrong = match self.case {
            Case::Upload => {
                self.ask(VERIFY, round).await?;
                self.stream.read_u64_le().await.context(GONE)?
            }
            _ => pattern::mismatch(self.received.body(), round).unwrap_or(ALL_RIGHT),
        };
        ensure!(wrong == ALL_RIGHT, "byte {wrong} is wrong");
        Ok(())
    }

    fn route(&self) -> Route {
        Route::plain(self.transport.name())
    }
}

/// Serves one connection to its end.
///
/// # Errors
/// When the peer says something else, or the connection breaks.
pub(super) async fn answer(mut stream: Socket, len: usize, sum: bool) -> Result<()> {
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

/// The acknowledgement of an upload.
const ACK: u8 = 0x06;
/// The answer to `VERIFY` when there is no wrong byte.
const ALL_RIGHT: u64 = u64::MAX;
