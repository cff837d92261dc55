//! `tp-bench compare`: systems take turns, A B A B …, and are judged by the medians of their runs.
//!
//! Every run has a fresh server, runtime and connection, and so a new random placement of memory and threads. Turns are short, so that the
//! machine's drift affects all systems alike.

use anyhow::{Context, Result};
use clap::Args;

use super::rows::{or_usual, page};
use super::{choose, measure, spinning};
use crate::measure::median;
use crate::plan::{Case, Options, Plan, Transport, name};
use crate::report::{self, Compared, Row};
use crate::size::Size;
use crate::system::Choice;

#[derive(Debug, Args)]
pub(crate) struct Compare {
    /// Cases to compare in.
    #[arg(long, value_delimiter = ',', default_value = "echo,pipeline,upload")]
    cases: Vec<Case>,
    /// Systems to compare, as NAME@TRANSPORT+CHANNEL/LANES:ALLOC with parts left out, for example rpc@shm,rpc@tcp+mpt/2,
    /// tarpc@unix,rpc@shm:pool. Without it: rpc over shm and tcp, tarpc and tokio over Unix sockets and tcp. With
    /// --transport: all that have the case over it, for shm the peers over their Unix sockets. Either way, where a round
    /// has bytes, ours over shm is there a second time with a tensor of its pool, which is lent and not copied.
    #[arg(long, value_delimiter = ',', verbatim_doc_comment)]
    systems: Vec<String>,
    /// The system that ratios refer to, as written above or by its name; without it tarpc for small calls and tokio for
    /// uploads and downloads.
    #[arg(long)]
    against: Option<String>,
    /// Runs of each system; they alternate: A B A B …
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    #[command(flatten)]
    options: Options,
}

/// Measures and prints.
pub(crate) fn run(arguments: &Compare) -> Result<()> {
    let options = &arguments.options;
    let base = options.plan()?;
    if let Some(name) = &arguments.against {
        Choice::parse(name)?;
    }
    let spinning = spinning(&base);
    let mut cells = Vec::new();
    for &case in &arguments.cases {
        for size in or_usual(&options.size, &[usual_size(case)]) {
            let choices = match &arguments.systems[..] {
                [] => usual_systems(case, size.0, options.transport)?,
                names => choose(names, |_| true, case, base.transport)?,
            };
            let plan = Plan {
                case,
                bytes: size.0,
                ..base.clone()
            };
            cells.push((format!("{} {size}", name(case)), (choices, plan)));
        }
    }
    report::run(
        options.json,
        cells,
        |(choices, plan)| {
            let against = arguments.against.as_deref();
            let against = against.unwrap_or_else(|| usual_baseline(plan.case));
            Ok(compare(&take_turns(&choices, &plan, arguments)?, against))
        },
        |rows| {
            let what = format!("medians of {} alternating runs", arguments.runs);
            page(&report::head(&what, &base), rows, &spinning)
        },
    )
}

/// The default systems: ours and the usual alternatives, within the machine and over tcp. With a transport: all systems
/// that run over it. Peers have no shared memory, so their Unix sockets stand in for it.
fn usual_systems(case: Case, bytes: u64, transport: Option<Transport>) -> Result<Vec<Choice>> {
    let names = match transport {
        Some(Transport::Shm) => ["tokio@unix", "tarpc@unix", "pipe@shm", "rpc@shm"].to_vec(),
        Some(other) => return choose(&[], |_| true, case, other),
        None => vec![
            "rpc@shm",
            "rpc@tcp",
            "tarpc@unix",
            "tokio@unix",
            "tarpc@tcp",
            "tokio@tcp",
        ],
    };
    let mut choices = Vec::new();
    for name in names {
        choices.push(Choice::parse(name)?);
        if bytes > 0 && name.ends_with("@shm") {
            choices.push(Choice::parse(&format!("{name}+lease:pool"))?);
        }
    }
    choices.retain(|choice| choice.check(case, Transport::Tcp).is_ok());
    Ok(choices)
}

/// All runs of each system in one cell.
fn take_turns(choices: &[Choice], plan: &Plan, arguments: &Compare) -> Result<Vec<Vec<Row>>> {
    let mut turns = vec![Vec::new(); choices.len()];
    for _ in 0..arguments.runs {
        for (choice, turns) in choices.iter().zip(&mut turns) {
            let row = measure(choice, &choice.plan(plan)?, &arguments.options);
            turns.push(row.with_context(|| choice.name.clone())?);
        }
    }
    Ok(turns)
}

fn compare(turns: &[Vec<Row>], against: &str) -> Vec<Row> {
    let mut rows: Vec<_> = turns.iter().filter_map(|turns| summary(turns)).collect();
    // The full name wins; otherwise the first system with this short name.
    let by_name = rows.iter().find(|row| row.name == against);
    let reference = by_name.or_else(|| rows.iter().find(|row| row.system == against));
    let reference = reference.filter(|row| row.p50_us > 0.0);
    if let Some((name, micros)) = reference.map(|row| (row.name.clone(), row.p50_us)) {
        for row in &mut rows {
            if let Some(compared) = &mut row.compared {
                compared.against = Some(name.clone());
                compared.ratio = Some(row.p50_us / micros);
            }
        }
    }
    rows
}

/// Medians over the runs; `None` without a run.
fn summary(rows: &[Row]) -> Option<Row> {
    let of = |value: fn(&Row) -> f64| rows.iter().map(value).collect::<Vec<_>>();
    let known = |value: fn(&Row) -> Option<f64>| {
        let values: Vec<_> = rows.iter().filter_map(value).collect();
        median(&values)
    };
    let p50s = of(|row| row.p50_us);
    Some(Row {
        p50_us: median(&p50s)?,
        p99_us: median(&of(|row| row.p99_us))?,
        gbps: median(&of(|row| row.gbps))?,
        per_s: median(&of(|row| row.per_s))?,
        n: rows.iter().map(|row| row.n).sum(),
        cores_us: known(|row| row.cores_us),
        p50_sum_us: known(|row| row.p50_sum_us),
        limit_us: known(|row| row.limit_us),
        compared: Some(Compared {
            runs: rows.len(),
            p50_best_us: p50s.iter().copied().fold(f64::INFINITY, f64::min),
            p50_worst_us: p50s.iter().copied().fold(0.0, f64::max),
            against: None,
            ratio: None,
        }),
        ..rows.first()?.clone()
    })
}

/// The strongest peer in `case`.
fn usual_baseline(case: Case) -> &'static str {
    match case {
        Case::Echo | Case::Paced | Case::Pipeline => "tarpc",
        // No peer supports these cases.
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
