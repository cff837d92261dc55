//! `tp-bench report`: the table of a run as Markdown, and its bars as SVG, from what `compare --json` printed. It also fits into
//! a README: one line of a table for each work, one column for each system.

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::Value;

use crate::report;
use crate::size::Size;

#[derive(Debug, Args)]
pub(crate) struct Report {
    /// The file with the run's lines of JSON.
    file: PathBuf,
    /// Where the chart goes; without it there is none.
    #[arg(long)]
    svg: Option<PathBuf>,
    /// A file whose lines from `<!-- tp-bench report -->` to `<!-- end -->` become the medians of each system.
    #[arg(long)]
    readme: Option<PathBuf>,
}

/// A title, and the compared systems with their microseconds.
type Group = (String, Vec<(String, f64)>);

/// Prints the table, and writes the chart.
pub(crate) fn run(arguments: &Report) -> Result<()> {
    let file = &arguments.file;
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let rows = text.lines().map(serde_json::from_str);
    let rows = rows.collect::<Result<Vec<Value>, _>>()?;
    let groups = compared(&rows)?;
    if let Some(readme) = &arguments.readme {
        let name = || readme.display().to_string();
        let text = std::fs::read_to_string(readme).with_context(name)?;
        let text = replace(&text, &medians(&groups)).with_context(name)?;
        std::fs::write(readme, text).with_context(name)?;
    }
    report::say(report::table(FIELDS, &rows));
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

/// A line for each work, a column for each system.
fn medians(groups: &[Group]) -> String {
    let mut systems: Vec<&str> = Vec::new();
    for (name, _) in groups.iter().flat_map(|(_, bars)| bars) {
        if !systems.contains(&name.as_str()) {
            systems.push(name);
        }
    }
    let mut table = format!(
        "| | {} |\n|---|{}\n",
        systems.join(" | "),
        "---:|".repeat(systems.len())
    );
    for (title, bars) in groups {
        let of = |system: &&str| bars.iter().find(|(name, _)| name == system);
        let cells = systems.iter().map(|system| match of(system) {
            Some((_, micros)) => report::time(*micros),
            None => "–".to_owned(),
        });
        let _ = writeln!(
            table,
            "| {title} | {} |",
            cells.collect::<Vec<_>>().join(" | ")
        );
    }
    table
}

/// Replaces the lines between the marks in the text.
fn replace(text: &str, lines: &str) -> Result<String> {
    let (before, rest) = text
        .split_once(BEGINS)
        .context("it has no `<!-- tp-bench report -->`")?;
    let (_, after) = rest
        .split_once(ENDS)
        .context("it has no `<!-- end -->` behind that")?;
    Ok(format!("{before}{BEGINS}{lines}{ENDS}{after}"))
}

const BEGINS: &str = "<!-- tp-bench report -->\n";
const ENDS: &str = "<!-- end -->";

/// An SVG with the bars of each group. The slowest bar of a group has the whole width.
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
