//! `tp-bench` as it is called: real second processes, lines that parse, and nobody left behind.

#[path = "cli/run.rs"]
mod run;

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use run::{bench, cells, ends, number, rows, run, start, stdout, within};

#[test]
fn baselines_of_both_systems_print_a_line_each() {
    let rows = rows("baseline --size 0,64KiB --seconds 0.2 --json");
    let expected = [
        "tokio echo 0 tcp",
        "tarpc echo 0 tcp",
        "tokio upload 65536 tcp",
        "tarpc upload 65536 tcp",
    ];
    assert_eq!(cells(&rows, "system case bytes transport"), expected);
    for row in &rows {
        let names: Vec<_> = row.as_object().expect("an object").keys().collect();
        let fields = "alloc bytes case channel cores_us gbps n name p50_us p99_us per_s system transport warm";
        assert_eq!(names, fields.split(' ').collect::<Vec<_>>());
        let (p50, p99) = (number(row, "p50_us"), number(row, "p99_us"));
        assert!(number(row, "n") >= 5.0 && p50 > 1.0 && p50 <= p99, "{row}");
        // A short measurement: neither a call nor all of them took longer than it.
        assert!(p50 < 0.2e6 && number(row, "per_s") > 5.0, "{row}");
        let gbps = number(row, "bytes") / p50 / 1e3;
        assert!((number(row, "gbps") - gbps).abs() < 1e-6, "{row}");
    }
}

#[test]
fn every_case_runs_and_rows_say_what_carried_them() {
    let lines = [
        ("pipe --size 0,100KiB", "tcp basic", 2),
        ("pipe --size 0,100KiB --transport memory", "memory xth", 2),
        ("pipe --channel mpt --lanes 2", "tcp mpt", 1),
        ("pipe --channel mpt --transport shm", "shm mpt", 1),
        // The copying path, whose channel is `basic`; also with a server that has something else to do, and slow wake-ups.
        ("pipe --channel ring --transport shm", "shm basic", 1),
        (
            "pipe --channel ring --transport shm --busy-us 100 --wake-us 100 --pause-us 100",
            "shm basic",
            1,
        ),
        (
            "pipe --channel lease --transport shm --alloc pool",
            "shm lease",
            1,
        ),
        (
            "rpc --case echo,upload,download --channel mpt",
            "tcp mpt",
            3,
        ),
        (
            "rpc --case echo,pipeline --size 0 --runtime multi",
            "tcp basic",
            2,
        ),
        (
            "rpc --case paced,upload,download --alloc pool --channel basic --transport shm",
            "shm basic",
            3,
        ),
        (
            "rpc --case stream,exchange --size 70KiB --channel basic --transport memory",
            "memory basic",
            2,
        ),
        (
            "baseline --size 1000 --runtime multi --case echo,upload,download",
            "tcp none",
            6,
        ),
        (
            "baseline --size 1000 --transport unix --case echo,paced,upload,download,pipeline --warm always",
            "unix none",
            10,
        ),
    ];
    for (line, carried, count) in lines {
        let size = if line.contains("--size") {
            ""
        } else {
            "--size 5MiB"
        };
        let rows = rows(&format!("{line} {size} --seconds 0 --json"));
        assert_eq!(
            cells(&rows, "transport channel"),
            vec![carried; count],
            "{line}"
        );
        for row in rows {
            assert!(number(&row, "n") >= 5.0, "{line}: {row}");
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
            "baseline --system tokio --pace 1MiB",
            "`tokio` cannot be paced",
        ),
        (
            "compare --systems pipe --cases pipeline",
            "`pipe` has no `pipeline`",
        ),
        ("compare --systems rpc@smoke", "`smoke` is not known"),
        ("compare --systems rpc@tcp+mpt/x", "`x` lanes"),
        (
            "compare --systems rpc@tcp+mpt/99",
            "channel mpt with 99 connections",
        ),
        (
            "pipe --channel smoke",
            "there is no channel `smoke`, choose of: xth, lease",
        ),
        ("pipe --channel ring", "choose --transport shm"),
        ("pipe --transport unix", "`pipe` has no `echo` over unix"),
        ("pipe --transport shm --pace 1MiB", "shm cannot be paced"),
        ("targets --rows gpu", "there is no row `gpu`"),
    ];
    for (arguments, expected) in cases {
        let output = run(arguments);
        assert!(!output.status.success(), "{arguments}");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}

#[test]
fn a_paced_socket_carries_no_more_than_it_may() {
    let rows = rows("rpc --case upload --size 4MiB --pace 40MiB --seconds 0 --json");
    // A tenth of a second for 4 MiB; what the socket lets through before it paces is a small part of it.
    assert!(number(&rows[0], "p50_us") > 50_000.0, "{}", rows[0]);
}

#[test]
fn rounds_of_leased_tensors_begin_awake_unless_that_is_not_wanted() {
    let leased = "--transport shm --channel lease --alloc pool --size 1MiB";
    for (line, expected) in [
        (format!("rpc --case upload,download {leased}"), true),
        (format!("pipe {leased} --warm hot"), true),
        (format!("pipe {leased} --warm never"), false),
        (format!("rpc --case paced {leased} --warm always"), false),
        ("pipe --size 0".to_owned(), false),
        ("pipe --size 0 --warm always".to_owned(), true),
    ] {
        for row in rows(&format!("{line} --seconds 0 --json")) {
            assert_eq!(row["warm"], expected, "{line}");
        }
    }
}

#[test]
fn a_table_for_people_has_a_head_rows_and_what_they_mean() {
    let table = stdout("rpc --size 64KiB --seconds 0.05 --transport shm --sum --limits");
    for part in [
        "current_thread, not pinned",
        " p50_sum |",
        " limit |",
        "| 64 KiB |",
        "rpc: tensorpipe-rpc",
        "core to core and back, spinning: ",
    ] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
}

#[test]
fn a_comparison_has_ratios_to_its_baseline_and_shows_what_is_not_copied() {
    let rows = rows("compare --cases echo --size 0,64KiB --runs 2 --seconds 0 --json");
    let names = cells(&rows, "name");
    let expected = [
        "rpc@shm",
        "rpc@tcp",
        "tarpc@unix",
        "tokio@unix",
        "tarpc@tcp",
        "tokio@tcp",
    ];
    assert_eq!(names[..6], expected);
    assert_eq!(names[6..8], ["rpc@shm", "rpc@shm+lease:pool"]);
    for row in &rows {
        assert_eq!(cells([row], "against runs"), ["tarpc@unix 2"]);
        assert!(number(row, "p50_best_us") <= number(row, "p50_worst_us"));
        assert!(number(row, "ratio") > 0.0);
        assert!(row["name"] != "tarpc@unix" || row["ratio"] == 1.0, "{row}");
    }
}

#[test]
fn systems_are_compared_each_its_own_way() {
    let systems = "rpc@tcp+mpt/1,rpc@tcp+mpt/2,rpc@shm:pool,tarpc@unix,tokio@unix";
    let rows = rows(&format!(
        "compare --cases echo,download --size 300KiB --runs 1 --seconds 0 --json --sum --limits \
         --systems {systems} --against tarpc@unix"
    ));
    let expected = [
        "mpt heap",
        "mpt heap",
        "lease pool",
        "none heap",
        "none heap",
    ];
    assert_eq!(cells(&rows, "channel alloc"), [expected, expected].concat());
    assert_eq!(cells(&rows[..5], "name").join(","), systems);
    for row in &rows {
        assert_eq!(row["against"], "tarpc@unix");
        assert!(
            number(row, "p50_sum_us") > 0.0 && number(row, "limit_us") > 0.0,
            "{row}"
        );
    }
}

#[test]
fn a_report_is_a_table_and_a_chart() {
    let output = bench("compare --runs 1 --cases echo --systems tokio,tarpc --seconds 0 --json");
    let file = std::env::temp_dir().join(format!("tp-bench-report-{}", std::process::id()));
    let (svg, readme) = (file.with_extension("svg"), file.with_extension("md"));
    std::fs::write(&file, output.stdout).expect("a file");
    let marked = "a\n<!-- tp-bench report -->\nold\n<!-- end -->\nb\n";
    std::fs::write(&readme, marked).expect("a file");
    let (from, to) = (file.display(), svg.display());
    let table = stdout(&format!(
        "report {from} --svg {to} --readme {}",
        readme.display()
    ));
    assert!(table.starts_with("| case "), "{table}");
    let read = std::fs::read_to_string(&readme).expect("a file");
    let figures = "a\n<!-- tp-bench report -->\n| | tokio | tarpc |\n|---|---:|---:|\n| echo, ";
    assert!(read.starts_with(figures) && !read.contains("old"), "{read}");
    let chart = std::fs::read_to_string(&svg).expect("a chart");
    assert!(
        chart.starts_with("<svg") && chart.matches("<rect").count() > 2,
        "{chart}"
    );
    for path in [file, svg, readme] {
        std::fs::remove_file(path).expect("it is there");
    }
}

#[test]
fn limits_are_a_line_each() {
    let rows = rows("limits --size 4KiB,1MiB --seconds 0.01 --json");
    let expected = "spin cache line,spin ring,spin unix,spin tcp,sleep eventfd,sleep unix,sleep tcp,memcpy memory,memcpy memory,\
        carry ring,carry ring,carry unix,carry unix,carry tcp,carry tcp";
    assert_eq!(cells(&rows, "limit over").join(","), expected);
    for row in &rows {
        assert!(number(row, "us") > 0.0, "{row}");
        assert_eq!(row["bytes"].is_null(), row["gbps"].is_null(), "{row}");
    }
}

#[test]
fn batches_are_measured_beside_single_calls() {
    for transport in ["tcp", "shm"] {
        let line = format!("batch --clients 1,16 --seconds 0.2 --json --transport {transport}");
        let rows = rows(&line);
        let expected = ["single 1", "batched 1", "single 16", "batched 16"];
        assert_eq!(cells(&rows, "method clients"), expected);
        for row in &rows {
            assert_eq!(row["transport"], *transport);
            assert!(number(row, "calls") >= number(row, "runs"), "{row}");
        }
        assert_eq!(number(&rows[2], "mean_batch"), 1.0, "{}", rows[2]);
        // By count, not by time.
        assert!(number(&rows[3], "mean_batch") > 2.0, "{}", rows[3]);
        assert!(rows[0]["ratio"].is_null() && number(&rows[3], "ratio") > 0.0);
    }
}

#[test]
fn callers_of_one_connection_are_tasks_or_what_the_runtime_blocks_on() {
    for runtime in ["current", "multi"] {
        let line = format!("callers --callers 1,2 --parked 0,3 --seconds 0.05 --runtime {runtime}");
        let rows = rows(&(line + " --size 4KiB --json"));
        let expected: Vec<_> = ["1 0", "1 3", "2 0", "2 3"]
            .iter()
            .flat_map(|row| ["task", "main"].map(|first| format!("{row} {first}")))
            .collect();
        assert_eq!(cells(&rows, "callers parked first"), expected);
        for row in &rows {
            assert!(number(row, "calls_per_s") > 0.0 && number(row, "p50_first_us") > 0.0);
        }
    }
}

#[test]
fn idle_servers_connections_and_chains_are_measured() {
    let idle = "idle --system tokio,pipe@shm+ring --connections 3 --seconds 0.3 --json";
    let idle = rows(idle);
    assert_eq!(
        cells(&idle, "name transport connections"),
        ["tokio tcp 3", "pipe@shm+ring shm 3"]
    );
    // Two rings, which its calls have filled.
    assert!(number(&idle[1], "shmem_kib") >= 64.0, "{}", idle[1]);
    assert_eq!(number(&idle[0], "shmem_kib"), 0.0);
    for row in idle {
        assert!(number(&row, "anon_kib") < 64.0 * 1024.0, "{row}");
        let percent = number(&row, "cpu_percent");
        // Few samples of a short time; `pipes::idle` holds the pipe to its promise.
        assert!((0.0..10.0).contains(&percent), "{percent} % for waiting");
    }
    let many = "connections --system rpc@shm,tokio@tcp --connections 1,3 --seconds 0.1 --json";
    let many = rows(many);
    let expected = ["rpc@shm 1", "tokio@tcp 1", "rpc@shm 3", "tokio@tcp 3"];
    assert_eq!(cells(&many, "system connections"), expected);
    for row in &many {
        assert!(number(row, "calls_per_second") > 1.0, "{row}");
        assert!(number(row, "open_us") > 1.0, "{row}");
    }
    let chain = rows("chain --calls 1,3 --seconds 0.05 --json");
    assert_eq!(
        cells(&chain, "transport calls"),
        ["shm 1", "shm 3", "tcp 1", "tcp 3"]
    );
    assert!(chain.iter().all(|row| number(row, "pipelined_us") > 0.0));
}

#[test]
fn every_command_that_has_a_choice_of_transports_has_tls() {
    for (line, cell) in [
        ("rpc --size 0", "transport"),
        ("chain --calls 2", "transport"),
        ("rendezvous --size 0 --in-flight 2", "over"),
    ] {
        let rows = rows(&format!("{line} --transport tls --seconds 0.05 --json"));
        assert!(!rows.is_empty(), "{line}");
        assert!(
            cells(&rows, cell).iter().all(|over| over == "tls"),
            "{line}"
        );
    }
}

#[test]
fn a_rendezvous_is_measured_in_one_process_and_between_two() {
    let output = bench("rendezvous --size 0,70KiB --in-flight 4 --seconds 0.05 --json");
    // The other process ended in good order.
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let rows = run::parsed(&output);
    let expected = ["in process", "shm"].map(|over| {
        let of = |case: &str, bytes| format!("{case} {over} {bytes}");
        [
            of("round", 0),
            of("round", 71680),
            of("stream", 0),
            of("stream", 71680),
        ]
    });
    assert_eq!(cells(&rows, "case over bytes"), expected.concat());
    for row in &rows {
        assert!(
            number(row, "n") >= 5.0 && number(row, "values_per_s") > 1.0,
            "{row}"
        );
        assert!(row["over"] != "in process" || row["copied"] == 0.0, "{row}");
    }
    let leased =
        "rendezvous --size 300KiB --transport shm --channel lease --alloc pool --in-flight 1";
    for row in run::rows(&format!("{leased} --seconds 0.05 --json")) {
        assert_eq!(
            (&row["channel"], number(&row, "copied")),
            (&"lease".into(), 0.0)
        );
    }
}

#[test]
fn a_server_ends_with_its_stdin() {
    let mut server = start("serve");
    let mut stdin = server.stdin.take().expect("piped");
    let plan = r#"{"system":"tokio","case":"echo","transport":"tcp","channel":null,"alloc":"heap","runtime":"current","bytes":8,"seconds":1.0,"cores":null}"#;
    writeln!(stdin, "{plan}").expect("it takes its plan");
    let mut greeting = String::new();
    let stdout = server.stdout.take().expect("piped");
    let read = BufReader::new(stdout).read_line(&mut greeting);
    read.expect("it greets");
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
    });
    let child = child.expect("a second process");
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

#[test]
fn every_target_is_measured_on_both_runtimes() {
    let rows = rows("targets --quick --json");
    assert_eq!(rows.len(), 31);
    for row in &rows {
        let name = row["row"].as_str().expect("a name");
        for runtime in ["current", "multi"] {
            let figures = &row[runtime];
            // An idle server may use nothing.
            assert!(number(figures, "ours") > 0.0 || name == "idle-cpu", "{row}");
            assert!(
                number(figures, "aim") > 0.0 && figures["met"].is_boolean(),
                "{row}"
            );
            let reads = ![
                "pipe-0",
                "echo",
                "in-flight",
                "echo-tcp",
                "echo-tls",
                "paced",
            ]
            .contains(&name);
            assert_eq!(
                figures["sum"].is_number(),
                reads && row["unit"] == "us",
                "{row}"
            );
            let is_leased = name.starts_with("lease") || name.ends_with("pool");
            for figure in ["hot", "after_pause"] {
                assert_eq!(figures[figure].is_number(), is_leased, "{figure} in {row}");
            }
        }
    }
    let text = stdout("targets --quick --rows lease-4KiB,echo");
    let table: Vec<_> = text.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(table.len(), 4, "{text}");
    for part in [
        "≤ metadata only + 0.50 µs",
        "| rpc echo, shm",
        "the figures mean nothing",
    ] {
        assert!(text.contains(part), "{part} is missing in\n{text}");
    }
}

/// By the command that METHOD.md names.
#[test]
fn the_readme_has_the_figures_of_the_run_that_is_kept() {
    let path = |name: &str| format!("{}/../{name}", env!("CARGO_MANIFEST_DIR"));
    let copy = |name: &str, extension: &str| {
        let file = std::env::temp_dir().join(format!("tp-bench-kept-{}", std::process::id()));
        let file = file.with_extension(extension);
        std::fs::copy(path(name), &file).expect("a copy");
        file
    };
    let (readme, svg) = (copy("README.md", "md"), copy("docs/figures.svg", "svg"));
    stdout(&format!(
        "report {} --readme {} --svg {}",
        path("benches/figures.jsonl"),
        readme.display(),
        svg.display()
    ));
    for (written, kept) in [(readme, "README.md"), (svg, "docs/figures.svg")] {
        let read = |path: &std::path::Path| std::fs::read_to_string(path).expect("a file");
        assert_eq!(read(&written), read(path(kept).as_ref()), "{kept}");
        std::fs::remove_file(written).expect("it is there");
    }
}
