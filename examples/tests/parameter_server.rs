//! `parameter_server` from the outside: real processes, real signals.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// No test waits longer for anything; on a loaded machine, a training takes some seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// More steps than a test waits for.
const ENDLESS: &str = "100000000";

#[test]
fn one_command_trains_with_two_workers() {
    let mut run = Run::start(&["--json"]);
    let (status, output) = run.wait();
    assert!(status.success(), "{status}: {}", run.said());
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].starts_with("test accuracy 9"), "{}", lines[0]);
    assert!(lines[0].contains(" over tcp"), "{}", lines[0]);
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
    assert_eq!(result["transport"], "tcp");
    let shown = run.said();
    assert!(shown.contains("/2000, loss 0."), "no progress in: {shown}");
    assert!(shown.contains("worker 1 (process "), "{shown}");
    run.assert_no_child_is_left();
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
        run.said().contains("error: no worker is left at step"),
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
        assert!(
            said.contains(&format!("{worker}: error: lost the server at tcp://")),
            "{said}"
        );
    }
    let last = said.lines().last().unwrap();
    let wanted = format!("error: server (process {victim}) ended (signal: 9 (SIGKILL)) at step ");
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
fn roles_by_hand_train_too() {
    let listen = [
        "--role",
        "server",
        "--listen",
        "tcp://127.0.0.1:0",
        "--steps",
        "600",
        "--json",
    ];
    let mut server = Run::start(&listen);
    let url = server
        .output_line()
        .strip_prefix("listening on ")
        .unwrap()
        .to_owned();
    let connect = ["--role", "worker", "--connect", &url];
    let mut short = Run::start(&[&connect[..], &["--steps", "50"]].concat());
    let mut other = Run::start(&connect);
    for (worker, words) in [
        (&mut short, "done, after 50 steps"),
        (&mut other, "done, after 5"),
    ] {
        let (status, _) = worker.wait();
        assert!(status.success(), "{}", worker.said());
        assert!(worker.said().contains(words), "{}", worker.said());
    }
    let (status, output) = server.wait();
    assert!(status.success(), "{}", server.said());
    let result = json(&output);
    assert_eq!(
        (result["steps"].as_u64(), result["workers"].as_u64()),
        (Some(600), Some(2))
    );
    assert!(result["accuracy"].as_f64().unwrap() >= 0.95, "{result}");
}

#[test]
fn bad_arguments_and_addresses_are_explained() {
    let said = [
        (&["--workers", "0"][..], 2, "1..=64"),
        (
            &["--role", "worker"],
            2,
            "add for example --connect tcp://127.0.0.1:5000",
        ),
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

/// A started `parameter_server`; killed when a test gives up.
struct Run {
    child: Child,
    output: BufReader<ChildStdout>,
    errors: Receiver<String>,
    heard: Vec<String>,
}

impl Run {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_parameter_server"))
            .args(arguments)
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let (sender, errors) = channel();
        thread::spawn(move || {
            lines
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self {
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
            errors,
            heard: Vec::new(),
        }
    }

    fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of standard error with `words`.
    fn hear(&mut self, words: &str) -> String {
        let until = Instant::now() + PATIENCE;
        if let Some(line) = self.heard.iter().find(|line| line.contains(words)) {
            return line.clone();
        }
        while let Ok(line) = self.errors.recv_timeout(until - Instant::now()) {
            self.heard.push(line.clone());
            if line.contains(words) {
                return line;
            }
        }
        panic!("never said `{words}`: {}", self.said());
    }

    /// The process id of one of its children.
    fn process(&mut self, name: &str) -> u32 {
        let line = self.hear(&format!("{name} (process "));
        let (_, rest) = line.split_once("(process ").unwrap();
        rest.split_once(')').unwrap().0.parse().unwrap()
    }

    /// The next line of its standard output.
    fn output_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for its end; the rest of its standard output.
    fn wait(&mut self) -> (ExitStatus, String) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < until, "it does not end: {}", self.said());
            thread::sleep(Duration::from_millis(10));
        };
        let mut output = String::new();
        self.output.read_to_string(&mut output).unwrap();
        self.heard.extend(&self.errors);
        (status, output)
    }

    /// Its standard error so far.
    fn said(&self) -> String {
        self.heard.join("\n")
    }

    fn assert_no_child_is_left(&self) {
        let until = Instant::now() + Duration::from_secs(5);
        let children = self.heard.iter().filter_map(|line| {
            let (_, rest) = line.split_once("(process ")?;
            rest.split_once(')')?.0.parse::<u32>().ok()
        });
        let children: Vec<u32> = children.collect();
        assert!(children.len() >= 2, "{}", self.said());
        for child in children {
            while is_alive(child) {
                assert!(
                    Instant::now() < until,
                    "process {child} is still there: {}",
                    self.said()
                );
                thread::sleep(Duration::from_millis(10));
            }
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        // Fails only if it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn json(output: &str) -> Value {
    serde_json::from_str(output.lines().last().unwrap()).unwrap()
}

fn signal(process: u32, signal: Signal) {
    kill(Pid::from_raw(process as i32), signal).unwrap();
}

/// Whether it runs; a dead process that nobody has waited for does not.
fn is_alive(process: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{process}/stat")) else {
        return false;
    };
    let state = stat.rsplit(')').next().unwrap().trim_start().chars().next();
    state != Some('Z')
}
