//! `tp-bench compare`: systems take turns, A B A B …, and are judged by the medians of their runs.
//!
//! Every run has a fresh server, a fresh runtime and a fresh connection, so that a run's luck (where its memory
//! lies, which core it was put on) is drawn anew; turns are short, so that the machine's drift meets all alike.

use anyhow::Result;

use super::{choose, legend, measure, plan};
use crate::args::Compare;
use crate::cores;
use crate::measure::median;
use crate::plan::{Case, Plan};
use crate::progress::Progress;
use crate::report::{self, Align, Comparison, Row, Table};
use crate::size::Size;
use crate::system::{AnySystem, by_name};

/// Measures and prints.
///
/// # Errors
/// When a measurement fails; the cells before it are printed all the same.
pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let options = &arguments.options;
    let base = plan(options)?;
    if let Some(name) = &arguments.against {
        by_name(name)?;
    }
    let mut cells = Vec::new();
    for &case in &arguments.cases {
        let systems = choose(&arguments.systems, |_| true, case, options.transport)?;
        let usual = [usual_size(case)];
        let sizes = if options.size.is_empty() {
            &usual[..]
        } else {
            &options.size
        };
        cells.extend(sizes.iter().map(|size| (case, size.0, systems.clone())));
    }
    let turns: usize = cells.iter().map(|(_, _, systems)| systems.len()).sum();
    let progress = Progress::new(turns * arguments.runs as usize);
    let mut done = Vec::new();
    let mut outcome = Ok(());
    for (case, bytes, systems) in cells {
        let mut plan = base.clone();
        plan.case = case;
        plan.bytes = bytes;
        let against = arguments
            .against
            .as_deref()
            .unwrap_or_else(|| usual_baseline(case));
        match take_turns(&systems, &plan, arguments.runs, &progress) {
            Ok(turns) => {
                let compared = compare(turns, against);
                if options.json {
                    for comparison in &compared {
                        progress.print(&serde_json::to_string(comparison)?);
                    }
                }
                done.push(compared);
            }
            Err(error) => {
                outcome = Err(error);
                break;
            }
        }
    }
    drop(progress);
    if !options.json {
        let what = format!("medians of {} alternating runs", arguments.runs);
        println!("{}\n\n{}", report::head(&what, &base), table(&done));
        let rows = done.iter().flatten().map(|comparison| &comparison.row);
        println!("{}", legend(rows.map(|row| row.system.as_str())));
    }
    outcome
}

/// All runs of one system in one cell.
struct Turns {
    rows: Vec<Row>,
    cores_us: Vec<f64>,
}

fn take_turns(
    systems: &[&'static dyn AnySystem],
    plan: &Plan,
    runs: u32,
    progress: &Progress,
) -> Result<Vec<Turns>> {
    let mut turns: Vec<_> = systems
        .iter()
        .map(|_| Turns {
            rows: Vec::new(),
            cores_us: Vec::new(),
        })
        .collect();
    // Once pinned we are shown one core only.
    let pair = plan.cores.or_else(|| cores::pair().ok());
    for run in 1..=runs {
        for (system, turns) in systems.iter().zip(&mut turns) {
            let mut plan = plan.clone();
            plan.system = system.name().to_owned();
            let (case, size) = (plan.case.name(), Size(plan.bytes));
            progress.begin(format!(
                "{} {case} {size}, run {run} of {runs}",
                plan.system
            ));
            turns
                .cores_us
                .extend(pair.and_then(cores::spinning_round_trip));
            turns.rows.push(measure(*system, &plan)?);
            progress.end();
        }
    }
    Ok(turns)
}

fn compare(turns: Vec<Turns>, against: &str) -> Vec<Comparison> {
    let mut compared: Vec<_> = turns.iter().filter_map(summary).collect();
    let reference = compared
        .iter()
        .find(|comparison| comparison.row.system == against)
        .map(|comparison| comparison.row.p50_us);
    for comparison in &mut compared {
        if let Some(reference) = reference.filter(|micros| *micros > 0.0) {
            comparison.against = Some(against.to_owned());
            comparison.ratio = Some(comparison.row.p50_us / reference);
        }
    }
    compared
}

/// Medians over the runs; `None` without a run.
fn summary(turns: &Turns) -> Option<Comparison> {
    let rows = &turns.rows;
    let of = |value: fn(&Row) -> f64| rows.iter().map(value).collect::<Vec<_>>();
    let p50s = of(|row| row.p50_us);
    let row = Row {
        p50_us: median(&p50s)?,
        p99_us: median(&of(|row| row.p99_us))?,
        gbps: median(&of(|row| row.gbps))?,
        per_s: median(&of(|row| row.per_s))?,
        n: rows.iter().map(|row| row.n).sum(),
        ..rows.first()?.clone()
    };
    Some(Comparison {
        row,
        runs: rows.len(),
        p50_best_us: p50s.iter().copied().fold(f64::INFINITY, f64::min),
        p50_worst_us: p50s.iter().copied().fold(0.0, f64::max),
        against: None,
        ratio: None,
        cores_us: median(&turns.cores_us),
    })
}

fn table(cells: &[Vec<Comparison>]) -> Table {
    let mut table = Table::new(&[
        ("case", Align::Left),
        ("size", Align::Right),
        ("system", Align::Left),
        ("over", Align::Left),
        ("p50", Align::Right),
        ("ratio", Align::Right),
        ("of", Align::Left),
        ("best p50", Align::Right),
        ("worst p50", Align::Right),
        ("p99", Align::Right),
        ("GB/s", Align::Right),
        ("calls/s", Align::Right),
        ("core to core", Align::Right),
    ]);
    for cell in cells {
        table.gap();
        for comparison in cell {
            let row = &comparison.row;
            table.push(vec![
                row.case.to_owned(),
                Size(row.bytes).to_string(),
                row.system.clone(),
                report::over(&row.transport, &row.channel),
                report::time(row.p50_us),
                comparison
                    .ratio
                    .map(|ratio| format!("{ratio:.2}×"))
                    .unwrap_or_default(),
                comparison.against.clone().unwrap_or_default(),
                report::time(comparison.p50_best_us),
                report::time(comparison.p50_worst_us),
                report::time(row.p99_us),
                report::throughput(row.gbps),
                report::rate(row.per_s),
                comparison.cores_us.map(report::time).unwrap_or_default(),
            ]);
        }
    }
    table
}

/// The strongest peer in `case`.
fn usual_baseline(case: Case) -> &'static str {
    match case {
        Case::Echo | Case::Pipeline => "tarpc",
        Case::Upload | Case::Download => "tokio",
    }
}

/// The size at which `case` is claimed to be fast.
fn usual_size(case: Case) -> Size {
    match case {
        Case::Echo | Case::Pipeline => Size(0),
        Case::Upload | Case::Download => Size(256 * Size::MIB),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(system: &str, p50s: &[f64]) -> Turns {
        let row = |p50: &f64| Row {
            system: system.to_owned(),
            case: "upload",
            transport: "tcp".to_owned(),
            channel: "none".to_owned(),
            bytes: 1000,
            p50_us: *p50,
            p99_us: p50 * 2.0,
            gbps: 1.0 / p50,
            per_s: 1e6 / p50,
            n: 10,
        };
        Turns {
            rows: p50s.iter().map(row).collect(),
            cores_us: vec![0.1, 0.5, 0.1],
        }
    }

    #[test]
    fn ratios_are_of_medians_and_one_bad_run_does_not_count() {
        let all = vec![
            turns("tokio", &[10.0, 11.0, 99.0]),
            turns("ours", &[12.0, 5.0, 22.0]),
        ];
        let compared = compare(all, "tokio");
        assert_eq!(compared[0].row.p50_us, 11.0);
        assert_eq!(compared[0].ratio, Some(1.0));
        assert_eq!(compared[1].row.p50_us, 12.0);
        assert_eq!(compared[1].ratio, Some(12.0 / 11.0));
        assert_eq!(compared[1].against.as_deref(), Some("tokio"));
        assert_eq!(
            (compared[1].p50_best_us, compared[1].p50_worst_us),
            (5.0, 22.0)
        );
        assert_eq!((compared[1].row.n, compared[1].runs), (30, 3));
        assert_eq!(compared[1].cores_us, Some(0.1));
    }

    #[test]
    fn without_the_reference_there_is_no_ratio() {
        let compared = compare(vec![turns("ours", &[1.0])], "tokio");
        assert_eq!(
            (compared[0].ratio, compared[0].against.as_deref()),
            (None, None)
        );
    }

    #[test]
    fn a_comparison_is_a_row_with_more_fields() -> Result<()> {
        let compared = compare(vec![turns("tokio", &[1.0, 2.0])], "tokio");
        let value = serde_json::to_value(&compared[0])?;
        for field in [
            "system",
            "p50_us",
            "n",
            "runs",
            "p50_best_us",
            "p50_worst_us",
            "against",
            "ratio",
            "cores_us",
        ] {
            assert!(value.get(field).is_some(), "{field} is missing in {value}");
        }
        Ok(())
    }
}
