//! A peer on a slow link: one message takes longer than the allowed silence, and answers to pings wait behind that message.

use std::time::Duration;

use tensorpipe::{Allocation, Limits, Message, Pipe, Place, Timeouts};

use super::memory::story;
use super::raw::{GRANT, MESSAGE, Raw, SOON, data, frame, message, message_body, tensor};
use super::server::context;

const SILENCE: Duration = Duration::from_millis(1200);

/// Between pieces: far less than the silence allowed.
const PAUSE: Duration = Duration::from_millis(110);

/// All of them take more than twice that.
const PIECES: usize = 24;

/// A pipe from a hostile peer who does `first`, then sends `bytes` slowly, then a message.
async fn slowly(first: impl FnOnce(&mut Raw) + Send + 'static, bytes: Vec<u8>) -> Pipe {
    let mut timeouts = Timeouts::default();
    timeouts.silence = Some(SILENCE);
    let server = context(timeouts, Limits::default());
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let address = listener.url().to_string();
    std::thread::spawn(move || {
        let mut raw = Raw::open(&address);
        first(&mut raw);
        for piece in bytes.chunks(bytes.len().div_ceil(PIECES)) {
            raw.send(piece);
            std::thread::sleep(PAUSE);
        }
        raw.send(&message(b"last", &[], b""));
        // Open until the pipe goes.
        raw.is_cut("the pipe", 4 * SOON);
    });
    let accepted = tokio::time::timeout(SOON, listener.accept()).await;
    accepted.expect("a pipe").unwrap()
}

async fn next(pipe: &Pipe) -> Message {
    let read = tokio::time::timeout(4 * SOON, pipe.read()).await;
    read.expect("the message").unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_head_may_take_its_time() {
    let _story = story!();
    let head = message_body(&[7; 900_000], &[], b"");
    let pipe = slowly(|_| (), frame(MESSAGE, &head)).await;
    assert_eq!(next(&pipe).await.metadata.len(), 900_000);
    assert_eq!(&next(&pipe).await.metadata[..], b"last");
}

/// A hostile peer who announces a tensor, and sends it in one slow chunk once somebody wants it.
async fn chunk() -> Pipe {
    let first = |raw: &mut Raw| {
        raw.send(&message(b"slow", &[tensor(0, 0, 0, &[200_000])], b""));
        raw.frame_of(GRANT);
    };
    slowly(first, data(0, 0, &[1; 200_000])).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_may_take_its_time() {
    let _story = story!();
    let pipe = chunk().await;
    assert_eq!(next(&pipe).await.tensors[0].tensor.byte_len(), 200_000);
    assert_eq!(&next(&pipe).await.metadata[..], b"last");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chunk_that_nobody_wants_any_more_may_as_well() {
    let _story = story!();
    let pipe = chunk().await;
    let incoming = pipe.read_descriptor().await.unwrap();
    let allocation = Allocation {
        tensors: vec![Place::Pool],
        ..Allocation::default()
    };
    let mut read = incoming.read_into(allocation);
    // Until its bytes come.
    let begun = async {
        while pipe.stats().bytes_in < 20_000 {
            tokio::select! {
                biased;
                _ = &mut read => panic!("it cannot be there yet"),
                () = tokio::time::sleep(Duration::from_millis(5)) => {}
            }
        }
    };
    tokio::time::timeout(SOON, begun).await.expect("its bytes");
    drop(read);
    let home = async {
        while pipe.pool().stats().outstanding_bytes > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(SOON, home).await.expect("its memory");
    assert!(pipe.stats().bytes_in < 200_000, "it waits for the rest");
    assert_eq!(&next(&pipe).await.metadata[..], b"last");
}
