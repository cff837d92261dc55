//! `tp-bench crowd`: calls over many connections at once, one at a time on each: what a server with many clients does.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::{legend, plan, spinning};
use crate::args::Crowd;
use crate::peer::Server;
use crate::plan::{Case, Plan, Transport};
use crate::progress::Progress;
use crate::report::{self, Align, Table};
use crate::system::Choice;

/// What so many connections did.
#[derive(Debug, Serialize)]
struct CrowdRow {
    system: String,
    case: &'static str,
    transport: String,
    connections: u32,
    calls_per_second: f64,
    /// Of the connection that made fewest, and of an average one: whether each had its turn.
    least: f64,
}

/// Measures and prints.
///
/// # Errors
/// When a system cannot be measured.
pub(crate) fn run(arguments: &Crowd) -> Result<()> {
    let options = &arguments.options;
    let mut base = plan(options)?;
    base.bytes = options.size.first().map_or(0, |size| size.0);
    let choices = arguments.system.iter().map(|name| {
        let choice = Choice::parse(name)?;
        choice.check(Case::Echo, Transport::Tcp)?;
        Ok(choice)
    });
    let choices = choices.collect::<Result<Vec<_>>>()?;
    let before = spinning(&base);
    let progress = Progress::new(choices.len() * arguments.connections.len());
    let mut rows = Vec::new();
    // In turns: the machine is the same for all systems.
    for connections in &arguments.connections {
        for choice in &choices {
            progress.begin(format!("{} × {connections}", choice.name));
            rows.push(measure(choice, &choice.plan(&base), *connections)?);
            progress.end();
        }
    }
    drop(progress);
    if options.json {
        for row in &rows {
            report::say(serde_json::to_string(row)?);
        }
        return Ok(());
    }
    let what = format!(
        "calls over many connections, {} each",
        options
            .size
            .first()
            .map_or_else(|| "nothing".to_owned(), ToString::to_string)
    );
    report::say(format_args!(
        "{}\n\n{}",
        report::head(&what, &base),
        table(&rows)
    ));
    print!("{}", legend(rows.iter().map(|row| row.system.as_str())));
    report::say(format_args!(
        "{LEGEND}\n  {}",
        report::spinning(before, spinning(&base))
    ));
    Ok(())
}

fn measure(choice: &Choice, plan: &Plan, connections: u32) -> Result<CrowdRow> {
    let what = || format!("{} over {connections} connections", choice.name);
    let runtime = plan.runtime.build()?;
    let server = Server::start(plan, &runtime).with_context(what)?;
    let crowd = choice.system.crowd(
        plan.clone(),
        server.address().to_owned(),
        connections as usize,
    );
    let measured = runtime.block_on(async {
        let crowd = tokio::spawn(crowd).await;
        crowd.context("the measuring task")?
    });
    runtime.shutdown_timeout(Duration::from_secs(1));
    let (rounds, took) = measured.with_context(what)?;
    let all: u64 = rounds.iter().sum();
    let least = rounds.iter().copied().min().unwrap_or(0);
    Ok(CrowdRow {
        system: choice.name.clone(),
        case: "crowd",
        transport: plan.transport.name().to_owned(),
        connections,
        calls_per_second: all as f64 / took.as_secs_f64(),
        least: least as f64 * rounds.len() as f64 / all.max(1) as f64,
    })
}

fn table(rows: &[CrowdRow]) -> Table {
    let mut table = Table::new(&[
        ("system", Align::Left),
        ("connections", Align::Right),
        ("calls/s", Align::Right),
        ("least", Align::Right),
    ]);
    for row in rows {
        table.push(vec![
            row.system.clone(),
            row.connections.to_string(),
            format!("{:.0}", row.calls_per_second),
            format!("{:.2}", row.least),
        ]);
    }
    table
}

const LEGEND: &str = "  calls/s: of all connections together
  least: calls of the connection that made fewest, of an average one's";
