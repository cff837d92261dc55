//! `pipeline_parallel` as a person runs it: two processes, an accuracy at the end, and what is said when one of them dies.

#[allow(dead_code, reason = "the other example uses all of it")]
#[path = "parameter_server/run.rs"]
mod run;

use nix::sys::signal::Signal;

use crate::run::{Run, json, signal};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pipeline_parallel");

#[test]
fn two_processes_learn_the_digits_with_micro_batches_in_flight() {
    let mut run = Run::start(&["--steps", "300", "--json"]);
    let (status, output) = run.wait();
    assert!(status.success(), "{status}: {}", run.said());
    run.hear("step 300/300");
    let report = json(&output);
    assert!(report["accuracy"].as_f64() > Some(0.9), "{report}");
    assert!(report["in_flight"].as_u64() > Some(1), "{report}");
    assert_eq!(report["transport"], "shm");
}

#[test]
fn a_back_that_dies_is_an_error_and_nobody_is_left() {
    let mut run = Run::start(&["--steps", "1000000"]);
    let back = run.process("back");
    run.hear("step ");
    signal(back, Signal::SIGKILL);
    let (status, _) = run.wait();
    assert_eq!(status.code(), Some(1));
    // Its end, or that of the connection, whichever is seen first.
    let error = run.hear("error: ");
    assert!(error.contains("back"), "{error}");
    run.assert_no_child_is_left();
}

#[test]
fn a_front_that_dies_takes_its_back_along() {
    let mut run = Run::start(&["--steps", "1000000"]);
    run.process("back");
    signal(run.id(), Signal::SIGKILL);
    run.wait();
    run.assert_no_child_is_left();
}
