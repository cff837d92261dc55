//! A large tensor whose other end keeps up leaves others their turn, on a runtime of one thread.
//!
//! Counted in bytes: how many of them move between two turns of a bystander.
#![allow(missing_docs, reason = "a test")]

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, DType, Error, Message, Misuse, Pipe, Tensor};
use tensorpipe_tests::soon;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const LEN: u64 = 96 << 20;

/// As far as this end may go between two turns of others.
const BETWEEN_TURNS: u64 = LEN / 3;

/// A tcp connection that is never empty, nor full: what comes within `patience` is waited for on the spot.
struct Keen(TcpStream);

/// Its transport, for the end that connects.
struct KeenTransport {
    patience: Duration,
}

fn poll<T>(cx: &mut TaskContext<'_>, done: io::Result<T>) -> Poll<io::Result<T>> {
    match done {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            // It is looked at again once everybody else had a turn.
            let _ = pin!(tokio::task::yield_now()).poll(cx);
            Poll::Pending
        }
        done => Poll::Ready(done),
    }
}

impl Connection for Keen {
    fn ends(&self) -> String {
        "keen".to_owned()
    }
}

impl AsyncRead for Keen {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.0.read(buf.initialize_unfilled());
        poll(cx, read.map(|len| buf.advance(len)))
    }
}

impl AsyncWrite for Keen {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        poll(cx, self.0.write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        poll(cx, self.0.write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.0.shutdown(std::net::Shutdown::Write))
    }
}

impl Transport for KeenTransport {
    /// The other end's.
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn domain(&self) -> Vec<u8> {
        TcpTransport::new().domain()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(self.patience)).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        Box::pin(async move { Ok(Box::new(Keen(stream)) as Box<dyn Connection>) })
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async { Err(Misuse::Other("it only connects".to_owned()).into()) })
    }
}

fn context(transport: impl Transport) -> Context {
    let transport: Arc<dyn Transport> = Arc::new(transport);
    let channel: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let builder = Context::builder()
        .transports([transport])
        .channels([channel]);
    builder.build().unwrap()
}

/// The other end, which keeps up: on a thread and a runtime of its own. Returns where it listens.
fn peer(then: impl AsyncFnOnce(Pipe) + Send + 'static) -> String {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        tensorpipe_tests::runtime().block_on(async {
            let context = context(TcpTransport::new());
            let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
            tell.send(listener.url().to_string()).unwrap();
            let pipe = listener.accept().await.unwrap();
            then(pipe.clone()).await;
            pipe.ended().await;
        });
    });
    told.recv().unwrap()
}

/// Does `work`, and says how many bytes have `moved` at most between two turns of another task.
async fn between_turns<T>(
    work: impl Future<Output = T>,
    moved: impl Fn() -> u64 + Send + 'static,
) -> (T, u64) {
    let most = Arc::new(AtomicU64::new(0));
    let bystander = tokio::spawn({
        let most = most.clone();
        // It has not had its first turn yet.
        let mut before = moved();
        async move {
            loop {
                let now = moved();
                most.fetch_max(now - before, Ordering::SeqCst);
                before = now;
                tokio::task::yield_now().await;
            }
        }
    });
    let done = soon("the tensor", work).await;
    // Its last look.
    tokio::task::yield_now().await;
    bystander.abort();
    (done, most.load(Ordering::SeqCst))
}

fn large() -> Message {
    Message::new("large").tensor(Tensor::zeros(DType::U8, [LEN]).unwrap())
}

#[tokio::test]
async fn a_tensor_that_comes_as_fast_as_it_is_read_leaves_others_their_turn() {
    let url = peer(async |pipe| pipe.write(large()).await.unwrap());
    let patience = Duration::from_millis(20);
    let pipe = context(KeenTransport { patience })
        .connect(url)
        .await
        .unwrap();
    let stats = {
        let pipe = pipe.clone();
        move || pipe.stats().bytes_in
    };
    let (read, most) = between_turns(pipe.read(), stats).await;
    assert_eq!(read.unwrap().tensors[0].tensor.byte_len() as u64, LEN);
    assert!(most <= BETWEEN_TURNS, "{} MiB without a turn", most >> 20);
}

#[tokio::test]
async fn a_tensor_that_is_taken_as_fast_as_it_is_sent_leaves_others_their_turn() {
    let url = peer(async |pipe| drop(pipe.read().await.unwrap()));
    let patience = Duration::from_millis(1);
    let pipe = context(KeenTransport { patience })
        .connect(url)
        .await
        .unwrap();
    let stats = {
        let pipe = pipe.clone();
        move || pipe.stats().bytes_out
    };
    let (written, most) = between_turns(async { pipe.write(large()).await }, stats).await;
    written.unwrap();
    assert!(most <= BETWEEN_TURNS, "{} MiB without a turn", most >> 20);
}
