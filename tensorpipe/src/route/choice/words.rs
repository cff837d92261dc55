//! The choice in words: `heap: in the frame <= 64 KiB, basic < 4 MiB, cma above`.

use std::fmt;

use super::{Bands, Carrier, ChannelChoice, Row};
use crate::device::MemoryKind;

/// A line for each place; places next to each other that are alike share one.
impl fmt::Display for ChannelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        let mut lines: Vec<(Vec<&Row>, Bands)> = Vec::new();
        for row in &table.rows {
            let bands = row.bands(table.frame);
            match lines.last_mut() {
                Some((rows, alike)) if *alike == bands => rows.push(row),
                _ => lines.push((vec![row], bands)),
            }
        }
        for (i, (rows, bands)) in lines.iter().enumerate() {
            let begin = if i == 0 { "" } else { "\n" };
            write!(f, "{begin}{}:", places(rows).join(", "))?;
            for (i, (_, carrier)) in bands.iter().enumerate() {
                write!(f, "{} {carrier}", if i == 0 { "" } else { "," })?;
                match bands.get(i + 1) {
                    Some((next, _)) => write!(f, " {}", Below(*next))?,
                    None if i > 0 => write!(f, " above")?,
                    None => {}
                }
            }
        }
        Ok(())
    }
}

/// `heap`, `heap -> cuda:0`, `cuda:0 -> cuda:1`; and `cpu:0 -> cuda:0` for all that lies in main memory.
fn places(rows: &[&Row]) -> Vec<String> {
    let same_ends = |a: &&Row, b: &&Row| (a.source, a.target) == (b.source, b.target);
    let mut all = Vec::new();
    for rows in rows.chunk_by(same_ends) {
        let (source, target) = (rows[0].source, rows[0].target);
        let kinds = rows.iter().map(|row| row.memory);
        if source.is_cpu() && target.is_cpu() {
            all.extend(kinds.map(|kind| kind.to_string()));
        } else if !source.is_cpu() || rows.len() == MemoryKind::MAIN.len() {
            all.push(format!("{source} -> {target}"));
        } else {
            all.extend(kinds.map(|kind| format!("{kind} -> {target}")));
        }
    }
    all
}

impl fmt::Display for Carrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Frame => "in the frame",
            Self::Channel(name) => name,
            Self::Nothing => "nothing",
        })
    }
}

/// All sizes below this one, in the rounder of two ways.
struct Below(u64);

impl fmt::Display for Below {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(next) = *self;
        match next % 1024 == 0 {
            true => write!(f, "< {}", Bytes(next)),
            false => write!(f, "<= {}", Bytes(next - 1)),
        }
    }
}

struct Bytes(u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(bytes) = *self;
        let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        let unit = units
            .into_iter()
            .find(|(unit, _)| bytes >= *unit && bytes % unit == 0);
        match unit {
            Some((unit, name)) => write!(f, "{} {name}", bytes / unit),
            None => write!(f, "{bytes} B"),
        }
    }
}
