//! Every transport through the transport suite.
#![allow(missing_docs, reason = "a test")]

use std::io::ErrorKind;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

use tensorpipe::conformance::transport::{self, Subject};
use tensorpipe::testing::{Network, SimTransport};
use tensorpipe::transports::{
    Connection, MemoryTransport, Pem, ShmTransport, TcpTransport, TlsConfig, TlsTransport,
};
use tensorpipe_tests::Over;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Two listeners of one process cannot have the same name.
fn a_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("conformance {}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Names of shm are the machine's.
fn a_process_wide_name() -> String {
    format!("{} of {}", a_name(), std::process::id())
}

tensorpipe::transport_conformance!(tcp, || Arc::new(TcpTransport::new()), "127.0.0.1:0");
tensorpipe::transport_conformance!(tcp_v6, || Arc::new(TcpTransport::new()), "[::1]:0");
/// A network in real time, of each test's own: a port is free as soon as nobody listens there, and the next test would have it.
fn sim() -> Arc<SimTransport> {
    Arc::new(Network::new(1).host("host").transport())
}

tensorpipe::transport_conformance!(sim, super::sim, "host:0");
/// Both ends of TLS, by a certificate that this process makes.
fn tls() -> Arc<TlsTransport> {
    static MADE: LazyLock<TlsTransport> = LazyLock::new(|| {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let pem = || Pem::bytes(made.cert.pem());
        let key = Pem::bytes(made.signing_key.serialize_pem());
        TlsTransport::new(TlsConfig::new().certificate(pem(), key).trust(pem())).unwrap()
    });
    Arc::new(MADE.clone())
}

tensorpipe::transport_conformance!(tls, super::tls, "127.0.0.1:0");
/// A connection that ends badly.
struct Ends {
    inner: Box<dyn Connection>,
    how: Poll<ErrorKind>,
    written: usize,
}

/// What `chunking` writes; `large_write` writes more.
const LEN: usize = 4 << 20;

impl AsyncRead for Ends {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Ends {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.inner).poll_write(cx, buf))?;
        self.written += written;
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        let flushed = ready!(Pin::new(&mut self.inner).poll_flush(cx));
        Poll::Ready(match self.how {
            Poll::Ready(kind) if self.written >= LEN => flushed.and_then(|()| Err(kind.into())),
            _ => flushed,
        })
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        // The peer sees the end in any case.
        let _ = Pin::new(&mut self.inner).poll_shutdown(cx);
        self.how.map(|kind| Err(kind.into()))
    }
}

impl Connection for Ends {
    fn endpoints(&self) -> String {
        self.inner.endpoints()
    }
}

/// What a scenario says of a transport whose connections end like this, although all bytes arrive.
async fn fails<F: Future<Output = ()> + Send + 'static>(
    how: Poll<ErrorKind>,
    scenario: fn(Subject) -> F,
) -> String {
    let ends = move |inner| -> Box<dyn Connection> {
        Box::new(Ends {
            inner,
            how,
            written: 0,
        })
    };
    let transport = Over::new("ends", MemoryTransport::new()).connecting(ends);
    let subject = Subject::new(Arc::new(transport), a_name());
    let failed = tokio::spawn(scenario(subject)).await;
    failed.expect_err("it passes").to_string()
}

/// The clock goes on by itself while everybody waits.
#[tokio::test(start_paused = true)]
async fn a_transport_that_ends_badly_fails() {
    let scenario = transport::shutdown_delivers_then_ends;
    let text = fails(Poll::Pending, scenario).await;
    assert!(text.contains("shutdown: nothing for 30s"), "{text}");
    let text = fails(Poll::Ready(ErrorKind::NotConnected), scenario).await;
    assert!(text.contains("shutdown: not connected"), "{text}");
    let broken = Poll::Ready(ErrorKind::BrokenPipe);
    for text in [
        fails(broken, transport::chunking).await,
        fails(broken, transport::large_write).await,
    ] {
        assert!(text.contains("write: broken pipe"), "{text}");
    }
}

tensorpipe::transport_conformance!(memory, || Arc::new(MemoryTransport::new()), a_name());
tensorpipe::transport_conformance!(shm, || Arc::new(ShmTransport::new()), a_process_wide_name());
