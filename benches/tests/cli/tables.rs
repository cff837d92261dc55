//! What is printed: tables, comparisons, limits, idle servers.

use crate::run::{bench, number, rows, text};

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
        let row = rows.iter().find(|row| row["name"] == system).expect(system);
        assert_eq!(row["against"], "tarpc@unix");
        assert_eq!(row["runs"], 2);
        assert!(number(row, "p50_best_us") <= number(row, "p50_worst_us"));
        number(row, "ratio")
    };
    assert_eq!(ratio("tarpc@unix"), 1.0);
    for system in ["rpc@shm", "rpc@tcp", "tokio@unix", "tokio@tcp", "tarpc@tcp"] {
        assert!(ratio(system) > 0.0, "{system}");
    }
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
fn calls_in_flight_are_compared_with_what_one_writes_by_hand() {
    let output = bench(
        "compare --cases pipeline --size 0,64 --runs 1 --seconds 0 --json \
         --systems rpc@shm,tokio@unix,tokio@tcp,tarpc@unix --against tokio@unix",
    );
    let rows = rows(&output);
    assert_eq!(rows.len(), 8);
    for row in &rows {
        assert_eq!(row["against"], "tokio@unix");
        // Whole rounds of calls.
        assert_eq!(number(row, "n") % 1024.0, 0.0, "{row}");
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
fn batches_are_measured_beside_single_calls() {
    for transport in ["tcp", "shm"] {
        let line = format!("batch --clients 1,16 --seconds 0.2 --json --transport {transport}");
        let rows = rows(&bench(&line));
        let found: Vec<_> = rows
            .iter()
            .map(|row| (text(row, "method"), number(row, "clients")))
            .collect();
        let expected = [1.0, 16.0]
            .map(|clients| ["single", "batched"].map(|method| (method.to_owned(), clients)));
        assert_eq!(found, expected.concat());
        for row in &rows {
            assert_eq!(row["transport"], *transport);
            assert!(number(row, "calls") >= number(row, "runs"), "{row}");
        }
        assert_eq!(number(&rows[2], "mean_batch"), 1.0, "{}", rows[2]);
        // By count, not by time.
        assert!(number(&rows[3], "mean_batch") > 2.0, "{}", rows[3]);
        assert!(rows[0]["ratio"].is_null() && number(&rows[3], "ratio") > 0.0);
    }
    let table = String::from_utf8(bench("batch --clients 2 --seconds 0.05").stdout).expect("UTF-8");
    for part in ["mean batch", "batched", "single", "×"] {
        assert!(table.contains(part), "{part} is missing in\n{table}");
    }
}

#[test]
fn an_idle_server_is_measured() {
    let output = bench("idle --system tokio,pipe@shm+ring --connections 3 --seconds 0.3 --json");
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
