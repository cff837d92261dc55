//! Our pipe without calls: a message with one tensor goes to the server and comes back. With zero bytes there is no tensor.

use anyhow::{Context as _, Result, bail, ensure};
use tensorpipe::{Message, Pipe, Tensor};

use super::ours;
use crate::plan::{Case, Plan, Transport};
use crate::system::{About, Client, Ready, Route, System, Trip};

/// The system `pipe`.
pub(crate) struct PipeSystem;

impl System for PipeSystem {
    type Client = Caller;

    const ABOUT: About = About {
        name: "pipe",
        words: "tensorpipe's Pipe: a message with one tensor there and back, read into the context's pool",
        is_ours: true,
        cases: &[Case::Echo, Case::Paced],
        transports: Transport::OURS,
    };

    async fn serve(plan: Plan, ready: Ready) -> Result<()> {
        let context = ours::context(&plan)?;
        let listener = context.listen([ours::url(&plan)]).await?;
        ready.announce(listener.url());
        loop {
            let pipe = listener.accept().await?;
            tokio::spawn(async move {
                match answer(pipe, plan.sum).await {
                    Err(tensorpipe::Error::Closed { .. }) | Ok(()) => {}
                    Err(error) => eprintln!("tp-bench: pipe's server: {error}"),
                }
            });
        }
    }

    async fn connect(plan: Plan, address: String) -> Result<Caller> {
        let context = ours::context(&plan)?;
        let pipe = context.connect(&address).await?;
        let sent = match plan.len()? {
            0 => None,
            len => Some(ours::tensor(&plan, len, &context)?),
        };
        Ok(Caller {
            pipe,
            bytes: plan.bytes,
            sum: plan.sum,
            sent,
            received: None,
            routing: ours::Routing::new(&plan, &context),
            small: ours::Small::new(context),
        })
    }
}

async fn answer(pipe: Pipe, sum: bool) -> Result<(), tensorpipe::Error> {
    loop {
        let message = pipe.read().await?;
        read_all(sum, &message)?;
        pipe.write(message).await?;
    }
}

fn read_all(sum: bool, message: &Message) -> Result<(), tensorpipe::Error> {
    for tensor in message.tensors.iter().filter(|_| sum) {
        ours::read_all(&tensor.tensor)?;
    }
    Ok(())
}

/// The client's side of one pipe.
pub(crate) struct Caller {
    pipe: Pipe,
    bytes: u64,
    sum: bool,
    sent: Option<Tensor>,
    received: Option<Message>,
    /// For trips that wake both ends.
    small: ours::Small,
    routing: ours::Routing,
}

impl Caller {
    /// Sends a message and returns the answer.
    #[inline]
    async fn trip(&self, message: Message) -> Result<Message> {
        let written = self.pipe.write(message);
        if written.id().is_none() {
            // The write failed at once, so no answer will come.
            written.await?;
            bail!("a message was neither written nor refused");
        }
        let answer = self.pipe.read().await?;
        written.await?;
        Ok(answer)
    }
}

impl Client for Caller {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        self.received = None;
        match &mut self.sent {
            Some(tensor) => ours::fill(tensor, round),
            None => Ok(()),
        }
    }

    async fn touch(&mut self, trip: Trip) -> Result<()> {
        let mut message = Message::new(METADATA);
        if trip == Trip::Leased {
            message.tensors.push(self.small.tensor()?.clone().into());
        }
        self.trip(message).await?;
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        let mut message = Message::new(METADATA);
        message.tensors.extend(self.sent.clone().map(Into::into));
        let answer = self.trip(message).await?;
        read_all(self.sum, &answer)?;
        self.received = Some(answer);
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        let message = self.received.as_ref().context("no message came")?;
        ensure!(&*message.metadata == METADATA, "other metadata came back");
        match (&*message.tensors, self.bytes) {
            ([], 0) => Ok(()),
            ([tensor], bytes) if bytes > 0 => ours::check(&tensor.tensor, bytes, round),
            (tensors, _) => bail!("{} tensors came back", tensors.len()),
        }
    }

    fn route(&self) -> Route {
        self.routing.route(self.pipe.route())
    }
}

const METADATA: &[u8] = b"round";
