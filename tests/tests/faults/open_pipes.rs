//! A process dies or falls silent while messages are in flight.

use std::time::{Duration, Instant};

use tensorpipe::{Error, Message, Pipe, Timeouts};
use tensorpipe_tests::Child;

use super::scene::{CARRIED, SOON, Survivor, Way, alone, big, context_with, is_typed};

/// Everything that can be pending on a pipe is pending, the child dies at `point` of what it `does`, and everything ends.
fn dies(point: &str, does: &str) {
    for way in CARRIED {
        for child_connects in [true, false] {
            alone(async || dies_over(way, child_connects, point, does).await);
        }
    }
}

async fn dies_over(way: Way, child_connects: bool, point: &str, does: &str) {
    let survivor = Survivor::new(way).await;
    let way_name = way.name();
    let mut variables = vec![
        ("TEST_DOES", does),
        ("TEST_WAY", &way_name),
        ("TENSORPIPE_STOP_AT", point),
    ];
    let (mut child, pipe) = if child_connects {
        // A listener of its own, whose pipe this test holds.
        let listener = survivor.context.listen([way.url()]).await.unwrap();
        let url = listener.url().to_string();
        variables.extend([("TEST_SIDE", "connects"), ("TEST_URL", &url)]);
        let child = Child::start("pipe", &variables);
        let pipe = listener.accept().await.unwrap();
        (child, pipe)
    } else {
        variables.push(("TEST_SIDE", "listens"));
        let child = Child::start("pipe", &variables);
        let pipe = survivor.context.connect(child.hear("url")).await.unwrap();
        (child, pipe)
    };
    assert_eq!(pipe.route().transport, way.carrier());
    let pending = Pending::start(&pipe);
    assert_eq!(child.hear("stopped"), point);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let begun = Instant::now();
    child.kill();
    pending.end(point).await;
    later(&pipe).await;
    println!(
        "{way:?}, {point}: all over {:?} after the kill, {}",
        begun.elapsed(),
        pipe.ended().await
    );
    drop(pipe);
    survivor.goes_on().await;
}

/// One of each operation that waits for the peer.
struct Pending {
    write: tokio::task::JoinHandle<Result<(), Error>>,
    flush: tokio::task::JoinHandle<Result<(), Error>>,
    reads: tokio::task::JoinHandle<Error>,
    ended: tokio::task::JoinHandle<Error>,
}

impl Pending {
    fn start(pipe: &Pipe) -> Self {
        let write = tokio::spawn(pipe.write(big()));
        let flush = tokio::spawn(pipe.flush());
        let reads = tokio::spawn({
            let pipe = pipe.clone();
            async move {
                loop {
                    if let Err(error) = pipe.read().await {
                        return error;
                    }
                }
            }
        });
        let ended = tokio::spawn({
            let pipe = pipe.clone();
            async move { pipe.ended().await }
        });
        Self {
            write,
            flush,
            reads,
            ended,
        }
    }

    async fn end(self, point: &str) {
        let all = async {
            let write = self.write.await.unwrap().unwrap_err();
            assert!(is_typed(&write), "{point}: write: {write:?}");
            // Where the child was reading, its read may have been reported.
            if let Err(flush) = self.flush.await.unwrap() {
                assert!(is_typed(&flush), "{point}: flush: {flush:?}");
            }
            let read = self.reads.await.unwrap();
            assert!(is_typed(&read), "{point}: read: {read:?}");
            let ended = self.ended.await.unwrap();
            assert!(is_typed(&ended), "{point}: ended: {ended:?}");
        };
        tokio::time::timeout(SOON, all)
            .await
            .unwrap_or_else(|_| panic!("{point}: an operation is still pending after {SOON:?}"));
    }
}

/// What is asked of a pipe that is gone.
async fn later(pipe: &Pipe) {
    let all = async {
        for error in [
            pipe.write(Message::new("late")).await.unwrap_err(),
            pipe.send(Message::new("late")).unwrap_err(),
            pipe.read_descriptor().await.unwrap_err(),
            pipe.read().await.unwrap_err(),
            pipe.close().await.unwrap_err(),
        ] {
            assert!(is_typed(&error), "{error:?}");
        }
    };
    tokio::time::timeout(SOON, all)
        .await
        .expect("operations on a pipe that is gone end at once");
}

#[test]
fn a_writer_dies_after_the_descriptor() {
    dies("message-sent", "writes");
}

#[test]
fn a_writer_dies_in_the_middle_of_a_payload() {
    dies("message-half-sent", "writes");
}

#[test]
fn a_writer_dies_in_the_middle_of_a_tensor() {
    dies("tensor-half-sent", "writes");
}

#[test]
fn a_reader_dies_after_its_go_ahead() {
    dies("grant-sent", "reads");
}

#[test]
fn a_reader_dies_in_the_middle_of_a_tensor() {
    dies("tensor-half-received", "reads");
}

#[test]
fn a_peer_dies_in_the_middle_of_its_goodbye() {
    dies("fin-sent", "closes");
}

#[test]
fn a_peer_that_hangs_is_given_up() {
    for way in CARRIED {
        alone(async || hangs_over(way).await);
    }
}

async fn hangs_over(way: Way) {
    let variables = [
        ("TEST_SIDE", "listens"),
        ("TEST_WAY", &*way.name()),
        ("TEST_DOES", "echoes"),
    ];
    let child = Child::start("pipe", &variables);
    let silence = Duration::from_millis(800);
    let mut timeouts = Timeouts::default();
    timeouts.silence = Some(silence);
    let context = context_with(way, timeouts);
    let pipe = context.connect(child.hear("url")).await.unwrap();
    pipe.send(Message::new("hello")).unwrap();
    pipe.read().await.unwrap();
    // A quiet peer is not a silent one: it answers when it is asked.
    tokio::time::sleep(2 * silence).await;
    assert!(!pipe.has_ended());
    child.suspend();
    let begun = Instant::now();
    let error = tokio::time::timeout(SOON, pipe.read())
        .await
        .expect("silence has a bound")
        .unwrap_err();
    println!("{way:?}: {error}");
    assert!(matches!(error, Error::Silent { .. }), "{error:?}");
    let took = begun.elapsed();
    // It may have been asked right before it stopped, and then has half of the time.
    assert!(
        took >= silence / 4 && took < 3 * silence,
        "{took:?} for a bound of {silence:?}"
    );
    assert!(matches!(
        pipe.write(Message::new("late")).await,
        Err(Error::Silent { .. })
    ));
}
