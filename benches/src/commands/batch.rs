//! `tp-bench batch`: calls a second of a method that is batched, beside the same one that is not.

use anyhow::{Context, Result};

use crate::args::Batch;
use crate::batch::{BatchRow, Load, Orders};
use crate::progress::Progress;
use crate::report::{self, Align, Table};

/// Measures and prints.
///
/// # Errors
/// When a call fails; what was measured before it is printed all the same.
pub(crate) fn run(arguments: &Batch) -> Result<()> {
    let orders = Orders {
        transport: arguments.transport,
        cost_us: arguments.cost_us,
        runtime: arguments.runtime,
    };
    let progress = Progress::new(2 * arguments.clients.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for &clients in &arguments.clients {
        outcome = measure(orders, clients, arguments, &progress, &mut rows)
            .with_context(|| format!("{clients} clients"));
        if outcome.is_err() {
            break;
        }
    }
    drop(progress);
    if !arguments.json {
        report::say(format_args!(
            "batches: every run of the model costs {}, over {}, {}, {} s each\n\n{}\n{LEGEND}",
            report::time(arguments.cost_us as f64),
            arguments.transport.name(),
            arguments.runtime.name(),
            arguments.seconds,
            table(&rows)
        ));
    }
    outcome
}

fn measure(
    orders: Orders,
    clients: u32,
    arguments: &Batch,
    progress: &Progress,
    rows: &mut Vec<BatchRow>,
) -> Result<()> {
    let runtime = orders.runtime.build()?;
    let load = runtime.block_on(Load::start(orders, clients))?;
    let mut single = None;
    for batched in [false, true] {
        progress.begin(format!("{clients} clients"));
        let mut row = runtime.block_on(load.measure(batched, arguments.seconds))?;
        row.ratio = single.map(|single| row.calls_per_s / single);
        single = Some(row.calls_per_s);
        if arguments.json {
            progress.print(&serde_json::to_string(&row)?);
        }
        rows.push(row);
        progress.end();
    }
    Ok(())
}

fn table(rows: &[BatchRow]) -> Table {
    let mut table = Table::new(&[
        ("clients", Align::Right),
        ("method", Align::Left),
        ("calls/s", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("runs", Align::Right),
        ("mean batch", Align::Right),
        ("ratio", Align::Right),
    ]);
    for row in rows {
        if row.method == "single" {
            table.gap();
        }
        table.push(vec![
            row.clients.to_string(),
            row.method.to_owned(),
            report::rate(row.calls_per_s),
            report::time(row.p50_us),
            report::time(row.p99_us),
            row.runs.to_string(),
            format!("{:.1}", row.mean_batch),
            row.ratio
                .map_or_else(String::new, |ratio| format!("{ratio:.2} ×")),
        ]);
    }
    table
}

const LEGEND: &str =
    "  batched: #[rpc(batch(max_size = 32, max_wait = \"2ms\"))], one batch at a time
  single: the same method without it, one call at a time on the same device
  mean batch: calls by runs of the model
  ratio: calls a second by those of single; every answer is checked to be its caller's own";
