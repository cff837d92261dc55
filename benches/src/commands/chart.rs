//! `tp-bench report`: the table of a run as Markdown, and its bars as SVG, from what `compare --json` or `targets --json` printed.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use super::targets::{self, Line};
use crate::report;
use crate::size::Size;

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// The file with the run's lines of JSON.
    file: PathBuf,
    /// Where the chart goes; without it there is none.
    #[arg(long)]
    svg: Option<PathBuf>,
}

/// What is compared, and by how much: names and microseconds.
type Group = (String, Vec<(String, f64)>);

/// Prints the table, and writes the chart.
pub(crate) fn run(arguments: &Report) -> Result<()> {
    let file = &arguments.file;
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let rows = text.lines().map(serde_json::from_str);
    let rows = rows.collect::<Result<Vec<Value>, _>>()?;
    let (table, groups) = match rows.first().is_some_and(|row| !row["aimed_at"].is_null()) {
        true => {
            let lines = rows.into_iter().map(serde_json::from_value);
            let lines = lines.collect::<Result<Vec<Line>, _>>()?;
            (
                targets::table(&lines),
                lines.iter().filter_map(Line::bars).collect(),
            )
        }
        false => (report::table(FIELDS, &rows), compared(&rows)?),
    };
    report::say(table);
    if let Some(svg) = &arguments.svg {
        std::fs::write(svg, chart(&groups)).with_context(|| svg.display().to_string())?;
    }
    Ok(())
}

/// The systems of each case and size.
fn compared(rows: &[Value]) -> Result<Vec<Group>> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let text = |field: &str| row[field].as_str().context("no row of compare");
        let bytes = Size(row["bytes"].as_u64().context("no row of compare")?);
        let (title, name) = (
            format!("{}, {bytes}", text("case")?),
            text("name")?.to_owned(),
        );
        let bar = (name, row["p50_us"].as_f64().context("no row of compare")?);
        match groups.last_mut().filter(|group| group.0 == title) {
            Some((_, bars)) => bars.push(bar),
            None => groups.push((title, vec![bar])),
        }
    }
    Ok(groups)
}

/// Bars of each group, of which the slowest has the whole width.
fn chart(groups: &[Group]) -> String {
    let (mut bars_of_all, mut y) = (String::new(), 0);
    let text = |x: f64, y: usize, style: &str, words: &str| {
        let words = words.replace('&', "&amp;").replace('<', "&lt;");
        format!("<text x=\"{x:.0}\" y=\"{y}\" {style}>{words}</text>\n")
    };
    for (title, bars) in groups {
        y += 2 * LINE;
        bars_of_all += &text(0.0, y - 6, "font-weight=\"bold\"", title);
        let slowest = bars.iter().map(|(_, micros)| *micros).fold(0.0, f64::max);
        for (name, micros) in bars {
            let width = (WIDTH * micros / slowest).max(1.0);
            let (top, height) = (y + 2, LINE - 4);
            let _ = writeln!(
                bars_of_all,
                "<rect x=\"{LEFT}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\" fill=\"#4878a8\"/>"
            );
            y += LINE;
            bars_of_all += &text(LEFT - 8.0, y - 5, "text-anchor=\"end\"", name);
            bars_of_all += &text(LEFT + width + 6.0, y - 5, "", &report::time(*micros));
        }
    }
    let (width, height) = (LEFT + WIDTH + 80.0, y + LINE);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" font-family=\"sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n{bars_of_all}</svg>\n"
    )
}

const FIELDS: &str =
    "case bytes name transport channel p50_us ratio against p50_best_us p50_worst_us p99_us";

const LEFT: f64 = 240.0;
const WIDTH: f64 = 420.0;
const LINE: usize = 20;
