//! What `baseline`, `pipe` and `rpc` share: one row for each cell and system, measured one after another.

use anyhow::Result;

use super::{legend, measure};
use crate::args::Options;
use crate::plan::{Case, Plan};
use crate::progress::Progress;
use crate::report::{self, Align, Row, Table};
use crate::size::Size;
use crate::system::AnySystem;

/// A row to be measured.
pub(super) type Cell = (&'static dyn AnySystem, Plan);

/// The plan of `system` in one cell.
pub(super) fn cell(system: &'static dyn AnySystem, base: &Plan, case: Case, bytes: u64) -> Cell {
    let mut plan = base.clone();
    plan.system = system.name().to_owned();
    plan.case = case;
    plan.bytes = bytes;
    (system, plan)
}

/// Measures and prints.
///
/// # Errors
/// When a measurement fails; what was measured before it is printed all the same.
pub(super) fn run(what: &str, options: &Options, base: &Plan, cells: &[Cell]) -> Result<()> {
    let progress = Progress::new(cells.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for (system, plan) in cells {
        progress.begin(format!(
            "{} {} {}",
            plan.system,
            plan.case.name(),
            Size(plan.bytes)
        ));
        match measure(*system, plan) {
            Ok(row) if options.json => progress.print(&serde_json::to_string(&row)?),
            Ok(row) => rows.push(row),
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
        progress.end();
    }
    drop(progress);
    if !options.json {
        println!("{}\n\n{}", report::head(what, base), table(&rows));
        println!("{}", legend(rows.iter().map(|row| row.system.as_str())));
    }
    outcome
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("size", Align::Right),
        ("system", Align::Left),
        ("over", Align::Left),
        ("p50", Align::Right),
        ("p99", Align::Right),
        ("GB/s", Align::Right),
        ("calls/s", Align::Right),
        ("calls", Align::Right),
    ]);
    let mut last = None;
    for row in rows {
        let cell = (row.case, row.bytes);
        if last.replace(cell).is_some_and(|last| last != cell) {
            table.gap();
        }
        table.push(vec![
            row.case.to_owned(),
            Size(row.bytes).to_string(),
            row.system.clone(),
            report::over(&row.transport, &row.channel),
            report::time(row.p50_us),
            report::time(row.p99_us),
            report::throughput(row.gbps),
            report::rate(row.per_s),
            row.n.to_string(),
        ]);
    }
    table
}
