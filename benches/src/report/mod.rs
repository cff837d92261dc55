//! What a measurement has to say: rows for programs (one JSON object per line) and for people (a table).

mod extras;
mod row;
mod table;

pub(crate) use extras::Extras;
pub(crate) use row::{Comparison, IdleRow, LimitRow, Row, gbps};
pub(crate) use table::{Align, Table};

use std::fmt::Display;
use std::io::{self, Write};

use crate::cores;
use crate::plan::Plan;

/// Prints a line. Whoever has read enough (`| head`) may close the pipe: then there is nobody to go on for.
pub(crate) fn say(line: impl Display) {
    if let Err(error) = writeln!(io::stdout(), "{line}") {
        if error.kind() != io::ErrorKind::BrokenPipe {
            eprintln!("tp-bench: writing to stdout: {error}");
        }
        std::process::exit(1);
    }
}

/// The head of a table: what holds for all rows.
pub(crate) fn head(what: &str, plan: &Plan) -> String {
    let pinned = match plan.cores {
        Some((client, server)) => format!("pinned to cores {client} and {server}"),
        None => "not pinned".to_owned(),
    };
    format!(
        "{what}: {}, {pinned}, {} s each",
        plan.runtime.name(),
        plan.seconds
    )
}

/// What carried the bytes: `tcp`, or `tcp + ring`.
pub(crate) fn over(transport: &str, channel: &str) -> String {
    match channel {
        "none" => transport.to_owned(),
        channel => format!("{transport} + {channel}"),
    }
}

/// The spinning round trip between the two cores, and which of the machine's two states it is.
pub(crate) fn core_to_core(micros: f64) -> String {
    format!("{} {:<4}", time(micros), cores::apart(micros))
}

/// The same for a line below a table: how it was at the beginning and at the end.
pub(crate) fn spinning(before: Option<f64>, after: Option<f64>) -> String {
    let said = |micros: Option<f64>| match micros {
        Some(micros) => format!("{} ({})", time(micros), cores::apart(micros)),
        None => "unknown".to_owned(),
    };
    format!(
        "core to core and back, spinning: {} before, {} after",
        said(before),
        said(after)
    )
}

/// Microseconds in the unit that suits them, three digits.
pub(crate) fn time(micros: f64) -> String {
    match micros {
        _ if micros >= 1e6 => format!("{} s ", digits(micros / 1e6)),
        _ if micros >= 1e3 => format!("{} ms", digits(micros / 1e3)),
        _ => format!("{} µs", digits(micros)),
    }
}

/// A rate a second: `1.14 M`, `370 k`, `21.5`.
pub(crate) fn rate(per_second: f64) -> String {
    match per_second {
        _ if per_second >= 1e6 => format!("{} M", digits(per_second / 1e6)),
        _ if per_second >= 1e3 => format!("{} k", digits(per_second / 1e3)),
        _ => format!("{}  ", digits(per_second)),
    }
}

/// GB/s, or nothing where no bytes were moved.
pub(crate) fn throughput(gbps: f64) -> String {
    if gbps > 0.0 {
        digits(gbps)
    } else {
        "–".to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let times = [0.09, 2.6, 51.23, 913.4, 2450.0, 46_000.0, 1_500_000.0].map(time);
        assert_eq!(
            times,
            [
                "0.09 µs", "2.60 µs", "51.2 µs", "913 µs", "2.45 ms", "46.0 ms", "1.50 s "
            ]
        );
        assert_eq!(
            [21.5, 370_000.0, 1_140_000.0].map(rate),
            ["21.5  ", "370 k", "1.14 M"]
        );
        assert_eq!(core_to_core(0.09), "0.09 µs near");
        assert_eq!(
            spinning(Some(0.48), None),
            "core to core and back, spinning: 0.48 µs (far) before, unknown after"
        );
        assert_eq!([0.0, 5.814].map(throughput), ["–", "5.81"]);
    }
}
