//! What waits to be sent, and the memory for it; a connection that panics; one that breaks behind a message.

use std::io;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::*;
use crate::engine::{EnginePipe, Handler, Held};
use crate::pipe::Pipe;
use crate::pipe::driver::tuning::RECEIVE_BUFFER;
use crate::pipe::tests::{memory_pair, soon, tcp_pair};
use crate::sync::{Arc, Mutex};
use crate::{Incoming, Message, MessageStats};

impl Io {
    /// Bytes of room for frames.
    pub(in crate::pipe) fn buffer(&self) -> usize {
        self.received.len()
    }

    /// As if so much time had passed since much came.
    pub(in crate::pipe) fn ages(&mut self, by: Duration) {
        // A machine that has just started knows no time before that.
        let earlier = self.large_read_at.checked_sub(by);
        self.large_read_at = earlier.expect("this machine runs for longer");
    }
}

/// Bytes that tell their place.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[test]
fn beside_a_backlog_without_end_what_has_left_leaves_memory() {
    const LEN: usize = 1000;
    let (connection, _) = tokio::io::duplex(1);
    let mut io = Io::new(Box::new(connection), Vec::new(), Waker::noop().clone());
    let (mut written, mut sent, mut most) = (0, 0, 0);
    for _ in 0..5000 {
        let room = io.room().unwrap();
        room.out.extend((written..written + LEN).map(byte));
        written += LEN;
        io.push_message();
        // Never all of it.
        while written - sent > 3 * LEN {
            let taken = (written - sent - 7).min(1300);
            let left = &io.frames[io.frames_sent..];
            assert!((sent..written).map(byte).eq(left.iter().copied()));
            io.advance(taken);
            sent += taken;
        }
        most = most.max(io.frames.len());
    }
    assert!(most <= 4 * RECEIVE_BUFFER, "{most} bytes for 3000");
}

/// Somebody's own connection: a write panics. With something to hold, its goodbye does not end.
struct Faulty(Box<dyn Connection>, Option<Arc<()>>);

impl Connection for Faulty {
    fn endpoints(&self) -> String {
        self.0.endpoints()
    }
}

impl AsyncRead for Faulty {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Faulty {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        panic!("by design");
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.1 {
            Some(_) => Poll::Pending,
            None => Pin::new(&mut *self.0).poll_shutdown(cx),
        }
    }
}

fn spoil(pipe: &Pipe, holds: Option<Arc<()>>) {
    let mut io = pipe.core().driver.hold().unwrap();
    let inner = io.connection.take().unwrap();
    io.connection = Some(Box::new(Faulty(inner, holds)));
}

/// On the pipe's own task, which the panic ends: a second one, while that is dropped, would end the process.
#[tokio::test]
async fn a_connection_that_panics_ends_its_pipe_which_says_so() {
    let (client, server) = memory_pair().await;
    let core = client.core();
    spoil(&client, None);
    lock(&core.shared).finish();
    core.driver.wakers.wake_background();
    let ended = async {
        while !client.has_ended() {
            tokio::task::yield_now().await;
        }
        client.ended().await
    };
    let error = soon(ended).await;
    assert!(error.to_string().contains("panicked"), "{error}");
    soon(server.ended()).await;
    soon(client.close()).await.unwrap_err();
}

/// Nobody looks after the pipe once its connection's time is up.
#[test]
fn a_connection_whose_goodbye_does_not_end_is_dropped_also_where_nobody_runs_its_runtime() {
    let mut stalled = tokio::runtime::Builder::new_current_thread();
    let stalled = stalled.enable_all().build().unwrap();
    let (client, _server) = stalled.block_on(memory_pair());
    let (core, held) = (client.core(), Arc::new(()));
    spoil(&client, Some(held.clone()));
    core.fail(core.lost("by design"));
    core.drive();
    let by = Instant::now() + Duration::from_secs(20);
    while !lock(&core.shared).is_gone() {
        assert!(Instant::now() < by, "whoever closes it waits for ever");
        core.tell_stalled();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(&held), 1, "it stays open");
}

/// Breaks behind the first bytes that come. As a socket, it says so once, and then that nothing more comes.
struct Breaks(Box<dyn Connection>, Option<io::Result<()>>);

impl Connection for Breaks {
    fn endpoints(&self) -> String {
        self.0.endpoints()
    }
}

impl AsyncRead for Breaks {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(end) = &mut self.1 {
            return Poll::Ready(std::mem::replace(end, Ok(())));
        }
        let read = Pin::new(&mut *self.0).poll_read(cx, buf);
        if !buf.filled().is_empty() {
            self.1 = Some(Err(io::Error::other("by design")));
        }
        read
    }
}

impl AsyncWrite for Breaks {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[derive(Default)]
struct Tells(Mutex<Vec<String>>);

impl Handler for Tells {
    fn incoming(&self, _: Incoming) {
        lock(&self.0).push("a message".into());
    }

    fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}

    fn closed(&self, error: &Error) {
        lock(&self.0).push(error.to_string());
    }
}

/// The read that asks to be woken finds the end already, with the message still to be given to the handler.
#[tokio::test]
async fn a_connection_that_breaks_behind_a_message_has_it_delivered_and_says_why() {
    let (client, server) = tcp_pair().await;
    {
        let mut io = server.core().driver.hold().unwrap();
        let inner = io.connection.take().unwrap();
        io.connection = Some(Box::new(Breaks(inner, None)));
    }
    let told = Arc::new(Tells::default());
    server.set_handler(told.clone()).unwrap();
    client.send(Message::new("the last one")).unwrap();
    soon(server.ended()).await;
    let told = lock(&told.0);
    let [message, end] = &**told else {
        panic!("{told:?}");
    };
    assert_eq!(message, "a message");
    assert!(end.contains("by design"), "{end}");
}
