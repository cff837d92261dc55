//! `tp-bench soak` as CI runs it: twenty peers killed while they talk over everything.

#[path = "cli/run.rs"]
mod run;

use run::{bench, rows};

#[test]
fn twenty_killed_peers_leave_nothing() {
    let output = bench("soak --seed 7 --kills 20 --largest 1MiB --json");
    let [report] = &rows(&output)[..] else {
        panic!("one JSON object");
    };
    assert_eq!(report["kills"], 20);
    // Peers died while they talked, and this side heard of it.
    assert!(report["endings"]["lost"].as_u64() > Some(20), "{report}");
    let ways = report["ways"].as_object().expect("an object");
    let channels = ["lease", "cma", "mpt", "basic"];
    let over = |transport| channels.map(|channel| format!("{transport} + {channel}"));
    let named = ["shm", "tcp", "memory"].into_iter().flat_map(over);
    let named: Vec<_> = named.chain(["memory + xth".to_owned()]).collect();
    assert_eq!(ways.len(), named.len() + 1, "and the default: {report}");
    for (name, way) in ways {
        assert!(way["messages"].as_u64() > Some(5), "{name}: {report}");
    }
    for name in named {
        let way = &ways[&name];
        match way["refused"].as_str() {
            None => assert!(way["given"].as_u64() > Some(5), "{name}: {report}"),
            // This machine does not have it, for this reason.
            Some(reason) => println!("not {name}: {reason}"),
        }
    }
}
