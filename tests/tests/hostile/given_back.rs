//! A reader's own memory comes back from a failed read, wherever the bytes had got to.

use std::time::Duration;

use tensorpipe::{
    Allocation, BufferMut, Context, Error, Limits, Message, Misuse, Pipe, Place, ReadError, Tensor,
    Timeouts,
};
use tensorpipe_tests::{pair, soon};

use super::memory::story;
use super::raw::{GRANT, RESET, Raw, data, frame, header, message, reason, tensor};
use super::server::context;

const LEN: usize = 4 << 20;

/// Memory of a reader's, and where it is.
fn room() -> (Allocation, usize) {
    let vec = vec![7u8; LEN];
    let at = vec.as_ptr().addr();
    let allocation = Allocation {
        tensors: vec![Place::Skip, Place::Into(BufferMut::from_vec(vec))],
        ..Allocation::default()
    };
    (allocation, at)
}

#[track_caller]
fn is_back(failed: ReadError, at: usize) -> Error {
    println!("{failed}");
    let ReadError { error, allocation } = failed;
    let [Place::Skip, Place::Into(buffer)] = &allocation.tensors[..] else {
        panic!("{allocation:?}");
    };
    assert_eq!(buffer.len(), LEN);
    let vec = allocation.tensors.into_iter().nth(1);
    let Some(Place::Into(buffer)) = vec else {
        unreachable!();
    };
    let vec = buffer.freeze().try_into_vec::<u8>().expect("the vector");
    assert_eq!(vec.as_ptr().addr(), at, "the same memory");
    error
}

/// A pipe to a hostile peer who announces two tensors, gets the go-ahead, and does `then`.
async fn from_hostile_peer(
    then: impl FnOnce(&mut Raw) + Send + 'static,
) -> (Pipe, tokio::task::JoinHandle<Raw>) {
    let server = context(Timeouts::default(), Limits::default());
    let listener = server.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let address = listener.url().to_string();
    let hostile = tokio::task::spawn_blocking(move || {
        let mut raw = Raw::open(&address);
        let announced = tensor(0, 0, 0, &[LEN as u64]);
        raw.send(&message(b"m", &[announced.clone(), announced], b""));
        raw.frame_of(GRANT);
        then(&mut raw);
        raw
    });
    let pipe = soon("the hostile peer", listener.accept()).await.unwrap();
    (pipe, hostile)
}

/// The front of a chunk of the second tensor, of which not all comes.
fn half_a_chunk() -> Vec<u8> {
    let whole = data(0, 1, &[1; 200_000]);
    header(17, whole.len() as u32 - 8, &whole[8..100_000])
}

async fn fails(pipe: &Pipe) -> Error {
    let incoming = soon("the descriptor", pipe.read_descriptor()).await;
    let (allocation, at) = room();
    let read = incoming.unwrap().read_into(allocation);
    is_back(soon("the read", read).await.unwrap_err(), at)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_peer_that_dies_inside_a_chunk() {
    let _story = story!();
    let (pipe, hostile) = from_hostile_peer(|raw| {
        raw.send(&half_a_chunk());
        raw.finish_sending();
    })
    .await;
    let error = fails(&pipe).await;
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    drop(hostile.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_writer_that_thinks_better_of_it() {
    let _story = story!();
    let (pipe, hostile) = from_hostile_peer(|raw| {
        raw.send(&data(0, 1, &[1; 200_000]));
        raw.send(&reason(RESET, 0, 1, b"enough"));
    })
    .await;
    let error = fails(&pipe).await;
    assert!(matches!(error, Error::Reset { .. }), "{error:?}");
    // The pipe, and the memory, are good for the next one.
    let mut raw = soon("the hostile peer", hostile).await.unwrap();
    tokio::task::spawn_blocking(move || {
        raw.send(&message(b"next", &[], b""));
        raw
    })
    .await
    .unwrap();
    assert_eq!(
        &soon("the next", pipe.read()).await.unwrap().metadata[..],
        b"next"
    );
}

/// The rest of the chunk never comes: the memory does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_a_pipe_that_is_closed_inside_a_chunk() {
    let _story = story!();
    let (pipe, hostile) = from_hostile_peer(|raw| assert!(raw.send(&half_a_chunk()))).await;
    let reading = tokio::spawn({
        let pipe = pipe.clone();
        async move { fails(&pipe).await }
    });
    let raw = soon("the hostile peer", hostile).await.unwrap();
    let bound = Duration::from_millis(100);
    let closed = soon("closing", pipe.close_within(bound)).await;
    for error in [
        closed.unwrap_err(),
        soon("the read", reading).await.unwrap(),
    ] {
        assert!(
            matches!(error, Error::Undelivered { linger, .. } if linger == bound && error.ends_pipe()),
            "{error:?}"
        );
    }
    drop(raw);
}

#[tokio::test]
async fn from_places_that_do_not_fit() {
    let context = Context::new();
    let (client, server) = pair(&context, &context, "memory://given back").await;
    // Too many places, and one of another length than what is to fill it.
    let short = || Tensor::from_vec(vec![1u8; 5000], [5000]).unwrap();
    let too_many = Message::new("m").tensor(short());
    let too_long = Message::new("m").tensor(short()).tensor(short());
    for (message, says) in [
        (too_many, "2 tensors are placed, 0 and 1 come".to_owned()),
        (
            too_long,
            format!("tensor 1 has 5000 bytes, its place {LEN}"),
        ),
    ] {
        client.send(message).unwrap();
        let error = fails(&server).await;
        assert!(
            matches!(&error, Error::Misuse(Misuse::Allocation { reason }) if reason.contains(&says)),
            "{error:?}"
        );
    }
    // Where it does fit the reader gets its own memory back, filled.
    let tensor = || Tensor::from_vec(vec![3u8; LEN], [LEN as u64]).unwrap();
    for _ in 0..3 {
        let message = Message::new("m").tensor(tensor()).tensor(tensor());
        let write = client.write(message);
        let incoming = server.read_descriptor().await.unwrap();
        let (allocation, at) = room();
        let read = soon("the read", incoming.read_into(allocation)).await;
        let mut read = read.unwrap();
        write.await.unwrap();
        let buffer = read.tensors.remove(1).tensor.into_buffer();
        let vec = buffer.try_into_vec::<u8>().expect("the reader's vector");
        assert_eq!((vec.as_ptr().addr(), vec[LEN - 1]), (at, 3));
    }
}

#[tokio::test]
async fn question_mark_turns_it_into_its_error() {
    let story = story!();
    // The reader's own.
    story.allow(LEN as u64);
    async fn read(pipe: &Pipe) -> Result<Message, Error> {
        Ok(pipe.read_descriptor().await?.read_into(room().0).await?)
    }
    let (pipe, hostile) = from_hostile_peer(|raw| {
        raw.send(&frame(200, b""));
    })
    .await;
    let error = soon("the read", read(&pipe)).await.unwrap_err();
    assert!(matches!(error, Error::Peer { .. }), "{error:?}");
    drop(hostile.await);
}
