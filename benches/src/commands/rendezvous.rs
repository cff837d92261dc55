//! `tp-bench rendezvous`: what a value takes from its send to its receive, and how many there are in a second.

use anyhow::{Context, Result};
use serde::Serialize;

use super::{plan, spinning};
use crate::args::RendezvousArguments;
use crate::plan::{Plan, Transport};
use crate::progress::Progress;
use crate::rendezvous::{What, measure};
use crate::report::{self, Align, Table, gbps};
use crate::size::Size;

/// One line.
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

/// Measures and prints.
///
/// # Errors
/// When something cannot be measured; what was measured before it is printed all the same.
pub(crate) fn run(arguments: &RendezvousArguments) -> Result<()> {
    let options = &arguments.options;
    let base = plan(options)?;
    let before = spinning(&base);
    let over = match options.transport {
        Some(transport) => vec![transport],
        None => vec![Transport::Memory, Transport::Shm],
    };
    let sizes = match &options.size[..] {
        [] => USUAL_SIZES.map(Size).to_vec(),
        sizes => sizes.to_vec(),
    };
    let cases = [What::Round, What::Stream(arguments.in_flight)];
    let progress = Progress::new(over.len() * sizes.len() * cases.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    'all: for transport in over {
        for what in cases {
            for size in &sizes {
                let plan = Plan {
                    transport,
                    bytes: size.0,
                    ..base.clone()
                };
                progress.begin(format!("{} of {size}", name(what)));
                match row(&plan, what) {
                    Ok(row) => {
                        if options.json {
                            progress.print(&serde_json::to_string(&row)?);
                        }
                        rows.push(row);
                    }
                    Err(error) => {
                        outcome = Err(error);
                        break 'all;
                    }
                }
                progress.end();
            }
        }
    }
    drop(progress);
    if !options.json {
        let head = report::head("values by name, from send to receive", &base);
        report::say(format_args!("{head}\n\n{}", table(&rows)));
        report::say(format_args!(
            "{LEGEND}\n  {}",
            report::spinning(before, spinning(&base))
        ));
    }
    outcome
}

fn name(what: What) -> &'static str {
    match what {
        What::Round => "round",
        What::Stream(_) => "stream",
    }
}

fn row(plan: &Plan, what: What) -> Result<Row> {
    let measured =
        measure(plan, what).with_context(|| format!("{} of {} bytes", name(what), plan.bytes))?;
    let samples = &measured.samples;
    let p50_us = samples.micros(0.5);
    Ok(Row {
        case: name(what),
        over: measured.route.transport,
        channel: measured.route.channel,
        bytes: plan.bytes,
        in_flight: match what {
            What::Round => 1,
            What::Stream(depth) => depth,
        },
        p50_us,
        p99_us: samples.micros(0.99),
        values_per_s: samples.per_second(),
        gbps: gbps(plan.bytes, p50_us),
        copied: measured.copied,
        n: samples.calls(),
    })
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("over", Align::Left),
        ("bytes", Align::Right),
        ("in flight", Align::Right),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("values/s", Align::Right),
        ("GB/s", Align::Right),
        ("copied", Align::Right),
    ]);
    for row in rows {
        table.push(vec![
            row.case.to_owned(),
            report::over(&row.over, &row.channel),
            Size(row.bytes).to_string(),
            row.in_flight.to_string(),
            report::time(row.p50_us),
            report::time(row.p99_us),
            report::rate(row.values_per_s),
            report::throughput(row.gbps),
            format!("{:.0} B", row.copied),
        ]);
    }
    table
}

const USUAL_SIZES: [u64; 4] = [0, 4 * Size::KIB, 64 * Size::KIB, Size::MIB];

const LEGEND: &str = "  round: half of the time of a value there and back; stream: the time between two values of many in flight\n  \
    copied: bytes of a value that the receiving process copied; the rest was read into place, or not moved";
