//! Closed connections leave no memory in use. `tp-bench churn` shows the same for resident memory, over an hour.
#![allow(missing_docs, reason = "a test")]

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use futures_util::{FutureExt, Stream, StreamExt};
use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{Pem, TlsConfig, TlsTransport};
use tensorpipe::{Context, DType, Listener, Message, Tensor, Url};
use tensorpipe_rpc::{Connection, Server, tensor_service};
use tensorpipe_tests::{Child, Counting, alone, eventually, role, runtime, say, soon};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::Notify;

#[global_allocator]
static ALLOCATOR: Counting = Counting::new();

#[tensor_service]
trait Echo {
    async fn echo(&self, tensor: Tensor) -> Tensor;
    /// Never answers.
    async fn hold(&self, tensor: Tensor);
    /// Never ends.
    fn items(&self) -> impl Stream<Item = Tensor>;
}

#[derive(Default)]
struct Echoes {
    /// Calls of `hold` have begun, and have been cut.
    held: Arc<Notify>,
    cut: Arc<AtomicUsize>,
}

struct Held(Arc<AtomicUsize>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Echo for Echoes {
    async fn echo(&self, tensor: Tensor) -> Tensor {
        tensor
    }

    async fn hold(&self, _: Tensor) {
        let _held = Held(self.cut.clone());
        self.held.notify_one();
        std::future::pending().await
    }

    fn items(&self) -> impl Stream<Item = Tensor> {
        let held = Held(self.cut.clone());
        futures_util::stream::repeat_with(move || {
            let _ = &held;
            Tensor::from(vec![1u8; 3000])
        })
    }
}

/// What a connection was.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Over each transport: it calls, and goes.
    Calls,
    /// The same, while a handler is at it.
    IsCutInItsHandler,
    /// The same, within a stream of items.
    IsCutInAStream,
    /// The same, while a tensor waits for its reader.
    IsCutInATensor,
    /// It proves a token, over tcp and over TLS, and calls.
    Proves,
    /// Over each transport in turn: a process that calls, lends, borrows, and is killed.
    IsKilled,
    /// It says this, and goes.
    Says(&'static [u8]),
}

const KINDS: [Kind; 9] = [
    Kind::Calls,
    Kind::IsCutInItsHandler,
    Kind::IsCutInAStream,
    Kind::IsCutInATensor,
    Kind::Proves,
    Kind::IsKilled,
    // A hostile peer, one that says nothing, and one that is cut within its first frame.
    Kind::Says(b"GET / HTTP/1.1"),
    Kind::Says(b""),
    Kind::Says(b"\x93TPIPE\r\n\x01\0"),
];

/// Connections of each kind in a round, over each transport.
const CONNECTIONS: usize = 3;

/// Before these, tables and pools grow to their sizes.
const WARM_UP: usize = 10;

const ROUNDS: usize = 30;

/// Longer than anything is kept for that is not needed any more.
const KEPT: Duration = Duration::from_millis(2500);

/// Bytes by which two rests differ. A context's list of pipes is swept when it is full. Until then it keeps 3 KiB of each pipe that
/// was: of four, or of as many as were there at once. Five contexts keep up to 20 of them; this is room for 26.
const TABLES: i64 = 80 << 10;

#[test]
fn connections_that_were_leave_nothing_in_use() {
    alone(async || {
        let shm = format!("shm://growth-{}", std::process::id());
        let echoes = Echoes::default();
        let (held, cut) = (echoes.held.clone(), echoes.cut.clone());
        let server = Server::builder()
            .context(&Context::builder().name("server").build().unwrap())
            .service(EchoService::new(echoes))
            .listen_at(["tcp://127.0.0.1:0", &*shm])
            .await
            .unwrap();
        // Without a channel that lends: a tensor is not written before it is read.
        let basic: Arc<dyn Channel> = Arc::new(BasicChannel::new());
        let piping = Context::builder().channels([basic]).build().unwrap();
        let pipes = ["tcp://127.0.0.1:0", &*format!("{shm}-pipes")];
        let pipes = piping.listen(pipes).await.unwrap();
        let proving = Server::builder()
            .context(&proving("proving server"))
            .service(EchoService::new(Echoes::default()))
            .listen_at(["tcp://127.0.0.1:0", "tls://127.0.0.1:0"])
            .await
            .unwrap();
        let urls: Vec<_> = server.urls().iter().map(ToString::to_string).collect();
        let address = urls[0].strip_prefix("tcp://").unwrap().to_owned();
        let context = Context::builder().name("client").build().unwrap();
        let has_proof = self::proving("proving client");
        let (mut cut_in_all, mut killed) = (0, 0);
        let mut round = async || {
            for kind in KINDS.into_iter().cycle().take(CONNECTIONS * KINDS.len()) {
                match kind {
                    Kind::Calls => {
                        for url in &urls {
                            call(&context, url).await;
                        }
                    }
                    Kind::IsCutInItsHandler => {
                        for url in &urls {
                            cut_in_its_handler(call(&context, url).await, &held).await;
                        }
                    }
                    Kind::IsCutInAStream => {
                        for url in &urls {
                            cut_in_a_stream(call(&context, url).await).await;
                        }
                    }
                    Kind::Proves => {
                        for url in proving.urls() {
                            call(&has_proof, url.as_ref()).await;
                        }
                    }
                    Kind::IsCutInATensor => {
                        for url in pipes.urls() {
                            cut_in_a_tensor(&context, url, &pipes).await;
                        }
                    }
                    Kind::IsKilled => {
                        let mut child = Child::start("peer", &[("TEST_URL", &urls[killed % 2])]);
                        soon("a handler", held.notified()).await;
                        child.hear("holds");
                        child.kill();
                        killed += 1;
                    }
                    Kind::Says(words) => {
                        let mut hostile = TcpStream::connect(&address).await.unwrap();
                        hostile.write_all(words).await.unwrap();
                    }
                }
            }
            // Each was cut while its handler was at it, or its stream.
            cut_in_all += 2 * CONNECTIONS * urls.len();
            let is_cut = || cut.load(Ordering::Relaxed) == cut_in_all + killed;
            eventually("calls are cut", is_cut).await;
            eventually("calls end", || server.calls_in_flight() == 0).await;
        };
        // rustls keeps 256 tickets that it gave. Each connection leaves one of its two, as it used one of another.
        for _ in 0..256 {
            call(&has_proof, proving.urls()[1].as_ref()).await;
        }
        let (mut before, mut after) = (vec![0; Counting::SIZES], vec![0; Counting::SIZES]);
        for _ in 0..WARM_UP {
            round().await;
        }
        let bytes = at_rest(&mut before).await;
        for _ in 0..ROUNDS {
            round().await;
        }
        let now = at_rest(&mut after).await;
        let growth = after
            .iter()
            .zip(&before)
            .map(|(after, before)| after - before);
        let (most, size) = growth.zip(0..).max().unwrap();
        // Not of all kinds together: one of them may not keep what five do not.
        let connections = (CONNECTIONS * ROUNDS) as i64;
        println!(
            "{} bytes more than {bytes}, {most} of {size} bytes each, after {connections} connections of each kind",
            now - bytes
        );
        assert!(most < connections / 2, "{most} of {size} bytes each");
        assert!(now - bytes < TABLES, "{bytes}, then {now}");
    });
}

/// Calls, and keeps the answer and a call with a tensor of its own, until it is killed.
#[test]
fn child() {
    if role().is_none() {
        return;
    }
    runtime().block_on(async {
        let url = std::env::var("TEST_URL").unwrap();
        let context = Context::builder().name("child").build().unwrap();
        let client = call(&context, &url).await;
        let lent = context.pool().tensor(DType::U8, [2 << 20]).unwrap();
        let echo = soon("an echo", client.echo(&lent).into_future()).await;
        let borrowed = echo.unwrap();
        let mut hold = pin!(client.hold(&lent).into_future());
        assert!((&mut hold).now_or_never().is_none(), "it has ended");
        say("holds", borrowed.byte_len());
        hold.await.unwrap();
    });
}

/// A connection that calls; it goes when what is returned is dropped.
async fn call(context: &Context, url: &str) -> EchoClient {
    let connection = soon("a connection", Connection::connect_with(context, url))
        .await
        .unwrap();
    let client = soon("a client", EchoClient::on(&connection)).await.unwrap();
    for len in [0, 3000, 100_000] {
        let tensor = Tensor::from(vec![1u8; len]);
        let echoed = soon("an echo", client.echo(&tensor).into_future()).await;
        assert_eq!(echoed.unwrap().byte_len(), len);
    }
    client
}

async fn cut_in_its_handler(client: EchoClient, held: &Notify) {
    let tensor = Tensor::from(vec![1u8; 2 << 20]);
    let (call, begins) = (client.hold(&tensor).into_future(), held.notified());
    let (mut call, mut begins) = (pin!(call), pin!(begins));
    let begun = soon("a handler", select(&mut call, &mut begins)).await;
    assert!(matches!(begun, Either::Right(_)), "it has ended");
}

async fn cut_in_a_stream(client: EchoClient) {
    let mut items = pin!(client.items());
    for _ in 0..3 {
        let item = soon("an item", items.next()).await;
        assert_eq!(item.unwrap().unwrap().byte_len(), 3000);
    }
}

/// With a token, and a certificate of its own that it trusts.
fn proving(name: &str) -> Context {
    static OWN: LazyLock<(String, String)> = LazyLock::new(|| {
        let own = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        (own.cert.pem(), own.signing_key.serialize_pem())
    });
    let (certificate, key) = &*OWN;
    let certificate = Pem::bytes(certificate.as_str());
    let tls = TlsConfig::new().trust(certificate.clone());
    let tls = tls.certificate(certificate, Pem::bytes(key.as_str()));
    let context = Context::builder().name(name).token("growth", [7; 16]);
    let context = context.prefer_transport(TlsTransport::new(tls).unwrap());
    context.build().unwrap()
}

async fn cut_in_a_tensor(context: &Context, url: &Url, listener: &Listener) {
    let both = async { tokio::join!(context.connect(url), listener.accept()) };
    let (writer, reader) = soon("a pipe", both).await;
    let (writer, reader) = (writer.unwrap(), reader.unwrap());
    // More than may come ahead of its reader.
    let message = Message::new("").tensor(Tensor::from(vec![1u8; 8 << 20]));
    let written = writer.write(message);
    let _incoming = soon("a descriptor", reader.read_descriptor())
        .await
        .unwrap();
    let written = written.now_or_never();
    assert!(written.is_none(), "nobody has read it: {written:?}");
}

/// Waits until nothing is given back any more. Returns the bytes that are in use then, and counts pieces by their size.
async fn at_rest(pieces: &mut [i64]) -> i64 {
    let mut least = i64::MAX;
    let mut since = Instant::now();
    while since.elapsed() < KEPT {
        tokio::time::sleep(Duration::from_millis(5)).await;
        let in_use = ALLOCATOR.held() as i64;
        if in_use < least {
            (least, since) = (in_use, Instant::now());
        }
    }
    for (pieces, now) in pieces.iter_mut().zip(ALLOCATOR.pieces()) {
        *pieces = now;
    }
    least
}
