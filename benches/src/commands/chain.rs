//! `tp-bench chain`: calls each of which is given the result of the one before, awaited one after another and all made at once.
//!
//! The result of each is a reference: a tensor that stays at the server. In turns, so that the machine is the same for both.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;
use tensorpipe::{Context as PipeContext, Tensor};

use super::{plan, spinning};
use crate::args::Chain;
use crate::measure::Samples;
use crate::peer::Server;
use crate::plan::{Plan, Transport};
use crate::progress::Progress;
use crate::report::{self, Align, Table};
use crate::system::ours;
use crate::system::rpc::BenchClient;

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
///
/// # Errors
/// When a server does not start, or a call fails.
pub(crate) fn run(arguments: &Chain) -> Result<()> {
    let options = &arguments.options;
    let mut base = plan(options)?;
    base.system = "rpc".to_owned();
    let over = match options.transport {
        Some(transport) => vec![transport],
        None => vec![Transport::Shm, Transport::Tcp],
    };
    let before = spinning(&base);
    let progress = Progress::new(over.len());
    let mut rows = Vec::new();
    for transport in over {
        progress.begin(format!("chain over {}", transport.name()));
        base.transport = transport;
        rows.extend(measure(&base, &arguments.calls)?);
        progress.end();
    }
    drop(progress);
    if options.json {
        for row in &rows {
            report::say(serde_json::to_string(row)?);
        }
        return Ok(());
    }
    report::say(format_args!(
        "{}\n\n{}",
        report::head("chains of calls", &base),
        table(&rows)
    ));
    report::say(format_args!(
        "  {}",
        report::spinning(before, spinning(&base))
    ));
    Ok(())
}

fn measure(plan: &Plan, lengths: &[u32]) -> Result<Vec<ChainRow>> {
    let runtime = plan.runtime.build()?;
    let server = Server::start(plan, &runtime)?;
    let (plan, address) = (plan.clone(), server.address().to_owned());
    let lengths = lengths.to_vec();
    let measured = runtime.block_on(async {
        let work = async move {
            let context: PipeContext = ours::context(&plan)?;
            let client = BenchClient::connect_with(&context, &address).await?;
            let tensor = ours::tensor(&plan, 8, &context)?;
            let mut rows = Vec::new();
            for calls in lengths {
                rows.push(one_length(&plan, &client, &tensor, calls).await?);
            }
            anyhow::Ok(rows)
        };
        tokio::spawn(work).await.context("the measuring task")?
    });
    runtime.shutdown_timeout(std::time::Duration::from_secs(1));
    measured
}

async fn one_length(
    plan: &Plan,
    client: &BenchClient,
    tensor: &Tensor,
    calls: u32,
) -> Result<ChainRow> {
    let [mut one, mut awaited, mut pipelined] = [(); 3].map(|()| Samples::new());
    let begun = Instant::now();
    let warm = plan.duration() / 5;
    while begun.elapsed() < plan.duration() {
        // Several in a row: what another kind of chain has left behind is not measured.
        for _ in 0..50 {
            let took = awaited_chain(client, tensor, 1).await?;
            if begun.elapsed() > warm {
                one.record(took, 1);
            }
        }
        for _ in 0..50 {
            let took = awaited_chain(client, tensor, calls).await?;
            if begun.elapsed() > warm {
                awaited.record(took, 1);
            }
        }
        for _ in 0..50 {
            let took = pipelined_chain(client, tensor, calls).await?;
            if begun.elapsed() > warm {
                pipelined.record(took, 1);
            }
        }
    }
    Ok(ChainRow {
        case: "chain",
        transport: plan.transport.name().to_owned(),
        calls,
        awaited_us: awaited.micros(0.5),
        pipelined_us: pipelined.micros(0.5),
        one_us: one.micros(0.5),
    })
}

/// The references are let go of behind the timed part.
async fn awaited_chain(
    client: &BenchClient,
    tensor: &Tensor,
    calls: u32,
) -> Result<std::time::Duration> {
    let mut kept = Vec::with_capacity(calls as usize);
    let begun = Instant::now();
    kept.push(client.keep(tensor).await?);
    for _ in 1..calls {
        let next = client.pass(&kept[kept.len() - 1]).await?;
        kept.push(next);
    }
    Ok(begun.elapsed())
}

async fn pipelined_chain(
    client: &BenchClient,
    tensor: &Tensor,
    calls: u32,
) -> Result<std::time::Duration> {
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

fn table(rows: &[ChainRow]) -> Table {
    let mut table = Table::new(&[
        ("over", Align::Left),
        ("calls", Align::Right),
        ("one call", Align::Right),
        ("awaited", Align::Right),
        ("pipelined", Align::Right),
        ("of awaited", Align::Right),
        ("of one call", Align::Right),
    ]);
    for row in rows {
        table.push(vec![
            row.transport.clone(),
            row.calls.to_string(),
            report::time(row.one_us),
            report::time(row.awaited_us),
            report::time(row.pipelined_us),
            format!("{:.2}", row.pipelined_us / row.awaited_us),
            format!("{:.2}", row.pipelined_us / row.one_us),
        ]);
    }
    table
}
