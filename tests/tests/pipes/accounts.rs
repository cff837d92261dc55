//! A pipe's own statistics: which bytes it copied, how a message's parts came, and when a message began to leave.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use tensorpipe::engine::{EnginePipe, Handler, Held};
use tensorpipe::{Allocation, BufferMut, Error, Incoming, MessageStats, Place};

use super::*;

/// Reads one message into memory of its own; the bytes that this copied, as the pipe counts.
async fn into_own_memory(client: &Pipe, server: &Pipe, len: usize) -> u64 {
    let before = server.stats().bytes_copied;
    client.send(message(1, len)).unwrap();
    let incoming = head(server).await;
    let mut places = Allocation::default();
    places
        .tensors
        .push(Place::Into(BufferMut::from_vec(vec![0u8; len])));
    let read = soon("a read", incoming.read_into(places)).await;
    check(&read.unwrap(), 1, len);
    server.stats().bytes_copied - before
}

#[tokio::test]
async fn memory_that_a_reader_brings_is_filled_by_a_copy_where_the_bytes_are_elsewhere() {
    // Within one process a large tensor would have been handed over.
    let context = Context::new();
    let (client, server) = pair(&context, &context).await;
    for len in [100_000, 1 << 20] {
        assert_eq!(into_own_memory(&client, &server, len).await, len as u64);
    }
    // What came with the message lies in pooled memory already.
    let (client, server) = tcp_pair().await;
    let copied = into_own_memory(&client, &server, 1000).await;
    assert_eq!(
        copied,
        2 * 1000,
        "out of the receive buffer, and from there"
    );
    // A large one is read from the socket straight into its place, but for what had come with the frames before it.
    let copied = into_own_memory(&client, &server, 8 << 20).await;
    assert!(copied < 1 << 20, "{copied}");
}

/// Notes how messages came.
#[derive(Default)]
struct Notes(Mutex<Vec<MessageStats>>);

impl Handler for Notes {
    fn incoming(&self, incoming: Incoming) {
        let came = incoming.stats();
        if let Some(whole) = incoming.accept() {
            whole.unwrap();
            self.0.lock().unwrap().push(came);
        }
    }

    fn message(&self, _: u64, message: Result<Message, Error>, stats: MessageStats, _: Held) {
        message.unwrap();
        self.0.lock().unwrap().push(stats);
    }

    fn closed(&self, _: &Error) {}
}

#[tokio::test]
async fn a_handler_hears_how_each_message_came() {
    const LARGE: usize = 3 << 20;
    let small = 100;
    every_way(async |_, client, server| {
        let notes = Arc::new(Notes::default());
        server.set_handler(notes.clone()).unwrap();
        let both = message(1, small).tensor(message(2, LARGE).tensors.remove(0).tensor);
        for _ in 0..3 {
            soon("a write", client.write(both.clone())).await.unwrap();
        }
        eventually("three notes", || notes.0.lock().unwrap().len() == 3).await;
        let handed_over = server.route().channels[0].name == "xth";
        let large = if handed_over { 0 } else { LARGE as u64 };
        for stats in &*notes.0.lock().unwrap() {
            assert_eq!(stats.streamed, small as u64 + large);
            assert_eq!((stats.copied, stats.channels), (0, 1));
        }
    })
    .await;
}

/// Counts how often it is woken.
struct Leaves(Arc<AtomicUsize>);

impl Wake for Leaves {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn a_message_that_waits_for_credit_has_not_begun_to_leave() {
    let (client, server) = tcp_pair().await;
    let told = Arc::new(AtomicUsize::new(0));
    let send = |number| {
        let id = client.send(message(number, 8)).unwrap();
        let leaves = Arc::new(Leaves(told.clone()));
        if client.poll_sending(id, &leaves.clone().into()).is_ready() {
            leaves.wake();
        }
    };
    send(0);
    assert_eq!(told.load(Ordering::SeqCst), 1, "nothing was before it");
    // More than the peer gives credit for without reading.
    const SENT: u64 = 3000;
    (1..SENT).for_each(send);
    pause(100).await;
    let left = told.load(Ordering::SeqCst);
    assert!(left < SENT as usize, "{left}");
    for number in 0..SENT {
        comes(&server, number, 8).await;
    }
    eventually("all of them", || {
        told.load(Ordering::SeqCst) == SENT as usize
    })
    .await;
}

#[tokio::test]
async fn a_message_of_which_half_is_here_has_begun_to_leave_and_has_not_left() {
    let (client, _server) = tcp_pair().await;
    let half = loop {
        let id = client.send(message(1, 50_000)).unwrap();
        if client.is_unwritten(id) {
            break id;
        }
    };
    let begun = client.poll_sending(half, Waker::noop());
    assert!(begun.is_ready(), "its first half is on the way");
    assert!(client.is_unwritten(half));
}

#[tokio::test]
async fn whoever_waits_for_a_message_to_leave_hears_of_the_pipes_end() {
    let (client, server) = tcp_pair().await;
    let told = Arc::new(AtomicUsize::new(0));
    let mut waits = 0;
    for number in 0..3000 {
        let id = client.send(message(number, 8)).unwrap();
        let leaves = Arc::new(Leaves(told.clone()));
        for _ in 0..2 {
            let polled = client.poll_sending(id, &leaves.clone().into());
            waits += usize::from(polled.is_pending());
        }
    }
    pause(50).await;
    assert!(
        told.load(Ordering::SeqCst) < waits / 2,
        "some wait for credit"
    );
    drop(server);
    soon("the end", client.ended()).await;
    assert_eq!(told.load(Ordering::SeqCst), waits / 2, "once each");
    assert_eq!(Arc::strong_count(&told), 1, "none is kept");
    assert!(client.poll_sending(1 << 40, Waker::noop()).is_ready());
}
