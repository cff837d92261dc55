//! `tp-bench limits`: the limits of this machine at this moment.

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use serde::Serialize;

use super::rows::or_usual;
use crate::host;
use crate::limits::{Medium, carry, copy, wake};
use crate::plan::seconds;
use crate::report;
use crate::size::Size;

#[derive(Debug, Args)]
pub(crate) struct Limits {
    /// Sizes to copy and to carry, for example 4KiB,1MiB; without it those that the peers are measured with.
    #[arg(long, value_delimiter = ',')]
    size: Vec<Size>,
    /// Length of each measurement in seconds.
    #[arg(long, default_value_t = 0.2, value_parser = seconds)]
    seconds: f64,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
}

/// One limit of the machine.
#[derive(Clone, Debug, Serialize)]
struct LimitRow {
    limit: &'static str,
    over: &'static str,
    bytes: Option<u64>,
    us: f64,
    /// Throughput of copying or carrying `bytes`.
    gbps: Option<f64>,
    /// The spinning round trip between the two cores just before.
    cores_us: Option<f64>,
    /// The same as a word: `near` or `far`.
    cores: Option<&'static str>,
}

#[derive(Clone, Copy, Debug)]
enum Figure {
    Spin,
    Spinning(Medium),
    Sleeping(Medium),
    Copy(Size),
    Carry(Medium, Size),
}

/// Measures and prints.
pub(crate) fn run(arguments: &Limits) -> Result<()> {
    let cores = host::pair()?;
    let length = Duration::from_secs_f64(arguments.seconds);
    let mut figures = vec![Figure::Spin];
    figures.extend(Medium::SPINNING.map(Figure::Spinning));
    figures.extend(Medium::SLEEPING.map(Figure::Sleeping));
    let copied = or_usual(&arguments.size, &USUAL[1..]);
    figures.extend(copied.iter().map(|size| Figure::Copy(*size)));
    for medium in Medium::SPINNING {
        let carried = or_usual(&arguments.size, &USUAL);
        figures.extend(carried.iter().map(|size| Figure::Carry(medium, *size)));
    }
    let steps = figures.into_iter();
    let steps = steps.map(|figure| (format!("{figure:?}"), figure));
    report::run(
        arguments.json,
        steps.collect(),
        |figure| {
            let cores_us = host::spinning_round_trip(cores);
            let us = match figure {
                // Other work may keep us from having both for longer than one probe takes.
                Figure::Spin => (0..MOST_TRIES)
                    .find_map(|_| host::spinning_round_trip(cores))
                    .context("the two cores cannot be had at once, is the machine busy")?,
                Figure::Spinning(medium) => carry(medium, cores, 0, 0, length)?,
                Figure::Sleeping(medium) => wake(medium, cores)?,
                Figure::Copy(size) => copy(cores.0, size.len()?, length)?,
                Figure::Carry(medium, size) => carry(medium, cores, size.len()?, 0, length)?,
            };
            let (limit, over, size) = figure.words();
            Ok(vec![LimitRow {
                limit,
                over,
                bytes: size.map(|size| size.0),
                us,
                gbps: size.map(|size| report::gbps(size.0, us)),
                cores_us,
                cores: cores_us.map(host::apart),
            }])
        },
        |rows| {
            let table = report::table(FIELDS, rows);
            let (first, second) = cores;
            format!("limits of the moment, cores {first} and {second}\n\n{table}\n\n{NOTES}")
        },
    )
}

impl Figure {
    fn words(self) -> (&'static str, &'static str, Option<Size>) {
        match self {
            Self::Spin => ("spin", "cache line", None),
            Self::Spinning(medium) => ("spin", medium.name(), None),
            Self::Sleeping(medium) => ("sleep", medium.name(), None),
            Self::Copy(size) => ("memcpy", "memory", Some(size)),
            Self::Carry(medium, size) => ("carry", medium.name(), Some(size)),
        }
    }
}

const MOST_TRIES: u32 = 100;
const USUAL: [Size; 5] = [
    Size(4 * Size::KIB),
    Size(64 * Size::KIB),
    Size(Size::MIB),
    Size(16 * Size::MIB),
    Size(256 * Size::MIB),
];

const FIELDS: &str = "limit over bytes us gbps cores_us cores";

const NOTES: &str = "\
spin: there and back, both threads look again and again
sleep: there and back, both threads sleep until they are woken
memcpy: warm memory to warm memory, one core
carry: the bytes there, one byte back, both threads spin; ring is the connection of transport shm without a pipe
cores: the spinning round trip through a cache line just before";
