//! `tp-bench churn`: all that calls can do, at once, and whether memory grows.

use anyhow::{Result, bail};

use crate::args::Churn;
use crate::progress::Progress;
use crate::report::{self, Align, Table};
use crate::soak::churn::{Orders, Report, run as churn, tune};

/// Does it and prints what was done.
///
/// # Errors
/// With everything that was not as it should be; memory that grows beyond the bound, and what is left, too.
pub(crate) fn run(arguments: &Churn) -> Result<()> {
    tune()?;
    let orders = Orders {
        seed: arguments.seed,
        warm_up: arguments.warm_up,
        seconds: arguments.seconds,
        bound: arguments.bound,
        largest: arguments.largest.0,
        workers: arguments.workers,
        runtime: arguments.runtime,
    };
    let progress = Progress::new((orders.warm_up + orders.seconds).ceil() as usize);
    let report = churn(&orders, &progress)?;
    drop(progress);
    if arguments.json {
        report::say(format_args!("{}", serde_json::to_string(&report)?));
    } else {
        report::say(format_args!("{}", words(&report)));
    }
    let faults = report.faults();
    if !faults.is_empty() {
        bail!("seed {}: {}", report.seed, faults.join("; "));
    }
    Ok(())
}

fn words(report: &Report) -> String {
    let mut table = Table::new(&[
        ("process", Align::Left),
        ("MiB a minute", Align::Right),
        ("of it in use", Align::Right),
        ("in the bustle", Align::Right),
        ("MiB at rest", Align::Right),
        ("at the end", Align::Right),
        ("in the bustle", Align::Right),
        ("descriptors", Align::Right),
        ("calls", Align::Right),
        ("references", Align::Right),
        ("MiB of pools", Align::Right),
    ]);
    let mib = |kib: u64| format!("{:.1}", kib as f64 / 1024.0);
    let slope =
        |slope: Option<f64>| slope.map_or_else(|| "-".to_owned(), |slope| format!("{slope:+.2}"));
    for side in &report.sides {
        table.push(vec![
            side.name.to_owned(),
            slope(side.slope),
            slope(side.heap_slope),
            slope(side.busy_slope),
            mib(side.warm_kib),
            mib(side.end_kib),
            mib(side.most_kib),
            side.most_descriptors.to_string(),
            side.most_calls.to_string(),
            side.most_references.to_string(),
            mib(side.most_pooled >> 10),
        ]);
    }
    let acts = report.acts.iter();
    let acts: Vec<_> = acts
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    let given = report.given.iter();
    let given: Vec<_> = given.map(|(way, count)| format!("{way} {count}")).collect();
    let left = match report.left.is_empty() {
        true => "nothing".to_owned(),
        false => report.left.join("; "),
    };
    format!(
        "seed {}: {:.0} s over shm and tcp, every byte checked\n\n{table}\n  \
         slopes: least squares through {} samples, two a second, after the warm-up; anonymous and shared memory; in use: of the \
         heap, with the feature `heap`\n  \
         at rest: no call under way, nothing held by anybody, seen at each sample, pools trimmed; in the bustle: the most of it\n  \
         done: {}; pipes of replicas cut {}\n  \
         tensors and payloads by channel: {}\n  \
         left when all was closed (descriptors, mappings, pools, references, calls): {left}",
        report.seed,
        report.seconds,
        report.samples,
        acts.join(", "),
        report.cuts,
        given.join(", "),
    )
}
