//! `tp-bench soak` and `churn` as CI runs them: some seconds, and nothing is left.

#[path = "cli/run.rs"]
mod run;

use run::rows;

#[test]
fn twenty_killed_peers_leave_nothing_and_calls_leave_nothing() {
    let [report] = &rows("soak --seed 7 --kills 20 --largest 1MiB --json")[..] else {
        panic!("one JSON object");
    };
    assert_eq!(report["kills"], 20);
    // Peers died while they talked, and this side heard of it.
    assert!(report["endings"]["lost"].as_u64() > Some(20), "{report}");
    let ways = report["ways"].as_object().expect("an object");
    // Four channels over three transports, one within a process, and the default.
    assert_eq!(ways.len(), 14, "{report}");
    for (name, way) in ways {
        assert!(way["messages"].as_u64() > Some(5), "{name}: {report}");
        match way["refused"].as_str() {
            None if name == "default" => {}
            None => assert!(way["given"].as_u64() > Some(5), "{name}: {report}"),
            // This machine does not have it, for this reason.
            Some(reason) => println!("not {name}: {reason}"),
        }
    }

    // How much memory grows is not asked: seconds do not tell.
    let line = "churn --seed 7 --seconds 4 --warm-up 1 --bound inf --largest 1MiB --json";
    let [report] = &rows(line)[..] else {
        panic!("one JSON object");
    };
    assert_eq!(report["left"].as_array().map(Vec::len), Some(0), "{report}");
    assert!(report["cuts"].as_u64() > Some(0), "{report}");
    let acts = report["acts"].as_object().expect("an object");
    assert_eq!(acts.len(), 13);
    for (act, count) in acts {
        assert!(count.as_u64() > Some(0), "no {act}: {report}");
    }
    assert_eq!(report["sides"].as_array().map(Vec::len), Some(2));
    let given = report["given"].as_object().expect("an object");
    assert!(
        given.contains_key("shm + basic") && given.contains_key("tcp + basic"),
        "{report}"
    );
    assert!(
        given.values().all(|count| count.as_u64() > Some(0)),
        "{report}"
    );
}
