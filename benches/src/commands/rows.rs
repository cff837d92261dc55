//! `tp-bench pipe`, `rpc` and `baseline`: one row for each system, case and size, measured one after another.

use anyhow::Result;
use clap::Args;

use super::{choose, legend, measure, spinning};
use crate::plan::{Case, Options, Plan, name};
use crate::report::{self, Row, Spinning};
use crate::size::Size;
use crate::system::Choice;

#[derive(Debug, Args)]
pub(crate) struct Pipe {
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Rpc {
    /// Cases to measure. A pipeline has 64 calls in flight.
    #[arg(long, value_delimiter = ',', default_value = "echo")]
    case: Vec<Case>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Args)]
pub(crate) struct Baseline {
    /// Cases to measure; without it echo up to 4 KiB and upload above.
    #[arg(long, value_delimiter = ',')]
    case: Vec<Case>,
    /// Systems to measure, for example tokio or tarpc@unix; without it all that have the case.
    #[arg(long, value_delimiter = ',')]
    system: Vec<String>,
    #[command(flatten)]
    options: Options,
}

/// The round trip of a message.
pub(crate) fn pipe(arguments: &Pipe) -> Result<()> {
    ours("pipe", &[Case::Echo], &arguments.options)
}

/// Calls.
pub(crate) fn rpc(arguments: &Rpc) -> Result<()> {
    ours("rpc", &arguments.case, &arguments.options)
}

fn ours(system: &str, cases: &[Case], options: &Options) -> Result<()> {
    let base = options.plan()?;
    let mut cells = Vec::new();
    for &case in cases {
        for choice in choose(&[system.to_owned()], |_| true, case, base.transport)? {
            let sizes = or_usual(&options.size, usual_sizes(case));
            cells.extend(sizes.iter().map(|size| (choice.clone(), case, *size)));
        }
    }
    run(system, options, &base, cells)
}

/// The peers, measured as strictly as ourselves.
pub(crate) fn baseline(arguments: &Baseline) -> Result<()> {
    let options = &arguments.options;
    let base = options.plan()?;
    let sizes = or_usual(&options.size, &BASELINE);
    let of = |case: Case| sizes.iter().map(move |size| (case, *size));
    let cases: Vec<_> = match &arguments.case[..] {
        [] => {
            let small = |size: &Size| *size <= Size(4 * Size::KIB);
            let case = |size| {
                if small(size) {
                    Case::Echo
                } else {
                    Case::Upload
                }
            };
            sizes.iter().map(|size| (case(size), *size)).collect()
        }
        cases => cases.iter().copied().flat_map(of).collect(),
    };
    let mut cells = Vec::new();
    for (case, size) in cases {
        let choices = choose(
            &arguments.system,
            |about| !about.is_ours,
            case,
            base.transport,
        )?;
        cells.extend(choices.into_iter().map(|choice| (choice, case, size)));
    }
    run("baselines", options, &base, cells)
}

fn run(what: &str, options: &Options, base: &Plan, cells: Vec<(Choice, Case, Size)>) -> Result<()> {
    let spinning = spinning(base);
    let steps = cells.into_iter().map(|(choice, case, size)| {
        let plan = Plan {
            case,
            bytes: size.0,
            ..choice.plan(base)?
        };
        let step = format!("{} {} {size}", choice.name, name(case));
        Ok((step, (choice, plan)))
    });
    report::run(
        options.json,
        steps.collect::<Result<_>>()?,
        |(choice, plan)| Ok(vec![measure(&choice, &plan, options)?]),
        |rows| page(&report::head(what, base), rows, &spinning),
    )
}

/// The printed page; `compare` uses it, too.
pub(super) fn page(head: &str, rows: &[Row], spinning: &Spinning) -> String {
    let notes = legend(rows.iter().map(|row| row.system.as_str())) + NOTES;
    report::page(head, FIELDS, rows, &notes, spinning)
}

/// The sizes asked for, else the usual ones.
pub(super) fn or_usual<'a>(asked: &'a [Size], usual: &'a [Size]) -> &'a [Size] {
    if asked.is_empty() { usual } else { asked }
}

fn usual_sizes(case: Case) -> &'static [Size] {
    match case {
        Case::Pipeline => &[Size(0), Size(4 * Size::KIB)],
        Case::Echo | Case::Paced | Case::Stream => &[Size(0), Size(4 * Size::KIB), Size(Size::MIB)],
        Case::Upload | Case::Download | Case::Exchange | Case::Mutate | Case::Keep => {
            &[Size(Size::MIB), Size(16 * Size::MIB), Size(256 * Size::MIB)]
        }
    }
}

const BASELINE: [Size; 5] = [
    Size(0),
    Size(4 * Size::KIB),
    Size(Size::MIB),
    Size(16 * Size::MIB),
    Size(256 * Size::MIB),
];

const FIELDS: &str = "case bytes name transport channel p50_us ratio against p50_best_us p50_worst_us p99_us gbps per_s n \
    cores_us p50_sum_us limit_us pages";

const NOTES: &str = "\
channel: what carries such a tensor; xth hands it over, lease lends memory of a pool: neither copies; of ordinary memory lease
lends a copy
p50_sum: whoever receives a tensor reads every byte of it, too
limit: a bare round with the same bytes over the same medium just after, both ends spinning (paced without bytes: both asleep)
cores: the spinning round trip between the two cores just before; below 0.22 µs they are near
pages: of the memory that the client's pool lends: set aside (hugetlb), huge, small; ordinary memory is not lent
rounds of leased tensors, with --warm always all rounds, begin with both ends awake once the tensor is written";
