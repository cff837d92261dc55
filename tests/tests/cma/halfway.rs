//! One end stops, dies or gives up while a tensor is being read out of its writer's memory. What completes is whole; what does
//! not is a typed error; and the memory of both ends comes back.

use tensorpipe::{Context, Error, Message};
use tensorpipe_tests::{Child, say};

use super::scene::{Peer, Takes, alone, check, context, eventually, runtime, soon, zeros};

/// Many pieces.
const LEN: usize = 32 << 20;

const HALF_READ: (&str, &str) = ("TENSORPIPE_STOP_AT", "memory-half-read");

/// A child that listens, reads one message, and says what became of it.
pub(crate) fn play() {
    runtime().block_on(async {
        let context = context("reader");
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("listens", listener.url());
        let pipe = listener.accept().await.unwrap();
        let ended = match pipe.read().await {
            Ok(message) => {
                let all = message.tensors[0].tensor.as_bytes().unwrap();
                format!("{} zeros", all.iter().filter(|byte| **byte == 0).count())
            }
            Err(Error::Lost { .. }) => "lost".to_owned(),
            Err(Error::Reset { .. }) => "reset".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        say("ended", ended);
        eventually("memory back", || pipe.pool().stats().outstanding_bytes == 0).await;
        say("back", "");
        let _ = pipe.ended().await;
    });
}

/// A reader that stops in the middle, and its address.
fn reader() -> (Child, String) {
    let child = Child::start("reader", &[HALF_READ]);
    let url = child.hear("listens");
    (child, url)
}

async fn connected(context: &Context, url: &str) -> tensorpipe::Pipe {
    soon("a pipe", context.connect(url)).await.unwrap()
}

async fn stopped(child: Child) -> Child {
    let wait = move || {
        assert_eq!(child.hear("stopped"), "memory-half-read");
        child
    };
    tokio::task::spawn_blocking(wait).await.unwrap()
}

async fn heard(child: Child, key: &'static str) -> (Child, String) {
    let wait = move || {
        let value = child.hear(key);
        (child, value)
    };
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[test]
fn a_reader_that_pauses_reads_on() {
    alone(async || {
        let context = context("writer");
        let (child, url) = reader();
        let pipe = connected(&context, &url).await;
        let mut write = pipe.write(Message::new("m").tensor(zeros(LEN)));
        let child = stopped(child).await;
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut write).await;
        assert!(early.is_err(), "{early:?}");
        child.resume();
        soon("a write", write).await.unwrap();
        let (_, ended) = heard(child, "ended").await;
        assert_eq!(ended, format!("{LEN} zeros"));
    });
}

#[test]
fn memory_that_its_writer_took_back_is_not_delivered() {
    alone(async || {
        let context = context("writer");
        let (child, url) = reader();
        let pipe = connected(&context, &url).await;
        let mut tensor = zeros(LEN);
        let at = tensor.as_bytes().unwrap().as_ptr();
        let write = pipe.write(Message::new("m").tensor(tensor.clone()));
        let child = stopped(child).await;
        write.cancel();
        eventually("the memory is mine again", || {
            tensor.make_mut::<u8>().is_ok() && tensor.as_bytes().unwrap().as_ptr() == at
        })
        .await;
        tensor.make_mut::<u8>().unwrap().fill(0xee);
        child.resume();
        let (child, ended) = heard(child, "ended").await;
        assert_eq!(ended, "reset");
        heard(child, "back").await;
    });
}

#[test]
fn a_killed_reader_lets_go_of_the_writers_memory() {
    alone(async || {
        let context = context("writer");
        let (child, url) = reader();
        let pipe = connected(&context, &url).await;
        let tensor = zeros(LEN);
        let memory = std::sync::Arc::downgrade(tensor.buffer().memory());
        let write = pipe.write(Message::new("m").tensor(tensor));
        let mut child = stopped(child).await;
        assert!(memory.strong_count() > 0);
        child.kill();
        let error = soon("the write", write).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        eventually("memory back", || memory.strong_count() == 0).await;
        // Others are served as ever.
        let peer = Peer::start(&context, &[]).await;
        peer.takes(3 << 20, 1).await;
    });
}

#[test]
fn a_writer_killed_in_the_middle_is_a_typed_error_and_memory_comes_back() {
    alone(async || {
        let (child, url) = reader();
        let context = context("parent");
        let mut writer = Peer::start(&context, &[("TEST_OTHER", &url)]).await;
        writer
            .pipe
            .send(Message::new(format!("to another {LEN}")))
            .unwrap();
        let child = stopped(child).await;
        // It is waited for, too: its number is free.
        writer.child.kill();
        child.resume();
        let (child, ended) = heard(child, "ended").await;
        assert_eq!(ended, "lost");
        heard(child, "back").await;
    });
}

#[test]
fn a_dropped_read_gives_the_memory_back_and_the_pipe_goes_on() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        for _ in 0..5 {
            let ask = Message::new(format!("give {}", 8 * LEN));
            peer.pipe.send(ask).unwrap();
            let incoming = soon("a descriptor", peer.pipe.read_descriptor())
                .await
                .unwrap();
            let before = peer.pipe.stats().bytes_in;
            let mut read = Box::pin(incoming.read());
            let arrived = async {
                // Until the notice has come: then it is being read.
                while peer.pipe.stats().bytes_in == before {
                    tokio::select! {
                        // On a busy machine this task may sleep for longer than that takes.
                        _ = &mut read => return,
                        () = tokio::time::sleep(std::time::Duration::from_micros(50)) => {}
                    }
                }
            };
            soon("a notice", arrived).await;
            drop(read);
            eventually("memory back", || {
                context.pool().stats().outstanding_bytes == 0
            })
            .await;
        }
        check(&peer.gives(3 << 20, 4).await, 4);
        assert_eq!(peer.takes(3 << 20, 5).await, 3 << 20);
    });
}
