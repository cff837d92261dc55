//! What is measured: every system, case, runtime and channel, and what there is not.

use crate::run::{bench, number, rows, run, text};

#[test]
fn baselines_of_both_systems_print_a_line_each() {
    let output = bench("baseline --size 0,64KiB --seconds 0.2 --json");
    let rows = rows(&output);
    let cells: Vec<_> = rows
        .iter()
        .map(|row| (text(row, "system"), text(row, "case"), number(row, "bytes")))
        .collect();
    let expected = [
        ("tokio", "echo", 0.0),
        ("tarpc", "echo", 0.0),
        ("tokio", "upload", 65536.0),
        ("tarpc", "upload", 65536.0),
    ];
    assert_eq!(
        cells,
        expected.map(|(system, case, bytes)| (system.to_owned(), case.to_owned(), bytes))
    );
    for row in &rows {
        let object = row.as_object().expect("an object");
        let mut names: Vec<_> = object.keys().map(String::as_str).collect();
        names.sort_unstable();
        let fields = [
            "alloc",
            "bytes",
            "case",
            "channel",
            "cores_us",
            "gbps",
            "n",
            "name",
            "p50_us",
            "p99_us",
            "per_s",
            "system",
            "transport",
            "warm",
        ];
        assert_eq!(names, fields);
        assert_eq!(text(row, "transport"), "tcp");
        assert!(number(row, "n") >= 5.0, "{row}");
        let (p50, p99) = (number(row, "p50_us"), number(row, "p99_us"));
        assert!(p50 > 1.0 && p50 <= p99, "{row}");
        // A short measurement: neither a call nor all of them took longer than it.
        assert!(p50 < 0.2e6 && number(row, "per_s") > 5.0, "{row}");
        let gbps = number(row, "bytes") / p50 / 1e3;
        assert!((number(row, "gbps") - gbps).abs() < 1e-6, "{row}");
    }
}

#[test]
fn our_pipe_and_calls_say_what_carried_them() {
    let lines = [
        ("pipe --size 0,100KiB", "tcp", "basic", &["echo"; 2][..]),
        (
            "pipe --size 0,100KiB --transport memory",
            "memory",
            "xth",
            &["echo"; 2],
        ),
        (
            "rpc --case echo,upload,download,pipeline --size 5KiB --alloc pool",
            "tcp",
            "basic",
            &["echo", "upload", "download", "pipeline"],
        ),
        (
            "rpc --case paced,upload,download --size 70KiB --transport shm --alloc pool --channel basic",
            "shm",
            "basic",
            &["paced", "upload", "download"],
        ),
        (
            "rpc --case echo,pipeline --size 0 --runtime multi",
            "tcp",
            "basic",
            &["echo", "pipeline"],
        ),
        (
            "rpc --case upload,download --size 300KiB --transport memory --channel basic",
            "memory",
            "basic",
            &["upload", "download"],
        ),
    ];
    for (line, transport, channel, cases) in lines {
        let rows = rows(&bench(&format!("{line} --seconds 0.05 --json")));
        let found: Vec<_> = rows.iter().map(|row| text(row, "case")).collect();
        assert_eq!(found, cases, "{line}");
        for row in &rows {
            assert_eq!(
                (&*text(row, "transport"), &*text(row, "channel")),
                (transport, channel),
                "{line}"
            );
            assert!(number(row, "n") >= 5.0, "{row}");
        }
    }
}

#[test]
fn every_case_runs_on_either_runtime() {
    for options in [
        "--runtime multi --case echo,upload,download",
        "--system tarpc,tokio --case pipeline,paced --warm always",
        "--transport unix --case echo,paced,upload,download,pipeline --warm always",
    ] {
        let output = bench(&format!(
            "baseline --size 1000 --seconds 0.1 --json {options}"
        ));
        let rows = rows(&output);
        assert!(!rows.is_empty());
        for row in rows {
            assert!(number(&row, "per_s") > 1.0, "{row}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_said_and_fails() {
    let cases = [
        (
            "baseline --system grpc",
            "there is no system `grpc`, choose of: tokio, tarpc",
        ),
        ("baseline --transport memory", "over memory"),
        ("baseline --transport shm", "over shm"),
        (
            "compare --systems pipe --cases pipeline",
            "`pipe` has no `pipeline`",
        ),
        ("pipe --channel smoke", "there is no channel `smoke`"),
        ("pipe --transport unix", "`pipe` has no `echo` over unix"),
        ("compare --systems rpc@smoke", "`smoke` is not known"),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        assert!(!output.status.success(), "{arguments}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}
