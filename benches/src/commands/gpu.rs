//! `tp-bench gpu`: what tensors on a GPU cost from one process to another.

use std::time::Duration;

use anyhow::Result;
use tensorpipe::device::cuda::CudaDevices;

use crate::args::Gpu;
use crate::gpu::{Budget, Row, calls, copies};
use crate::report::{self, Align, Table, gbps};
use crate::size::Size;

/// Measures and prints.
///
/// # Errors
/// Where there is no GPU, and when something cannot be measured.
pub(crate) fn run(arguments: &Gpu) -> Result<()> {
    let cuda = CudaDevices::open()?;
    let sizes = arguments.size.iter().map(|size| usize::try_from(size.0));
    let sizes: Vec<_> = sizes.collect::<Result<_, _>>()?;
    let budget = Budget(Duration::from_secs_f64(arguments.seconds));
    let runtime = tokio::runtime::Runtime::new()?;
    let rows = runtime.block_on(async {
        let mut rows = copies(&cuda, &sizes, budget).await?;
        rows.extend(calls(&cuda, &sizes, budget).await?);
        anyhow::Ok(rows)
    })?;
    if arguments.json {
        for row in &rows {
            report::say(serde_json::to_string(row)?);
        }
    } else {
        report::say(format_args!("{}{LEGEND}", table(&rows)));
    }
    Ok(())
}

/// What a case is compared with.
fn bare(case: &str) -> Option<&'static str> {
    match case {
        "slice" | "own" => Some("copy within"),
        "up" => Some("copy up"),
        "down" => Some("copy down"),
        _ => None,
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("bytes", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("GB/s", Align::Right),
        ("of bare", Align::Right),
        ("n", Align::Right),
        ("over", Align::Left),
    ]);
    for row in rows {
        let beside = bare(row.case).and_then(|bare| {
            let mut rows = rows.iter();
            rows.find(|other| other.case == bare && other.bytes == row.bytes)
        });
        let ratio = beside.map(|bare| format!("{:.2}", bare.p50_us / row.p50_us));
        table.push(vec![
            row.case.to_owned(),
            Size(row.bytes).to_string(),
            report::time(row.p50_us),
            report::time(row.p99_us),
            report::throughput(gbps(row.bytes, row.p50_us)),
            ratio.unwrap_or_default(),
            row.n.to_string(),
            row.over.clone(),
        ]);
    }
    table
}

const LEGEND: &str = "  copy: on a stream, awaited; lent: read where it lies; slice: another library\'s memory; own: to a process that borrows nothing\n  \
    up, down: from and to main memory; of bare: how much of such a copy\'s speed the call has";
