//! Runs the binary and reads what it prints.
#![allow(dead_code, reason = "not every suite asks for everything")]

use std::io::Read;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Runs `tp-bench` and expects it to succeed.
pub(crate) fn bench(arguments: &str) -> Output {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    output
}

/// Runs `tp-bench` to its end, which comes within a minute unless the machine is busy.
pub(crate) fn run(arguments: &str) -> Output {
    let mut child = start(arguments);
    let mut stdout = child.stdout.take().expect("piped");
    // A report may be longer than a pipe holds; what goes wrong is told in fewer words.
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        stdout.read_to_end(&mut text).map(|_| text)
    });
    if !ends(&mut child) {
        panic!("{arguments}: not finished after {BOUND:?}");
    }
    let mut output = child.wait_with_output().expect("its output");
    output.stdout = reader.join().expect("no panic").expect("its output");
    output
}

pub(crate) fn start(arguments: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tp-bench"))
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tp-bench starts")
}

/// Whether it ends by itself; it is killed if not.
pub(crate) fn ends(child: &mut Child) -> bool {
    let ended = within(BOUND, || child.try_wait().expect("wait").map(|_| ())).is_some();
    if !ended {
        child.kill().expect("kill");
        child.wait().expect("reap");
    }
    ended
}

pub(crate) fn within<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + bound;
    while Instant::now() < end {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// What it prints for people.
pub(crate) fn stdout(arguments: &str) -> String {
    String::from_utf8(bench(arguments).stdout).expect("UTF-8")
}

/// What it prints with `--json`.
pub(crate) fn rows(arguments: &str) -> Vec<Value> {
    parsed(&bench(arguments))
}

pub(crate) fn parsed(output: &Output) -> Vec<Value> {
    let lines = std::str::from_utf8(&output.stdout).expect("UTF-8").lines();
    lines
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

/// Of each row these fields, which are separated by spaces.
pub(crate) fn cells<'a>(rows: impl IntoIterator<Item = &'a Value>, fields: &str) -> Vec<String> {
    let words = |row: &Value| {
        let fields = fields.split(' ').map(|field| match &row[field] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        fields.collect::<Vec<_>>().join(" ")
    };
    rows.into_iter().map(words).collect()
}

pub(crate) fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {row}"))
}

const BOUND: Duration = Duration::from_secs(150);
