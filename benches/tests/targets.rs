//! `tp-bench targets`: every line of it works; what it measures is not for CI to judge.

#[path = "cli/run.rs"]
mod run;

use run::{bench, number, rows, run as tp_bench, text};

#[test]
fn every_line_is_measured_on_both_runtimes() {
    let rows = rows(&bench("targets --quick --json"));
    let names: Vec<_> = rows.iter().map(|row| text(row, "row")).collect();
    let expected = [
        "pipe-0",
        "pipe-4KiB",
        "pipe-1MiB",
        "pipe-16MiB",
        "pipe-128MiB",
        "lease-4KiB",
        "lease-64KiB",
        "lease-1MiB",
        "lease-16MiB",
        "lease-128MiB",
        "lease-1GiB",
        "echo",
        "in-flight",
        "upload-64KiB",
        "upload-1MiB",
        "upload-16MiB",
        "upload",
        "download",
        "upload-pool",
        "download-pool",
        "echo-tcp",
        "paced",
        "paced-64KiB",
        "paced-256KiB",
        "paced-1MiB",
        "paced-4MiB",
        "paced-16MiB",
        "idle-cpu",
        "idle-memory",
    ];
    assert_eq!(names, expected);
    for row in &rows {
        let name = text(row, "row");
        for runtime in ["current", "multi"] {
            let figures = &row[runtime];
            // An idle server may use nothing.
            assert!(number(figures, "ours") > 0.0 || name == "idle-cpu", "{row}");
            assert!(number(figures, "aim") > 0.0, "{row}");
            assert!(figures["met"].is_boolean(), "{row}");
            let reads = !["pipe-0", "echo", "in-flight", "echo-tcp", "paced"].contains(&&*name)
                && text(row, "unit") == "us";
            assert_eq!(figures["sum"].is_number(), reads, "{row}");
            let is_leased = name.starts_with("lease") || name.ends_with("pool");
            for figure in ["hot", "after_pause"] {
                assert_eq!(figures[figure].is_number(), is_leased, "{figure} in {row}");
            }
        }
    }
}

#[test]
fn lines_that_are_selected_are_a_table_of_markdown() {
    let output = bench("targets --quick --rows lease-4KiB,echo");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let table: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(table.len(), 4, "{text}");
    for (line, part) in
        table
            .iter()
            .zip(["aimed at", "---:", "≤ metadata only + 0.50 µs", "rpc echo"])
    {
        assert!(line.contains(part), "{part} is missing in {line}");
    }
    for part in [
        "the figures mean nothing",
        "after a pause",
        "core to core and back",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
    let output = tp_bench("targets --rows gpu");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("there is no row `gpu`"), "{error}");
}
