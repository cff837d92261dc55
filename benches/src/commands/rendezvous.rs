//! `tp-bench rendezvous`: the time of a value from its send to its receive, within one process and between two, and the
//! number of values a second.
//!
//! ```text
//! here (measures)                          there (a task, or a second process)
//!   ping, step n   ── value ──▶              receives it, sends it back
//!                  ◀── value ──  pong, step n
//!   go, step n     ───────────▶              sends `stream/0` … , as fast as there is room
//!                  ◀── values ── K of them are asked for at any time
//! ```

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::Server;
use tensorpipe_rpc::rendezvous::{RecvError, Rendezvous, Value};

use super::rows::or_usual;
use super::spinning;
use crate::measure::drive;
use crate::peer::{self, Peer, announce};
use crate::plan::{Begin, Options, Plan, Transport};
use crate::report::{self, gbps};
use crate::size::Size;
use crate::system::ours::{self, Routing};
use crate::system::{Client, Route, Trip, bounded};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Receives under way at any time, in the rows that count values a second.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    in_flight: u32,
    #[command(flatten)]
    options: Options,
}

#[derive(Clone, Debug, Serialize)]
struct Row {
    case: &'static str,
    /// `in process`, or the transport between two.
    over: String,
    channel: String,
    bytes: u64,
    /// Receives under way at any time.
    in_flight: u32,
    /// From the send to the receive; of many in flight, the time between two values.
    p50_us: f64,
    p99_us: f64,
    values_per_s: f64,
    gbps: f64,
    /// Bytes that the receiving process copied for each value.
    copied: f64,
    n: u64,
}

/// What is measured.
#[derive(Clone, Copy, Debug)]
enum What {
    /// One value at a time, there and back.
    Round,
    /// Many values, with this many receives in flight.
    Stream(u32),
}

impl What {
    fn name(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Stream(_) => "stream",
        }
    }
}

/// Measures and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let options = &arguments.options;
    let base = options.plan()?;
    let spinning = spinning(&base);
    let over = match options.transport {
        Some(transport) => vec![transport],
        None => vec![Transport::Memory, Transport::Shm],
    };
    let mut steps = Vec::new();
    for transport in over {
        for what in [What::Round, What::Stream(arguments.in_flight)] {
            for size in or_usual(&options.size, &USUAL) {
                let plan = Plan {
                    bytes: size.0,
                    ..base.clone()
                };
                let plan = plan.over(transport)?;
                steps.push((format!("{} of {size}", what.name()), (plan, what)));
            }
        }
    }
    report::run(
        options.json,
        steps,
        |(plan, what)| Ok(vec![measure(&plan, what)?]),
        |rows| {
            let head = report::head("values by name, from send to receive", &base);
            report::page(&head, FIELDS, rows, NOTES, &spinning)
        },
    )
}

fn measure(plan: &Plan, what: What) -> Result<Row> {
    let runtime = plan.build_runtime()?;
    let starting = bounded(Duration::ZERO, Meeting::start(plan, what));
    let (mut meeting, _there) = runtime.block_on(starting)?;
    let length = plan.duration();
    // A task, so that it is polled where its connections are, on either kind of runtime.
    let measuring = bounded(2 * length, async move {
        let samples = drive(&mut meeting, length, Begin::AsTheyAre).await?;
        Ok((samples, meeting.copied(), meeting.route()))
    });
    let measured = runtime.block_on(async { tokio::spawn(measuring).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (samples, copied, route) = measured??;
    let p50_us = samples.micros(0.5);
    Ok(Row {
        case: what.name(),
        over: route.transport,
        channel: route.channel,
        bytes: plan.bytes,
        in_flight: match what {
            What::Round => 1,
            What::Stream(depth) => depth,
        },
        p50_us,
        p99_us: samples.micros(0.99),
        values_per_s: samples.per_second(),
        gbps: gbps(plan.bytes, p50_us),
        copied,
        n: samples.calls(),
    })
}

/// The rendezvous of this process, and its peer.
struct Meeting {
    rendezvous: Rendezvous,
    /// [`HERE`] if both are in this process.
    peer: &'static str,
    what: What,
    bytes: u64,
    tensor: Tensor,
    routing: Routing,
    /// The value received last.
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
        let mut meeting = Self {
            peer: HERE,
            what,
            bytes: plan.bytes,
            tensor: streamed(plan, &context)?,
            routing: Routing::new(plan, &context),
            came: None,
            received: 0,
            step: 0,
            _server: None,
            rendezvous: rendezvous.clone(),
        };
        if plan.in_process() {
            tokio::spawn(answer(rendezvous, HERE, streamed(plan, &context)?));
            return Ok((meeting, None));
        }
        let server = Server::builder().context(&context);
        let server = server.service(rendezvous.service());
        let server = server.listen(ours::url(plan)).await?;
        let orders = Orders {
            plan: plan.clone(),
            here: server.url().to_string(),
        };
        // The second process announces its address before it connects.
        let there = Peer::start("rendezvous-peer", &orders)?;
        rendezvous.add_peer(THERE, there.address())?;
        meeting.peer = THERE;
        meeting._server = Some(server);
        Ok((meeting, Some(there)))
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
        let count = self.calls_per_round();
        let go = rendezvous.key_to(self.peer, GO, self.step)?;
        rendezvous.send(&go, Tensor::scalar(count))?;
        let mut coming = VecDeque::new();
        let mut last = None;
        for number in 0..count {
            let name = format!("stream/{number}");
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
        last.context("a stream of nothing")
    }
}

impl Client for Meeting {
    async fn prepare(&mut self, round: u64) -> Result<()> {
        self.came = None;
        self.step = round;
        match self.what {
            What::Round => ours::fill(&mut self.tensor, round),
            What::Stream(_) => Ok(()),
        }
    }

    async fn touch(&mut self, _: Trip) -> Result<()> {
        Ok(())
    }

    async fn round(&mut self) -> Result<()> {
        self.came = Some(match self.what {
            What::Round => self.there_and_back().await?,
            What::Stream(depth) => self.stream(depth).await?,
        });
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
        ours::check(&came.tensor, self.bytes, seed)
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
            Some(connection) => self.routing.route(connection.route()),
            None => Route::plain("in process".to_owned()),
        }
    }
}

/// What the second process must know.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Orders {
    plan: Plan,
    /// Address at which the first process serves its values.
    here: String,
}

/// Answers until stdin ends. This is what `tp-bench rendezvous-peer` does.
pub(crate) fn play() -> Result<()> {
    peer::play(|orders: &Orders| peer::pinned(&orders.plan), serve)
}

async fn serve(orders: Orders) -> Result<()> {
    let context = ours::context(&orders.plan)?;
    let rendezvous = Rendezvous::builder(THERE).context(&context);
    let rendezvous = rendezvous.peer(HERE, &orders.here).build()?;
    let server = Server::builder().context(&context);
    let server = server.service(rendezvous.service());
    let server = server.listen(ours::url(&orders.plan)).await?;
    announce(server.url())?;
    let tensor = streamed(&orders.plan, &context)?;
    // A task, so that it is polled where its connections are, on either kind of runtime.
    let answered = tokio::spawn(answer(rendezvous, HERE, tensor)).await?;
    match answered.as_ref().map_err(|error| error.downcast_ref()) {
        // The parent has measured enough, and is about to end this process.
        Err(Some(RecvError::Call { .. } | RecvError::Unreachable { .. })) => pending().await,
        _ => answered,
    }
}

/// The tensor of a stream: the pattern of round 0.
fn streamed(plan: &Plan, context: &Context) -> Result<Tensor> {
    let mut tensor = ours::tensor(plan, plan.len()?, context)?;
    ours::fill(&mut tensor, 0)?;
    Ok(tensor)
}

/// Answers `peer` for ever: sends received values back, and sends a stream when the peer asks for one.
async fn answer(rendezvous: Rendezvous, peer: &str, tensor: Tensor) -> Result<()> {
    let echo = async {
        for step in 0.. {
            let ping = rendezvous.key_from(peer, PING, step).await?;
            let value = rendezvous.recv_within(&ping, LONG).await?;
            rendezvous.send(&rendezvous.key_to(peer, PONG, step)?, value)?;
        }
        anyhow::Ok(())
    };
    let stream = async {
        for step in 0.. {
            let go = rendezvous.key_from(peer, GO, step).await?;
            let go = rendezvous.recv_within(&go, LONG).await?;
            let count: u64 = go.tensor.item().context("how many")?;
            for number in 0..count {
                let key = rendezvous.key_to(peer, &format!("stream/{number}"), step)?;
                rendezvous.send_or_wait(&key, &tensor).await?;
            }
        }
        anyhow::Ok(())
    };
    tokio::try_join!(echo, stream)?;
    Ok(())
}

/// Names of the two processes in a key, and names of values.
const HERE: &str = "here";
const THERE: &str = "there";
const PING: &str = "ping";
const PONG: &str = "pong";
const GO: &str = "go";

/// Values of one round of a stream, for each receive that is under way.
const DEPTH: u64 = 16;
/// Longer than any measurement waits for its next round.
const LONG: Duration = Duration::from_secs(3000);

const USUAL: [Size; 4] = [
    Size(0),
    Size(4 * Size::KIB),
    Size(64 * Size::KIB),
    Size(Size::MIB),
];

const FIELDS: &str = "case over channel bytes in_flight p50_us p99_us values_per_s gbps copied";

const NOTES: &str = "\
round: half of the time of a value there and back; stream: the time between two values of many in flight
copied: bytes of a value that the receiving process copied; the rest was read into place, or not moved";
