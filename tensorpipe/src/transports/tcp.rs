//! TCP through tokio: NODELAY, keep-alive, vectored writes. While polled, reads bypass tokio, which would not try a read before its reactor
//! has reported an event.

use std::io::{self, IoSlice, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use libc::MSG_NOSIGNAL;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, lookup_host};
use tokio::task::JoinSet;

use super::{Acceptor, BoxFuture, Connection, Transport};
use crate::address::PeerAddr;
use crate::error::{Error, Misuse, SystemError};
use crate::sync::{AtomicU64, Ordering};
use crate::sys::pacing;

/// Bytes in the kernel that are not on the wire yet: kept low, so that a control frame does not wait behind megabytes.
const NOT_SENT_LOW_WATER: u32 = 1 << 20;

/// When the kernel starts to probe for a dead host, and how often. The protocol's pings find out earlier; this serves if they are switched
/// off.
const KEEP_ALIVE: Duration = Duration::from_secs(30);

const BACKLOG: u32 = 1024;

/// How long an address of a name may stay silent before the next one is tried beside it: the value that RFC 8305, section 8, recommends.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// The most slices that one call takes: more are an error.
const SLICES_MOST: usize = libc::UIO_MAXIOV as usize;

/// Transport `tcp`: `tcp://HOST:PORT`, over IPv4 and IPv6.
#[derive(Default)]
pub struct TcpTransport {
    paced: Option<Paced>,
}

/// The most bytes per second that a connection sends, by the connection's number.
type Pace = dyn Fn(u64) -> Option<u64> + Send + Sync;

/// Paces the connections of one transport, which it counts.
#[derive(Clone)]
struct Paced {
    pace: Arc<Pace>,
    made: Arc<AtomicU64>,
}

impl TcpTransport {
    /// Works everywhere.
    pub fn new() -> Self {
        Self::default()
    }

    /// For tests and measurements of narrow links on one machine. `pace` gets the number of each connection made or accepted, counted
    /// from 0, and returns the most bytes per second that it sends (SO_MAX_PACING_RATE).
    #[doc(hidden)]
    pub fn paced(pace: impl Fn(u64) -> Option<u64> + Send + Sync + 'static) -> Self {
        Self {
            paced: Some(Paced {
                pace: Arc::new(pace),
                made: Arc::default(),
            }),
        }
    }
}

impl std::fmt::Debug for TcpTransport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TcpTransport")
    }
}

impl Paced {
    fn apply(paced: Option<&Self>, stream: &TcpStream) -> Result<(), Error> {
        let rate = paced.and_then(|paced| {
            let number = paced.made.fetch_add(1, Ordering::SeqCst);
            (paced.pace)(number)
        });
        let Some(rate) = rate else { return Ok(()) };
        pacing::set_max_pacing_rate(stream.as_fd(), rate)
            .map_err(|error| SystemError::new("setsockopt", "SO_MAX_PACING_RATE", error).into())
    }
}

impl Transport for TcpTransport {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn domain(&self) -> Vec<u8> {
        b"ip".to_vec()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            let addresses = resolve(address).await?;
            if addresses.iter().any(|to| to.port() == 0) {
                return Err(bad(address, NO_PORT).into());
            }
            let connected = connect_first(addresses).await;
            let stream = connected.map_err(|error| error.unwrap_or_else(|| no_address(address)))?;
            Paced::apply(self.paced.as_ref(), &stream)?;
            Ok(Box::new(TcpConnection::new(stream)?) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let mut last = None;
            for at in resolve(address).await? {
                match bind(at) {
                    Ok(mut acceptor) => {
                        acceptor.paced = self.paced.clone();
                        return Ok(Box::new(acceptor) as Box<dyn Acceptor>);
                    }
                    Err(error) => last = Some(SystemError::new("listen", at.to_string(), error)),
                }
            }
            Err(last.unwrap_or_else(|| no_address(address)).into())
        })
    }
}

/// The first connection that comes about. An address that drops packets holds up the next one for [`NEXT_ADDRESS`] only, one that refuses
/// not at all: RFC 8305, section 5. The error is that of the last address to fail, if there is one.
async fn connect_first(addresses: Vec<SocketAddr>) -> Result<TcpStream, Option<SystemError>> {
    let mut addresses = addresses.into_iter();
    let mut attempts = JoinSet::new();
    let mut failed = None;
    loop {
        if let Some(to) = addresses.next() {
            attempts.spawn(connect_to(to));
        }
        let has_more = addresses.len() > 0;
        tokio::select! {
            biased;
            attempted = attempts.join_next() => match attempted {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failed = Some(error),
                // The runtime ends.
                Some(Err(_)) => {}
                None => return Err(failed),
            },
            () = tokio::time::sleep(NEXT_ADDRESS), if has_more => {}
        }
    }
}

async fn connect_to(to: SocketAddr) -> Result<TcpStream, SystemError> {
    let error = match TcpStream::connect(to).await {
        Ok(stream) if is_its_own_peer(&stream) => io::ErrorKind::ConnectionRefused.into(),
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    Err(SystemError::new("connect", to.to_string(), error))
}

fn bind(at: SocketAddr) -> io::Result<TcpAcceptor> {
    let socket = if at.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    // A restarted server gets its port back while old connections still linger.
    socket.set_reuseaddr(true)?;
    socket.bind(at)?;
    let listener = socket.listen(BACKLOG)?;
    Ok(TcpAcceptor {
        address: listener.local_addr()?,
        listener,
        paced: None,
    })
}

/// Said of port 0 in the URL of a connector.
const NO_PORT: &str =
    "nobody listens at port 0: take the URL that the listener has chosen (`url()`)";

fn bad(address: &str, reason: &str) -> Misuse {
    Misuse::Address {
        url: format!("tcp://{address}"),
        reason: reason.to_owned(),
    }
}

/// Where nobody listens at a port of the range from which the system picks, it may pick just that one for a connection to it, which then
/// leads back to itself.
fn is_its_own_peer(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(own), Ok(peer)) if own == peer)
}

/// The socket addresses of `HOST:PORT`.
async fn resolve(address: &str) -> Result<Vec<SocketAddr>, Error> {
    let bad = |reason| bad(address, reason);
    // Browsers and URL libraries add a slash.
    let address = address.strip_suffix('/').unwrap_or(address);
    if address.contains('/') {
        return Err(bad("a path has no meaning here; write `tcp://HOST:PORT`").into());
    }
    let (host, port) = address
        .rsplit_once(':')
        .ok_or_else(|| bad("the port is missing; write `tcp://HOST:PORT`"))?;
    if host.is_empty() {
        return Err(bad("the host is missing; `0.0.0.0` or `[::]` listens everywhere").into());
    }
    if port.parse::<u16>().is_err() {
        return Err(bad("the port is not a number from 0 to 65535").into());
    }
    if host.contains(':') && !host.starts_with('[') {
        return Err(bad("an IPv6 address stands in brackets: `tcp://[::1]:5000`").into());
    }
    match lookup_host(address).await {
        Ok(found) => Ok(found.collect()),
        // A system without /etc/hosts may not resolve it. By RFC 6761, section 6.3, it is always loopback.
        Err(_) if host.eq_ignore_ascii_case("localhost") => {
            let port = port.parse().unwrap_or_default();
            Ok(vec![
                (Ipv4Addr::LOCALHOST, port).into(),
                (Ipv6Addr::LOCALHOST, port).into(),
            ])
        }
        Err(error) => Err(SystemError::new("resolve", address, error).into()),
    }
}

fn no_address(address: &str) -> SystemError {
    SystemError::new(
        "resolve",
        address,
        io::Error::new(io::ErrorKind::NotFound, "the name has no address"),
    )
}

struct TcpAcceptor {
    address: SocketAddr,
    listener: TcpListener,
    paced: Option<Paced>,
}

impl Acceptor for TcpAcceptor {
    fn address(&self) -> String {
        self.address.to_string()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        let accepted = ready!(self.listener.poll_accept(cx));
        Poll::Ready(match accepted {
            Ok((stream, _)) => Paced::apply(self.paced.as_ref(), &stream)
                .and_then(|()| TcpConnection::new(stream))
                .map(|connection| Box::new(connection) as _),
            Err(error) => Err(SystemError::new("accept", self.address.to_string(), error).into()),
        })
    }
}

struct TcpConnection {
    stream: TcpStream,
    here: SocketAddr,
    peer: SocketAddr,
    polled: bool,
}

impl TcpConnection {
    fn new(stream: TcpStream) -> Result<Self, Error> {
        let set_up = || -> io::Result<(SocketAddr, SocketAddr)> {
            let ends = (stream.local_addr()?, stream.peer_addr()?);
            stream.set_nodelay(true)?;
            let socket = SockRef::from(&stream);
            socket.set_tcp_keepalive(
                &TcpKeepalive::new()
                    .with_time(KEEP_ALIVE)
                    .with_interval(KEEP_ALIVE / 3),
            )?;
            socket.set_tcp_notsent_lowat(NOT_SENT_LOW_WATER)?;
            Ok(ends)
        };
        match set_up() {
            Ok((here, peer)) => Ok(Self {
                stream,
                here,
                peer,
                polled: false,
            }),
            // The peer is gone already: some systems refuse to set options of such a socket.
            Err(error) => Err(SystemError::new("setsockopt", "a new connection", error).into()),
        }
    }
}

impl Connection for TcpConnection {
    fn endpoints(&self) -> String {
        format!("{} -> {}", self.here, self.peer)
    }

    fn peer(&self) -> PeerAddr {
        PeerAddr::Socket(self.peer)
    }

    fn can_poll(&self) -> bool {
        true
    }

    fn poll_is_syscall(&self) -> bool {
        true
    }

    fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
    }
}

impl AsyncRead for TcpConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.polled {
            return Pin::new(&mut self.stream).poll_read(cx, buf);
        }
        // After a read here, tokio's readiness is stale: it tries once in vain later, no more.
        match (&*SockRef::from(&self.stream)).read(buf.initialize_unfilled()) {
            Ok(len) => {
                buf.advance(len);
                Poll::Ready(Ok(()))
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                Poll::Pending
            }
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl AsyncWrite for TcpConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        // Not tokio's: `writev` raises SIGPIPE, which ends a program that does not ignore it.
        let bufs = &bufs[..bufs.len().min(SLICES_MOST)];
        let send = || SockRef::from(&self.stream).send_vectored_with_flags(bufs, MSG_NOSIGNAL);
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            match self.stream.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                sent => return Poll::Ready(sent),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_leads_back_to_itself_is_none() {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let own = socket.local_addr().unwrap();
        assert!(is_its_own_peer(&socket.connect(own).await.unwrap()));
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let other = TcpStream::connect(listener.local_addr().unwrap()).await;
        assert!(!is_its_own_peer(&other.unwrap()));
    }

    /// Its queue of connections that wait to be accepted is full, so that the system drops what comes to it.
    async fn silent() -> (TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let listener = socket.listen(1).unwrap();
        let mut queued = Vec::new();
        let soon = Duration::from_millis(100);
        let connect = || TcpStream::connect(listener.local_addr().unwrap());
        while let Ok(stream) = tokio::time::timeout(soon, connect()).await {
            queued.push(stream.unwrap());
        }
        (listener, queued)
    }

    #[tokio::test]
    async fn an_address_that_stays_silent_or_refuses_does_not_use_up_the_time_of_the_others() {
        let (silent, _queued) = silent().await;
        let silent = silent.local_addr().unwrap();
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (listener, closed) = (bind().await.unwrap(), bind().await.unwrap());
        let (listens, refuses) = (listener.local_addr().unwrap(), closed.local_addr().unwrap());
        drop(closed);
        let bound = Duration::from_secs(20);
        for addresses in [
            vec![silent, refuses, listens],
            vec![refuses, silent, silent, listens],
            vec![listens, silent],
        ] {
            let connected = tokio::time::timeout(bound, connect_first(addresses)).await;
            let peer = connected.unwrap().unwrap().peer_addr().unwrap();
            assert_eq!(peer, listens);
        }
        let refused = connect_first(vec![refuses, refuses]).await;
        let refused = refused.unwrap_err().unwrap();
        assert_eq!(refused.source.kind(), io::ErrorKind::ConnectionRefused);
        assert!(connect_first(Vec::new()).await.unwrap_err().is_none());
    }
}
