//! Two processes: in namespaces of their own, and stopped, killed or forked at random while one writes and this one reads.

#![allow(unsafe_code, reason = "a process is forked")]

use std::time::{Duration, Instant};

use nix::unistd::{ForkResult, fork};
use tensorpipe::{Error, Message};
use tensorpipe_tests::{Child, Judged, can_start_by, check, judge, runtime, tidy};
use tokio::time::timeout;

use super::scene::{builder, heap, pooled};

/// What happens to the writer while it writes.
#[derive(Clone, Copy)]
enum Fault {
    /// It ends when it has written its messages.
    Nothing,
    /// It forks now and then.
    Forks,
    Stops,
    Dies,
}

struct Row {
    name: String,
    by: &'static [&'static str],
    fault: Fault,
    seed: u64,
}

/// Messages of a writer that nothing happens to.
const MESSAGES: u64 = 40;

/// What is known of a writer that is gone, or silent: `Timeouts::silence` of the scene is 3 s.
const BOUND: Duration = Duration::from_secs(12);

const PIDS: &[&str] = &["unshare", "--pid", "--fork", "--kill-child"];
const ROOT: &[&str] = &["unshare", "--user", "--map-root-user"];
const UNMAPPED: &[&str] = &["unshare", "--user"];

/// The child: connects, and writes numbered messages, of every second the tensor lies in the pool.
pub(crate) fn play() {
    let var = |name| std::env::var(name).unwrap();
    let messages: u64 = var("TEST_MESSAGES").parse().unwrap();
    let forks = var("TEST_FORKS") == "true";
    runtime().block_on(async {
        let context = builder().build().unwrap();
        let pipe = context.connect(var("TEST_URL")).await.unwrap();
        for number in 0..messages {
            let tensor = match number % 2 {
                0 => heap(64 << 10),
                _ => pooled(&context).unwrap(),
            };
            if forks && number % 3 == 1 {
                // SAFETY: the child leaves at once.
                match unsafe { fork() }.unwrap() {
                    // SAFETY: ends the child without running what the parent has registered.
                    ForkResult::Child => unsafe { libc::_exit(0) },
                    ForkResult::Parent { child } => drop(nix::sys::wait::waitpid(child, None)),
                }
            }
            let message = Message::new(number.to_string()).tensor(tensor);
            pipe.write(message).await.unwrap();
        }
        pipe.close().await.unwrap();
    });
}

fn run(row: &Row) -> Judged {
    runtime().block_on(async {
        let context = builder().build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let is_finite = matches!(row.fault, Fault::Nothing | Fault::Forks);
        let messages = if is_finite { MESSAGES } else { u64::MAX };
        let forks = matches!(row.fault, Fault::Forks).to_string();
        let variables = [
            ("TEST_URL", &*url),
            ("TEST_MESSAGES", &messages.to_string()),
            ("TEST_FORKS", &forks),
        ];
        let mut child = Child::start_by(row.by, "writer", &variables);
        let pipe = match timeout(BOUND, listener.accept()).await {
            Ok(Ok(pipe)) => pipe,
            other => return wrong(format!("no pipe: {other:?}: {}", child.complaints())),
        };
        let mut number = 0;
        let until = Instant::now() + Duration::from_millis(50 + row.seed * 7919 % 200);
        let mut struck = None;
        let error = loop {
            if struck.is_none() && Instant::now() >= until {
                match row.fault {
                    Fault::Stops => child.suspend(),
                    Fault::Dies => child.kill(),
                    Fault::Nothing | Fault::Forks => {}
                }
                struck = Some(Instant::now());
            }
            let Ok(read) = timeout(BOUND, pipe.read()).await else {
                return wrong("HANG".to_owned());
            };
            match read {
                Err(error) => break error,
                Ok(message) => {
                    if message.metadata != number.to_string() {
                        return wrong(format!("{number} is {:?}", message.metadata));
                    }
                    let bytes = message.tensors[0].tensor.byte_len();
                    assert_eq!(bytes, if number % 2 == 0 { 64 << 10 } else { 1 << 20 });
                    check(&message.tensors[0].tensor, 1);
                    number += 1;
                }
            }
        };
        let known = struck.map_or(Duration::ZERO, |struck| struck.elapsed());
        let as_expected = match row.fault {
            Fault::Nothing | Fault::Forks => {
                number == MESSAGES && matches!(error, Error::Closed { by_peer: true, .. })
            }
            Fault::Stops => matches!(error, Error::Silent { .. }),
            Fault::Dies => matches!(error, Error::Lost { .. }) && known < Duration::from_secs(5),
        };
        let route = pipe.route();
        let outcome = match is_finite {
            true => {
                // Those that the fault is about.
                let refused = route.refused.iter().filter(|refusal| {
                    ["namespace", "user"]
                        .iter()
                        .any(|word| refusal.reason.contains(word))
                });
                let refused = refused.map(|refusal| {
                    format!("; not {}: {}", refusal.candidate, tidy(&refusal.reason))
                });
                format!(
                    "works over {}{}",
                    route.transport,
                    refused.collect::<String>()
                )
            }
            false => {
                let error = error.to_string();
                error
                    .split_once(": ")
                    .map_or_else(|| error.clone(), |(_, words)| words.to_owned())
            }
        };
        let problem = format!("after {number} messages, {known:?} later: {error}");
        Judged {
            outcome: outcome.clone(),
            wrong: (!as_expected).then_some(problem),
        }
    })
}

fn wrong(what: String) -> Judged {
    Judged {
        outcome: what.clone(),
        wrong: Some(what),
    }
}

fn row(name: &str, by: &'static [&'static str], fault: Fault, seed: u64) -> Row {
    Row {
        name: name.to_owned(),
        by,
        fault,
        seed,
    }
}

#[test]
fn processes_in_namespaces_of_their_own() {
    let mut rows = Vec::new();
    for (name, by) in [
        ("the writer has its own pid namespace", PIDS),
        ("the writer is root of its own user namespace", ROOT),
        ("the writer's user namespace maps nobody", UNMAPPED),
    ] {
        if can_start_by(by) {
            rows.push(row(name, by, Fault::Nothing, 0));
        }
    }
    judge("Namespaces", &rows, |row| row.name.clone(), run);
}

#[test]
fn a_writer_that_forks_stops_or_dies_under_load() {
    let mut rows = vec![row("the writer forks under load", &[], Fault::Forks, 0)];
    for seed in 0..4 {
        rows.push(row(
            &format!("SIGSTOP under load, seed {seed}"),
            &[],
            Fault::Stops,
            seed,
        ));
        rows.push(row(
            &format!("SIGKILL under load, seed {seed}"),
            &[],
            Fault::Dies,
            seed,
        ));
    }
    judge("Signals and forks", &rows, |row| row.name.clone(), run);
}
