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
        panic!("{arguments}: not finished after {PATIENCE:?}");
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
    let ended = within(PATIENCE, || child.try_wait().expect("wait").map(|_| ())).is_some();
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

pub(crate) fn rows(output: &Output) -> Vec<Value> {
    let lines = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

pub(crate) fn text(row: &Value, field: &str) -> String {
    row[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field} in {row}"))
        .to_owned()
}

pub(crate) fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {row}"))
}

const PATIENCE: Duration = Duration::from_secs(150);
