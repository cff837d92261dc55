//! `tp-bench baseline`: the peers, measured as strictly as ourselves.

use anyhow::Result;

use super::{choose, legend, measure, plan};
use crate::args::Baseline;
use crate::plan::Case;
use crate::progress::Progress;
use crate::report::{self, Align, Row, Table};
use crate::size::Size;
use crate::system::{AnySystem, Kind};

/// Measures and prints.
///
/// # Errors
/// When a measurement fails; what was measured before it is printed all the same.
pub(crate) fn run(arguments: &Baseline) -> Result<()> {
    let options = &arguments.options;
    let base = plan(options)?;
    let mut plans = Vec::new();
    for (case, bytes) in cells(&arguments.case, &options.size) {
        let baseline = |system: &dyn AnySystem| system.kind() == Kind::Baseline;
        for system in choose(&arguments.system, baseline, case, options.transport)? {
            let mut plan = base.clone();
            plan.system = system.name().to_owned();
            plan.case = case;
            plan.bytes = bytes;
            plans.push((system, plan));
        }
    }
    let progress = Progress::new(plans.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for (system, plan) in &plans {
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
        println!("{}\n\n{}", report::head("baselines", &base), table(&rows));
        println!("{}", legend(rows.iter().map(|row| row.system.as_str())));
    }
    outcome
}

/// Cases and sizes in the order of the table.
fn cells(cases: &[Case], sizes: &[Size]) -> Vec<(Case, u64)> {
    let sizes = if sizes.is_empty() { SIZES } else { sizes };
    if cases.is_empty() {
        let case = |size: &Size| {
            if *size <= SMALL {
                Case::Echo
            } else {
                Case::Upload
            }
        };
        return sizes.iter().map(|size| (case(size), size.0)).collect();
    }
    let of = |case: &Case| {
        let case = *case;
        sizes.iter().map(move |size| (case, size.0))
    };
    cases.iter().flat_map(of).collect()
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

/// The largest size that is called small: such calls are measured by their echo.
const SMALL: Size = Size(4 * Size::KIB);
const SIZES: &[Size] = &[
    Size(0),
    SMALL,
    Size(Size::MIB),
    Size(16 * Size::MIB),
    Size(256 * Size::MIB),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_case_small_sizes_are_echoed_and_large_ones_uploaded() {
        let sizes = [Size(0), Size(4096), Size(4097)];
        let expected = [(Case::Echo, 0), (Case::Echo, 4096), (Case::Upload, 4097)];
        assert_eq!(cells(&[], &sizes), expected);
        assert_eq!(cells(&[], &[]).len(), SIZES.len());
    }

    #[test]
    fn with_cases_every_size_is_measured_in_each() {
        let found = cells(&[Case::Upload, Case::Echo], &[Size(1), Size(2)]);
        let expected = [
            (Case::Upload, 1),
            (Case::Upload, 2),
            (Case::Echo, 1),
            (Case::Echo, 2),
        ];
        assert_eq!(found, expected);
    }
}
