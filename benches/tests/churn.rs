//! `tp-bench churn` as CI runs it: a few seconds of everything that calls can do, and nothing of it is left. How much memory
//! grows is not asked: seconds do not tell.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[test]
fn everything_at_once_leaves_nothing() {
    let mut churn = Command::new(env!("CARGO_BIN_EXE_tp-bench"))
        .args([
            "churn",
            "--seed",
            "7",
            "--seconds",
            "4",
            "--warm-up",
            "1",
            "--bound",
            "inf",
        ])
        .args(["--largest", "1MiB", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tp-bench starts");
    // The report is longer than a pipe holds.
    let output = std::thread::scope(|scope| {
        let id = churn.id();
        let stdout = churn.stdout.take().expect("piped");
        let reader = scope.spawn(move || std::io::read_to_string(stdout).expect("text"));
        let end = Instant::now() + PATIENCE;
        while churn.try_wait().expect("wait").is_none() {
            if Instant::now() > end {
                churn.kill().expect("kill");
                panic!("process {id} has not finished after {PATIENCE:?}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        reader.join().expect("no panic")
    });
    let ended = churn.wait_with_output().expect("its end");
    let error = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{error}");
    let report: Value = serde_json::from_str(&output).expect("one JSON object");
    assert_eq!(report["left"], Value::Array(Vec::new()), "{report}");
    assert!(report["cuts"].as_u64() > Some(0), "{report}");
    let acts = report["acts"].as_object().expect("an object");
    assert_eq!(acts.len(), 13);
    for (act, count) in acts {
        assert!(count.as_u64() > Some(0), "no {act}: {report}");
    }
    assert_eq!(report["sides"].as_array().map(Vec::len), Some(2));
}

/// It takes ten seconds on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(120);
