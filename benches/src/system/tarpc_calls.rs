//! tarpc 0.38 over TCP or a Unix socket, set up as in its own documentation, with the fastest options.
//!
//! It uses `serde_transport` with bincode, the faster of the two codecs that tarpc ships. Bytes are `bytes::Bytes`, which bincode
//! carries as one slice. NODELAY is set. The connection's own task computes the answers. A client reuses its buffer once tarpc
//! has dropped it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, TryStreamExt, stream};
use tarpc::context::Context;
use tarpc::server::{BaseChannel, Channel};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::{client, serde_transport};
use tokio_util::codec::length_delimited::{Builder, LengthDelimitedCodec};

use super::ours::right;
use super::socket::{Listener, connect};
use crate::pattern;
use crate::plan::{Case, IN_FLIGHT, Plan, Transport, name};
use crate::system::{About, Client, Ready, Route, System, Trip};

/// The system `tarpc`.
pub(crate) struct Tarpc;

impl System for Tarpc {
    type Client = Caller;

    const ABOUT: About = About {
        name: "tarpc",
        words: "tarpc 0.38, its serde_transport with bincode, answers on the connection's task",
        is_ours: false,
        cases: Case::CALLS,
        transports: &[Transport::Tcp, Transport::Unix],
    };

    async fn serve(plan: Plan, ready: Ready) -> Result<()> {
        let (listener, address) = Listener::bind(plan.transport).await?;
        ready.announce(address);
        let framing = framing(&plan)?;
        let (len, sum) = (plan.len()?, plan.sum);
        loop {
            let stream = listener.accept().await?;
            let transport = serde_transport::new(framing.new_framed(stream), Bincode::default());
            let kept = Arc::default();
            let server = Server { len, sum, kept };
            let requests = BaseChannel::with_defaults(transport).execute(server.serve());
            // Not a task for each answer, as in tarpc's examples: on the connection's own task an echo is 8 % faster.
            tokio::spawn(requests.for_each_concurrent(None, |answer| answer));
        }
    }

    async fn connect(plan: Plan, address: String) -> Result<Caller> {
        let stream = connect(plan.transport, &address).await?;
        let transport =
            serde_transport::new(framing(&plan)?.new_framed(stream), Bincode::default());
        let len = plan.len()?;
        Ok(Caller {
            stub: PeerClient::new(client::Config::default(), transport).spawn(),
            transport: plan.transport,
            case: plan.case,
            sum: plan.sum,
            sent: Bytes::from(vec![0; len]),
            received: Vec::new(),
        })
    }
}

#[tarpc::service]
trait Peer {
    async fn ping();
    async fn echo(data: Bytes) -> Bytes;
    async fn upload(data: Bytes);
    /// The first place where the last upload differs from the data of `round`.
    async fn verify(round: u64) -> Option<u64>;
    /// Prepares the data of `round` for downloads.
    async fn stage(round: u64);
    async fn download() -> Bytes;
}

/// Keeps the last upload until it is verified, or what is to be downloaded.
#[derive(Clone)]
struct Server {
    len: usize,
    sum: bool,
    kept: Arc<Mutex<Bytes>>,
}

impl Server {
    fn kept(&self) -> MutexGuard<'_, Bytes> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Peer for Server {
    async fn ping(self, _: Context) {}

    async fn echo(self, _: Context, data: Bytes) -> Bytes {
        read_all(self.sum, &data);
        data
    }

    async fn upload(self, _: Context, data: Bytes) {
        read_all(self.sum, &data);
        *self.kept() = data;
    }

    async fn verify(self, _: Context, round: u64) -> Option<u64> {
        let data = std::mem::take(&mut *self.kept());
        pattern::mismatch(&data, round)
    }

    async fn stage(self, _: Context, round: u64) {
        let kept = std::mem::take(&mut *self.kept());
        *self.kept() = filled(kept, self.len, round);
    }

    async fn download(self, _: Context) -> Bytes {
        self.kept().clone()
    }
}

/// The bytes of `round`, in the memory of `last` if nobody else still holds it.
fn filled(last: Bytes, len: usize, round: u64) -> Bytes {
    let mut buffer = last
        .try_into_mut()
        .ok()
        .filter(|buffer| buffer.len() == len)
        .unwrap_or_else(|| BytesMut::zeroed(len));
    pattern::fill(&mut buffer, round);
    buffer.freeze()
}

fn read_all(sum: bool, data: &[u8]) {
    if sum {
        std::hint::black_box(pattern::sum(data));
    }
}

/// The client's side of one connection.
pub(crate) struct Caller {
    stub: PeerClient,
    transport: Transport,
    case: Case,
    sum: bool,
    sent: Bytes,
    received: Vec<Bytes>,
}

impl Client for Caller {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        self.received.clear();
        if self.case == Case::Download {
            return Ok(self.stub.stage(context(), round).await?);
        }
        let len = self.sent.len();
        self.sent = filled(std::mem::take(&mut self.sent), len, round);
        Ok(())
    }

    async fn touch(&mut self, _: Trip) -> Result<()> {
        Ok(self.stub.ping(context()).await?)
    }

    async fn round(&mut self) -> Result<()> {
        let data = self.sent.clone();
        match self.case {
            Case::Echo | Case::Paced => {
                self.received.push(self.stub.echo(context(), data).await?);
            }
            Case::Upload => self.stub.upload(context(), data).await?,
            Case::Download => self.received.push(self.stub.download(context()).await?),
            Case::Pipeline => {
                let stub = &self.stub;
                let received = &mut self.received;
                stream::iter(0..self.case.calls_per_round(data.len() as u64))
                    .map(|_| stub.echo(context(), data.clone()))
                    .buffer_unordered(IN_FLIGHT)
                    .try_for_each(|answer| {
                        received.push(answer);
                        std::future::ready(Ok(()))
                    })
                    .await?;
            }
            _ => bail!("tarpc has no {}", name(self.case)),
        }
        for answer in &self.received {
            read_all(self.sum, answer);
        }
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        if self.case == Case::Upload {
            return right(self.stub.verify(context(), round).await?);
        }
        let answers = self.received.len() as u64;
        ensure!(answers == self.calls_per_round(), "{answers} answers");
        for answer in &self.received {
            let len = answer.len();
            ensure!(len == self.sent.len(), "an answer of {len} bytes");
            right(pattern::mismatch(answer, round))?;
        }
        Ok(())
    }

    fn calls_per_round(&self) -> u64 {
        self.case.calls_per_round(self.sent.len() as u64)
    }

    fn route(&self) -> Route {
        Route::plain(name(self.transport))
    }
}

/// A context with a deadline that no measured call reaches.
fn context() -> Context {
    let mut context = tarpc::context::current();
    context.deadline = Instant::now() + Duration::from_secs(60);
    context
}

fn framing(plan: &Plan) -> Result<Builder> {
    let mut builder = LengthDelimitedCodec::builder();
    builder.max_frame_length(plan.len()? + HEADROOM);
    Ok(builder)
}

/// Upper bound of the bytes that tarpc adds to a message.
const HEADROOM: usize = 4096;
