//! The rows, and how one is judged.

use std::collections::BTreeSet;
use std::time::Duration;

use tensorpipe_tests::{
    Child, End, Judged, NOBODY, can_start_by, is_sanitized, judge, judge_at_once, tidy,
};

use super::faults::{CALLS, Call};
use super::group::{Group, INSIDE};
use super::scene::PARTS;

/// A row is over by then, if nothing hangs.
const BOUND: Duration = Duration::from_secs(120);

pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) fault: String,
    /// Before the contexts are made (`start`), once all pipes are open (`open`), then until they rest (`idle`), or before they are opened
    /// again (`again`).
    pub(crate) when: &'static str,
    pub(crate) by: &'static [&'static str],
    pub(crate) group: Option<Group>,
    /// Parts that may fail, and the words of which their errors must have one: what to do.
    pub(crate) fails: &'static [&'static str],
    pub(crate) says: Vec<&'static str>,
    /// In seconds, where nobody will answer.
    pub(crate) handshake: Option<&'static str>,
}

/// For a child under a sanitizer: it does not look for leaks, for which it needs calls that are denied.
fn without_leaks() -> Option<String> {
    let options = std::env::var("ASAN_OPTIONS").unwrap_or_default();
    is_sanitized().then(|| format!("{options}:detect_leaks=0"))
}

/// What a sanitizer cannot do without, either: room, what gives it back, and what tells it where its threads' stacks are.
fn is_of_the_sanitizer(row: &Row) -> bool {
    let has_no_room = row.group.is_some() || row.fault == "limit AS 16777216";
    let calls = ["deny munmap", "deny sched_getaffinity"];
    has_no_room || calls.iter().any(|call| row.fault.starts_with(call))
}

/// The standard library aborts if a new thread has a stack, and no room is left for its signal stack. That is rare: some 16 KiB beside a
/// stack of 2 MiB. The scene is then played once more, twice at most.
const NO_SIGNAL_STACK: &str = "failed to allocate an alternative stack";

/// What became of a child that played the scene.
pub(crate) fn run(row: &Row) -> Judged {
    if is_sanitized() && is_of_the_sanitizer(row) {
        return Judged {
            outcome: "skipped: a sanitizer fails first".to_owned(),
            wrong: None,
        };
    }
    let mut variables = vec![("TEST_FAULT", &*row.fault), ("TEST_WHEN", row.when)];
    let without_leaks = without_leaks();
    variables.extend(
        without_leaks
            .as_deref()
            .map(|options| ("ASAN_OPTIONS", options)),
    );
    let group = row.group.as_ref().map(Group::variable);
    variables.extend(group.as_ref().map(|(key, path)| (*key, &**path)));
    variables.extend(row.handshake.map(|seconds| ("TEST_HANDSHAKE", seconds)));
    let mut child = Child::start_by(row.by, "scene", &variables);
    let (mut said, mut end) = child.until_end(BOUND);
    for _ in 0..2 {
        if !child.complaints().contains(NO_SIGNAL_STACK) {
            break;
        }
        child = Child::start_by(row.by, "scene", &variables);
        (said, end) = child.until_end(BOUND);
    }
    let mut wrong = Vec::new();
    if end != End::Code(0) {
        wrong.push(format!("it ended by {end:?}"));
    }
    if child.complaints().contains("panicked") {
        wrong.push("something panicked".to_owned());
    }
    if row.fault.starts_with("deny ") {
        let denied = said.iter().find(|(key, _)| key == "counted");
        if denied.is_none_or(|(_, times)| times == "0") {
            wrong.push("the call was never made".to_owned());
        }
    }
    let mut failed: Vec<(String, Vec<&str>)> = Vec::new();
    let mut worked = 0;
    for part in PARTS {
        let outcome = said.iter().find(|(key, _)| key == part);
        match outcome.map_or("says nothing", |(_, outcome)| outcome) {
            "works" => worked += 1,
            words => {
                let says = row.says.iter().any(|says| words.contains(says));
                if !says || !row.fails.contains(&part) {
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

/// One in which all works.
pub(crate) fn row(fault: &str, when: &'static str) -> Row {
    let phase = match when {
        "open" => "pipes are open",
        "idle" => "pipes rest",
        "again" => "pipes are opened again",
        _ => "from the start",
    };
    Row {
        name: format!("{fault}, {phase}"),
        fault: fault.to_owned(),
        when,
        by: &[],
        group: None,
        fails: &[],
        says: Vec::new(),
        handshake: None,
    }
}

#[test]
fn without_a_fault_all_of_it_works() {
    play(
        "No fault",
        &[row("nothing", "start"), row("nothing", "open")],
    );
}

/// So that what works is what a part is about.
#[test]
fn each_part_moves_tensors_by_what_it_is_named_for() {
    let variables = [("TEST_FAULT", "nothing"), ("TEST_WHEN", "start")];
    let mut child = Child::start("scene", &variables);
    let (said, end) = child.until_end(BOUND);
    assert_eq!(end, End::Code(0), "{}", child.complaints());
    for (part, means) in [
        ("shm-by", "shm"),
        ("lease-by", "shm, borrowed, copied"),
        ("cma-by", "shm, copied"),
        ("tcp-by", "tcp"),
        ("call-by", "shm, borrowed, copied"),
    ] {
        let said = said.iter().find(|(key, _)| key == part);
        assert_eq!(said.map(|(_, means)| &**means), Some(means), "{part}");
    }
}

/// Where nothing listens any more: seconds after which a connector gives up.
const NOBODY_ANSWERS: Option<&str> = Some("1");

#[test]
fn limits_of_a_process() {
    const SHM: &[&str] = &["shm"];
    const FEW: &[&str] = &["ulimit -n", "process is gone", "Timeouts::handshake"];
    let mut rows = Vec::new();
    for when in ["start", "open"] {
        let limit = |fault: &str| row(&format!("limit {fault}"), when);
        let some_fail = |fault: &str, fails, says: &[&'static str]| Row {
            fails: if when == "start" { fails } else { &[] },
            says: says.to_vec(),
            ..limit(fault)
        };
        rows.extend([
            some_fail("FSIZE 0", SHM, &["ulimit -f"]),
            some_fail("FSIZE 100000", SHM, &["ulimit -f"]),
            limit("MEMLOCK 0"),
            Row {
                handshake: NOBODY_ANSWERS,
                ..some_fail("NOFILE 0", &PARTS, &["ulimit -n", "Timeouts::handshake"])
            },
            // A listener cannot accept once the connector has taken the last: it says so in its log.
            Row {
                handshake: NOBODY_ANSWERS,
                ..some_fail("NOFILE 3", &PARTS, FEW)
            },
            Row {
                handshake: NOBODY_ANSWERS,
                ..some_fail("NOFILE 8", &PARTS, FEW)
            },
            limit("NOFILE 32"),
            // How much of it the allocator has already is not known.
            Row {
                fails: &PARTS,
                says: vec!["free some memory"],
                ..limit("AS 16777216")
            },
            limit("AS 268435456"),
        ]);
        // Root may have as many as it likes.
        if can_start_by(&NOBODY) {
            rows.push(Row {
                by: &NOBODY,
                ..limit("NPROC 0")
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
    let mut rows = Vec::new();
    for when in ["start", "open"] {
        if can_start_by(FULL) {
            rows.push(Row {
                by: FULL,
                name: format!("a full /dev/shm ({when})"),
                ..row("nothing", when)
            });
        }
        match Group::new(1, when) {
            Ok(group) => rows.push(Row {
                by: INSIDE,
                group: Some(group),
                name: format!("a control group of 96 MiB ({when})"),
                ..row("nothing", when)
            }),
            Err(error) => println!("skipped: no control group for memory: {error}"),
        }
    }
    play("Little room", &rows);
}

#[test]
fn system_calls_that_a_filter_denies() {
    let mut rows = Vec::new();
    for call in CALLS {
        let whens = match call.when_idle {
            true => vec![("idle", Some(call.start))],
            false => vec![("start", Some(call.start)), ("open", call.open)],
        };
        for errno in ["EPERM", "ENOSYS"] {
            for &(when, fails) in &whens {
                let Some(fails) = fails else { continue };
                rows.push(Row {
                    fails,
                    says: words(call, errno),
                    handshake: call.seen_as.contains(&"Timeouts::handshake").then_some("1"),
                    ..row(&format!("deny {} {errno}", call.name), when)
                });
            }
        }
    }
    // Without a random number there is no token, no export and no side address. What needs none goes on.
    for errno in ["EPERM", "ENOSYS"] {
        rows.push(row(&format!("deny getrandom {errno}"), "again"));
    }
    // Two rest for long, so that they come first. Some wait for a thread that was denied what it wakes by.
    rows.sort_by_key(|row| row.when != "idle");
    let section = "System calls that are denied (seccomp)";
    judge_at_once(6, section, &rows, |row| row.name.clone(), run);
}

#[test]
fn without_random_numbers_a_token_is_an_error_that_says_what_to_do() {
    let variables = [
        ("TEST_FAULT", "deny getrandom EPERM"),
        ("TEST_WHEN", "again"),
    ];
    let said = Child::start("scene", &variables).hear("token");
    let (call, advice) = ("getrandom: ", "denies it: allow it");
    assert!(said.starts_with(call) && said.ends_with(advice), "{said}");
}

/// What is said where it is denied: what to do, or what its peer sees.
fn words(call: &Call, errno: &str) -> Vec<&'static str> {
    let own = match (call.name, errno) {
        ("memfd_create", _) => "or use `tcp`",
        (_, "EPERM") => "denies it: allow it",
        _ => "hides it: allow it",
    };
    [&[own], call.seen_as].concat()
}

/// And [`CALLS`] says of each when it is made: a row in which nobody makes it fails. A call that has no rows is named by its number.
#[test]
fn each_call_that_the_scene_makes_has_its_rows() {
    for when in ["start", "open"] {
        let mut variables = vec![("TEST_FAULT", "count"), ("TEST_WHEN", when)];
        let without_leaks = without_leaks();
        variables.extend(
            without_leaks
                .as_deref()
                .map(|options| ("ASAN_OPTIONS", options)),
        );
        let mut child = Child::start("scene", &variables);
        let (said, end) = child.until_end(BOUND);
        assert_eq!(end, End::Code(0), "{}", child.complaints());
        let made = said.iter().filter(|(key, _)| key == "counted");
        let unusual = CALLS.iter().filter(|call| !call.is_usual());
        let unusual: BTreeSet<_> = unusual.map(|call| call.name).collect();
        // Those that only another kernel has us make are no finding, nor are a sanitizer's own.
        let made = made
            .map(|(_, name)| &**name)
            .filter(|name| !unusual.contains(name))
            .filter(|name| !(is_sanitized() && name.starts_with("system call ")));
        let made: BTreeSet<_> = made.collect();
        let is_known = |call: &&Call| when == "start" || call.open.is_some();
        let known = CALLS.iter().filter(|call| call.is_usual()).filter(is_known);
        let known: BTreeSet<_> = known.map(|call| call.name).collect();
        assert_eq!(made, known, "{when}");
    }
}
