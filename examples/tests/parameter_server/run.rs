//! An example that a test started, its `PROGRAM`: what it says, its children, its end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// No test waits longer for anything; on a loaded machine, a training takes some seconds.
pub(crate) const BOUND: Duration = Duration::from_secs(100);

/// Killed when a test gives up.
pub(crate) struct Run {
    pub(crate) child: Child,
    output: BufReader<ChildStdout>,
    errors: Receiver<String>,
    heard: Vec<String>,
}

impl Run {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(crate::PROGRAM)
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

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of standard error with `words`.
    pub(crate) fn hear(&mut self, words: &str) -> String {
        let until = Instant::now() + BOUND;
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
    pub(crate) fn process(&mut self, name: &str) -> u32 {
        let line = self.hear(&format!("{name} (process "));
        let (_, rest) = line.split_once("(process ").unwrap();
        rest.split_once(')').unwrap().0.parse().unwrap()
    }

    /// The next line of its standard output.
    pub(crate) fn output_line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Waits for its end; the rest of its standard output.
    pub(crate) fn wait(&mut self) -> (ExitStatus, String) {
        let until = Instant::now() + BOUND;
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
    pub(crate) fn said(&self) -> String {
        self.heard.join("\n")
    }

    pub(crate) fn assert_no_child_is_left(&self) {
        let until = Instant::now() + Duration::from_secs(5);
        let children = self.heard.iter().filter_map(|line| {
            let (_, rest) = line.split_once("(process ")?;
            rest.split_once(')')?.0.parse::<u32>().ok()
        });
        let children: Vec<u32> = children.collect();
        assert!(!children.is_empty(), "{}", self.said());
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

pub(crate) fn json(output: &str) -> Value {
    serde_json::from_str(output.lines().last().unwrap()).unwrap()
}

pub(crate) fn signal(process: u32, signal: Signal) {
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
