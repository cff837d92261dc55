//! The program as a person uses it.

use std::io::{BufRead as _, BufReader, Write as _, stderr};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tensorpipe_inference::tiny;

fn inference(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_inference"))
        .args(arguments)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn output(arguments: &[&str]) -> String {
    let output = inference(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    String::from_utf8(output.stdout).unwrap()
}

fn failure(arguments: &[&str]) -> (Option<i32>, String) {
    let output = inference(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), errors)
}

#[test]
fn a_tiny_model_is_made_and_used() {
    let room = tempfile::tempdir().unwrap();
    let directory = room.path().join("tiny");
    let directory = directory.to_str().unwrap();
    let said = output(&["tiny", directory]);
    assert_eq!(said, format!("a tiny model is in {directory}\n"));
    // The nearest pair differs only in case and spaces, which the tokenizer ignores.
    let nearest = ["nearest", "--model", directory, "--pairs", "1"];
    let said = output(&[&nearest[..], &["One two.", "three", "ONE  two."]].concat());
    assert_eq!(said, "1.000  One two.\n       ONE  two.\n");
    let said = output(&nearest);
    assert_eq!(said.lines().count(), 2, "{said}");
    let embedded = output(&["embed", "--model", directory, "one", "two"]);
    let lines: Vec<Value> = embedded
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((lines.len(), &lines[1]["sentence"]), (2, &"two".into()));
    assert_eq!(
        lines[1]["embedding"].as_array().unwrap().len(),
        tiny::DIMENSION
    );
    let load = [
        "load",
        "--model",
        directory,
        "--clients",
        "4",
        "--calls",
        "40",
        "--json",
    ];
    let said = output(&load);
    assert!(said.contains("40 calls of 4 clients over "), "{said}");
    let report: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&report["calls"], &report["sentences"]),
        (&40.into(), &40.into())
    );
}

#[test]
fn whoever_waits_for_a_server_says_so() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut program = Command::new(env!("CARGO_BIN_EXE_inference"))
        .args(["embed", "--connect", &url, "a word"])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // If the program prints nothing, this read ends with the program, half a minute later.
    let mut lines = BufReader::new(program.stderr.take().unwrap()).lines();
    let said = lines.next().unwrap().unwrap();
    program.kill().unwrap();
    program.wait().unwrap();
    let words = format!("no pipe to {url} yet (");
    assert!(said.contains(&words), "{said}");
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let room = tempfile::tempdir().unwrap();
    let directory = room.path().to_str().unwrap();
    let (code, said) = failure(&["serve", directory]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("config.json is not there; a model is a directory with"),
        "{said}"
    );
    // If a client started the server, both print an error.
    let (code, said) = failure(&["nearest", "--model", directory]);
    assert_eq!(code, Some(1));
    assert!(said.contains("config.json is not there"), "{said}");
    assert!(
        said.contains("error: the server ended before it was ready"),
        "{said}"
    );
    tiny::write(room.path()).unwrap();
    let (code, said) = failure(&["check", "--model", directory]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("this model 32; compare all-MiniLM-L6-v2"),
        "{said}"
    );
    let (code, said) = failure(&["serve", directory, "--listen", "nonsense"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("cannot listen on nonsense"), "{said}");
    let (code, _) = failure(&["nearest"]);
    assert_eq!(code, Some(2));
}

/// `INFERENCE_MODEL=DIR cargo test -p tensorpipe-inference` runs it, with the directory that `inference fetch DIR` made.
#[test]
fn the_real_model_agrees_with_sentence_transformers() {
    let Some(directory) = std::env::var_os("INFERENCE_MODEL") else {
        // Written directly: the test harness captures what a test prints.
        let _ = writeln!(
            stderr(),
            "not compared with the real model: INFERENCE_MODEL names no directory with it"
        );
        return;
    };
    // Tests run in the package's directory, but a person gives a path relative to the repository.
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(directory);
    let said = output(&["check", "--model", directory.to_str().unwrap()]);
    assert!(
        said.contains(" sentences together: cosine distance "),
        "{said}"
    );
    print!("{said}");
}
