//! `tp-bench` as it is called: real second processes, lines that parse, and nobody left behind.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

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
        "--system tarpc --case pipeline,paced",
        "--transport unix --case echo,paced,upload,download",
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
fn a_table_for_people_has_a_head_rows_and_a_legend() {
    let output = bench("baseline --size 4KiB --seconds 0.05");
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    for part in [
        "current_thread",
        "not pinned",
        "GB/s",
        "4 KiB",
        "µs",
        "  tokio: hand-written",
    ] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
    assert!(!table.contains('{'));
}

#[test]
fn a_comparison_has_ratios_to_its_baseline() {
    let output = bench("compare --cases echo --size 64 --runs 2 --seconds 0.05 --json");
    let rows = rows(&output);
    let ratio = |system: &str| {
        let row = rows
            .iter()
            .find(|row| row["system"] == system)
            .expect(system);
        assert_eq!(row["against"], "tarpc");
        assert_eq!(row["runs"], 2);
        assert!(number(row, "p50_best_us") <= number(row, "p50_worst_us"));
        number(row, "ratio")
    };
    assert_eq!(ratio("tarpc"), 1.0);
    assert!(ratio("tokio") > 0.0 && ratio("rpc") > 0.0);
}

#[test]
fn systems_are_compared_each_over_its_own_transport() {
    let output = bench(
        "compare --cases echo,download --size 300KiB --runs 1 --seconds 0.05 --json --sum --limits \
         --systems rpc@shm,rpc@tcp,rpc@shm:pool,tarpc@unix,tokio@unix --against tarpc@unix",
    );
    let rows = rows(&output);
    let found: Vec<_> = rows
        .iter()
        .map(|row| {
            [
                text(row, "name"),
                text(row, "transport"),
                text(row, "alloc"),
            ]
            .join(" ")
        })
        .collect();
    let expected = [
        "rpc@shm shm heap",
        "rpc@tcp tcp heap",
        "rpc@shm:pool shm pool",
        "tarpc@unix unix heap",
        "tokio@unix unix heap",
    ];
    assert_eq!(found, [expected, expected].concat());
    for row in &rows {
        assert_eq!(row["against"], "tarpc@unix");
        assert!(number(row, "ratio") > 0.0);
        assert!(number(row, "p50_sum_us") > 0.0);
        assert!(number(row, "limit_us") > 0.0);
    }
}

#[test]
fn a_table_has_a_column_for_what_was_asked_for_beside() {
    let output = bench("rpc --size 64KiB --seconds 0.05 --transport shm --sum --limits");
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    for part in [
        "p50 + sum",
        "of limit",
        "×",
        "core to core and back, spinning: ",
    ] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
}

#[test]
fn limits_are_a_line_each() {
    let rows = rows(&bench("limits --size 4KiB,1MiB --seconds 0.01 --json"));
    let found: Vec<_> = rows
        .iter()
        .map(|row| [text(row, "limit"), text(row, "over")].join(" "))
        .collect();
    let expected = [
        "spin cache line",
        "spin ring",
        "spin unix",
        "spin tcp",
        "sleep eventfd",
        "sleep unix",
        "sleep tcp",
        "memcpy memory",
        "memcpy memory",
        "carry ring",
        "carry ring",
        "carry unix",
        "carry unix",
        "carry tcp",
        "carry tcp",
    ];
    assert_eq!(found, expected);
    for row in &rows {
        assert!(number(row, "us") > 0.0, "{row}");
        // Unknown where other work keeps a core.
        let known = row["cores"].is_null() || ["near", "far"].contains(&&*text(row, "cores"));
        assert!(known, "{row}");
        assert_eq!(row["bytes"].is_null(), row["gbps"].is_null(), "{row}");
    }
}

#[test]
fn an_idle_server_is_measured() {
    let output = bench("idle --system tokio,pipe@shm --connections 3 --seconds 0.3 --json");
    let rows = rows(&output);
    assert_eq!(rows.len(), 2);
    assert_eq!(text(&rows[1], "transport"), "shm");
    // Two rings, which its calls have filled.
    assert!(number(&rows[1], "shmem_kib") >= 64.0, "{}", rows[1]);
    assert_eq!(number(&rows[0], "shmem_kib"), 0.0);
    for row in rows {
        assert!(number(&row, "anon_kib") < 64.0 * 1024.0, "{row}");
        assert_eq!(number(&row, "connections"), 3.0);
        let percent = number(&row, "cpu_percent");
        assert!((0.0..50.0).contains(&percent), "{percent} % for waiting");
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
            "baseline --system tokio --case pipeline",
            "`tokio` has no `pipeline`",
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

#[test]
fn a_server_ends_with_its_stdin() {
    let mut server = start("serve");
    let mut stdin = server.stdin.take().expect("piped");
    let plan = r#"{"system":"tokio","case":"echo","transport":"tcp","channel":null,"alloc":"heap",
        "runtime":"current","bytes":8,"seconds":1.0,"cores":null}"#
        .replace('\n', "");
    writeln!(stdin, "{plan}").expect("it takes its plan");
    let mut greeting = String::new();
    let stdout = server.stdout.take().expect("piped");
    BufReader::new(stdout)
        .read_line(&mut greeting)
        .expect("it greets");
    assert!(
        greeting.starts_with(r#"{"ready":"127.0.0.1:"#),
        "{greeting}"
    );
    assert!(
        server.try_wait().expect("wait").is_none(),
        "it ended too early"
    );
    drop(stdin);
    assert!(ends(&mut server), "it outlived its stdin");
}

#[test]
fn a_server_dies_with_a_parent_that_was_killed() {
    let mut parent = start("baseline --system tokio --size 64 --seconds 60 --json");
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let child = within(Duration::from_secs(10), || {
        let list = std::fs::read_to_string(&children).ok()?;
        list.split_whitespace().next().map(str::to_owned)
    })
    .expect("a second process");
    parent.kill().expect("kill");
    parent.wait().expect("reap");
    let gone = within(Duration::from_secs(5), || {
        // Where nobody reaps orphans it stays behind as a zombie.
        let stat = std::fs::read_to_string(format!("/proc/{child}/stat"));
        let dead = stat.map_or(true, |stat| stat.contains(") Z "));
        dead.then_some(())
    });
    assert!(gone.is_some(), "process {child} outlived its parent");
}

/// Runs `tp-bench` and expects it to succeed.
fn bench(arguments: &str) -> Output {
    let output = run(arguments);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments}: {error}");
    output
}

/// Runs `tp-bench` to its end, which comes within a minute.
fn run(arguments: &str) -> Output {
    let mut child = start(arguments);
    // Outputs are short: they fit into the pipes.
    if !ends(&mut child) {
        panic!("{arguments}: not finished after {PATIENCE:?}");
    }
    child.wait_with_output().expect("its output")
}

fn start(arguments: &str) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tp-bench"))
        .args(arguments.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("tp-bench starts")
}

/// Whether it ends by itself; it is killed if not.
fn ends(child: &mut Child) -> bool {
    let ended = within(PATIENCE, || child.try_wait().expect("wait").map(|_| ())).is_some();
    if !ended {
        child.kill().expect("kill");
        child.wait().expect("reap");
    }
    ended
}

fn within<T>(bound: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + bound;
    while Instant::now() < end {
        if let Some(found) = look() {
            return Some(found);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

fn rows(output: &Output) -> Vec<Value> {
    let lines = String::from_utf8(output.stdout.clone()).expect("UTF-8");
    lines
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect()
}

fn text(row: &Value, field: &str) -> String {
    row[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field} in {row}"))
        .to_owned()
}

fn number(row: &Value, field: &str) -> f64 {
    row[field]
        .as_f64()
        .unwrap_or_else(|| panic!("{field} in {row}"))
}

const PATIENCE: Duration = Duration::from_secs(60);
