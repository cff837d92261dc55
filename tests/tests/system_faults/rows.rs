//! The rows, and how one is judged.

use std::time::Duration;

use tensorpipe_tests::{Child, End, Judged, NOBODY, can_start_by, judge, tidy};

use super::faults::CALLS;
use super::scene::PARTS;

/// A row is over by then.
const BOUND: Duration = Duration::from_secs(30);

struct Row {
    name: String,
    fault: String,
    /// Before the contexts are made, or once all pipes are open.
    when: &'static str,
    by: &'static [&'static str],
    /// Parts that must work.
    works: &'static [&'static str],
}

/// Words of which an error that says what to do has one.
const ADVICE: [&str; 13] = [
    // There is nothing to do about a peer that has ended, but to know it.
    "process is gone",
    "allow it",
    "raise",
    "ulimit",
    "use `tcp`",
    "seccomp",
    "sandbox",
    "choose another",
    "free some",
    "give it",
    "try again",
    "Limits::",
    "Timeouts::",
];

/// What became of a child that played the scene.
fn run(row: &Row) -> Judged {
    let variables = [("TEST_FAULT", &*row.fault), ("TEST_WHEN", row.when)];
    let mut child = Child::start_by(row.by, "scene", &variables);
    let (said, end) = child.until_end(BOUND);
    let mut wrong = Vec::new();
    if end != End::Code(0) {
        wrong.push(format!("it ended by {end:?}"));
    }
    if child.complaints().contains("panicked") {
        wrong.push("something panicked".to_owned());
    }
    let mut failed: Vec<(String, Vec<&str>)> = Vec::new();
    let mut worked = 0;
    for part in PARTS {
        let outcome = said.iter().find(|(key, _)| key == part);
        match outcome.map_or("says nothing", |(_, outcome)| outcome) {
            "works" => worked += 1,
            words => {
                let is_advice = ADVICE.iter().any(|advice| words.contains(advice));
                if !is_advice || row.works.contains(&part) {
                    wrong.push(format!("{part}: {words}"));
                }
                let words = tidy(words);
                match failed.iter_mut().find(|(known, _)| *known == words) {
                    Some((_, parts)) => parts.push(part),
                    None => failed.push((words, vec![part])),
                }
            }
        }
    }
    let failures = failed
        .iter()
        .map(|(words, parts)| format!("{}: {words}", parts.join(", ")));
    let outcome = match (worked, failures.collect::<Vec<_>>().join("; ")) {
        (_, none) if none.is_empty() => "works".to_owned(),
        (0, failures) => failures,
        (_, failures) => format!("{failures}; the others work"),
    };
    if !wrong.is_empty() {
        let complaints = child.complaints();
        let tail: String = complaints
            .lines()
            .filter(|line| !line.is_empty())
            .take(6)
            .collect::<Vec<_>>()
            .join(" / ");
        wrong.push(format!("[{tail}]"));
    }
    Judged {
        outcome,
        wrong: (!wrong.is_empty()).then(|| wrong.join("; ")),
    }
}

fn play(section: &str, rows: &[Row]) {
    judge(section, rows, |row| row.name.clone(), run);
}

fn row(fault: &str, when: &'static str, works: &'static [&'static str]) -> Row {
    Row {
        name: format!(
            "{fault}, {}",
            if when == "open" {
                "pipes are open"
            } else {
                "from the start"
            }
        ),
        fault: fault.to_owned(),
        when,
        by: &[],
        works,
    }
}

#[test]
fn without_a_fault_all_of_it_works() {
    play(
        "No fault",
        &[
            row("nothing", "start", &PARTS),
            row("nothing", "open", &PARTS),
        ],
    );
}

#[test]
fn limits_of_a_process() {
    let sockets = &["tcp", "call"][..];
    let mut rows = Vec::new();
    for when in ["start", "open"] {
        for (fault, works) in [
            ("limit FSIZE 0", sockets),
            ("limit FSIZE 100000", sockets),
            ("limit MEMLOCK 0", &PARTS[..]),
            ("limit NOFILE 0", &[][..]),
            ("limit NOFILE 3", &[][..]),
            ("limit NOFILE 8", &[][..]),
            ("limit NOFILE 16", &[][..]),
            ("limit AS 16777216", &[][..]),
            ("limit AS 268435456", &[][..]),
        ] {
            rows.push(row(fault, when, works));
        }
        // Root may have as many as it likes.
        if can_start_by(&NOBODY) {
            rows.push(Row {
                by: &NOBODY,
                ..row("limit NPROC 0", when, &["shm", "tcp"])
            });
        }
    }
    play("Limits (setrlimit)", &rows);
}

/// In a mount namespace of its own, with little room in `/dev/shm`, all of it taken; and in a control group with little memory.
#[test]
fn a_machine_with_little_room() {
    const FULL: &[&str] = &[
        "unshare",
        "--mount",
        "sh",
        "-c",
        "mount -t tmpfs -o size=64k full /dev/shm && head -c 65536 /dev/zero > /dev/shm/full && exec \"$@\"",
        "sh",
    ];
    const GROUP: &str = "/sys/fs/cgroup/memory/tensorpipe-faults";
    const INSIDE: &[&str] = &[
        "sh",
        "-c",
        "echo $$ > /sys/fs/cgroup/memory/tensorpipe-faults/cgroup.procs && exec \"$@\"",
        "sh",
    ];
    let mut rows = Vec::new();
    let is_limited = std::fs::create_dir(GROUP)
        .and_then(|()| std::fs::write(format!("{GROUP}/memory.limit_in_bytes"), "96M"));
    if let Err(error) = &is_limited {
        println!("skipped: no control group for memory: {error}");
    }
    for when in ["start", "open"] {
        if can_start_by(FULL) {
            rows.push(Row {
                by: FULL,
                name: format!("a full /dev/shm ({when})"),
                ..row("nothing", when, &PARTS)
            });
        }
        if is_limited.is_ok() && can_start_by(INSIDE) {
            rows.push(Row {
                by: INSIDE,
                name: format!("a control group of 96 MiB ({when})"),
                ..row("nothing", when, &PARTS)
            });
        }
    }
    play("Little room", &rows);
    let _ = std::fs::remove_dir(GROUP);
}

#[test]
fn system_calls_that_a_filter_denies() {
    // Without these there are no sockets, and without others no shared memory by name.
    const OF_SOCKETS: [&str; 13] = [
        "epoll_ctl",
        "getsockopt",
        "setsockopt",
        "socket(AF_INET)",
        "bind",
        "listen",
        "connect",
        "accept4",
        "getsockname",
        "getpeername",
        "sendto",
        "recvfrom",
        "writev",
    ];
    let mut rows = Vec::new();
    for call in CALLS {
        let works = match OF_SOCKETS.contains(&call.name) {
            true => &[][..],
            false => &["lease", "cma", "tcp", "call"],
        };
        for errno in ["EPERM", "ENOSYS"] {
            // A system without random numbers gives no pipe; which it is, is looked up once.
            let late = if call.name == "getrandom" {
                &[][..]
            } else {
                &["open"][..]
            };
            for when in ["start"].iter().chain(late) {
                rows.push(row(&format!("deny {} {errno}", call.name), when, works));
            }
        }
    }
    play("System calls that are denied (seccomp)", &rows);
}
