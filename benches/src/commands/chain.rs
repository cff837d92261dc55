//! `tp-bench chain`: a chain of calls, where each call takes the result of the previous one. One variant awaits each call, the other makes
//! all calls at once.
//!
//! Each result is a reference to a tensor that stays at the server. The variants take turns, so that machine drift affects both alike.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;
use tensorpipe::Tensor;

use super::{spinning, with_server};
use crate::measure::Samples;
use crate::plan::{Options, Plan, Transport, name};
use crate::report;
use crate::system::ours;
use crate::system::rpc::BenchClient;

#[derive(Debug, Args)]
pub(crate) struct Chain {
    /// Lengths of chains.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16", value_parser = clap::value_parser!(u32).range(1..=1000))]
    calls: Vec<u32>,
    #[command(flatten)]
    options: Options,
}

/// What one length of a chain takes, in microseconds.
#[derive(Debug, Serialize)]
struct ChainRow {
    case: &'static str,
    transport: String,
    calls: u32,
    awaited_us: f64,
    pipelined_us: f64,
    /// Of one call, awaited.
    one_us: f64,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Chain) -> Result<()> {
    let options = &arguments.options;
    let base = options.plan()?;
    let over = match options.transport {
        Some(transport) => vec![transport],
        None => vec![Transport::Shm, Transport::Tcp],
    };
    let spinning = spinning(&base);
    let steps = over.into_iter();
    let steps = steps.map(|transport| (format!("chain over {}", name(transport)), transport));
    report::run(
        options.json,
        steps.collect(),
        |transport| {
            let plan = Plan {
                system: "rpc".to_owned(),
                ..base.clone()
            };
            let plan = plan.over(transport)?;
            let lengths = arguments.calls.clone();
            with_server(&plan, |server| {
                measure(plan.clone(), server.address(), lengths)
            })
        },
        |rows| {
            let head = report::head("chains of calls", &base);
            report::page(&head, FIELDS, rows, "", &spinning)
        },
    )
}

async fn measure(plan: Plan, address: String, lengths: Vec<u32>) -> Result<Vec<ChainRow>> {
    let context = ours::context(&plan)?;
    let client = BenchClient::connect_with(&context, &address).await?;
    let tensor = ours::tensor(&plan, 8, &context)?;
    let mut rows = Vec::new();
    for calls in lengths {
        let [mut one, mut awaited, mut pipelined] = [(); 3].map(|()| Samples::new());
        let begun = Instant::now();
        let warm = plan.duration() / 5;
        while begun.elapsed() < plan.duration() {
            let record = |samples: &mut Samples, took| {
                if begun.elapsed() > warm {
                    samples.record(took, 1);
                }
            };
            for _ in 0..IN_A_ROW {
                record(&mut one, awaited_chain(&client, &tensor, 1).await?);
            }
            for _ in 0..IN_A_ROW {
                record(&mut awaited, awaited_chain(&client, &tensor, calls).await?);
            }
            for _ in 0..IN_A_ROW {
                record(
                    &mut pipelined,
                    pipelined_chain(&client, &tensor, calls).await?,
                );
            }
        }
        rows.push(ChainRow {
            case: "chain",
            transport: name(plan.transport),
            calls,
            awaited_us: awaited.micros(0.5),
            pipelined_us: pipelined.micros(0.5),
            one_us: one.micros(0.5),
        });
    }
    Ok(rows)
}

/// Awaits each call before the next. The references are dropped after the timed part.
async fn awaited_chain(client: &BenchClient, tensor: &Tensor, calls: u32) -> Result<Duration> {
    let mut kept = Vec::with_capacity(calls as usize);
    let begun = Instant::now();
    kept.push(client.keep(tensor).await?);
    for _ in 1..calls {
        let next = client.pass(&kept[kept.len() - 1]).await?;
        kept.push(next);
    }
    Ok(begun.elapsed())
}

async fn pipelined_chain(client: &BenchClient, tensor: &Tensor, calls: u32) -> Result<Duration> {
    let mut under_way = Vec::with_capacity(calls as usize);
    let begun = Instant::now();
    under_way.push(client.keep(tensor));
    for _ in 1..calls {
        let next = client.pass(&under_way[under_way.len() - 1]);
        under_way.push(next);
    }
    let last = under_way.pop().context("a chain has a call")?;
    let last = last.await?;
    let took = begun.elapsed();
    // Those before it have been answered.
    for call in under_way {
        drop(call.await?);
    }
    drop(last);
    Ok(took)
}

/// Chains of one variant in a row, so that leftover work of the other variant is not measured.
const IN_A_ROW: u32 = 50;

const FIELDS: &str = "transport calls one_us awaited_us pipelined_us";
