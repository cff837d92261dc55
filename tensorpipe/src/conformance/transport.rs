//! What every transport has to do: the contract in [`transports`](crate::transports), scenario by scenario.

use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};

use super::{assert_same, eventually, pattern, within};
use crate::transports::{Acceptor, Connection, Transport};

/// A transport and an address where it can listen.
#[derive(Clone)]
pub struct Subject {
    transport: Arc<dyn Transport>,
    address: String,
}

impl std::fmt::Debug for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Subject({}://{})", self.transport.name(), self.address)
    }
}

impl Subject {
    /// `transport`, listening at `address`.
    pub fn new(transport: Arc<dyn Transport>, address: impl Into<String>) -> Self {
        Self {
            transport,
            address: address.into(),
        }
    }

    async fn listen(&self) -> Box<dyn Acceptor> {
        within("listen", self.transport.listen(&self.address))
            .await
            .unwrap_or_else(|error| panic!("listen: {error}"))
    }

    async fn connect(&self, address: &str) -> Box<dyn Connection> {
        within("connect", self.transport.connect(address))
            .await
            .unwrap_or_else(|error| panic!("connect: {error}"))
    }

    /// A connection: the end that connected, the end that accepted.
    async fn pair(&self) -> (Box<dyn Connection>, Box<dyn Connection>) {
        let mut acceptor = self.listen().await;
        let address = acceptor.address();
        tokio::join!(self.connect(&address), accept(&mut acceptor))
    }
}

async fn accept(acceptor: &mut Box<dyn Acceptor>) -> Box<dyn Connection> {
    within(
        "accept",
        std::future::poll_fn(|cx| acceptor.poll_accept(cx)),
    )
    .await
    .unwrap_or_else(|error| panic!("accept: {error}"))
}

async fn write(connection: &mut Box<dyn Connection>, bytes: &[u8]) {
    let work = async {
        connection.write_all(bytes).await?;
        connection.flush().await
    };
    within("write", work)
        .await
        .unwrap_or_else(|error| panic!("write: {error}"));
}

async fn expect(connection: &mut Box<dyn Connection>, wanted: &[u8]) {
    let mut found = vec![0; wanted.len()];
    within("read", connection.read_exact(&mut found))
        .await
        .unwrap_or_else(|error| panic!("read: {error}"));
    assert_same(&found, wanted, "read");
}

#[doc(hidden)]
#[macro_export]
macro_rules! __transport_scenarios {
    ($then:ident $args:tt) => {
        $crate::$then! { $args
            context_basics domain_descriptor connection_initialization initialization_error
            nop_write queue_writes_before_reads queue_reads_before_writes listener_basics
            accept_callbacks_are_queued incoming_connections_are_queued create_then_close_and_then_address
            acceptor_outlives_its_transport chunking large_write empty_buffer both_ways_at_once
            shutdown_delivers_then_ends drop_delivers_then_ends dropped_peer_is_seen
            wakers_may_change vectored_writes a_full_peer_makes_the_writer_wait
        }
    };
}

/// The scenarios' names, in the order in which [`all`] runs them.
pub const SCENARIOS: &[&str] = crate::__transport_scenarios!(__suite_names());

/// Runs every scenario, each with a subject of its own, and returns their names.
///
/// # Panics
/// Where the contract is broken.
pub async fn all(make: impl Fn() -> Subject) -> &'static [&'static str] {
    crate::__transport_scenarios!(__suite_run(make))
}

/// Name and domain keep their form and do not change.
pub async fn context_basics(subject: Subject) {
    let transport = subject.transport;
    let name = transport.name();
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    assert!(
        !name.is_empty() && name.bytes().all(plain),
        "`{name}` is a URL's scheme"
    );
    assert_eq!(name, transport.name());
    assert_eq!(transport.domain(), transport.domain());
    assert!(transport.domain().len() <= 1024, "a domain fits a brochure");
}

/// It reaches its own domain, and judges any other bytes without a panic, with a reason where it says no.
pub async fn domain_descriptor(subject: Subject) {
    let transport = subject.transport;
    let own = transport.domain();
    assert_eq!(transport.reaches(&own), Ok(()));
    let longer = [own.as_slice(), b"x"].concat();
    for foreign in [&b""[..], b"\0", &longer, &[0xff; 1024], &pattern(1024, 1)] {
        if let Err(reason) = transport.reaches(foreign) {
            assert!(!reason.is_empty(), "a refusal says why");
        }
    }
}

/// Two ends, with names, and bytes both ways.
pub async fn connection_initialization(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    assert!(!client.ends().is_empty() && !server.ends().is_empty());
    write(&mut client, b"from the client").await;
    expect(&mut server, b"from the client").await;
    write(&mut server, b"from the server").await;
    expect(&mut client, b"from the server").await;
}

/// Where nobody listens, and where nobody can, is an error in bounded time.
pub async fn initialization_error(subject: Subject) {
    let acceptor = subject.listen().await;
    let address = acceptor.address();
    drop(acceptor);
    for address in [address.as_str(), "", "\u{0}", "no such place \u{1f980}"] {
        let connected = within("a refusal", subject.transport.connect(address)).await;
        let Err(error) = connected else {
            panic!("connected to {address:?}, where nobody listens");
        };
        assert!(!error.to_string().is_empty());
    }
}

/// A write of no bytes succeeds, and the peer does not notice.
pub async fn nop_write(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    for _ in 0..3 {
        assert_eq!(within("write", client.write(b"")).await.ok(), Some(0));
        write(&mut client, b"x").await;
    }
    expect(&mut server, b"xxx").await;
}

/// What is written before anybody reads arrives, in order.
pub async fn queue_writes_before_reads(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let messages: Vec<Vec<u8>> = (0..64).map(|i| pattern(i * 17, i as u64)).collect();
    for message in &messages {
        write(&mut client, message).await;
    }
    for message in &messages {
        expect(&mut server, message).await;
    }
}

/// A read that waits is woken by a write.
pub async fn queue_reads_before_writes(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let reader = tokio::spawn(async move {
        for i in 0..64 {
            expect(&mut server, &pattern(1 + i * 17, i as u64)).await;
        }
    });
    tokio::task::yield_now().await;
    for i in 0..64 {
        write(&mut client, &pattern(1 + i * 17, i as u64)).await;
        tokio::task::yield_now().await;
    }
    within("the reader", reader)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

/// The address that an acceptor names is one to connect to, as often as one likes.
pub async fn listener_basics(subject: Subject) {
    let mut acceptor = subject.listen().await;
    let address = acceptor.address();
    assert_eq!(address, acceptor.address());
    for i in 0..3u8 {
        let (mut client, mut server) =
            tokio::join!(subject.connect(&address), accept(&mut acceptor));
        write(&mut client, &[i]).await;
        expect(&mut server, &[i]).await;
    }
}

/// An accept that waits is woken by a connection, each time.
pub async fn accept_callbacks_are_queued(subject: Subject) {
    let mut acceptor = subject.listen().await;
    let address = acceptor.address();
    let accepting = tokio::spawn(async move {
        let mut first_bytes = Vec::new();
        for _ in 0..10 {
            let mut connection = accept(&mut acceptor).await;
            first_bytes.push(within("read", connection.read_u8()).await.ok());
        }
        first_bytes.sort_unstable();
        first_bytes
    });
    tokio::task::yield_now().await;
    let mut clients = Vec::new();
    for i in 0..10 {
        let mut client = subject.connect(&address).await;
        write(&mut client, &[i]).await;
        clients.push(client);
    }
    let seen = within("the acceptor", accepting).await;
    let wanted: Vec<_> = (0..10).map(Some).collect();
    assert_eq!(seen.ok(), Some(wanted));
}

/// Connections that come before anybody accepts are kept.
pub async fn incoming_connections_are_queued(subject: Subject) {
    let mut acceptor = subject.listen().await;
    let address = acceptor.address();
    let mut clients = Vec::new();
    for i in 0..10 {
        let mut client = subject.connect(&address).await;
        write(&mut client, &[i]).await;
        clients.push(client);
    }
    let mut seen = Vec::new();
    for _ in 0..10 {
        let mut connection = accept(&mut acceptor).await;
        seen.push(within("read", connection.read_u8()).await.ok());
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).map(Some).collect::<Vec<_>>());
}

/// The address of a closed acceptor is free again.
pub async fn create_then_close_and_then_address(subject: Subject) {
    let acceptor = subject.listen().await;
    let address = acceptor.address();
    drop(acceptor);
    let again = Subject::new(subject.transport.clone(), address.clone());
    let mut acceptor = again.listen().await;
    assert_eq!(acceptor.address(), address);
    let (mut client, mut server) = tokio::join!(again.connect(&address), accept(&mut acceptor));
    write(&mut client, b"x").await;
    expect(&mut server, b"x").await;
}

/// Acceptors and connections do not need the transport that made them.
pub async fn acceptor_outlives_its_transport(subject: Subject) {
    let mut acceptor = subject.listen().await;
    let mut client = subject.connect(&acceptor.address()).await;
    drop(subject);
    let mut server = accept(&mut acceptor).await;
    drop(acceptor);
    write(&mut client, b"x").await;
    expect(&mut server, b"x").await;
}

/// Pieces of odd sizes arrive as one stream, whatever the sizes of reads.
pub async fn chunking(subject: Subject) {
    const LEN: usize = 4 << 20;
    let (mut client, mut server) = subject.pair().await;
    let bytes = Arc::new(pattern(LEN, 7));
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        let mut rest = sent.as_slice();
        for len in (1..).map(|i: usize| (i * 7919) % 100_003) {
            let (piece, after) = rest.split_at(len.min(rest.len()));
            write(&mut client, piece).await;
            rest = after;
            if rest.is_empty() {
                return client;
            }
        }
        client
    });
    let mut found = vec![0; LEN];
    let mut at = 0;
    for len in (1..).map(|i: usize| 1 + (i * 6007) % 65_537) {
        let end = (at + len).min(LEN);
        let read = within("read", server.read(&mut found[at..end])).await;
        match read {
            Ok(0) => panic!("the stream ended after {at} bytes"),
            Ok(len) => at += len,
            Err(error) => panic!("read: {error}"),
        }
        if at == LEN {
            break;
        }
    }
    assert_same(&found, &bytes, "the stream");
    drop(writer.await);
}

/// One write of many megabytes, of which each poll takes what it can.
pub async fn large_write(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let bytes = Arc::new(pattern(16 << 20, 8));
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        write(&mut client, &sent).await;
        client
    });
    expect(&mut server, &bytes).await;
    drop(writer.await);
}

/// A read into no room takes nothing and does not look like the end.
pub async fn empty_buffer(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    write(&mut client, b"abc").await;
    for _ in 0..3 {
        assert_eq!(within("read", server.read(&mut [])).await.ok(), Some(0));
    }
    expect(&mut server, b"abc").await;
}

/// Megabytes both ways at once: neither direction waits for the other.
pub async fn both_ways_at_once(subject: Subject) {
    let (client, server) = subject.pair().await;
    let end = |connection: Box<dyn Connection>, sends: u64, gets: u64| async move {
        let (mut reading, mut writing) = tokio::io::split(connection);
        let out = pattern(8 << 20, sends);
        let mut found = vec![0; 8 << 20];
        let (written, read) = within("both directions", async {
            tokio::join!(writing.write_all(&out), reading.read_exact(&mut found))
        })
        .await;
        assert!(written.is_ok() && read.is_ok(), "{written:?} {read:?}");
        assert_same(&found, &pattern(8 << 20, gets), "one direction");
        // The other end may not be through yet.
        (reading, writing)
    };
    drop(tokio::join!(end(client, 1, 2), end(server, 2, 1)));
}

/// What was written before a shutdown arrives, then the end, once and for ever.
pub async fn shutdown_delivers_then_ends(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let bytes = Arc::new(pattern(3 << 20, 9));
    let sent = bytes.clone();
    let writer = tokio::spawn(async move {
        write(&mut client, &sent).await;
        within("shutdown", client.shutdown()).await.ok();
        client
    });
    expect(&mut server, &bytes).await;
    for _ in 0..2 {
        assert_eq!(
            within("the end", server.read(&mut [0; 8])).await.ok(),
            Some(0)
        );
    }
    drop(writer.await);
}

/// What was written before a connection is dropped arrives, then the end.
pub async fn drop_delivers_then_ends(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let bytes = pattern(1000, 10);
    write(&mut client, &bytes).await;
    drop(client);
    expect(&mut server, &bytes).await;
    assert_eq!(
        within("the end", server.read(&mut [0; 8])).await.ok(),
        Some(0)
    );
}

/// A peer that is gone is the end or an error to a reader that waits, and an error to a writer.
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

/// The waker of the last poll is woken, in each direction, and no direction takes the other's.
pub async fn wakers_may_change(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let (_, first) = Count::waker();
    assert!(poll_read(&mut server, &first).is_pending());
    let (count, second) = Count::waker();
    assert!(poll_read(&mut server, &second).is_pending());
    // A full connection makes a writer wait beside the reader.
    let (writer_count, writer) = Count::waker();
    let piece = vec![0; 64 << 10];
    let fill = async {
        loop {
            let mut cx = Context::from_waker(&writer);
            if Pin::new(&mut *server)
                .poll_write(&mut cx, &piece)
                .is_pending()
            {
                // It may be that only the reactor has not looked yet.
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                if Pin::new(&mut *server)
                    .poll_write(&mut cx, &piece)
                    .is_pending()
                {
                    break;
                }
            }
        }
    };
    within("a full connection", fill).await;
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
    let before = writer_count.0.load(Ordering::SeqCst);
    let drain = async {
        let mut room = vec![0; 256 << 10];
        while writer_count.0.load(Ordering::SeqCst) == before {
            let _ = client.read(&mut room).await;
        }
    };
    within("the writer's waker", drain).await;
}

/// Pieces of a vectored write arrive in order, empty ones among them; a connection that claims to be vectored takes more
/// than the first.
pub async fn vectored_writes(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let pieces: Vec<Vec<u8>> = (0..20).map(|i| pattern((i % 5) * 300, i as u64)).collect();
    let whole = pieces.concat();
    let mut sent = 0;
    let mut first = 0;
    while sent < whole.len() {
        let mut skip = sent;
        let mut slices = Vec::new();
        for piece in &pieces {
            let cut = skip.min(piece.len());
            skip -= cut;
            slices.push(IoSlice::new(&piece[cut..]));
        }
        let written = within("write", client.write_vectored(&slices)).await;
        match written {
            Ok(0) => panic!("nothing was taken of {} bytes", whole.len() - sent),
            Ok(len) => {
                first = if sent == 0 { len } else { first };
                sent += len;
            }
            Err(error) => panic!("write: {error}"),
        }
    }
    if client.is_write_vectored() {
        assert!(
            first > 300,
            "a vectored write took {first} bytes, one piece"
        );
    }
    write(&mut client, b"").await;
    expect(&mut server, &whole).await;
}

/// A writer whose peer does not read waits after a bounded number of bytes, and goes on when it does.
pub async fn a_full_peer_makes_the_writer_wait(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let piece = pattern(1 << 20, 11);
    let mut sent = 0;
    // More than any buffer that a transport should have.
    while sent < 256 << 20 {
        let write = client.write(&piece[sent % piece.len()..]);
        match tokio::time::timeout(std::time::Duration::from_millis(200), write).await {
            Ok(Ok(len)) => sent += len,
            Ok(Err(error)) => panic!("write: {error}"),
            Err(_) => break,
        }
    }
    assert!(sent < 256 << 20, "it takes everything and never waits");
    let mut found = vec![0; sent];
    within("read", server.read_exact(&mut found))
        .await
        .unwrap_or_else(|error| panic!("read: {error}"));
    let wanted: Vec<u8> = piece.iter().copied().cycle().take(sent).collect();
    assert_same(&found, &wanted, "the stream");
    write(&mut client, b"and on").await;
    expect(&mut server, b"and on").await;
}
