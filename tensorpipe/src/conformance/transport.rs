//! The contract of every transport, see [`transports`](crate::transports), scenario by scenario.

mod ending;
mod streaming;

pub use ending::{
    drop_delivers_then_ends, dropped_peer_is_seen, shutdown_delivers_then_ends, wakers_may_change,
};
pub use streaming::{
    a_full_peer_makes_the_writer_wait, both_ways_at_once, chunking, empty_buffer, large_write,
    vectored_writes,
};

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use super::{assert_same, eventually, pattern, within};
use crate::address::PeerAddr;
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

    fn has_sessions(&self) -> bool {
        self.transport.has_sessions()
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

/// The end of a task that writes. A panic there fails the scenario.
async fn ended<T>(writer: JoinHandle<T>) {
    let written = within("the writer", writer).await;
    drop(written.unwrap_or_else(|error| panic!("{error}")));
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
            side_addresses_are_fresh who_is_there_is_this_process
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

/// Name and domain have the right form and do not change.
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

/// It reaches its own domain. It judges any other bytes without a panic, and gives a reason if it refuses.
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
    assert!(!client.endpoints().is_empty() && !server.endpoints().is_empty());
    write(&mut client, b"from the client").await;
    expect(&mut server, b"from the client").await;
    write(&mut server, b"from the server").await;
    expect(&mut client, b"from the server").await;
}

/// Connecting to an address without a listener, or to an impossible one, fails in bounded time.
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

/// Bytes that are written before anybody reads arrive, in order.
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

/// A write wakes a waiting read.
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

/// The address that an acceptor returns can be connected to, any number of times.
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

/// A connection wakes a waiting accept, each time.
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
    let mut coming = Vec::new();
    for i in 0..10 {
        let (subject, address) = (subject.clone(), address.clone());
        let comes = tokio::spawn(async move {
            let mut client = subject.connect(&address).await;
            write(&mut client, &[i]).await;
            client
        });
        coming.push(comes);
    }
    let mut clients = Vec::new();
    if !subject.has_sessions() {
        for comes in coming.drain(..) {
            clients.push(comes.await);
        }
    }
    let mut accepted = Vec::new();
    for _ in 0..10 {
        accepted.push(accept(&mut acceptor).await);
    }
    let mut seen = Vec::new();
    for mut connection in accepted {
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
    let listening = within("listen", again.transport.listen(&address)).await;
    let mut acceptor =
        listening.unwrap_or_else(|error| panic!("dropping an acceptor frees its address: {error}"));
    assert_eq!(acceptor.address(), address);
    let (mut client, mut server) = tokio::join!(again.connect(&address), accept(&mut acceptor));
    write(&mut client, b"x").await;
    expect(&mut server, b"x").await;
}

/// Acceptors and connections do not need the transport that made them.
pub async fn acceptor_outlives_its_transport(subject: Subject) {
    let mut acceptor = subject.listen().await;
    let address = acceptor.address();
    let (mut client, mut server);
    if subject.has_sessions() {
        let connects = subject.connect(&address);
        (client, server) = tokio::join!(connects, accept(&mut acceptor));
        drop(subject);
    } else {
        client = subject.connect(&address).await;
        drop(subject);
        server = accept(&mut acceptor).await;
    }
    drop(acceptor);
    write(&mut client, b"x").await;
    expect(&mut server, b"x").await;
}

/// Each call returns another upgrade address, at which a context can listen.
pub async fn side_addresses_are_fresh(subject: Subject) {
    let transport = subject.transport;
    let addresses = [transport.upgrade_address(), transport.upgrade_address()];
    let addresses: Vec<_> = addresses.into_iter().flatten().collect();
    match &addresses[..] {
        [] => return,
        [first, second] => assert_ne!(first, second, "two listeners cannot share it"),
        _ => panic!("it has an upgrade address only now and then"),
    }
    for address in addresses {
        let aside = Subject::new(transport.clone(), address);
        let (mut client, mut server) = aside.pair().await;
        write(&mut client, b"aside").await;
        expect(&mut server, b"aside").await;
    }
}

/// Both ends are in this process: `peer` agrees with that, and does not change.
pub async fn who_is_there_is_this_process(subject: Subject) {
    let (mut client, mut server) = subject.pair().await;
    let before = [client.peer(), server.peer()];
    write(&mut client, b"x").await;
    expect(&mut server, b"x").await;
    write(&mut server, b"x").await;
    expect(&mut client, b"x").await;
    assert_eq!(before, [client.peer(), server.peer()]);
    let uid = std::fs::metadata("/proc/self").map(|own| own.uid()).ok();
    for peer in before {
        if subject.transport.in_process() {
            assert_eq!(peer, PeerAddr::SameProcess);
        }
        if let PeerAddr::Process { pid, uid: user } = peer {
            assert_eq!((pid, Some(user)), (Some(std::process::id()), uid));
        }
    }
}
