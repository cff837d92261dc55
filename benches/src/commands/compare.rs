//! `tp-bench compare`: systems take turns, A B A B …, and are judged by the medians of their runs.
//!
//! Every run has a fresh server, a fresh runtime and a fresh connection, so that a run's luck (where its memory
//! lies, which core it was put on) is drawn anew; turns are short, so that the machine's drift meets all alike.

use anyhow::Result;

use super::{choose, legend, measure, plan, spinning};
use crate::args::{Compare, Options};
use crate::measure::median;
use crate::plan::{Case, Plan, Transport};
use crate::progress::Progress;
use crate::report::{self, Align, Comparison, Extras, Row, Table};
use crate::size::Size;
use crate::system::{ALL, Choice, Kind};

/// Measures and prints.
///
/// # Errors
/// When a measurement fails; the cells before it are printed all the same.
pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let options = &arguments.options;
    let base = plan(options)?;
    if let Some(name) = &arguments.against {
        Choice::parse(name)?;
    }
    let before = spinning(&base);
    let mut cells = Vec::new();
    for &case in &arguments.cases {
        let systems = match &arguments.systems[..] {
            [] if options.transport.is_none() => usual_systems(case)?,
            [] if base.transport == Transport::Shm => with_stand_ins(case, base.transport),
            names => choose(names, |_| true, case, base.transport)?,
        };
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
        match take_turns(&systems, &plan, arguments, &progress) {
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
        report::say(format_args!(
            "{}\n\n{}",
            report::head(&what, &base),
            table(&done)
        ));
        let rows = done.iter().flatten().map(|comparison| &comparison.row);
        print!("{}", legend(rows.clone().map(|row| row.system.as_str())));
        print!("{}", Extras::of(rows).legend());
        report::say(format_args!(
            "  {}",
            report::spinning(before, spinning(&base))
        ));
    }
    outcome
}

/// What is compared where nobody says more: ours and what one would take instead, within the machine and over tcp.
fn usual_systems(case: Case) -> Result<Vec<Choice>> {
    let leased = matches!(case, Case::Upload | Case::Download).then_some("rpc@shm+lease:pool");
    let ours = ["rpc@shm"].into_iter().chain(leased).chain(["rpc@tcp"]);
    let theirs = ["tarpc@unix", "tokio@unix", "tarpc@tcp", "tokio@tcp"];
    let all: Result<Vec<_>> = ours.chain(theirs).map(Choice::parse).collect();
    let has_it = |choice: &Choice| choice.check(case, Transport::Tcp).is_ok();
    Ok(all?.into_iter().filter(has_it).collect())
}

/// Every system that has `case`, over `transport` or, for peers that do not have it, over a Unix socket.
fn with_stand_ins(case: Case, transport: Transport) -> Vec<Choice> {
    let over = |choice: Choice| match choice.system.kind() {
        Kind::Baseline => choice.over(Transport::Unix),
        Kind::Ours => choice.over(transport),
    };
    let all = ALL.iter().map(|system| over(Choice::of(*system)));
    all.filter(|choice| choice.check(case, transport).is_ok())
        .collect()
}

/// All runs of one system in one cell.
type Turns = Vec<Row>;

fn take_turns(
    systems: &[Choice],
    plan: &Plan,
    arguments: &Compare,
    progress: &Progress,
) -> Result<Vec<Turns>> {
    let options: &Options = &arguments.options;
    let runs = arguments.runs;
    let mut turns: Vec<_> = systems.iter().map(|_| Turns::new()).collect();
    for run in 1..=runs {
        for (choice, turns) in systems.iter().zip(&mut turns) {
            let plan = choice.plan(plan);
            let (case, size) = (plan.case.name(), Size(plan.bytes));
            progress.begin(format!(
                "{} {case} {size}, run {run} of {runs}",
                choice.name
            ));
            turns.push(measure(choice, &plan, options)?);
            progress.end();
        }
    }
    Ok(turns)
}

fn compare(turns: Vec<Turns>, against: &str) -> Vec<Comparison> {
    let mut compared: Vec<_> = turns.iter().filter_map(|turns| summary(turns)).collect();
    let rows = || compared.iter().map(|comparison| &comparison.row);
    // As it was written, else the first of that name.
    let reference = rows()
        .find(|row| row.name == against)
        .or_else(|| rows().find(|row| row.system == against))
        .filter(|row| row.p50_us > 0.0)
        .map(|row| (row.name.clone(), row.p50_us));
    let Some((name, micros)) = reference else {
        return compared;
    };
    for comparison in &mut compared {
        comparison.against = Some(name.clone());
        comparison.ratio = Some(comparison.row.p50_us / micros);
    }
    compared
}

/// Medians over the runs; `None` without a run.
fn summary(rows: &[Row]) -> Option<Comparison> {
    let of = |value: fn(&Row) -> f64| rows.iter().map(value).collect::<Vec<_>>();
    let known = |value: fn(&Row) -> Option<f64>| {
        let values: Vec<_> = rows.iter().filter_map(value).collect();
        median(&values)
    };
    let p50s = of(|row| row.p50_us);
    let row = Row {
        p50_us: median(&p50s)?,
        p99_us: median(&of(|row| row.p99_us))?,
        gbps: median(&of(|row| row.gbps))?,
        per_s: median(&of(|row| row.per_s))?,
        n: rows.iter().map(|row| row.n).sum(),
        cores_us: known(|row| row.cores_us),
        p50_sum_us: known(|row| row.p50_sum_us),
        limit_us: known(|row| row.limit_us),
        ..rows.first()?.clone()
    };
    Some(Comparison {
        row,
        runs: rows.len(),
        p50_best_us: p50s.iter().copied().fold(f64::INFINITY, f64::min),
        p50_worst_us: p50s.iter().copied().fold(0.0, f64::max),
        against: None,
        ratio: None,
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
    let rows = cells.iter().flatten().map(|comparison| &comparison.row);
    let extras = Extras::of(rows);
    table.widen(&extras.columns());
    for cell in cells {
        table.gap();
        for comparison in cell {
            let row = &comparison.row;
            let mut cells = vec![
                row.case.to_owned(),
                Size(row.bytes).to_string(),
                row.name.clone(),
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
                row.cores_us.map(report::core_to_core).unwrap_or_default(),
            ];
            cells.extend(extras.cells(row));
            table.push(cells);
        }
    }
    table
}

/// The strongest peer in `case`.
fn usual_baseline(case: Case) -> &'static str {
    match case {
        Case::Echo | Case::Paced | Case::Pipeline => "tarpc",
        // Nobody else has them.
        Case::Stream | Case::Exchange | Case::Mutate | Case::Keep => "rpc",
        Case::Upload | Case::Download => "tokio",
    }
}

/// The size at which `case` is claimed to be fast.
fn usual_size(case: Case) -> Size {
    match case {
        Case::Echo | Case::Paced | Case::Pipeline => Size(0),
        Case::Stream => Size(4 * Size::KIB),
        Case::Exchange | Case::Mutate | Case::Keep => Size(Size::MIB),
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
            alloc: "heap",
            name: system.to_owned(),
            cores_us: Some(if *p50 > 9.0 { 0.1 } else { 0.5 }),
            warm: false,
            p50_sum_us: None,
            limit_us: Some(*p50 / 2.0),
            pages: None,
        };
        p50s.iter().map(row).collect()
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
        assert_eq!(compared[1].row.cores_us, Some(0.1));
        assert_eq!(compared[1].row.limit_us, Some(6.0));
        assert_eq!(compared[1].row.p50_sum_us, None);
    }

    #[test]
    fn a_reference_is_found_as_it_was_written_or_by_its_system() {
        let mut unix = turns("tarpc", &[4.0]);
        unix[0].name = "tarpc@unix".to_owned();
        let mut tcp = turns("tarpc", &[8.0]);
        tcp[0].name = "tarpc@tcp".to_owned();
        for (against, expected) in [("tarpc@tcp", [0.5, 1.0]), ("tarpc", [1.0, 2.0])] {
            let compared = compare(vec![unix.clone(), tcp.clone()], against);
            let ratios: Vec<_> = compared.iter().filter_map(|found| found.ratio).collect();
            assert_eq!(ratios, expected, "{against}");
        }
    }

    #[test]
    fn over_shared_memory_the_peers_have_unix_sockets() {
        let found = with_stand_ins(Case::Echo, Transport::Shm);
        let names: Vec<_> = found.iter().map(|choice| choice.name.as_str()).collect();
        assert_eq!(names, ["tokio@unix", "tarpc@unix", "pipe@shm", "rpc@shm"]);
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
