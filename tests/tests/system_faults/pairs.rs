//! Two processes in namespaces of their own: one writes, the other or this one reads.

use std::time::Duration;

use tensorpipe::{Context, Error, Message, Pipe};
use tensorpipe_tests::{Child, Judged, NOBODY, can_start_by, check, judge, runtime, say, tidy};
use tokio::time::timeout;

use super::scene::{builder, heap, pooled, timeouts};

struct Row {
    name: String,
    /// Who runs the writer, and the reader: without one, this process reads.
    writer: &'static [&'static str],
    reader: Option<&'static [&'static str]>,
    /// What must carry the pipe.
    over: &'static str,
}

/// Messages of a writer.
const MESSAGES: u64 = 40;

/// Far above what a writer takes that is not stuck.
const BOUND: Duration = Duration::from_secs(40);

const PIDS: &[&str] = &["unshare", "--pid", "--fork", "--kill-child"];
const ROOT: &[&str] = &["unshare", "--user", "--map-root-user"];
const UNMAPPED: &[&str] = &["unshare", "--user"];
/// Another user, who is root of a namespace of its own.
const OTHER_ROOT: &[&str] = &[
    NOBODY[0], NOBODY[1], NOBODY[2], NOBODY[3], ROOT[0], ROOT[1], ROOT[2],
];

fn context() -> Context {
    builder(timeouts()).build().unwrap()
}

/// The child: connects, and writes numbered messages, of every second the tensor lies in the pool.
pub(crate) fn play() {
    let url = std::env::var("TEST_URL").unwrap();
    runtime().block_on(async {
        let context = context();
        let pipe = context.connect(url).await.unwrap();
        for number in 0..MESSAGES {
            let tensor = match number % 2 {
                0 => heap(64 << 10),
                _ => pooled(&context).unwrap(),
            };
            let message = Message::new(number.to_string()).tensor(tensor);
            pipe.write(message).await.unwrap();
        }
        pipe.close().await.unwrap();
    });
}

/// Reads numbered messages until the pipe ends: how many, and how.
async fn read_all(pipe: &Pipe) -> Result<(u64, Error), String> {
    let mut number = 0;
    loop {
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

/// Reads all that a writer has to say. How the pipe was carried, or what was wrong.
async fn read_to_the_end(pipe: &Pipe) -> Result<String, String> {
    match read_all(pipe).await? {
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
        let context = context();
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
    Child::start_by(row.writer, "writer", &[("TEST_URL", url)])
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
    let context = context();
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let child = start_writer(row, listener.url().as_ref());
    let pipe = match timeout(BOUND, listener.accept()).await {
        Ok(Ok(pipe)) => pipe,
        other => return Err(format!("no pipe: {other:?}: {}", child.complaints())),
    };
    read_to_the_end(&pipe).await
}

#[test]
fn processes_in_namespaces_of_their_own() {
    let here = |name: &str, writer, over| Row {
        name: name.to_owned(),
        writer,
        reader: None,
        over,
    };
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
