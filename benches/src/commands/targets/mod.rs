//! `tp-bench targets`: what this project aims at, measured in one run, and whether it is met.
//!
//! ```text
//! list    the lines: what is done, beside what, and how much it may be
//! turns   one line on one runtime: ours and its baseline in turns, the limit, every byte read, after a pause
//! table   lines -> Markdown, or a line of JSON each
//! ```
//! Both processes have a core each. What else the machine has to do shows in every figure: let it have nothing.

mod list;
mod table;
mod turns;

use std::cell::RefCell;

use anyhow::{Context, Result};

use self::list::{Figure, Target, select};
use self::table::{Line, legend, markdown};
use self::turns::{Figures, Turns};
use super::idle;
use crate::args::Targets;
use crate::cores;
use crate::plan::Flavor;
use crate::progress::Progress;
use crate::report;
use crate::size::Size;

/// Measures and prints.
///
/// # Errors
/// When a line cannot be measured; those before it are printed all the same.
pub(crate) fn run(arguments: &Targets) -> Result<()> {
    let targets = select(&arguments.rows)?;
    let turns = turns(arguments);
    let before = turns.cores.and_then(cores::spinning_round_trip);
    let progress = Progress::new(2 * targets.len());
    let mut lines = Vec::new();
    let mut outcome = Ok(());
    for target in targets {
        match measure(&turns, target, &progress) {
            Ok(line) => {
                if arguments.json {
                    progress.print(&serde_json::to_string(&line)?);
                }
                lines.push(line);
            }
            Err(error) => {
                outcome = Err(error.context(target.name));
                break;
            }
        }
    }
    drop(progress);
    if !arguments.json {
        let after = turns.cores.and_then(cores::spinning_round_trip);
        report::say(format_args!("{}\n\n{}", head(&turns), markdown(&lines)));
        report::say(format_args!(
            "{}\n{}",
            legend(),
            report::spinning(before, after)
        ));
    }
    outcome
}

fn turns(arguments: &Targets) -> Turns {
    let asked = Turns {
        runs: arguments.runs,
        seconds: arguments.seconds,
        idle_seconds: arguments.idle_seconds,
        largest: u64::MAX,
        cores: cores::pair().ok(),
        roam: arguments.roam,
        idle: RefCell::default(),
    };
    if !arguments.quick {
        return asked;
    }
    Turns {
        runs: 1,
        seconds: 0.0,
        idle_seconds: 0.05,
        largest: QUICK_LARGEST,
        ..asked
    }
}

fn measure(turns: &Turns, target: &Target, progress: &Progress) -> Result<Line> {
    let on = |flavor: Flavor| {
        progress.begin(format!("{}, {}", target.name, flavor.name()));
        let figures = turns.measure(target, flavor).context(flavor.name());
        progress.end();
        figures
    };
    let (current, multi) = (on(Flavor::Current)?, on(Flavor::Multi)?);
    Ok(Line::new(target, current, multi))
}

fn head(turns: &Turns) -> String {
    let Turns { runs, seconds, .. } = turns;
    let pinned = match turns.cores {
        Some((client, server)) if turns.roam => {
            format!("current_thread pinned to cores {client} and {server}, multi_thread to none")
        }
        Some((client, server)) => format!("pinned to cores {client} and {server}"),
        None => "not pinned, for want of two cores".to_owned(),
    };
    let cut = if turns.largest < u64::MAX {
        format!(
            "; tensors of {} at most, the figures mean nothing",
            Size(turns.largest)
        )
    } else {
        String::new()
    };
    format!(
        "targets: two processes, {pinned}, medians of {runs} alternating runs of {seconds} s{cut}"
    )
}

/// Tensors of a run that only tries whether everything works.
const QUICK_LARGEST: u64 = Size::MIB;
