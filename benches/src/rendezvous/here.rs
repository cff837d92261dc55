//! The measuring end.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{Rendezvous, Value};

use super::there::{answer, tensor};
use super::{DEPTH, GO, HERE, Orders, PING, PONG, THERE, What, streamed};
use crate::measure::{Samples, drive};
use crate::peer::Peer;
use crate::plan::{Begin, Plan};
use crate::system::{Client, Route, Trip, ours};

/// What came out.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) samples: Samples,
    pub(crate) route: Route,
    /// Bytes that this process copied for each value it received.
    pub(crate) copied: f64,
}

/// Measures; in this process alone where the plan's transport does not leave it.
///
/// # Errors
/// When there is no second process, or a value is not what was sent.
pub(crate) fn measure(plan: &Plan, what: What) -> Result<Measured> {
    let runtime = plan.runtime.build()?;
    let (client, _there) = runtime.block_on(async {
        let bounded = tokio::time::timeout(PATIENCE, Meeting::start(plan, what)).await;
        bounded.context("the two processes did not meet")?
    })?;
    let (length, bound) = (plan.duration(), 2 * plan.duration() + PATIENCE);
    // A task, so that it is polled where its connections are, on either kind of runtime.
    let measuring = async move {
        let mut client = client;
        let samples = drive(&mut client, length, Begin::AsTheyAre).await?;
        anyhow::Ok((samples, client.copied(), client.route()))
    };
    let measured =
        runtime.block_on(async { tokio::spawn(tokio::time::timeout(bound, measuring)).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (samples, copied, route) = measured?.context("not finished in time")??;
    Ok(Measured {
        samples,
        route,
        copied,
    })
}

/// The rendezvous of this process, and whom it meets.
struct Meeting {
    rendezvous: Rendezvous,
    /// [`HERE`] if both are in this process.
    peer: &'static str,
    what: What,
    plan: Plan,
    tensor: Tensor,
    /// What came last.
    came: Option<Value>,
    received: u64,
    step: u64,
    /// Open as long as values may be asked for.
    _server: Option<Server>,
}

impl Meeting {
    async fn start(plan: &Plan, what: What) -> Result<(Self, Option<Peer>)> {
        let context = match plan.in_process() {
            true => Context::new(),
            false => ours::context(plan)?,
        };
        let rendezvous = Rendezvous::builder(HERE).context(&context).build()?;
        let mut there = None;
        let mut server = None;
        let peer = if plan.in_process() {
            let tensor = tensor(plan, &context)?;
            tokio::spawn(answer(rendezvous.clone(), HERE, tensor));
            HERE
        } else {
            let builder = Server::builder().context(&context);
            let builder = builder.service(rendezvous.service());
            let serving = server.insert(builder.listen(ours::url(plan)).await?);
            let orders = Orders {
                plan: plan.clone(),
                here: serving.url().to_string(),
            };
            // It greets before it connects.
            let peer = Peer::start("rendezvous-peer", &orders)?;
            rendezvous.add_peer(THERE, peer.address())?;
            there = Some(peer);
            THERE
        };
        let meeting = Self {
            tensor: tensor(plan, &context)?,
            rendezvous,
            peer,
            what,
            plan: plan.clone(),
            came: None,
            received: 0,
            step: 0,
            _server: server,
        };
        Ok((meeting, there))
    }

    fn copied(&self) -> f64 {
        let connection = self.rendezvous.connection(self.peer);
        let copied = connection.map_or(0, |it| it.pipe().stats().bytes_copied);
        copied as f64 / self.received.max(1) as f64
    }

    async fn there_and_back(&self) -> Result<Value> {
        let rendezvous = &self.rendezvous;
        let ping = rendezvous.key_to(self.peer, PING, self.step)?;
        rendezvous.send(&ping, &self.tensor)?;
        let pong = rendezvous.key_from(self.peer, PONG, self.step).await?;
        Ok(rendezvous.recv(&pong).await?)
    }

    async fn stream(&self, depth: u32) -> Result<Value> {
        let rendezvous = &self.rendezvous;
        let count = u64::from(depth) * DEPTH;
        let go = rendezvous.key_to(self.peer, GO, self.step)?;
        rendezvous.send(&go, Tensor::scalar(count))?;
        let mut coming = VecDeque::new();
        let mut last = None;
        for number in 0..count {
            let name = streamed(number);
            let key = rendezvous.key_from(self.peer, &name, self.step).await?;
            coming.push_back(rendezvous.recv(&key));
            if coming.len() == depth as usize
                && let Some(first) = coming.pop_front()
            {
                last = Some(first.await?);
            }
        }
        for left in coming {
            last = Some(left.await?);
        }
        match last {
            Some(last) => Ok(last),
            None => bail!("a stream of nothing"),
        }
    }
}

impl Client for Meeting {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        self.came = None;
        self.step = round;
        if self.what == What::Round {
            ours::fill(&mut self.tensor, round)?;
        }
        Ok(())
    }

    async fn touch(&mut self, _: Trip) -> Result<()> {
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        let came = match self.what {
            What::Round => self.there_and_back().await?,
            What::Stream(depth) => self.stream(depth).await?,
        };
        self.came = Some(came);
        Ok(())
    }

    async fn check(&mut self, round: u64) -> Result<()> {
        let came = self.came.take().context("nothing came")?;
        ensure!(!came.is_dead, "a dead value");
        let (seed, values) = match self.what {
            What::Round => (round, 1),
            What::Stream(_) => (0, self.calls_per_round()),
        };
        self.received += values;
        ours::check(&came.tensor, self.plan.bytes, seed)
    }

    fn calls_per_round(&self) -> u64 {
        match self.what {
            // Each is one send and its receive.
            What::Round => 2,
            What::Stream(depth) => u64::from(depth) * DEPTH,
        }
    }

    fn route(&self) -> Route {
        match self.rendezvous.connection(self.peer) {
            Some(connection) => ours::route(connection.route(), None),
            None => Route::plain("in process"),
        }
    }
}

/// How long both may take to be there, and how much longer than asked for a measurement may take.
const PATIENCE: Duration = Duration::from_secs(60);
