//! `tp-bench soak`: everything at once, and a peer that is killed again and again.

use anyhow::Result;

use crate::args::Soak;
use crate::progress::Progress;
use crate::report::{self, Align, Table};
use crate::soak::{Carried, Orders, Report, run as soak};

/// Soaks and prints what was carried.
///
/// # Errors
/// With everything that was not as it should be.
pub(crate) fn run(arguments: &Soak) -> Result<()> {
    let orders = Orders {
        seed: arguments.seed,
        kills: arguments.kills,
        largest: arguments.largest.0,
        runtime: arguments.runtime,
    };
    let progress = Progress::new(orders.kills as usize);
    let report = soak(&orders, &progress)?;
    drop(progress);
    if arguments.json {
        report::say(format_args!("{}", serde_json::to_string(&report)?));
    } else {
        report::say(format_args!("{}", words(&report)));
    }
    Ok(())
}

fn words(report: &Report) -> String {
    let mut table = Table::new(&[
        ("over", Align::Left),
        ("pipes", Align::Right),
        ("messages", Align::Right),
        ("given to it", Align::Right),
        ("GB", Align::Right),
    ]);
    for (way, carried) in &report.ways {
        let Carried {
            pipes,
            messages,
            bytes,
            given,
            refused,
        } = carried;
        let given = match refused {
            None => given.to_string(),
            Some(_) => "refused".to_owned(),
        };
        table.push(vec![
            way.clone(),
            pipes.to_string(),
            messages.to_string(),
            given,
            format!("{:.2}", *bytes as f64 / 1e9),
        ]);
    }
    let refused: String = report
        .ways
        .iter()
        .filter_map(|(way, carried)| Some((way, carried.refused.as_ref()?)))
        .map(|(way, reason)| format!("{way} went by basic: {reason}\n  "))
        .collect();
    let endings: Vec<_> = report
        .endings
        .iter()
        .map(|(kind, count)| format!("{kind} {count}"))
        .collect();
    format!(
        "seed {}: {} kills in {:.0} s, read and checked here\n\n{table}\n  \
         given to it: tensors and payloads from here to the channel that the way is called after\n  \
         {refused}every wait ended, nothing is left in descriptors, mappings, pools and /dev/shm\n  \
         at most {} from a kill until nothing of the peer was left\n  \
         private memory: {} MiB after the first kills, {} MiB at the end\n  \
         what did not succeed ended as: {}",
        report.seed,
        report.kills,
        report.seconds,
        report::time(report.longest_recovery_ms * 1e3),
        report.anon_kib.0 >> 10,
        report.anon_kib.1 >> 10,
        endings.join(", ")
    )
}
