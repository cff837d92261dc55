//! A connection that wraps another one, as TLS does: it changes every byte, takes what it can, and says goodbye.
#![allow(missing_docs, reason = "a test")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use tensorpipe::{Context, Error, Message, Pipe};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A key stream that both ends compute: what is lost, doubled or moved by a byte turns into noise.
fn key(position: u64) -> u8 {
    (position.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

struct Veiled {
    inner: Box<dyn Connection>,
    read: u64,
    written: u64,
    /// Veiled and not yet written: at most one record.
    record: Vec<u8>,
    sent: usize,
    goodbye: Goodbye,
    /// Under way.
    saying: Option<Pin<Box<Sleep>>>,
}

/// How long a goodbye takes, and how many were said.
#[derive(Clone, Default)]
struct Goodbye {
    takes: Duration,
    said: Arc<AtomicUsize>,
}

/// Bytes of one record.
const RECORD: usize = 16 << 10;

impl Veiled {
    fn over(inner: Box<dyn Connection>, goodbye: &Goodbye) -> Box<dyn Connection> {
        Box::new(Self {
            inner,
            read: 0,
            written: 0,
            record: Vec::new(),
            sent: 0,
            goodbye: goodbye.clone(),
            saying: None,
        })
    }

    fn poll_record(&mut self, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.record.len() {
            let rest = &self.record[self.sent..];
            let len = ready!(Pin::new(&mut *self.inner).poll_write(cx, rest))?;
            if len == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += len;
        }
        self.record.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl Connection for Veiled {
    fn ends(&self) -> String {
        format!("veiled {}", self.inner.ends())
    }
}

impl AsyncRead for Veiled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut *self.inner).poll_read(cx, buf))?;
        for byte in &mut buf.filled_mut()[before..] {
            *byte ^= key(self.read);
            self.read += 1;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Veiled {
    /// Takes a record and keeps it: as with TLS, only a flush (or the next write) makes sure that it leaves.
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_record(cx))?;
        let taken = bytes.len().min(RECORD);
        for byte in &bytes[..taken] {
            this.record.push(byte ^ key(this.written));
            this.written += 1;
        }
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_record(cx))?;
        Pin::new(&mut *self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_record(cx))?;
        let takes = self.goodbye.takes;
        let saying = self.saying.get_or_insert_with(|| Box::pin(sleep(takes)));
        ready!(saying.as_mut().poll(cx));
        self.goodbye.said.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}

struct VeiledTransport(TcpTransport, Goodbye);

struct VeiledAcceptor(Box<dyn Acceptor>, Goodbye);

impl Acceptor for VeiledAcceptor {
    fn address(&self) -> String {
        self.0.address()
    }

    fn poll_accept(
        &mut self,
        cx: &mut TaskContext<'_>,
    ) -> Poll<Result<Box<dyn Connection>, Error>> {
        let accepted = self.0.poll_accept(cx);
        accepted.map_ok(|inner| Veiled::over(inner, &self.1))
    }
}

impl Transport for VeiledTransport {
    fn name(&self) -> &'static str {
        "veiled"
    }

    fn domain(&self) -> Vec<u8> {
        self.0.domain()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            let inner = self.0.connect(address).await?;
            Ok(Veiled::over(inner, &self.1))
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let acceptor = self.0.listen(address).await?;
            Ok(Box::new(VeiledAcceptor(acceptor, self.1.clone())) as Box<dyn Acceptor>)
        })
    }
}

fn context() -> Context {
    context_with(&Goodbye::default())
}

fn context_with(goodbye: &Goodbye) -> Context {
    let transport: Arc<dyn Transport> =
        Arc::new(VeiledTransport(TcpTransport::new(), goodbye.clone()));
    let channel: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    let builder = Context::builder()
        .transports([transport])
        .channels([channel]);
    builder.build().unwrap()
}

tensorpipe::pipe_conformance!(pipes, context, "veiled://127.0.0.1:0");

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), what);
    bounded.await.expect("it hangs")
}

async fn pair(goodbye: &Goodbye) -> (Context, Pipe, Pipe) {
    let context = context_with(goodbye);
    let listener = context.listen(["veiled://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    (context, client.unwrap(), server.unwrap())
}

#[tokio::test]
async fn whoever_closes_waits_until_its_connection_has_said_goodbye() {
    let takes = Duration::from_millis(50);
    let goodbye = Goodbye {
        takes,
        ..Goodbye::default()
    };
    let (_context, client, server) = pair(&goodbye).await;
    client.send(Message::new("the last one")).unwrap();
    let (closed, read) = soon(async { tokio::join!(client.close(), server.read()) }).await;
    closed.unwrap();
    assert_eq!(read.unwrap().metadata, "the last one");
    assert!(goodbye.said.load(Ordering::SeqCst) >= 1);
    soon(server.close()).await.unwrap_err();
    assert_eq!(goodbye.said.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_context_that_is_closed_waits_for_the_goodbyes_of_its_pipes() {
    let takes = Duration::from_millis(50);
    let goodbye = Goodbye {
        takes,
        ..Goodbye::default()
    };
    let (context, _client, _server) = pair(&goodbye).await;
    soon(context.close()).await.unwrap();
    assert_eq!(goodbye.said.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_goodbye_that_never_ends_holds_nobody_for_ever() {
    let goodbye = Goodbye {
        takes: Duration::from_secs(3600),
        ..Goodbye::default()
    };
    let (_context, client, server) = pair(&goodbye).await;
    let (closed, _) = soon(async { tokio::join!(client.close(), server.ended()) }).await;
    closed.unwrap();
    drop(server);
    // Nor a descriptor: each connection is dropped, with its two handles on what counts.
    soon(async {
        while Arc::strong_count(&goodbye.said) > 3 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[test]
fn a_runtime_that_shuts_down_waits_for_no_goodbye() {
    let goodbye = Goodbye {
        takes: Duration::from_secs(3600),
        ..Goodbye::default()
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (_context, client, _server) = runtime.block_on(pair(&goodbye));
    drop(runtime);
    let own = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    own.block_on(soon(client.close())).unwrap_err();
}
