//! Sizes as people write them: `0`, `4KiB`, `1MiB`, `3MB`, `1234`. What [`Size`] displays it also parses.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Size(pub(crate) u64);

impl Size {
    pub(crate) const KIB: u64 = 1 << 10;
    pub(crate) const MIB: u64 = 1 << 20;

    /// As a length in memory.
    pub(crate) fn len(self) -> Result<usize> {
        usize::try_from(self.0).context("the size does not fit into this machine's memory")
    }
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let scale = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit.trim()));
        let bytes = scale.and_then(|(_, scale)| number.parse::<u64>().ok()?.checked_mul(*scale));
        let bytes = bytes.with_context(|| {
            format!("`{text}` is not a size, write for example 0, 4KiB, 1MiB, 2GiB or 3MB")
        })?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "0"),
            bytes if bytes.is_multiple_of(1 << 30) => write!(f, "{} GiB", bytes >> 30),
            bytes if bytes.is_multiple_of(Self::MIB) => write!(f, "{} MiB", bytes >> 20),
            bytes if bytes.is_multiple_of(Self::KIB) => write!(f, "{} KiB", bytes >> 10),
            bytes => write!(f, "{bytes} B"),
        }
    }
}

const UNITS: [(&str, u64); 11] = [
    ("", 1),
    ("B", 1),
    ("KiB", 1 << 10),
    ("K", 1 << 10),
    ("MiB", 1 << 20),
    ("M", 1 << 20),
    ("GiB", 1 << 30),
    ("G", 1 << 30),
    ("kB", 1000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        let parse = |text: &str| text.parse::<Size>().ok().map(|size| size.0);
        for (text, bytes) in [
            ("17", 17),
            ("4 kib", 4096),
            ("4kB", 4000),
            ("5GiB", 5 << 30),
        ] {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in [
            "",
            "KiB",
            "-1",
            "1.5MiB",
            "4 apples",
            "18446744073709551615GiB",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
        for bytes in [0, 1, 1000, 1025, 65536, 256 << 20, 3 << 30] {
            assert_eq!(parse(&Size(bytes).to_string()), Some(bytes));
        }
    }
}
