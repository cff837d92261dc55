//! A connection that wraps another one, as TLS does: it changes every byte, takes what it can, and says goodbye.
#![allow(missing_docs, reason = "a test")]

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context as TaskContext, Poll, ready};
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel, ChannelFault, Lane, LaneIo, Link, OpId, Want};
use tensorpipe::transports::{
    Acceptor, BoxFuture, Connection, MemoryTransport, TcpTransport, Transport,
};
use tensorpipe::{
    Buffer, BufferMut, ConnectPolicy, Context, ContextBuilder, Device, Error, Identity, Message,
    Pipe, ResetCode, Timeouts,
};
use tensorpipe_rpc::{CallContext, Server, tensor_service};
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
    manners: Manners,
    /// Under way.
    saying: Option<Pin<Box<Sleep>>>,
    polled: bool,
}

/// How long a goodbye takes (the longest asks no timer), how many were begun and said, and who the peer has proved to be.
#[derive(Clone, Default)]
struct Manners {
    takes: Duration,
    /// Whoever is asked to say it panics.
    panics: bool,
    begun: Arc<AtomicUsize>,
    said: Arc<AtomicUsize>,
    /// One was asked for while it was told that somebody polls.
    polled: Arc<AtomicBool>,
    /// It always has something to say that nobody need be given.
    floods: Arc<AtomicBool>,
    identity: Option<Identity>,
}

/// A frame of a kind that nobody knows, which says that it may be skipped.
const SKIPPED: [u8; 8] = [0, 0, 0, 0, 200, 1, 0, 0];

/// Bytes of one record.
const RECORD: usize = 16 << 10;

impl Veiled {
    fn over(inner: Box<dyn Connection>, manners: &Manners) -> Box<dyn Connection> {
        Box::new(Self {
            inner,
            read: 0,
            written: 0,
            record: Vec::new(),
            sent: 0,
            manners: manners.clone(),
            saying: None,
            polled: false,
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

    fn identity(&self) -> Option<Identity> {
        self.manners.identity.clone()
    }

    fn can_poll(&self) -> bool {
        self.inner.can_poll()
    }

    fn poll_is_syscall(&self) -> bool {
        self.inner.poll_is_syscall()
    }

    fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
        self.inner.set_polled(polled);
    }

    fn is_ready(&mut self) -> bool {
        self.manners.floods.load(Ordering::SeqCst) || self.inner.is_ready()
    }
}

impl AsyncRead for Veiled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.manners.floods.load(Ordering::SeqCst) {
            while buf.remaining() >= SKIPPED.len() {
                buf.put_slice(&SKIPPED);
            }
            return Poll::Ready(Ok(()));
        }
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
        self.manners.begun.fetch_add(1, Ordering::SeqCst);
        self.manners.polled.fetch_or(self.polled, Ordering::SeqCst);
        assert!(!self.manners.panics, "by design");
        ready!(self.poll_record(cx))?;
        let takes = self.manners.takes;
        if takes == Duration::MAX {
            return Poll::Pending;
        }
        let saying = self.saying.get_or_insert_with(|| Box::pin(sleep(takes)));
        ready!(saying.as_mut().poll(cx));
        self.manners.said.fetch_add(1, Ordering::SeqCst);
        Pin::new(&mut *self.inner).poll_shutdown(cx)
    }
}

struct VeiledTransport(TcpTransport, Manners);

struct VeiledAcceptor(Box<dyn Acceptor>, Manners);

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
    context_with(&Manners::default())
}

fn context_with(manners: &Manners) -> Context {
    builder_with(manners).build().unwrap()
}

fn builder_with(manners: &Manners) -> ContextBuilder {
    let transport: Arc<dyn Transport> =
        Arc::new(VeiledTransport(TcpTransport::new(), manners.clone()));
    let channel: Arc<dyn Channel> = Arc::new(BasicChannel::new());
    Context::builder()
        .transports([transport])
        .channels([channel])
}

tensorpipe::pipe_conformance!(pipes, context, "veiled://127.0.0.1:0");

async fn soon<T>(what: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(20), what);
    bounded.await.expect("it hangs")
}

async fn pair(manners: &Manners) -> (Context, Pipe, Pipe) {
    pair_of(context_with(manners)).await
}

async fn pair_of(context: Context) -> (Context, Pipe, Pipe) {
    let listener = context.listen(["veiled://127.0.0.1:0"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    (context, client.unwrap(), server.unwrap())
}

/// Nothing is left of the connections, each of which has two handles on what counts, nor of the context's transport.
async fn are_gone(manners: &Manners) {
    soon(async {
        while Arc::strong_count(&manners.said) > 3 {
            sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn whoever_closes_waits_until_its_connection_has_said_goodbye() {
    let takes = Duration::from_millis(50);
    let manners = Manners {
        takes,
        ..Manners::default()
    };
    let (_context, client, server) = pair(&manners).await;
    client.send(Message::new("the last one")).unwrap();
    let (closed, read) = soon(async { tokio::join!(client.close(), server.read()) }).await;
    closed.unwrap();
    assert_eq!(read.unwrap().metadata, "the last one");
    assert!(manners.said.load(Ordering::SeqCst) >= 1);
    soon(server.close()).await.unwrap_err();
    assert_eq!(manners.said.load(Ordering::SeqCst), 2);
}

/// On the only thread of a runtime, where whoever reads without end holds up everything.
#[test]
fn a_peer_that_is_never_silent_leaves_time_for_others() {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(async {
            let manners = Manners::default();
            let mut timeouts = Timeouts::default();
            timeouts.linger = Duration::from_millis(100);
            let context = builder_with(&manners).timeouts(timeouts).build().unwrap();
            let (_context, client, server) = pair_of(context).await;
            manners.floods.store(true, Ordering::SeqCst);
            let read = tokio::time::timeout(Duration::from_millis(200), server.read()).await;
            assert!(read.is_err(), "nothing was sent");
            // Nobody awaits the end of either.
            drop((client, server));
            are_gone(&manners).await;
        });
        tell.send(()).unwrap();
    });
    let ended = told.recv_timeout(Duration::from_secs(30));
    ended.expect("the thread reads for ever, or a pipe is kept beyond its time");
}

#[tokio::test]
async fn a_context_that_is_closed_waits_for_the_goodbyes_of_its_pipes() {
    let takes = Duration::from_millis(50);
    let manners = Manners {
        takes,
        ..Manners::default()
    };
    let (context, _client, _server) = pair(&manners).await;
    soon(context.close()).await.unwrap();
    assert_eq!(manners.said.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_goodbye_that_never_ends_holds_nobody_for_ever() {
    let manners = Manners {
        takes: Duration::from_secs(3600),
        ..Manners::default()
    };
    let (_context, client, server) = pair(&manners).await;
    let (closed, _) = soon(async { tokio::join!(client.close(), server.ended()) }).await;
    closed.unwrap();
    drop(server);
    are_gone(&manners).await;
}

/// A channel of which no read succeeds: it fails, or breaks the channel's rules.
struct Breaks {
    fails: bool,
    /// Its lanes have one each.
    lanes: Arc<()>,
}

struct BreaksLane {
    fails: bool,
    _lane: Arc<()>,
}

impl Channel for Breaks {
    fn name(&self) -> &'static str {
        "breaks"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(Device::CPU, Vec::new())]
    }

    fn open(&self, _: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(BreaksLane {
            fails: self.fails,
            _lane: self.lanes.clone(),
        }))
    }
}

impl Lane for BreaksLane {
    fn send(&mut self, _: OpId, _: Buffer, _: &mut LaneIo<'_>) {}

    fn recv(&mut self, op: OpId, _: Want, io: &mut LaneIo<'_>) {
        if self.fails {
            let reason = "by design".into();
            return io.failed(op, Error::OutOfMemory { bytes: 1, reason });
        }
        io.fault(op, ChannelFault("by design".to_owned()));
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Ok(())
    }

    fn streamed(&mut self, _: OpId, _: Option<BufferMut>, _: &mut LaneIo<'_>) {}

    fn cancel(&mut self, _: OpId, _: &mut LaneIo<'_>) {}
}

/// The pipe ends in the middle of an operation, which has its error at once. Nobody else looks at it: there is no keep-alive, and
/// whoever polled for it has long stopped.
#[tokio::test]
async fn a_pipe_that_a_channel_ends_lets_go_of_its_connection_in_time() {
    // What looks after blocked runtimes wakes the first pipe that it finds at rest: this one.
    let _first = pair(&Manners::default()).await;
    let manners = Manners {
        takes: Duration::from_secs(3600),
        ..Manners::default()
    };
    let mut timeouts = Timeouts::default();
    timeouts.silence = None;
    let lanes = Arc::new(());
    let channel: Arc<dyn Channel> = Arc::new(Breaks {
        fails: false,
        lanes: lanes.clone(),
    });
    let context = builder_with(&manners)
        .channels([channel])
        .timeouts(timeouts)
        .connect_policy(ConnectPolicy::once());
    let (context, client, server) = pair_of(context.build().unwrap()).await;
    let tensor = tensorpipe::Tensor::from(vec![1u8; 1 << 20]);
    client.send(Message::new("bulk").tensor(tensor)).unwrap();
    let incoming = soon(server.read_descriptor()).await.unwrap();
    sleep(Duration::from_millis(300)).await;
    let lanes = || Arc::strong_count(&lanes);
    let before = lanes();
    let error = soon(incoming.read()).await.unwrap_err();
    assert!(error.to_string().contains("by design"), "{error}");
    assert!(lanes() < before, "its lane has not gone with it");
    // The peer says nothing that would wake it; what looks after blocked runtimes would, after five seconds.
    let before = Arc::strong_count(&manners.said);
    drop(server);
    let gone = async {
        while Arc::strong_count(&manners.said) == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(4), gone);
    in_time.await.expect("nobody keeps the time");
    drop((client, context));
}

/// It has come ahead of its reader, who hears of it, and whose word counts.
#[tokio::test]
async fn a_read_that_fails_before_its_reader_comes_is_that_readers() {
    let channel: Arc<dyn Channel> = Arc::new(Breaks {
        fails: true,
        lanes: Arc::new(()),
    });
    let context = builder_with(&Manners::default()).channels([channel]);
    let (_context, client, server) = pair_of(context.build().unwrap()).await;
    let write = || {
        let tensor = tensorpipe::Tensor::from(vec![1u8; 100_000]);
        client.write(Message::new("ahead").tensor(tensor))
    };
    let refused = write();
    soon(server.read_descriptor()).await.unwrap().refuse("no");
    match soon(refused).await.unwrap_err() {
        Error::Refused { reason, .. } => assert_eq!(&*reason, "no"),
        other => panic!("{other}"),
    }
    let unread = write();
    let error = soon(server.read()).await.unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    match soon(unread).await.unwrap_err() {
        Error::Refused { code, .. } => assert_eq!(code, ResetCode::Failed),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn nobody_polls_for_a_goodbye() {
    let manners = Manners {
        takes: Duration::from_millis(5),
        ..Manners::default()
    };
    for _ in 0..20 {
        let (_context, client, server) = pair(&manners).await;
        for _ in 0..20 {
            client.send(Message::new("keeps both polling")).unwrap();
            let message = soon(server.read()).await.unwrap();
            server.send(message).unwrap();
            soon(client.read()).await.unwrap();
        }
        let (closed, _) = soon(async { tokio::join!(client.close(), server.ended()) }).await;
        closed.unwrap();
    }
    assert!(
        !manners.polled.load(Ordering::SeqCst),
        "it asks nobody to be woken"
    );
}

#[tokio::test]
async fn a_connection_that_panics_over_its_goodbye_harms_nobody() {
    let manners = Manners {
        panics: true,
        ..Manners::default()
    };
    let (context, client, server) = pair(&manners).await;
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.read().await }
    });
    soon(server.close()).await.unwrap();
    soon(waiting).await.unwrap().unwrap_err();
    drop((client, server, context));
    are_gone(&manners).await;
    assert_eq!(manners.begun.load(Ordering::SeqCst), 2);
}

#[test]
fn a_runtime_that_shuts_down_waits_for_no_goodbye() {
    for takes in [Duration::from_secs(3600), Duration::MAX] {
        let manners = Manners {
            takes,
            ..Manners::default()
        };
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let (_context, client, _server) = runtime.block_on(pair(&manners));
        drop(runtime);
        let own = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let closed = own.spawn(async move { client.close().await });
        own.block_on(soon(closed)).unwrap().unwrap_err();
    }
}

fn alice() -> Manners {
    Manners {
        identity: Some(Identity::Subject("alice".into())),
        ..Manners::default()
    }
}

#[tokio::test]
async fn who_the_peer_has_proved_to_be_is_in_the_route_of_both_ends() {
    let (_context, client, server) = pair(&alice()).await;
    for pipe in [&client, &server] {
        assert_eq!(pipe.route().identity, alice().identity);
        assert!(
            pipe.route()
                .to_string()
                .contains("\n  peer subject \"alice\"\n")
        );
    }
    let (_context, client, server) = pair(&Manners::default()).await;
    assert_eq!(
        (&client.route().identity, &server.route().identity),
        (&None, &None)
    );
}

/// The transport that it is upgraded to proves nothing; who upgrades has a secret of the connection that does.
#[tokio::test]
async fn an_upgraded_pipe_keeps_the_identity_of_its_first_connection() {
    let veiled = VeiledTransport(TcpTransport::new(), alice());
    let transports: [Arc<dyn Transport>; 2] = [Arc::new(MemoryTransport::new()), Arc::new(veiled)];
    let context = Context::builder().transports(transports).build().unwrap();
    let listener = context.listen(["veiled://127.0.0.1:0", "memory://upgrades"]);
    let listener = listener.await.unwrap();
    let url = listener.urls()[0].clone();
    let (client, server) = tokio::join!(context.connect(url), listener.accept());
    for pipe in [client.unwrap(), server.unwrap()] {
        assert_eq!(pipe.route().upgraded_from.as_deref(), Some("veiled"));
        assert_eq!(pipe.route().identity, alice().identity);
    }
}

/// A transport that has no keys and does not say where its peer is.
#[tokio::test]
async fn a_token_over_a_network_says_that_nothing_protects_what_follows() {
    let context = builder_with(&Manners::default()).token("trainers", [7; 16]);
    let (_context, client, server) = pair_of(context.build().unwrap()).await;
    for pipe in [client, server] {
        let route = pipe.route();
        assert!(route.exposed);
        let words = "\n  peer token trainers when it connected; tls would protect what follows";
        assert!(route.to_string().contains(words), "{route}");
    }
}

#[tensor_service]
trait Door {
    async fn knock(&self, cx: CallContext) -> String;
}

struct Porter;

impl Door for Porter {
    async fn knock(&self, cx: CallContext) -> String {
        match &cx.route().identity {
            Some(Identity::Subject(name)) => format!("come in, {name}"),
            _ => "who is there?".to_owned(),
        }
    }
}

#[tokio::test]
async fn a_handler_knows_who_calls() {
    for (manners, answer) in [
        (alice(), "come in, alice"),
        (Manners::default(), "who is there?"),
    ] {
        let context = context_with(&manners);
        let server = Server::builder()
            .context(&context)
            .service(DoorService::new(Porter));
        let server = server.listen("veiled://127.0.0.1:0").await.unwrap();
        let client = DoorClient::connect_with(&context, server.url())
            .await
            .unwrap();
        assert_eq!(client.knock().await.unwrap(), answer);
    }
}

#[tokio::test]
async fn a_server_that_shuts_down_waits_for_the_goodbyes_of_its_pipes() {
    let manners = Manners {
        takes: Duration::from_millis(50),
        ..Manners::default()
    };
    let (here, there) = (context_with(&Manners::default()), context_with(&manners));
    let server = Server::builder()
        .context(&there)
        .service(DoorService::new(Porter));
    let server = server.listen("veiled://127.0.0.1:0").await.unwrap();
    let client = DoorClient::connect_with(&here, server.url()).await.unwrap();
    client.knock().await.unwrap();
    soon(server.shutdown()).await;
    assert_eq!(manners.said.load(Ordering::SeqCst), 1);
}
