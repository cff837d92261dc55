//! `parameter_server` from the outside: real processes, real signals.

mod by_hand;
mod run;

use std::time::{Duration, Instant};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::signal::Signal;

use crate::run::{Run, json, signal};

const PROGRAM: &str = env!("CARGO_BIN_EXE_parameter_server");

/// More steps than a test waits for.
const ENDLESS: &str = "100000000";

#[test]
fn one_command_trains_with_two_workers() {
    let mut run = Run::start(&["--json"]);
    let (status, output) = run.wait();
    assert!(status.success(), "{status}: {}", run.said());
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].starts_with("test accuracy 9"), "{}", lines[0]);
    let result = json(&output);
    let keys: Vec<&String> = result.as_object().unwrap().keys().collect();
    let wanted = [
        "accuracy",
        "bytes",
        "calls",
        "seconds",
        "steps",
        "transport",
        "workers",
    ];
    assert_eq!(keys, wanted);
    assert!(result["accuracy"].as_f64().unwrap() >= 0.95, "{result}");
    assert_eq!(
        (result["steps"].as_u64(), result["workers"].as_u64()),
        (Some(2000), Some(2))
    );
    // Each step is a pull and a push at least, each moving every parameter (38 kB).
    assert!(result["calls"].as_u64().unwrap() >= 4000, "{result}");
    assert!(
        result["bytes"].as_u64().unwrap() >= 4000 * 38_000,
        "{result}"
    );
    // Whichever is the fastest between processes, line and route name the same.
    let transport = result["transport"].as_str().unwrap();
    let shm = shared_memory();
    assert_eq!(transport, if shm.is_ok() { "shm" } else { "tcp" });
    let (line, route) = (
        format!(" over {transport}"),
        format!("transport {transport} ("),
    );
    assert!(
        lines[0].contains(&line) && lines[1].starts_with(&route),
        "{output}"
    );
    match shm {
        Ok(()) => {
            // What workers pull lies in the server's pool.
            assert!(output.contains("channel lease: cpu:0"), "{output}");
            assert!(lines[0].ends_with(" MB of them without a copy"), "{output}");
        }
        Err(reason) => println!("over tcp, and nothing is asked of leases: {reason}"),
    }
    assert!(output.contains(" cpu:0 <-> cpu:0"), "{output}");
    let shown = run.said();
    assert!(shown.contains("/2000, loss 0."), "no progress in: {shown}");
    assert!(shown.contains("worker 1 (process "), "{shown}");
    run.assert_no_child_is_left();
}

/// Its workers may come and go between two glances of the server.
#[test]
fn a_training_of_one_step_names_its_transport() {
    let mut run = Run::start(&["--steps", "1", "--json"]);
    let (status, output) = run.wait();
    assert!(status.success(), "{status}: {}", run.said());
    let result = json(&output);
    let transport = result["transport"].as_str();
    assert!(matches!(transport, Some("shm" | "tcp")), "{output}");
}

/// Whether processes of this machine have shared memory, or why not.
fn shared_memory() -> Result<(), String> {
    let memory = memfd_create("probe", MFdFlags::MFD_ALLOW_SEALING);
    memory
        .map(drop)
        .map_err(|errno| format!("memfd_create: {errno}"))
}

#[test]
fn a_killed_worker_does_not_stop_the_training() {
    let mut run = Run::start(&["--json", "--workers", "3", "--steps", "1500"]);
    let victim = run.process("worker 1");
    run.hear("loss");
    signal(victim, Signal::SIGKILL);
    let (status, output) = run.wait();
    let said = run.said();
    assert!(status.success(), "{status}: {said}");
    let notice = format!("worker 1 (process {victim}) ended (signal: 9 (SIGKILL))");
    assert!(said.contains(&notice), "{said}");
    let result = json(&output);
    assert_eq!(result["steps"], 1500);
    assert!(result["accuracy"].as_f64().unwrap() >= 0.95, "{result}");
    run.assert_no_child_is_left();
}

#[test]
fn a_hanging_worker_is_left_behind() {
    let mut run = Run::start(&["--json", "--steps", "800"]);
    let victim = run.process("worker 0");
    run.hear("loss");
    signal(victim, Signal::SIGSTOP);
    let (status, output) = run.wait();
    assert!(status.success(), "{status}: {}", run.said());
    assert_eq!(json(&output)["steps"], 800);
    run.assert_no_child_is_left();
}

#[test]
fn without_workers_a_training_cannot_go_on() {
    let mut run = Run::start(&["--workers", "1", "--steps", ENDLESS]);
    let victim = run.process("worker 0");
    run.hear("loss");
    signal(victim, Signal::SIGKILL);
    let (status, _) = run.wait();
    assert_eq!(status.code(), Some(1));
    assert!(
        run.said()
            .contains("error: no worker is left; the last, worker 0"),
        "{}",
        run.said()
    );
    run.assert_no_child_is_left();
}

#[test]
fn a_killed_server_is_reported_by_everyone_within_seconds() {
    let mut run = Run::start(&["--steps", ENDLESS]);
    let victim = run.process("server");
    run.hear("loss");
    let killed = Instant::now();
    signal(victim, Signal::SIGKILL);
    let (status, output) = run.wait();
    assert!(
        killed.elapsed() < Duration::from_secs(8),
        "{:?}",
        killed.elapsed()
    );
    let said = run.said();
    assert_eq!((status.code(), output.as_str()), (Some(1), ""), "{said}");
    for worker in ["worker 0", "worker 1"] {
        // One trains while the other may not have reached the server yet.
        let says = [
            "error: lost the server at tcp://",
            "error: cannot reach the server at tcp://",
            "no pipe to tcp://",
        ];
        let mut lines = said.lines().filter(|line| line.starts_with(worker));
        let is_said = |line: &str| says.iter().any(|says| line.contains(says));
        assert!(lines.any(is_said), "{said}");
    }
    let last = said.lines().last().unwrap();
    let wanted =
        format!("error: server (process {victim}) ended (signal: 9 (SIGKILL)); its parameters");
    assert!(last.starts_with(&wanted), "{said}");
    run.assert_no_child_is_left();
}

#[test]
fn ctrl_c_ends_everybody() {
    let mut run = Run::start(&["--steps", ENDLESS]);
    run.process("worker 1");
    run.hear("loss");
    signal(run.id(), Signal::SIGINT);
    let (status, _) = run.wait();
    assert_eq!(status.code(), Some(130), "{}", run.said());
    assert!(run.said().contains("interrupted"), "{}", run.said());
    run.assert_no_child_is_left();
}

#[test]
fn no_child_outlives_a_killed_launcher() {
    let mut run = Run::start(&["--steps", ENDLESS]);
    run.process("worker 1");
    run.hear("loss");
    signal(run.id(), Signal::SIGKILL);
    run.child.wait().unwrap();
    run.assert_no_child_is_left();
}

#[test]
fn bad_arguments_and_addresses_are_explained() {
    let said = [
        (&["--workers", "0"][..], 2, "1..=64"),
        (&["--connect", "tcp://a:1"], 2, "add --role worker"),
        (
            &["--role", "worker", "--connect", "tcp://a:1", "--json"],
            2,
            "cannot be used with",
        ),
        (
            &[
                "--role",
                "server",
                "--listen",
                "tcp://a:1",
                "--workers",
                "2",
            ],
            2,
            "cannot be used with",
        ),
        (&["--role", "worker"], 2, "--connect <URL>"),
        (
            &["--role", "server", "--listen", "nowhere"],
            1,
            "error: cannot listen on nowhere: ",
        ),
        (
            &["--listen", "tcp://256.0.0.1:1"],
            1,
            "server: error: cannot listen on tcp://256.0.0.1:1",
        ),
        (
            &["--role", "worker", "--connect", "nowhere"],
            1,
            "cannot reach the server at nowhere",
        ),
    ];
    for (arguments, code, words) in said {
        let mut run = Run::start(arguments);
        let (status, _) = run.wait();
        let said = run.said();
        assert_eq!(status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
    }
}
