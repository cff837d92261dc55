//! Runs rows of a fault table, several at a time, judges their outcomes, and writes a section of `tests/FAULTS.md`.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The outcome of a row.
#[derive(Clone, Debug)]
pub struct Judged {
    /// In words, for the table.
    pub outcome: String,
    /// Why the outcome is wrong, if it is.
    pub wrong: Option<String>,
}

/// Runs each named row, two at a time; `TEST_ONLY` picks one. Prints the outcomes and, with `TEST_TABLE`, writes them.
///
/// # Panics
/// When an outcome is wrong, after all rows have run.
pub fn judge<R: Sync>(
    section: &str,
    rows: &[R],
    name: impl Fn(&R) -> String + Sync,
    run: impl Fn(&R) -> Judged + Sync,
) {
    judge_at_once(2, section, rows, name, run);
}

/// Like [`judge`], with `at_once` rows at a time.
///
/// # Panics
/// As above.
pub fn judge_at_once<R: Sync>(
    at_once: usize,
    section: &str,
    rows: &[R],
    name: impl Fn(&R) -> String + Sync,
    run: impl Fn(&R) -> Judged + Sync,
) {
    let only = std::env::var("TEST_ONLY").ok();
    let left = Mutex::new(rows.iter().enumerate());
    let done = Mutex::new(Vec::new());
    let work = || {
        loop {
            let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
            let Some((index, row)) = next else { break };
            let name = name(row);
            if only.as_ref().is_some_and(|only| *only != name) {
                continue;
            }
            let begun = Instant::now();
            let judged = run(row);
            report(&name, &judged, begun.elapsed());
            let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
            done.push((index, name, judged));
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(work);
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, ..)| *index);
    let rows = done
        .iter()
        .map(|(_, name, judged)| (&**name, &*judged.outcome));
    if only.is_none() {
        publish(section, &rows.collect::<Vec<_>>());
    }
    let wrong = done.iter().filter_map(|(_, name, judged)| {
        let wrong = judged.wrong.as_ref()?;
        Some(format!("{name}: {wrong}"))
    });
    let wrong: Vec<_> = wrong.collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn report(name: &str, judged: &Judged, took: Duration) {
    let mark = if judged.wrong.is_some() { "WRONG " } else { "" };
    println!("{mark}{name}: {} [{took:.1?}]", judged.outcome);
}

/// With `TEST_TABLE`, replaces a section of `tests/FAULTS.md` by these rows.
fn publish(section: &str, rows: &[(&str, &str)]) {
    if std::env::var("TEST_TABLE").is_err() {
        return;
    }
    static FILE: Mutex<()> = Mutex::new(());
    let _file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/FAULTS.md");
    let old = std::fs::read_to_string(path).expect("tests/FAULTS.md");
    let heading = format!("## {section}\n");
    let (before, rest) = old.split_once(&heading).unwrap_or((&old, ""));
    let after = rest.find("\n## ").map_or("", |at| &rest[at + 1..]);
    let mut new = format!(
        "{}\n\n{heading}\n| fault | outcome |\n|---|---|\n",
        before.trim_end()
    );
    for (name, outcome) in rows {
        let _ = writeln!(new, "| {name} | {} |", outcome.replace('|', "/"));
    }
    if !after.is_empty() {
        new.push('\n');
        new.push_str(after);
    }
    std::fs::write(path, new).expect("tests/FAULTS.md");
}

/// Makes an outcome's words the same in every run: removes long numbers, and durations and counts of attempts.
pub fn tidy(words: &str) -> String {
    if let Some((before, rest)) = words.split_once(" after ")
        && let Some((_, after)) = rest.split_once(" attempts: ")
    {
        return tidy(&format!("{before}: {after}"));
    }
    let mut tidied = String::new();
    let mut digits = 0;
    for letter in words.chars() {
        digits = if letter.is_ascii_digit() {
            digits + 1
        } else {
            0
        };
        match digits {
            4 => {
                tidied.truncate(tidied.len() - 3);
                tidied.push('N');
            }
            5.. => {}
            _ => tidied.push(letter),
        }
    }
    tidied
}
