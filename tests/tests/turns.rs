//! A large tensor whose peer keeps up must not starve other tasks on a single-threaded runtime.
//!
//! The tests count how many bytes move between two turns of another task.
#![allow(missing_docs, reason = "a test")]

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as TaskContext, Poll};
use std::time::Duration;

use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, DType, Error, Message, Misuse, Pipe, Tensor};
use tensorpipe_tests::{eventually, over, soon};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const LEN: u64 = 96 << 20;

/// As far as this end may go between two turns of others.
const BETWEEN_TURNS: u64 = LEN / 3;

/// A tcp connection that is never empty, nor full: what comes within a read of its transport is waited for on the spot.
struct Keen(TcpStream, Arc<Gate>);

/// Its transport, for the end that connects.
struct KeenTransport {
    timeout: Duration,
    gate: Arc<Gate>,
}

/// The thread that the gate is for.
const HELD_UP: &str = "held up";

/// What a pipe has room for there, in bytes.
const IN_THE_MIDDLE: usize = 64 << 10;

/// Where whoever reads on one thread is held up.
#[derive(Default)]
struct Gate {
    open: AtomicBool,
    is_shut: AtomicBool,
    is_held_up: AtomicBool,
}

impl KeenTransport {
    fn new(timeout: Duration) -> Self {
        let gate = Arc::default();
        Self { timeout, gate }
    }
}

impl Gate {
    /// It holds up who reads into the middle of a tensor. From then on there is always more to be read of what is read.
    /// Returns how much to read.
    fn pass(&self, len: usize) -> usize {
        let is_meant = std::thread::current().name() == Some(HELD_UP);
        if is_meant && len >= IN_THE_MIDDLE {
            for _ in 0..20_000 {
                if !self.is_shut.load(Ordering::SeqCst) {
                    break;
                }
                self.is_held_up.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        match self.is_held_up.load(Ordering::SeqCst) {
            true => len.min(1 << 10),
            false => len,
        }
    }
}

impl Drop for Keen {
    fn drop(&mut self) {
        self.1.open.store(false, Ordering::SeqCst);
    }
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
    fn endpoints(&self) -> String {
        "keen".to_owned()
    }
}

impl AsyncRead for Keen {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = buf.initialize_unfilled();
        let Self(stream, gate) = &mut *self;
        let len = gate.pass(bytes.len());
        let read = stream.read(&mut bytes[..len]);
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
        stream.set_read_timeout(Some(self.timeout)).unwrap();
        stream
            .set_write_timeout(Some(Duration::from_secs(1)))
            .unwrap();
        self.gate.open.store(true, Ordering::SeqCst);
        let keen = Box::new(Keen(stream, self.gate.clone()));
        Box::pin(async move { Ok(keen as Box<dyn Connection>) })
    }

    fn listen<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async { Err(Misuse::Other("it only connects".to_owned()).into()) })
    }
}

fn context(transport: impl Transport) -> Context {
    over(vec![Arc::new(transport)]).build().unwrap()
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
    let timeout = Duration::from_millis(20);
    let pipe = context(KeenTransport::new(timeout))
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
    let timeout = Duration::from_millis(1);
    let pipe = context(KeenTransport::new(timeout))
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

/// It ends while one thread reads, which is in the middle of much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pipe_that_ends_while_much_is_read_lets_go_of_its_connection() {
    let url = peer(async |pipe| drop(pipe.write(large()).await));
    let transport = KeenTransport::new(Duration::from_millis(20));
    let gate = transport.gate.clone();
    let pipe = context(transport).connect(url).await.unwrap();
    let mut reading = Box::pin(pipe.read());
    tokio::select! {
        _ = &mut reading => panic!("the tensor is too small"),
        () = eventually("bytes", || pipe.stats().bytes_in > 1 << 20) => {}
    }
    gate.is_shut.store(true, Ordering::SeqCst);
    let (other, runtime) = (pipe.clone(), tokio::runtime::Handle::current());
    // No thread of the runtime's, where whoever it wakes would have to wait for it.
    let thread = std::thread::Builder::new().name(HELD_UP.to_owned());
    let waiting = thread.spawn(move || runtime.block_on(other.ended()));
    eventually("a read", || gate.is_held_up.load(Ordering::SeqCst)).await;
    soon("the end", pipe.close_within(Duration::ZERO))
        .await
        .unwrap_err();
    drop(reading);
    // Whoever else would let go of it has tried, and could not.
    tokio::time::sleep(Duration::from_millis(50)).await;
    gate.is_shut.store(false, Ordering::SeqCst);
    eventually("the connection's end", || !gate.open.load(Ordering::SeqCst)).await;
    drop(waiting.unwrap().join().unwrap());
}
