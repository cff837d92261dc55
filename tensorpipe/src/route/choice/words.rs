//! The choice in words: `heap: in the frame <= 64 KiB, basic < 4 MiB, cma above`.

use std::fmt;

use super::{Carrier, ChannelChoice, Row};

/// A line for each place, places that are alike on one.
impl fmt::Display for ChannelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table();
        let mut lines: Vec<(String, Vec<(u64, Carrier)>)> = Vec::new();
        for row in &table.rows {
            let bands = row.bands(table.frame);
            let place = row.to_string();
            match lines.last_mut() {
                Some((places, alike)) if *alike == bands => {
                    places.push_str(", ");
                    places.push_str(&place);
                }
                _ => lines.push((place, bands)),
            }
        }
        for (i, (places, bands)) in lines.iter().enumerate() {
            let begin = if i == 0 { "" } else { "\n" };
            write!(f, "{begin}{places}:")?;
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

/// `heap`, or `heap -> cuda:0`, or `cuda:0 -> cuda:1`.
impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source.is_cpu() {
            true => self.memory.fmt(f)?,
            false => self.source.fmt(f)?,
        }
        match self.source.is_cpu() && self.target.is_cpu() {
            true => Ok(()),
            false => write!(f, " -> {}", self.target),
        }
    }
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
