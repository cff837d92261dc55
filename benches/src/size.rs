//! Sizes as people write them: `0`, `4KiB`, `1MiB`, `256MiB`, `3MB`, `1234`.
//!
//! Binary units are powers of 1024, decimal ones (`kB`, `MB`, `GB`) of 1000; case does not matter. What
//! [`Size`] displays it also parses, to the same number of bytes.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Size(pub(crate) u64);

impl Size {
    pub(crate) const KIB: u64 = 1 << 10;
    pub(crate) const MIB: u64 = 1 << 20;
}

impl FromStr for Size {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, unit) = text.split_at(digits);
        let number: u64 = number.parse().with_context(|| {
            format!("`{text}` is not a size, write for example 0, 4KiB or 1MiB")
        })?;
        let unit = unit.trim();
        let scale = UNITS
            .iter()
            .find(|(name, _)| name.eq_ignore_ascii_case(unit))
            .map(|(_, scale)| *scale);
        let Some(scale) = scale else {
            bail!("`{unit}` is not a unit of size, use B, KiB, MiB, GiB, kB, MB or GB");
        };
        let bytes = number
            .checked_mul(scale)
            .with_context(|| format!("`{text}` is more than this machine can address"))?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0;
        let text = match bytes {
            0 => "0".to_owned(),
            _ if bytes.is_multiple_of(1 << 30) => format!("{} GiB", bytes >> 30),
            _ if bytes.is_multiple_of(Self::MIB) => format!("{} MiB", bytes >> 20),
            _ if bytes.is_multiple_of(Self::KIB) => format!("{} KiB", bytes >> 10),
            _ => format!("{bytes} B"),
        };
        f.pad(&text)
    }
}

const UNITS: &[(&str, u64)] = &[
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

    fn parse(text: &str) -> Option<u64> {
        text.parse::<Size>().ok().map(|size| size.0)
    }

    #[test]
    fn sizes_as_people_write_them() {
        let cases = [
            ("0", 0),
            ("17", 17),
            ("17B", 17),
            ("4KiB", 4096),
            (" 4 kib ", 4096),
            ("4K", 4096),
            ("4kB", 4000),
            ("1MiB", 1 << 20),
            ("256MiB", 256 << 20),
            ("3MB", 3_000_000),
            ("5GiB", 5 << 30),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in [
            "",
            "KiB",
            "-1",
            "1.5MiB",
            "4 apples",
            "99999999999999999999",
            "18446744073709551615GiB",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn what_is_displayed_parses_back() {
        for bytes in [
            0,
            1,
            1000,
            1024,
            1025,
            65536,
            1 << 20,
            256 << 20,
            1 << 30,
            3 << 30,
        ] {
            assert_eq!(parse(&Size(bytes).to_string()), Some(bytes));
        }
    }
}
