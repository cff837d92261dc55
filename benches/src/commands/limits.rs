//! `tp-bench limits`: what this machine can do at this moment.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::args::LimitsArguments;
use crate::cores;
use crate::limits::{Cores, Wake, Wire, copy, exchange, wake};
use crate::progress::Progress;
use crate::report::{self, Align, LimitRow, Table};
use crate::size::Size;

/// Measures and prints.
///
/// # Errors
/// Without two cores, and when a figure cannot be had; what was measured before it is printed all the same.
pub(crate) fn run(arguments: &LimitsArguments) -> Result<()> {
    let cores = cores::pair()?;
    let length = Duration::from_secs_f64(arguments.seconds);
    let figures = figures(&arguments.size);
    let progress = Progress::new(figures.len());
    let mut rows = Vec::new();
    let mut outcome = Ok(());
    for figure in figures {
        progress.begin(figure.name());
        let before = cores::spinning_round_trip(cores);
        match figure.measure(cores, length) {
            Ok(micros) => {
                let row = figure.row(micros, before);
                if arguments.json {
                    progress.print(&serde_json::to_string(&row)?);
                }
                rows.push(row);
            }
            Err(error) => {
                outcome = Err(error.context(figure.name()));
                break;
            }
        }
        progress.end();
    }
    drop(progress);
    if !arguments.json {
        report::say(format_args!(
            "limits of the moment, cores {} and {}\n\n{}",
            cores.0,
            cores.1,
            table(&rows)
        ));
        report::say(format_args!("{LEGEND}"));
    }
    outcome
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Figure {
    Spin,
    Spinning(Wire),
    Sleeping(Wake),
    Copy(u64),
    Through(Wire, u64),
}

/// All of them, in the order of the table.
fn figures(asked: &[Size]) -> Vec<Figure> {
    let or = |usual: &'static [Size]| if asked.is_empty() { usual } else { asked }.iter();
    let mut figures = vec![Figure::Spin];
    figures.extend(Wire::ALL.map(Figure::Spinning));
    figures.extend(Wake::ALL.map(Figure::Sleeping));
    figures.extend(or(COPIED).map(|size| Figure::Copy(size.0)));
    for wire in Wire::ALL {
        figures.extend(or(CARRIED).map(|size| Figure::Through(wire, size.0)));
    }
    figures
}

impl Figure {
    fn name(self) -> String {
        match self {
            Self::Spin => "spinning round trip".to_owned(),
            Self::Spinning(wire) => format!("spinning round trip, {}", wire.name()),
            Self::Sleeping(wake) => format!("sleeping round trip, {}", wake.name()),
            Self::Copy(bytes) => format!("memcpy of {}", Size(bytes)),
            Self::Through(wire, bytes) => format!("{} through {}", Size(bytes), wire.name()),
        }
    }

    fn measure(self, cores: Cores, length: Duration) -> Result<f64> {
        match self {
            // Other work may keep us from having both for longer than one probe takes.
            Self::Spin => (0..PATIENCE)
                .find_map(|_| cores::spinning_round_trip(cores))
                .context("the two cores cannot be had at once, is the machine busy"),
            Self::Spinning(wire) => exchange(wire, cores, 0, 0, length),
            Self::Sleeping(what) => wake(what, cores),
            Self::Copy(bytes) => copy(cores.0, usize::try_from(bytes)?, length),
            Self::Through(wire, bytes) => exchange(wire, cores, usize::try_from(bytes)?, 0, length),
        }
    }

    fn row(self, micros: f64, cores_us: Option<f64>) -> LimitRow {
        let (limit, over, bytes) = match self {
            Self::Spin => ("spin", "cache line", None),
            Self::Spinning(wire) => ("spin", wire.name(), None),
            Self::Sleeping(wake) => ("sleep", wake.name(), None),
            Self::Copy(bytes) => ("memcpy", "memory", Some(bytes)),
            Self::Through(wire, bytes) => ("carry", wire.name(), Some(bytes)),
        };
        LimitRow {
            limit,
            over,
            bytes,
            us: micros,
            gbps: bytes.map(|bytes| report::gbps(bytes, micros)),
            cores_us,
            cores: cores_us.map(cores::apart),
        }
    }
}

fn table(rows: &[LimitRow]) -> Table {
    let mut table = Table::new(&[
        ("limit", Align::Left),
        ("over", Align::Left),
        ("size", Align::Right),
        ("time", Align::Right),
        ("GB/s", Align::Right),
        ("core to core", Align::Right),
    ]);
    let mut last = None;
    for row in rows {
        if last
            .replace(row.limit)
            .is_some_and(|last| last != row.limit)
        {
            table.gap();
        }
        table.push(vec![
            row.limit.to_owned(),
            row.over.to_owned(),
            row.bytes
                .map(|bytes| Size(bytes).to_string())
                .unwrap_or_default(),
            report::time(row.us),
            row.gbps.map(report::throughput).unwrap_or_default(),
            row.cores_us.map(report::core_to_core).unwrap_or_default(),
        ]);
    }
    table
}

const PATIENCE: u32 = 100;
const COPIED: &[Size] = &[
    Size(64 * Size::KIB),
    Size(Size::MIB),
    Size(16 * Size::MIB),
    Size(256 * Size::MIB),
];
const CARRIED: &[Size] = &[
    Size(4 * Size::KIB),
    Size(64 * Size::KIB),
    Size(Size::MIB),
    Size(16 * Size::MIB),
    Size(256 * Size::MIB),
];

const LEGEND: &str = "  spin: there and back, both threads look again and again
  sleep: there and back, both threads sleep until they are woken
  memcpy: warm memory to warm memory, one core
  carry: the bytes there, one byte back, both threads spin; ring is the connection of transport shm without a pipe
  core to core: the spinning round trip through a cache line just before";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_asked_for_take_the_place_of_the_usual_ones() {
        let few = figures(&[Size(4096)]);
        let carried = few
            .iter()
            .filter(|figure| matches!(figure, Figure::Through(..)));
        assert_eq!(carried.count(), Wire::ALL.len());
        assert!(few.contains(&Figure::Copy(4096)));
        assert!(figures(&[]).contains(&Figure::Copy(256 << 20)));
    }

    #[test]
    fn a_row_of_bytes_has_a_throughput() {
        let row = Figure::Copy(1 << 20).row(100.0, Some(0.1));
        assert!(row.gbps.is_some_and(|gbps| (gbps - 10.48).abs() < 0.01));
        assert_eq!(row.cores, Some("near"));
        assert_eq!(Figure::Spin.row(0.5, Some(0.5)).cores, Some("far"));
        assert_eq!(Figure::Spin.row(0.5, None).gbps, None);
    }
}
