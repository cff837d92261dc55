//! Lines as Markdown for people, and as JSON for programs.

use serde::Serialize;

use super::{Figure, Figures, Target};
use crate::commands::targets::list::Aim;
use crate::report::{self, Align, Table};

/// A line, measured.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line {
    row: &'static str,
    work: &'static str,
    system: &'static str,
    baseline: &'static str,
    unit: &'static str,
    aimed_at: String,
    /// On the runtime of one thread, and on that of `#[tokio::main]`.
    current: Figures,
    multi: Figures,
    #[serde(skip)]
    figure: Figure,
    #[serde(skip)]
    against: &'static str,
}

impl Line {
    pub(super) fn new(target: &Target, current: Figures, multi: Figures) -> Self {
        Self {
            row: target.name,
            work: target.work,
            system: target.ours.system,
            baseline: target.baseline.system,
            unit: match target.figure {
                Figure::Time => "us",
                Figure::Cpu => "percent",
                Figure::Memory => "KiB",
            },
            aimed_at: aim(target),
            current,
            multi,
            figure: target.figure,
            against: target.against,
        }
    }

    fn cells(&self) -> Vec<String> {
        let value = |number| amount(self.figure, number);
        let both =
            |of: &dyn Fn(&Figures) -> Option<String>| match (of(&self.current), of(&self.multi)) {
                (Some(current), Some(multi)) => format!("{current} / {multi}"),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => "–".to_owned(),
            };
        let ratio = |of: f64, to: f64| (to > 0.0).then(|| format!("{:.2}", of / to));
        vec![
            self.work.to_owned(),
            value(self.current.ours),
            value(self.multi.ours),
            format!("{}: {}", self.against, both(&|f| Some(value(f.baseline)))),
            both(&|f| ratio(f.ours, f.baseline)),
            both(&|f| f.limit.map(value)),
            both(&|f| ratio(f.ours, f.limit?)),
            both(&|f| f.sum.map(value)),
            both(&|f| f.hot.map(value)),
            both(&|f| f.after_pause.map(value)),
            self.aimed_at.clone(),
            met(self.current.met, self.multi.met).to_owned(),
        ]
    }
}

pub(super) fn markdown(lines: &[Line]) -> String {
    let mut table = Table::new(&[
        ("work", Align::Left),
        ("current_thread", Align::Right),
        ("multi_thread", Align::Right),
        ("baseline", Align::Left),
        ("of it", Align::Right),
        ("limit", Align::Right),
        ("of it", Align::Right),
        ("every byte read", Align::Right),
        ("caches warm", Align::Right),
        ("after a pause", Align::Right),
        ("aimed at", Align::Right),
        ("met", Align::Left),
    ]);
    for line in lines {
        table.push(line.cells());
    }
    table.markdown()
}

/// What the columns mean.
pub(super) fn legend() -> &'static str {
    "p50 of both runtimes, `current_thread / multi_thread` where one column has both; every round has a tensor written anew, outside the\n\
     timed part. baseline: measured in turns. limit: a bare round of the same bytes over the same medium, both ends spinning (1 ms apart:\n\
     asleep); leased bytes count as none. every byte read: whoever receives a tensor sums it. Rounds of leased tensors begin with both ends\n\
     awake: once the tensor is written, calls without one go there and back, untimed. caches warm: those calls carry a leased tensor of\n\
     64 KiB, so that the way of a lease is in the caches again, which writing a large tensor has emptied. after a pause: without such\n\
     calls, and after 1 ms of rest."
}

fn aim(target: &Target) -> String {
    match target.aim {
        Aim::AtMost(number) => format!("≤ {}", amount(target.figure, number)),
        Aim::Below(number) => format!("< {}", amount(target.figure, number)),
        Aim::Above(0.0) => format!("≤ {}", target.against),
        Aim::Above(more) => format!("≤ {} + {}", target.against, amount(target.figure, more)),
    }
}

fn amount(figure: Figure, number: f64) -> String {
    match figure {
        Figure::Time => report::time(number).trim_end().to_owned(),
        Figure::Cpu => format!("{number:.2} %"),
        Figure::Memory => format!("{number:.0} KiB"),
    }
}

fn met(current: bool, multi: bool) -> &'static str {
    match (current, multi) {
        (true, true) => "met",
        (true, false) => "met on current_thread",
        (false, true) => "met on multi_thread",
        (false, false) => "missed",
    }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, Result};

    use super::super::select;
    use super::*;

    fn figures(ours: f64, met: bool) -> Figures {
        Figures {
            ours,
            best: ours,
            worst: ours,
            baseline: 40.0,
            limit: Some(0.5),
            sum: None,
            hot: None,
            after_pause: None,
            aim: 1.5,
            met,
            cores_us: None,
        }
    }

    fn line(name: &str, current: Figures, multi: Figures) -> Result<Line> {
        let selected = select(&[name.to_owned()])?;
        let target = selected.first().context("it is there")?;
        Ok(Line::new(target, current, multi))
    }

    #[test]
    fn a_line_has_both_runtimes_side_by_side() -> Result<()> {
        let mut current = figures(1.0, true);
        current.sum = Some(2.5);
        let cells = line("pipe-4KiB", current, figures(2.0, false))?.cells();
        let expected = [
            "… 4 KiB both ways",
            "1.00 µs",
            "2.00 µs",
            "tokio, unix: 40.0 µs / 40.0 µs",
            "0.03 / 0.05",
            "0.50 µs / 0.50 µs",
            "2.00 / 4.00",
            "2.50 µs",
            "–",
            "–",
            "≤ 1.50 µs",
            "met on current_thread",
        ];
        assert_eq!(cells, expected);
        Ok(())
    }

    #[test]
    fn aims_are_said_in_their_units() -> Result<()> {
        for (name, expected) in [
            ("lease-1GiB", "≤ metadata only + 0.50 µs"),
            ("upload", "≤ 14.0 ms"),
            ("paced", "≤ tarpc, unix"),
            ("idle-cpu", "< 0.50 %"),
            ("idle-memory", "≤ 256 KiB"),
        ] {
            let line = line(name, figures(1.0, true), figures(1.0, true))?;
            assert_eq!(line.aimed_at, expected);
            assert_eq!(line.cells().last().map(String::as_str), Some("met"));
        }
        Ok(())
    }

    #[test]
    fn a_table_can_be_pasted() -> Result<()> {
        let lines = [line("echo", figures(1.0, false), figures(1.0, false))?];
        let text = markdown(&lines);
        assert_eq!(text.lines().count(), 3);
        assert!(
            text.lines().all(|line| line.matches('|').count() == 13),
            "{text}"
        );
        assert!(text.trim_end().ends_with("| missed |"), "{text}");
        Ok(())
    }
}
