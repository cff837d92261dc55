//! `tp-bench callers`: several callers share one connection. Some call in a loop, each with one call in flight; others wait for a call that
//! never ends, like a long poll. Each case runs twice: with all callers as tasks, and with the first caller as the future that `block_on`
//! runs, which a single-threaded runtime polls less often.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tensorpipe::Tensor;
use tokio::task::JoinSet;

use super::{Place, spinning, with_server_at};
use crate::measure::Samples;
use crate::plan::{Options, Plan, Transport, name};
use crate::report;
use crate::size::Size;
use crate::system::ours;
use crate::system::rpc::BenchClient;

#[derive(Debug, Args)]
pub(crate) struct Callers {
    /// Numbers of tasks that call in a loop.
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,8", value_parser = clap::value_parser!(u32).range(1..=1000))]
    callers: Vec<u32>,
    /// Numbers of calls that wait beside them.
    #[arg(long, value_delimiter = ',', default_value = "0,1,3,5,9", value_parser = clap::value_parser!(u32).range(..=1000))]
    parked: Vec<u32>,
    #[command(flatten)]
    options: Options,
}

/// What one connection carried.
#[derive(Debug, Serialize)]
struct CallersRow {
    case: &'static str,
    transport: String,
    bytes: u64,
    callers: u32,
    parked: u32,
    /// `task` or `main`, which the runtime blocks on.
    first: &'static str,
    /// Median latency of the first caller's calls.
    p50_first_us: f64,
    /// Latency over all callers.
    p50_us: f64,
    p99_us: f64,
    /// Of all callers together.
    calls_per_s: f64,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Callers) -> Result<()> {
    let options = &arguments.options;
    let base = Plan {
        system: "rpc".to_owned(),
        bytes: options.size.first().map_or(0, |size| size.0),
        ..options.plan()?
    };
    let base = base.over(options.transport.unwrap_or(Transport::Shm))?;
    let spinning = spinning(&base);
    let steps = arguments.callers.iter().flat_map(|callers| {
        let with = move |parked: &u32| (format!("{callers} beside {parked}"), (*callers, *parked));
        arguments.parked.iter().map(with)
    });
    report::run(
        options.json,
        steps.collect(),
        |(callers, parked)| {
            let measure = |first| {
                with_server_at(&base, first, |server| {
                    measure(base.clone(), server.address(), callers, parked, first)
                })
            };
            Ok([measure(Place::Task)?, measure(Place::Main)?].into())
        },
        |rows| {
            let what = format!("callers of one connection, {} a call", Size(base.bytes));
            report::page(&report::head(&what, &base), FIELDS, rows, NOTES, &spinning)
        },
    )
}

async fn measure(
    plan: Plan,
    address: String,
    callers: u32,
    parked: u32,
    first: Place,
) -> Result<CallersRow> {
    let context = ours::context(&plan)?;
    let client = BenchClient::connect_with(&context, &address).await?;
    let tensor = ours::tensor(&plan, plan.len()?, &context)?;
    let mut waits = JoinSet::new();
    for _ in 0..parked {
        let client = client.with_deadline(LONG);
        waits.spawn(async move { client.park().await });
    }
    let length = plan.duration();
    let begun = Instant::now();
    let mut others = JoinSet::new();
    for _ in 1..callers {
        let (client, tensor) = (client.clone(), tensor.clone());
        others.spawn(async move { in_a_loop(&client, &tensor, begun, length).await });
    }
    let of_first = in_a_loop(&client, &tensor, begun, length).await?;
    let mut all = Samples::new();
    all.add(&of_first);
    while let Some(samples) = others.join_next().await {
        all.add(&samples.context("a caller's task")??);
    }
    Ok(CallersRow {
        case: "callers",
        transport: name(plan.transport),
        bytes: plan.bytes,
        callers,
        parked,
        first: match first {
            Place::Task => "task",
            Place::Main => "main",
        },
        p50_first_us: of_first.micros(0.5),
        p50_us: all.micros(0.5),
        p99_us: all.micros(0.99),
        calls_per_s: all.calls() as f64 / length.as_secs_f64(),
    })
}

/// Calls for `length` after a warm-up, and once in any case: on a busy machine one call may take longer.
async fn in_a_loop(
    client: &BenchClient,
    tensor: &Tensor,
    begun: Instant,
    length: Duration,
) -> Result<Samples> {
    let mut samples = Samples::new();
    let warm = length / 5;
    loop {
        let start = Instant::now();
        if start - begun >= warm + length && samples.calls() > 0 {
            return Ok(samples);
        }
        match tensor.byte_len() {
            0 => drop(client.ping("").await?),
            _ => drop(client.echo(tensor).await?),
        }
        if start - begun >= warm {
            samples.record(start.elapsed(), 1);
        }
    }
}

/// The deadline of a call that waits.
const LONG: Duration = Duration::from_secs(3600);

const FIELDS: &str = "callers parked first p50_first_us p50_us p99_us calls_per_s";

const NOTES: &str = "\
callers: tasks that call in a loop, one call under way each
parked: calls beside them that do not end
first: whether the first caller is a task, or what the runtime blocks on; p50_first_us: of its calls
p50_us, p99_us: of any caller's; calls_per_s: of all callers together";
