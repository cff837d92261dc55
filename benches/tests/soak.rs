//! `tp-bench soak` as CI runs it: twenty peers killed while they talk over everything.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[test]
fn twenty_killed_peers_leave_nothing() {
    let mut soak = Command::new(env!("CARGO_BIN_EXE_tp-bench"))
        .args(["soak", "--seed", "7", "--kills", "20"])
        .args(["--largest", "1MiB", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tp-bench starts");
    let end = Instant::now() + PATIENCE;
    while soak.try_wait().expect("wait").is_none() {
        if Instant::now() > end {
            soak.kill().expect("kill");
            panic!("not finished after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = soak.wait_with_output().expect("its output");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(report["kills"], 20);
    // Peers died while they talked, and this side heard of it.
    assert!(report["endings"]["lost"].as_u64() > Some(20), "{report}");
    let ways = report["ways"].as_object().expect("an object");
    for name in [
        "default",
        "shm + basic",
        "tcp + basic",
        "shm + mpt",
        "tcp + mpt",
        "memory + xth",
    ] {
        assert!(ways[name]["messages"].as_u64() > Some(5), "{report}");
    }
}

/// It takes half a minute on a machine that does nothing else.
const PATIENCE: Duration = Duration::from_secs(150);
