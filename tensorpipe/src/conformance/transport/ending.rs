//! Ends of streams, and wake-ups.

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadBuf};

use super::{Subject, ended, eventually, expect, pattern, within, write};
use crate::transports::Connection;

/// A shutdown succeeds. Everything written before it arrives, then the end, permanently.
pub async fn shutdown_delivers_then_ends(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let bytes = Arc::new(pattern(3 << 20, 9));
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        write(&mut client, &sent).await;
        let shut = within("shutdown", client.shutdown()).await;
        shut.unwrap_or_else(|error| panic!("shutdown: {error}"));
        client
    });
    expect(&mut server, &bytes).await;
    for _ in 0..2 {
        assert_eq!(
            within("the end", server.read(&mut [0; 8])).await.ok(),
            Some(0)
        );
    }
    ended(writer).await;
}

/// Everything written before a drop arrives, then the end; in a session, an error, since there was no goodbye.
pub async fn drop_delivers_then_ends(subject: Subject) {
    let wanted = match subject.has_sessions() {
        false => Ok(0),
        true => Err(ErrorKind::UnexpectedEof),
    };
    let (mut client, mut server) = subject.pair().await;
    let bytes = pattern(1000, 10);
    write(&mut client, &bytes).await;
    drop(client);
    expect(&mut server, &bytes).await;
    let end = within("the end", server.read(&mut [0; 8])).await;
    assert_eq!(end.map_err(|error| error.kind()), wanted);
}

/// If the peer is gone, a waiting reader sees the end or an error, and a writer sees an error.
pub async fn dropped_peer_is_seen(subject: Subject) {
    let (mut client, server) = subject.pair().await;
    let waiting = tokio::spawn(async move {
        let read = client.read(&mut [0; 8]).await;
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        client
    });
    tokio::task::yield_now().await;
    drop(server);
    let Ok(mut client) = within("the reader that waits", waiting).await else {
        panic!("the reader saw bytes that nobody wrote");
    };
    let piece = vec![0; 64 << 10];
    let writes = async { while client.write_all(&piece).await.is_ok() {} };
    within("an error for the writer", writes).await;
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Count {
    fn waker() -> (Arc<Self>, Waker) {
        let count = Arc::new(Self::default());
        (count.clone(), count.into())
    }

    fn woken(&self) -> bool {
        self.0.load(Ordering::SeqCst) > 0
    }
}

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn poll_read(connection: &mut Box<dyn Connection>, waker: &Waker) -> Poll<std::io::Result<usize>> {
    let mut bytes = [0; 64];
    let mut buf = ReadBuf::new(&mut bytes);
    let mut cx = Context::from_waker(waker);
    let polled = Pin::new(&mut **connection).poll_read(&mut cx, &mut buf);
    polled.map_ok(|()| buf.filled().len())
}

/// In each direction, the waker of the last poll is woken; neither direction takes the other's waker.
pub async fn wakers_may_change(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let (_, first) = Count::waker();
    assert!(poll_read(&mut server, &first).is_pending());
    let (count, second) = Count::waker();
    assert!(poll_read(&mut server, &second).is_pending());
    // A full connection makes a writer wait, beside the reader.
    let (writer_count, writer) = Count::waker();
    let piece = vec![0; 64 << 10];
    within("a full connection", fill(&mut server, &writer, &piece)).await;
    write(&mut client, b"x").await;
    eventually("the reader's last waker", || count.woken()).await;
    let read = async {
        loop {
            match poll_read(&mut server, &second) {
                Poll::Pending => tokio::task::yield_now().await,
                Poll::Ready(read) => return read.ok(),
            }
        }
    };
    assert_eq!(within("the byte", read).await, Some(1));
    // A wake-up need not say which direction it is for: the writer polls, and waits again.
    within("a full connection", fill(&mut server, &writer, &piece)).await;
    let before = writer_count.0.load(Ordering::SeqCst);
    let drain = async {
        let mut room = vec![0; 256 << 10];
        while writer_count.0.load(Ordering::SeqCst) == before {
            // Bounded: once all is read, the next event may be for the writer's waker.
            let piece = std::time::Duration::from_millis(20);
            let _ = tokio::time::timeout(piece, client.read(&mut room)).await;
        }
    };
    within("the writer's waker", drain).await;
}

/// Writes until the connection wants to wait.
async fn fill(connection: &mut Box<dyn Connection>, writer: &Waker, piece: &[u8]) {
    loop {
        let mut cx = Context::from_waker(writer);
        let mut is_full = || {
            Pin::new(&mut **connection)
                .poll_write(&mut cx, piece)
                .is_pending()
        };
        if is_full() {
            // Perhaps only the reactor has not noticed yet.
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            let mut cx = Context::from_waker(writer);
            if Pin::new(&mut **connection)
                .poll_write(&mut cx, piece)
                .is_pending()
            {
                return;
            }
        }
    }
}
