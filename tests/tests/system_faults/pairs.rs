//! Two processes: in namespaces of their own, and stopped, killed or forked at random while one writes and this one reads.

#![allow(unsafe_code, reason = "a process is forked")]

use std::time::{Duration, Instant};

use nix::unistd::{ForkResult, fork};
use tensorpipe::{Context, Error, Message, Pipe};
use tensorpipe_tests::{Child, Judged, NOBODY, can_start_by, check, judge, runtime, say, tidy};
use tokio::time::timeout;

use super::scene::{builder, heap, pooled, timeouts};

/// What happens to the writer while it writes.
#[derive(Clone, Copy, Debug)]
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
    /// Who runs the writer, and the reader: without one, this process reads.
    writer: &'static [&'static str],
    reader: Option<&'static [&'static str]>,
    fault: Fault,
    seed: u64,
    /// What must carry the pipe.
    over: &'static str,
}

/// Messages of a writer that nothing happens to.
const MESSAGES: u64 = 40;

/// Far above what a writer takes that is not stuck.
const BOUND: Duration = Duration::from_secs(40);

/// After this a writer that says nothing is given up, where it is stopped.
const SILENCE: Duration = Duration::from_secs(3);

const PIDS: &[&str] = &["unshare", "--pid", "--fork", "--kill-child"];
const ROOT: &[&str] = &["unshare", "--user", "--map-root-user"];
const UNMAPPED: &[&str] = &["unshare", "--user"];
/// Another user, who is root of a namespace of its own.
const OTHER_ROOT: &[&str] = &[
    NOBODY[0], NOBODY[1], NOBODY[2], NOBODY[3], ROOT[0], ROOT[1], ROOT[2],
];

fn context(fault: Fault) -> Context {
    let mut timeouts = timeouts();
    if matches!(fault, Fault::Stops) {
        timeouts.silence = Some(SILENCE);
    }
    builder(timeouts).build().unwrap()
}

/// The child: connects, and writes numbered messages, of every second the tensor lies in the pool.
pub(crate) fn play() {
    let var = |name| std::env::var(name).unwrap();
    let messages: u64 = var("TEST_MESSAGES").parse().unwrap();
    let forks = var("TEST_WRITER") == "Forks";
    runtime().block_on(async {
        let context = builder(timeouts()).build().unwrap();
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

/// Reads numbered messages until the pipe ends: how many, and how. `next` hears how many there have been.
async fn read_all(pipe: &Pipe, mut next: impl FnMut(u64)) -> Result<(u64, Error), String> {
    let mut number = 0;
    loop {
        next(number);
        let read = timeout(BOUND, pipe.read()).await;
        match read.map_err(|_| "HANG".to_owned())? {
            Err(error) => return Ok((number, error)),
            Ok(message) => {
                if message.metadata != number.to_string() {
                    return Err(format!("{number} is {:?}", message.metadata));
                }
                let bytes = message.tensors[0].tensor.byte_len();
                assert_eq!(bytes, if number % 2 == 0 { 64 << 10 } else { 1 << 20 });
                check(&message.tensors[0].tensor, 1);
                number += 1;
            }
        }
    }
}

/// Reads all that a writer to whom nothing happens has to say. How the pipe was carried, or what was wrong.
async fn read_to_the_end(pipe: &Pipe) -> Result<String, String> {
    match read_all(pipe, |_| {}).await? {
        (MESSAGES, Error::Closed { by_peer: true, .. }) => {}
        (number, error) => return Err(format!("after {number} messages: {error}")),
    }
    let route = pipe.route();
    let mut words = format!("works over {}", route.transport);
    for refusal in &route.refused {
        // Those that a namespace is about.
        if ["namespace", "user"]
            .iter()
            .any(|word| refusal.reason.contains(word))
        {
            words.push_str(&format!(
                "; not {}: {}",
                refusal.candidate,
                tidy(&refusal.reason)
            ));
        }
    }
    Ok(words)
}

/// The child that reads.
pub(crate) fn play_reader() {
    runtime().block_on(async {
        let context = context(Fault::Nothing);
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        match read_to_the_end(&pipe).await {
            Ok(words) => say("carried", words),
            Err(wrong) => say("wrong", wrong),
        }
    });
}

fn start_writer(row: &Row, url: &str) -> Child {
    let is_finite = matches!(row.fault, Fault::Nothing | Fault::Forks);
    let messages = if is_finite { MESSAGES } else { u64::MAX };
    let variables = [
        ("TEST_URL", url),
        ("TEST_MESSAGES", &messages.to_string()),
        ("TEST_WRITER", &format!("{:?}", row.fault)),
    ];
    Child::start_by(row.writer, "writer", &variables)
}

/// Both are children.
fn run_two(row: &Row, reader: &[&str]) -> Result<String, String> {
    let mut reader = Child::start_by(reader, "reader", &[]);
    let writer = start_writer(row, &reader.hear("url"));
    let (said, end) = reader.until_end(2 * BOUND);
    match said.into_iter().find(|(key, _)| key == "carried") {
        Some((_, words)) => Ok(words),
        None => Err(format!(
            "{end:?}: {}, {}",
            reader.complaints(),
            writer.complaints()
        )),
    }
}

fn run(row: &Row) -> Judged {
    let ended = match row.reader {
        Some(reader) => run_two(row, reader),
        None => runtime().block_on(run_here(row)),
    };
    let ended = match ended {
        Ok(words) if !words.contains(row.over) => Err(format!("not {}: {words}", row.over)),
        ended => ended,
    };
    match ended {
        Ok(outcome) => Judged {
            outcome,
            wrong: None,
        },
        Err(what) => Judged {
            outcome: what.clone(),
            wrong: Some(what),
        },
    }
}

/// This process reads.
async fn run_here(row: &Row) -> Result<String, String> {
    let context = context(row.fault);
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let mut child = start_writer(row, listener.url().as_ref());
    let pipe = match timeout(BOUND, listener.accept()).await {
        Ok(Ok(pipe)) => pipe,
        other => return Err(format!("no pipe: {other:?}: {}", child.complaints())),
    };
    if matches!(row.fault, Fault::Nothing | Fault::Forks) {
        return read_to_the_end(&pipe).await;
    }
    let until = Instant::now() + Duration::from_millis(50 + row.seed * 7919 % 200);
    let mut struck = None;
    let (number, error) = read_all(&pipe, |number| {
        if struck.is_none() && number > 0 && Instant::now() >= until && child.is_alive() {
            match row.fault {
                Fault::Stops => child.suspend(),
                _ => child.kill(),
            }
            struck = Some(number);
        }
    })
    .await?;
    let is_expected = match row.fault {
        Fault::Stops => matches!(error, Error::Silent { .. }),
        _ => matches!(error, Error::Lost { .. }),
    };
    if struck.is_none() || !is_expected {
        return Err(format!(
            "struck after {struck:?} of {number} messages: {error}; {}",
            child.complaints()
        ));
    }
    let words = error.to_string();
    let (_, words) = words.split_once(": ").unwrap_or(("", &words));
    Ok(format!("{}: {words}", pipe.route().transport))
}

fn row(name: &str, writer: &'static [&'static str], fault: Fault, over: &'static str) -> Row {
    Row {
        name: name.to_owned(),
        writer,
        reader: None,
        fault,
        seed: 0,
        over,
    }
}

#[test]
fn processes_in_namespaces_of_their_own() {
    let here = |name, writer, over| row(name, writer, Fault::Nothing, over);
    let both = |name, writer, over| Row {
        reader: Some(ROOT),
        ..here(name, writer, over)
    };
    let rows = [
        here("the writer has its own pid namespace", PIDS, "over shm"),
        here(
            "the writer is root of its own user namespace",
            ROOT,
            "over shm",
        ),
        here(
            "the writer's user namespace maps nobody",
            UNMAPPED,
            "over tcp",
        ),
        both(
            "both have user namespaces of their own, and are one user",
            ROOT,
            "over shm",
        ),
        both(
            "both are root of user namespaces of their own, and are two users",
            OTHER_ROOT,
            "over tcp",
        ),
    ];
    let can = |row: &Row| can_start_by(row.writer) && row.reader.is_none_or(can_start_by);
    let rows: Vec<_> = rows.into_iter().filter(can).collect();
    judge("Namespaces", &rows, |row| row.name.clone(), run);
}

#[test]
fn a_writer_that_forks_stops_or_dies_under_load() {
    let forks = row(
        "the writer forks under load",
        &[],
        Fault::Forks,
        "works over shm",
    );
    let mut rows = vec![forks];
    for seed in 0..4 {
        for (signal, fault) in [("SIGSTOP", Fault::Stops), ("SIGKILL", Fault::Dies)] {
            let name = format!("{signal} under load, seed {seed}");
            rows.push(Row {
                seed,
                ..row(&name, &[], fault, "shm")
            });
        }
    }
    judge("Signals and forks", &rows, |row| row.name.clone(), run);
}
