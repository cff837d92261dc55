//! Connections of hostile peers: a plain socket, or a connection of the real transport for shared-memory rings and TLS.

use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, connect, socket};
use tensorpipe::Url;
use tensorpipe::transports::{self, Connection, ShmTransport, TcpTransport, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::Runtime;

use super::memory::Purse;

/// How hostile peers and the server are connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Tcp,
    Shm,
}

impl Way {
    pub(crate) const ALL: [Self; 2] = [Self::Tcp, Self::Shm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }

    pub(crate) fn transport(self) -> Arc<dyn Transport> {
        match self {
            Self::Tcp => Arc::new(TcpTransport::new()),
            Self::Shm => Arc::new(ShmTransport::new()),
        }
    }

    /// Where a server can listen. `what` tells those of one process apart.
    pub(crate) fn url(self, what: &str) -> String {
        match self {
            Self::Tcp => "tcp://127.0.0.1:0".to_owned(),
            Self::Shm => format!("shm://hostile {} {what}", std::process::id()),
        }
    }
}

/// Of a hostile peer's, who pays for what it sends.
#[derive(Debug)]
pub(crate) struct Stream {
    over: Over,
    purse: Purse,
}

#[derive(Debug)]
enum Over {
    Tcp(TcpStream),
    Carried(Shared),
}

/// A connection of a transport's, used by a thread that waits.
struct Shared {
    connection: Box<dyn Connection>,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl From<Box<dyn Connection>> for Over {
    fn from(connection: Box<dyn Connection>) -> Self {
        Self::Carried(Shared {
            connection,
            read_timeout: None,
            write_timeout: None,
        })
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.connection.endpoints())
    }
}

impl Stream {
    pub(crate) fn connect(url: &str) -> Self {
        Self::try_connect(url).unwrap()
    }

    /// `None` where nobody listens. Who does so is not asked about: only the victim may care.
    pub(crate) fn try_connect(url: &str) -> Option<Self> {
        let purse = Purse::at(url);
        let url: Url = url.parse().unwrap();
        let over = if url.transport() == "tcp" {
            let stream = TcpStream::connect(url.address()).ok()?;
            stream.set_nodelay(true).unwrap();
            Over::Tcp(stream)
        } else {
            let transport = ShmTransport::new().any_user();
            return Self::carried(&transport, url.address(), purse);
        };
        Some(Self { over, purse })
    }

    /// Over a connection of this transport's.
    pub(crate) fn over(transport: &dyn Transport, url: &str) -> Self {
        let to: Url = url.parse().unwrap();
        Self::carried(transport, to.address(), Purse::at(url)).unwrap()
    }

    fn carried(transport: &dyn Transport, address: &str, purse: Purse) -> Option<Self> {
        let connection = runtime().block_on(transport.connect(address)).ok()?;
        let over = connection.into();
        Some(Self { over, purse })
    }

    /// From this address of the machine.
    pub(crate) fn connect_from(url: &str, from: &str) -> Option<Self> {
        let purse = Purse::at(url);
        let at: std::net::SocketAddrV4 = url.strip_prefix("tcp://")?.parse().ok()?;
        let from = std::net::SocketAddrV4::new(from.parse().ok()?, 0);
        let flags = SockFlag::SOCK_CLOEXEC;
        let made = socket(AddressFamily::Inet, SockType::Stream, flags, None).ok()?;
        bind(made.as_raw_fd(), &SockaddrIn::from(from)).ok()?;
        connect(made.as_raw_fd(), &SockaddrIn::from(at)).ok()?;
        let over = Over::Tcp(made.into());
        Some(Self { over, purse })
    }

    /// What a victim in this process has connected to.
    pub(crate) fn accepted(stream: TcpStream) -> Self {
        let (over, purse) = (Over::Tcp(stream), Purse::here());
        Self { over, purse }
    }

    pub(crate) fn set_read_timeout(&mut self, bound: Duration) {
        match &mut self.over {
            Over::Tcp(stream) => stream.set_read_timeout(Some(bound)).unwrap(),
            Over::Carried(shared) => shared.read_timeout = Some(bound),
        }
    }

    pub(crate) fn set_write_timeout(&mut self, bound: Duration) {
        match &mut self.over {
            Over::Tcp(stream) => stream.set_write_timeout(Some(bound)).unwrap(),
            Over::Carried(shared) => shared.write_timeout = Some(bound),
        }
    }

    pub(crate) fn finish_sending(&mut self) {
        match &mut self.over {
            Over::Tcp(stream) => drop(stream.shutdown(Shutdown::Write)),
            Over::Carried(shared) => {
                let _ = runtime().block_on(shared.connection.shutdown());
            }
        }
    }
}

/// Where a hostile peer waits for others.
pub(crate) struct Acceptor(Box<dyn transports::Acceptor>);

impl Acceptor {
    pub(crate) fn over_shm(address: &str) -> Self {
        let transport = ShmTransport::new();
        Self(runtime().block_on(transport.listen(address)).unwrap())
    }

    pub(crate) fn accept(&mut self) -> Stream {
        let accepted = runtime().block_on(poll_fn(|cx| self.0.poll_accept(cx)));
        let (over, purse) = (accepted.unwrap().into(), Purse::here());
        Stream { over, purse }
    }
}

/// One for all hostile peers: a runtime each would be descriptors by the thousand.
fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().unwrap()
    })
}

fn within(
    bound: Option<Duration>,
    work: impl Future<Output = io::Result<usize>>,
) -> io::Result<usize> {
    let bound = bound.unwrap_or(Duration::from_secs(60));
    runtime().block_on(async {
        let done = tokio::time::timeout(bound, work).await;
        done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    })
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match &mut self.over {
            Over::Tcp(stream) => stream.read(bytes),
            Over::Carried(shared) => within(shared.read_timeout, shared.connection.read(bytes)),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Before it arrives.
        self.purse.pays(bytes.len());
        match &mut self.over {
            Over::Tcp(stream) => stream.write(bytes),
            Over::Carried(shared) => within(shared.write_timeout, shared.connection.write(bytes)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
