//! What `baseline`, `pipe` and `rpc` share: one row for each cell and system, measured one after another.

use anyhow::Result;

use super::{legend, measure, spinning};
use crate::args::Options;
use crate::plan::{Case, Plan};
use crate::progress::Progress;
use crate::report::{self, Align, Extras, Row, Table};
use crate::size::Size;
use crate::system::Choice;

/// A row to be measured.
pub(super) type Cell = (Choice, Plan);

/// The plan of a system in one cell.
pub(super) fn cell(choice: Choice, base: &Plan, case: Case, bytes: u64) -> Cell {
    let mut plan = choice.plan(base);
    plan.case = case;
    plan.bytes = bytes;
    (choice, plan)
}

/// Measures and prints.
///
/// # Errors
/// When a measurement fails; what was measured before it is printed all the same.
pub(super) fn run(what: &str, options: &Options, base: &Plan, cells: &[Cell]) -> Result<()> {
    let progress = Progress::new(cells.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    let before = spinning(base);
    for (choice, plan) in cells {
        progress.begin(format!(
            "{} {} {}",
            choice.name,
            plan.case.name(),
            Size(plan.bytes)
        ));
        match measure(choice, plan, options) {
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
        report::say(format_args!(
            "{}\n\n{}",
            report::head(what, base),
            table(&rows)
        ));
        print!("{}", legend(rows.iter().map(|row| row.system.as_str())));
        print!("{}", Extras::of(rows.iter()).legend());
        report::say(format_args!(
            "  {}",
            report::spinning(before, spinning(base))
        ));
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
    let extras = Extras::of(rows.iter());
    table.widen(&extras.columns());
    let mut last = None;
    for row in rows {
        let cell = (row.case, row.bytes);
        if last.replace(cell).is_some_and(|last| last != cell) {
            table.gap();
        }
        let mut cells = vec![
            row.case.to_owned(),
            Size(row.bytes).to_string(),
            row.name.clone(),
            report::over(&row.transport, &row.channel),
            report::time(row.p50_us),
            report::time(row.p99_us),
            report::throughput(row.gbps),
            report::rate(row.per_s),
            row.n.to_string(),
        ];
        cells.extend(extras.cells(row));
        table.push(cells);
    }
    table
}
