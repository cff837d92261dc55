//! `tp-bench batch`: measures the gain of batching calls. Many clients call a method whose runs have a fixed cost, as on a GPU that a
//! small batch does not fill. One device runs one batch at a time. For comparison the clients call the same method without the batch
//! attribute, which runs one call at a time.
//!
//! A run sleeps for its cost instead of computing, because a real model would leave the cores to clients and server.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use futures_util::future::try_join_all;
use serde::Serialize;
use tensorpipe::Tensor;

use super::with_server;
use crate::measure::Samples;
use crate::plan::{Flavor, Plan, Transport, name, seconds};
use crate::report;
use crate::system::ours;
use crate::system::rpc::BenchClient;

#[derive(Debug, Args)]
pub(crate) struct Batch {
    /// Clients at once, each with a connection of its own and one call under way.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64",
        value_parser = clap::value_parser!(u32).range(1..=1000))]
    clients: Vec<u32>,
    /// What a run of the model takes, however many rows it has, in microseconds.
    #[arg(long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(..=1_000_000))]
    cost_us: u64,
    /// Length of each measurement in seconds, after a warm-up.
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    seconds: f64,
    /// What carries the bytes: tcp or shm.
    #[arg(long, value_enum, default_value_t = Transport::Tcp)]
    transport: Transport,
    /// The kind of tokio runtime on both sides.
    #[arg(long, value_enum, default_value_t = Flavor::Multi)]
    runtime: Flavor,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
}

/// Results with a given number of clients.
#[derive(Clone, Debug, Serialize)]
struct BatchRow {
    case: &'static str,
    /// `batched` or `single`.
    method: &'static str,
    transport: Transport,
    clients: u32,
    cost_us: u64,
    seconds: f64,
    calls: u64,
    calls_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    /// Times that the model ran.
    runs: u64,
    /// Calls of a run.
    mean_batch: f64,
    /// Calls a second, divided by those of `single`: above 1 is faster.
    ratio: Option<f64>,
}

/// Runs the command: measures and prints.
pub(crate) fn run(arguments: &Batch) -> Result<()> {
    if ![Transport::Tcp, Transport::Shm].contains(&arguments.transport) {
        bail!(
            "batches are measured over tcp or shm, not {}",
            name(arguments.transport)
        );
    }
    let plan = Plan {
        system: "rpc".to_owned(),
        transport: arguments.transport,
        channel: Some("basic".to_owned()),
        cost_us: arguments.cost_us,
        ..Plan::new(arguments.runtime, arguments.seconds)
    };
    let steps = arguments.clients.iter();
    let steps = steps.map(|clients| (format!("{clients} clients"), *clients));
    report::run(
        arguments.json,
        steps.collect(),
        |clients| {
            with_server(&plan, |server| {
                measure(plan.clone(), server.address(), clients)
            })
        },
        |rows| {
            format!(
                "batches: every run of the model costs {}, over {}, {}, {} s each\n\n{}\n\n{NOTES}",
                report::time(arguments.cost_us as f64),
                name(arguments.transport),
                arguments.runtime.name(),
                arguments.seconds,
                report::table(FIELDS, rows)
            )
        },
    )
}

async fn measure(plan: Plan, address: String, count: u32) -> Result<Vec<BatchRow>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let context = ours::context(&plan)?;
        clients.push(BenchClient::connect_with(&context, &address).await?);
    }
    let length = plan.duration();
    let mut rows: Vec<BatchRow> = Vec::new();
    for batched in [false, true] {
        calls(&clients, batched, length / 10).await?;
        let before = clients[0].runs().await?;
        let begun = Instant::now();
        let samples = calls(&clients, batched, length).await?;
        let took = begun.elapsed().as_secs_f64();
        let runs = clients[0].runs().await? - before;
        let calls_per_s = samples.calls() as f64 / took;
        rows.push(BatchRow {
            case: "batch",
            method: if batched { "batched" } else { "single" },
            transport: plan.transport,
            clients: count,
            cost_us: plan.cost_us,
            seconds: plan.seconds,
            calls: samples.calls(),
            calls_per_s,
            p50_us: samples.micros(0.5),
            p99_us: samples.micros(0.99),
            runs,
            mean_batch: samples.calls() as f64 / runs.max(1) as f64,
            ratio: rows.first().map(|single| calls_per_s / single.calls_per_s),
        });
    }
    Ok(rows)
}

/// All clients call one of the methods for `length`.
async fn calls(clients: &[BenchClient], batched: bool, length: Duration) -> Result<Samples> {
    let until = Instant::now() + length;
    let each = clients.iter().cloned().enumerate().map(|(number, client)| {
        let calls = tokio::spawn(one_after_another(client, number, batched, until));
        async move { calls.await.context("a client's task")? }
    });
    let mut all = Samples::new();
    for samples in try_join_all(each).await? {
        all.add(&samples);
    }
    Ok(all)
}

async fn one_after_another(
    client: BenchClient,
    number: usize,
    batched: bool,
    until: Instant,
) -> Result<Samples> {
    let mut samples = Samples::new();
    let row = Tensor::from_vec(vec![number as f32; WIDTH], [1, WIDTH as u64])?;
    loop {
        let begun = Instant::now();
        let call = match batched {
            true => client.batched(&row),
            false => client.single(&row),
        };
        let answer = call.await?;
        samples.record(begun.elapsed(), 1);
        let values = answer.as_slice::<f32>()?;
        let is_own = values.iter().all(|value| *value == number as f32 + 1.0);
        ensure!(
            answer.shape() == [1, WIDTH as u64] && is_own,
            "client {number} got the rows of another one"
        );
        if Instant::now() >= until {
            return Ok(samples);
        }
    }
}

/// Numbers (`f32`) in a row of a small model's input.
const WIDTH: usize = 384;

const FIELDS: &str = "clients method calls_per_s p50_us p99_us runs mean_batch ratio";

const NOTES: &str = "\
batched: #[rpc(batch(max_size = 32, max_wait = \"2ms\"))], one batch at a time
single: the same method without it, one call at a time on the same device
mean_batch: calls by runs of the model
ratio: calls a second by those of single; every answer is checked to be its caller's own";
