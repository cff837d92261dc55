//! Output of measurements: rows for programs (one JSON object per line) and for people (a table of Markdown).

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::Result;
use comfy_table::presets::ASCII_MARKDOWN;
use comfy_table::{CellAlignment, Table};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

use crate::host::{self, Cores, apart};
use crate::measure::Samples;
use crate::plan::{Alloc, Begin, Case, PAUSE_US, Plan};
use crate::size::Size;
use crate::system::Route;

/// One measurement of a system. The names of the fields and their order are fixed.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) system: String,
    pub(crate) case: Case,
    pub(crate) transport: String,
    /// The channel that carries such a tensor; `none` if the bytes are part of the stream itself.
    pub(crate) channel: String,
    pub(crate) bytes: u64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    /// Bytes of one direction by the median, in 10^9 bytes a second.
    pub(crate) gbps: f64,
    /// Calls a second of the timed part.
    pub(crate) per_s: f64,
    /// Number of calls measured.
    pub(crate) n: u64,
    /// Where the sender's tensor lay; peers always use their own buffer, `heap`.
    pub(crate) alloc: Alloc,
    /// The system as it was asked for, which may say more than `system`: `rpc@shm`.
    pub(crate) name: String,
    /// The spinning round trip between the two cores just before.
    pub(crate) cores_us: Option<f64>,
    /// Whether trips before each round made sure that both ends were awake.
    pub(crate) warm: bool,
    /// The median if the receiver of a tensor reads all of it; only if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_sum_us: Option<f64>,
    /// The time of a bare round with the same bytes over the same medium, both ends spinning; only if asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) limit_us: Option<f64>,
    /// The kind of pages of the client's pool, if tensors are in pools: `set aside` (hugetlb), `huge`, `small`, or `ordinary`
    /// (not lent).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pages: Option<String>,
    /// Set if this is the median row of several runs.
    #[serde(flatten)]
    pub(crate) compared: Option<Compared>,
}

/// Several measurements of one system, which took turns with the other systems. The row has their medians, and `n` is their sum.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Compared {
    pub(crate) runs: usize,
    /// The fastest and the slowest run's median.
    pub(crate) p50_best_us: f64,
    pub(crate) p50_worst_us: f64,
    /// The system that `ratio` refers to, by its `name`.
    pub(crate) against: Option<String>,
    /// This row's median of medians, divided by that system's: below 1 is faster.
    pub(crate) ratio: Option<f64>,
}

impl Row {
    pub(crate) fn new(plan: &Plan, samples: &Samples, route: Route) -> Self {
        let p50_us = samples.micros(0.5);
        Self {
            system: plan.system.clone(),
            case: plan.case,
            transport: route.transport,
            channel: route.channel,
            bytes: plan.bytes,
            p50_us,
            p99_us: samples.micros(0.99),
            gbps: gbps(plan.bytes, p50_us),
            per_s: samples.per_second(),
            n: samples.calls(),
            alloc: plan.alloc,
            name: plan.system.clone(),
            cores_us: None,
            warm: matches!(plan.begin(), Begin::Awake | Begin::Hot),
            p50_sum_us: None,
            limit_us: None,
            pages: route.pages,
            compared: None,
        }
    }
}

/// Measures one step after another. Prints each row as JSON at once, or one page at the end. After an error it still
/// prints the rows measured before.
pub(crate) fn run<S, R: Serialize>(
    json: bool,
    steps: Vec<(String, S)>,
    mut measure: impl FnMut(S) -> Result<Vec<R>>,
    page: impl FnOnce(&[R]) -> String,
) -> Result<()> {
    let progress = progress(steps.len() as u64);
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for (name, step) in steps {
        progress.set_message(name.clone());
        match measure(step) {
            Ok(more) => {
                for row in more.iter().filter(|_| json) {
                    let line = serde_json::to_string(row)?;
                    progress.suspend(|| say(line));
                }
                rows.extend(more);
            }
            Err(error) => {
                outcome = Err(error.context(name));
                break;
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    if !json {
        say(page(&rows));
    }
    outcome
}

/// One line on a terminal's stderr that says what is being measured; nothing elsewhere. It has no steady tick: a thread
/// that wakes up would be measured, too.
pub(crate) fn progress(steps: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg}");
    ProgressBar::new(steps).with_style(style.expect("a constant template"))
}

/// Prints a line. Ends the process if the reader (`| head`) has closed the pipe.
pub(crate) fn say(line: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        if error.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("tp-bench: writing to stdout: {error}");
        }
        std::process::exit(1);
    }
}

/// A Markdown table with these fields of the rows, named as in JSON. Leaves out fields that no row has.
pub(crate) fn table<R: Serialize>(fields: &str, rows: &[R]) -> String {
    let rows = rows
        .iter()
        .map(|row| serde_json::to_value(row).unwrap_or_default());
    let rows: Vec<_> = rows.collect();
    let is_there = |field: &&str| rows.iter().any(|row| !row[field].is_null());
    let fields: Vec<_> = fields.split_whitespace().filter(is_there).collect();
    let mut table = Table::new();
    table.load_style(ASCII_MARKDOWN);
    // The unit stands beside each number.
    table.set_header(fields.iter().map(|field| field.trim_end_matches("_us")));
    for row in &rows {
        table.add_row(fields.iter().map(|field| words(field, &row[field])));
    }
    for (column, field) in table.column_iter_mut().zip(fields) {
        if rows.iter().any(|row| row[field].is_number()) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.to_string()
}

/// A value for people. The suffix of the field's name says its unit.
fn words(field: &str, value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Number(number) => match number.as_f64().unwrap_or_default() {
            micros if field.ends_with("us") => time(micros),
            rate if field.ends_with("per_s") => rate_a_second(rate),
            bytes if field == "bytes" => Size(bytes as u64).to_string(),
            _ if number.is_u64() => number.to_string(),
            other => format!("{other:.2}"),
        },
        other => other.to_string(),
    }
}

/// A table with its head, the meaning of its columns, and the round trip between the cores.
pub(crate) fn page<R: Serialize>(
    head: &str,
    fields: &str,
    rows: &[R],
    notes: &str,
    spinning: &Spinning,
) -> String {
    let (table, spinning) = (table(fields, rows), spinning.after());
    format!("{head}\n\n{table}\n\n{notes}\n{spinning}")
}

/// The head of a table: what holds for all rows.
pub(crate) fn head(what: &str, plan: &Plan) -> String {
    let pinned = match plan.cores {
        Some((client, server)) => format!("pinned to cores {client} and {server}"),
        None => "not pinned".to_owned(),
    };
    let (runtime, seconds) = (plan.runtime.name(), plan.seconds);
    let wake = match plan.wake_us {
        0 => String::new(),
        wake => format!(", {wake} µs more for each wake-up"),
    };
    let pause = match plan.pause_us {
        PAUSE_US => String::new(),
        pause => format!(", paced: {pause} µs apart"),
    };
    format!("{what}: {runtime}, {pinned}, {seconds} s each{wake}{pause}")
}

/// The spinning round trip between two cores before and after a table was measured.
pub(crate) struct Spinning {
    cores: Option<Cores>,
    before: Option<f64>,
}

impl Spinning {
    /// Between the cores that `plan` runs on, or may run on.
    pub(crate) fn before(cores: Option<Cores>) -> Self {
        let before = cores.and_then(host::spinning_round_trip);
        Self { cores, before }
    }

    /// Measures again and returns a line for below the table.
    pub(crate) fn after(&self) -> String {
        let said = |micros: Option<f64>| match micros {
            Some(micros) => format!("{} ({})", time(micros), apart(micros)),
            None => "unknown".to_owned(),
        };
        let after = self.cores.and_then(host::spinning_round_trip);
        let (before, after) = (said(self.before), said(after));
        format!("core to core and back, spinning: {before} before, {after} after")
    }
}

/// Microseconds in the unit that suits them, three digits.
pub(crate) fn time(micros: f64) -> String {
    match micros {
        _ if micros >= 1e6 => format!("{} s", digits(micros / 1e6)),
        _ if micros >= 1e3 => format!("{} ms", digits(micros / 1e3)),
        _ => format!("{} µs", digits(micros)),
    }
}

/// A rate a second: `1.14 M`, `370 k`, `21.5`.
fn rate_a_second(per_second: f64) -> String {
    match per_second {
        _ if per_second >= 1e6 => format!("{} M", digits(per_second / 1e6)),
        _ if per_second >= 1e3 => format!("{} k", digits(per_second / 1e3)),
        _ => digits(per_second),
    }
}

/// Three significant digits, no more than two of them after the point.
fn digits(value: f64) -> String {
    match value {
        _ if value >= 100.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// 10^9 bytes a second.
pub(crate) fn gbps(bytes: u64, micros: f64) -> f64 {
    match micros > 0.0 {
        true => bytes as f64 / micros / 1e3,
        false => 0.0,
    }
}
