//! `pipeline_parallel` as a person runs it: two processes, an accuracy at the end, and what is said when one of them dies.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// On a loaded machine, a training takes some seconds.
const BOUND: Duration = Duration::from_secs(100);

fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_pipeline_parallel"))
        .args(arguments)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Waits until it has ended; it is killed if it does not.
fn ended(child: &mut Child) -> bool {
    let until = Instant::now() + BOUND;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

#[test]
fn two_processes_learn_the_digits_with_micro_batches_in_flight() {
    let mut run = start(&["--steps", "300", "--json"]);
    assert!(ended(&mut run), "it hangs");
    let output = run.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("step 300/300"), "{errors}");
    let said = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert!(report["accuracy"].as_f64() > Some(0.9), "{report}");
    assert!(report["in_flight"].as_u64() > Some(1), "{report}");
    assert_eq!(report["transport"], "shm");
}

#[test]
fn a_back_that_dies_is_an_error_and_nobody_is_left() {
    let mut run = start(&["--steps", "1000000"]);
    let mut errors = BufReader::new(run.stderr.take().unwrap()).lines();
    let mut until_said = |words: &str| {
        let said = errors.by_ref().map_while(Result::ok);
        let mut seen = String::new();
        for line in said {
            if line.contains(words) {
                return line;
            }
            seen += &line;
        }
        panic!("it ended without `{words}`: {seen}");
    };
    let line = until_said("back (process ");
    let (_, rest) = line.split_once("(process ").unwrap();
    let back: i32 = rest.split_once(')').unwrap().0.parse().unwrap();
    until_said("step ");
    kill(Pid::from_raw(back), Signal::SIGKILL).unwrap();
    let error = until_said("error: ");
    // Its end, or that of the connection, whichever is seen first.
    assert!(error.contains("back"), "{error}");
    assert!(ended(&mut run), "it hangs");
    assert_eq!(run.wait().unwrap().code(), Some(1));
}

#[test]
fn a_front_that_dies_takes_its_back_along() {
    let mut run = start(&["--steps", "1000000"]);
    let mut errors = BufReader::new(run.stderr.take().unwrap()).lines();
    let line = errors.find(|line| line.as_ref().is_ok_and(|line| line.contains("(process ")));
    let line = line.unwrap().unwrap();
    let (_, rest) = line.split_once("(process ").unwrap();
    let back = format!("/proc/{}", rest.split_once(')').unwrap().0);
    run.kill().unwrap();
    run.wait().unwrap();
    let until = Instant::now() + BOUND;
    // Gone, or a zombie that only waits to be reaped by whoever adopted it.
    let lives = || {
        let stat = std::fs::read_to_string(format!("{back}/stat")).unwrap_or_default();
        let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
        !state.is_empty() && !state.starts_with('Z')
    };
    while lives() {
        assert!(Instant::now() < until, "the back goes on alone");
        std::thread::sleep(Duration::from_millis(10));
    }
}
