//! Channels that are asked for, several connections, sockets that are paced, and rounds that begin awake.

use crate::run::{bench, number, rows, run, text};

#[test]
fn channels_that_are_asked_for_carry_the_tensor() {
    let lines = [
        ("pipe --channel mpt --lanes 2", "tcp", "mpt"),
        ("pipe --channel mpt --transport shm", "shm", "mpt"),
        (
            "rpc --case echo,upload,download --channel mpt",
            "tcp",
            "mpt",
        ),
        // The copying path, whose channel is `basic`.
        ("pipe --channel ring --transport shm", "shm", "basic"),
        // A server that has something else to do.
        (
            "pipe --channel ring --transport shm --busy-us 100",
            "shm",
            "basic",
        ),
        (
            "rpc --case upload --channel ring --transport shm",
            "shm",
            "basic",
        ),
        (
            "pipe --channel lease --transport shm --alloc pool",
            "shm",
            "lease",
        ),
    ];
    for (line, transport, channel) in lines {
        let rows = rows(&bench(&format!("{line} --size 5MiB --seconds 0 --json")));
        assert!(!rows.is_empty());
        for row in rows {
            let carried = (text(&row, "transport"), text(&row, "channel"));
            assert_eq!(
                carried,
                (transport.to_owned(), channel.to_owned()),
                "{line}"
            );
            assert!(number(&row, "n") >= 5.0, "{row}");
        }
    }
}

#[test]
fn as_many_connections_as_asked_for_are_compared_side_by_side() {
    let output = bench(
        "compare --cases upload --size 4MiB --runs 1 --seconds 0 --json --pace 500MiB \
         --systems rpc@tcp+mpt/1,rpc@tcp+mpt/2,rpc@tcp --against rpc@tcp",
    );
    let rows = rows(&output);
    let found: Vec<_> = rows
        .iter()
        .map(|row| [text(row, "name"), text(row, "channel")].join(" "))
        .collect();
    let expected = ["rpc@tcp+mpt/1 mpt", "rpc@tcp+mpt/2 mpt", "rpc@tcp basic"];
    assert_eq!(found, expected);
    for row in &rows {
        assert_eq!(row["against"], "rpc@tcp");
    }
}

#[test]
fn a_paced_socket_carries_no_more_than_it_may() {
    let output = bench("rpc --case upload --size 4MiB --pace 40MiB --seconds 0 --json");
    let row = &rows(&output)[0];
    // A tenth of a second for 4 MiB; what the socket lets through before it paces is a small part of it.
    assert!(number(row, "p50_us") > 50_000.0, "{row}");
}

#[test]
fn rounds_of_leased_tensors_begin_awake_unless_that_is_not_wanted() {
    let leased = "--transport shm --channel lease --alloc pool --size 1MiB --seconds 0 --json";
    for (line, expected) in [
        (format!("pipe {leased}"), true),
        (format!("rpc --case upload,download {leased}"), true),
        (format!("pipe {leased} --warm hot"), true),
        (
            format!("rpc --case upload,download {leased} --warm hot"),
            true,
        ),
        (format!("pipe {leased} --warm never"), false),
        (format!("rpc --case paced {leased} --warm always"), false),
        ("pipe --size 0 --seconds 0 --json".to_owned(), false),
        (
            "pipe --size 0 --seconds 0 --json --warm always".to_owned(),
            true,
        ),
    ] {
        for row in rows(&bench(&line)) {
            assert_eq!(row["warm"], expected, "{line}");
        }
    }
    let output = bench(&format!("pipe {leased}").replace("--json", ""));
    let table = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(table.contains("begin with both ends awake"), "{table}");
}

#[test]
fn what_cannot_be_paced_or_is_no_ring_is_said_and_fails() {
    let cases = [
        ("pipe --channel ring", "choose --transport shm"),
        ("pipe --transport shm --pace 1MiB", "shm cannot be paced"),
        (
            "baseline --system tokio --pace 1MiB",
            "`tokio` cannot be paced",
        ),
        ("compare --systems rpc@tcp+mpt/x", "`x` lanes"),
        (
            "compare --systems rpc@tcp+mpt/99",
            "channel mpt with 99 connections",
        ),
    ];
    for (arguments, expected) in cases {
        let output = run(&format!("{arguments} --seconds 0"));
        assert!(!output.status.success(), "{arguments}");
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(expected), "{arguments}: {error}");
    }
}
