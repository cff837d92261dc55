//! Rows that change settings of a whole machine: `tests/vm/run` boots a virtual machine for them.

use tensorpipe_tests::judge_at_once;

use super::rows::{Row, row, run};
use super::scene::PARTS;

/// Whether this machine is there for that.
fn is_here() -> bool {
    let is_here = std::env::var_os("TEST_VM").is_some();
    if !is_here {
        println!("skipped: not the machine of `tests/vm/run`");
    }
    is_here
}

/// Of memory management.
fn set(what: &str, to: u64) {
    std::fs::write(format!("/proc/sys/vm/{what}"), to.to_string()).unwrap();
}

/// From now on nobody gets more than `room` bytes beyond what all have by now, give or take what the kernel counts by (some MiB).
pub(crate) fn promise(room: u64) {
    let all = std::fs::read_to_string("/proc/meminfo").unwrap();
    let mut lines = all.lines();
    let promised = lines.find_map(|line| line.strip_prefix("Committed_AS:"));
    let kib = promised.unwrap().trim().trim_end_matches(" kB");
    set(
        "overcommit_kbytes",
        kib.parse::<u64>().unwrap() + (room >> 10),
    );
}

#[test]
fn a_machine_in_a_vm_that_promises_no_more_memory_than_it_has() {
    if !is_here() {
        return;
    }
    // What is kept back for those who mend the machine is no row's.
    set("admin_reserve_kbytes", 0);
    set("user_reserve_kbytes", 0);
    set("overcommit_memory", 2);
    let mut rows = Vec::new();
    for when in ["start", "open"] {
        // With less the scene's own vectors find no memory: then a program is aborted.
        for room in [16, 32, 64, 128_u64] {
            rows.push(Row {
                fails: &PARTS,
                says: vec!["free some memory"],
                ..row(&format!("commit {}", room << 20), when)
            });
        }
    }
    let section = "A kernel that promises no more memory than it has (overcommit_memory=2)";
    let name = |row: &Row| row.name.clone();
    judge_at_once(1, section, &rows, name, |row| {
        set("overcommit_kbytes", 1 << 30);
        run(row)
    });
}
