//! `tp-bench churn` as CI runs it: a few seconds of everything that calls can do, and nothing of it is left. How much memory
//! grows is not asked: seconds do not tell.

#[path = "cli/run.rs"]
mod run;

use serde_json::Value;

use run::{bench, rows};

#[test]
fn everything_at_once_leaves_nothing() {
    let output = bench("churn --seed 7 --seconds 4 --warm-up 1 --bound inf --largest 1MiB --json");
    let [report] = &rows(&output)[..] else {
        panic!("one JSON object");
    };
    assert_eq!(report["left"], Value::Array(Vec::new()), "{report}");
    assert!(report["cuts"].as_u64() > Some(0), "{report}");
    let acts = report["acts"].as_object().expect("an object");
    assert_eq!(acts.len(), 13);
    for (act, count) in acts {
        assert!(count.as_u64() > Some(0), "no {act}: {report}");
    }
    assert_eq!(report["sides"].as_array().map(Vec::len), Some(2));
    let given = report["given"].as_object().expect("an object");
    for road in ["shm", "tcp"] {
        let basic = format!("{road} + basic");
        assert!(given.contains_key(&basic), "{report}");
    }
    for (way, count) in given {
        assert!(count.as_u64() > Some(0), "nothing by {way}: {report}");
    }
}
