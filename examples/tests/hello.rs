//! `hello`, the first thing that a newcomer reads and runs.

use std::process::Command;

const PROGRAM: &str = include_str!("../src/bin/hello.rs");
const README: &str = include_str!("../../README.md");

#[test]
fn it_prints_what_the_server_returned_and_the_route() {
    let ran = Command::new(env!("CARGO_BIN_EXE_hello")).output().unwrap();
    let (said, errors) = (
        String::from_utf8_lossy(&ran.stdout),
        String::from_utf8_lossy(&ran.stderr),
    );
    assert!(ran.status.success() && errors.is_empty(), "{errors}");
    assert!(said.starts_with("[10.0, 20.0, 30.0]\ntransport "), "{said}");
}

#[test]
fn what_is_wrong_is_said_in_words() {
    let program = env!("CARGO_BIN_EXE_hello");
    let ran = Command::new(program).args(["serve", "nonsense"]).output();
    let ran = ran.unwrap();
    let errors = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(ran.status.code(), Some(1));
    assert!(
        errors.starts_with("Error: `nonsense` is not an address"),
        "{errors}"
    );
}

/// What the README shows is what was compiled and run here.
#[test]
fn it_is_the_first_service_of_the_readme() {
    let shown = README
        .split("```rust\n")
        .skip(1)
        .filter_map(|rest| rest.split_once("```"))
        .map(|(block, _)| block)
        .find(|block| block.contains("#[tensor_service]"))
        .expect("README.md shows no service; put examples/src/bin/hello.rs into a ```rust block");
    assert!(
        shown == PROGRAM,
        "the first service in README.md is not examples/src/bin/hello.rs; copy that there:\n{shown}"
    );
}
