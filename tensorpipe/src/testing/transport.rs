//! Transport `sim`: connects the contexts of a host to a network.

use std::io;
use std::net::Ipv4Addr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Handle;
use tokio::time::Sleep;

use super::Host;
use super::state::{Read, Shared};
use crate::address::PeerAddr;
use crate::error::{Error, Misuse, SystemError};
use crate::sync::Arc;
use crate::transports::{Acceptor, BoxFuture, Connection, Transport};

/// Transport `sim`: `sim://HOST:PORT`, within one [`Network`](super::Network).
#[derive(Clone, Debug)]
pub struct SimTransport(Host);

impl SimTransport {
    pub(super) fn new(host: Host) -> Self {
        Self(host)
    }
}

fn failed(call: &'static str, address: &str, source: io::Error) -> Error {
    SystemError::new(call, format!("sim://{address}"), source).into()
}

impl Transport for SimTransport {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn domain(&self) -> Vec<u8> {
        let network: *const Shared = &*self.0.shared;
        (network.addr() as u64).to_le_bytes().to_vec()
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            let Self(host) = self;
            let refused = |error| failed("connect", address, error);
            let found = (host.shared).with(|state| {
                state.check(host)?;
                state.resolve(address)
            });
            let to = found.map_err(refused)?;
            host.shared.cross(host.number, to).await;
            let opened = (host.shared).with(|state| {
                state.check(host)?;
                state.open(host.number, address)
            });
            // From here on, dropping this future closes the connection.
            let opened = opened.map(|id| SimConnection::new(host, id, 0, to));
            host.shared.cross(to, host.number).await;
            Ok(Box::new(opened.map_err(refused)?) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            let host = &self.0;
            let port = address.strip_prefix(&*host.name);
            let port = port.and_then(|rest| rest.strip_prefix(':')?.parse().ok());
            let Some(port) = port else {
                let reason = format!("host {0} listens at sim://{0}:PORT", host.name);
                let url = format!("sim://{address}");
                return Err(Misuse::Address { url, reason }.into());
            };
            let address = (host.shared)
                .with(|state| state.listen(host, port))
                .map_err(|error| failed("listen", address, error))?;
            let host = host.clone();
            Ok(Box::new(SimAcceptor { host, address }) as Box<dyn Acceptor>)
        })
    }
}

struct SimAcceptor {
    host: Host,
    address: String,
}

impl Acceptor for SimAcceptor {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        let Self { host, address } = self;
        let shared = &host.shared;
        let (id, from) = ready!(shared.with(|state| state.poll_accept(host, address, cx.waker())));
        Poll::Ready(Ok(Box::new(SimConnection::new(host, id, 1, from))))
    }
}

impl Drop for SimAcceptor {
    fn drop(&mut self) {
        let Self { host, address } = self;
        host.shared
            .with(|state| state.stop_listening(host, address));
    }
}

/// One end of a connection.
struct SimConnection {
    shared: Arc<Shared>,
    id: u64,
    side: usize,
    ends: String,
    peer: usize,
    /// Of the pipe: any thread may drive it.
    runtime: Handle,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl SimConnection {
    fn new(host: &Host, id: u64, side: usize, peer: usize) -> Self {
        let name = host.shared.with(|state| state.name(peer).to_owned());
        Self {
            shared: host.shared.clone(),
            id,
            side,
            ends: format!("{} -> {name}, connection {id}", host.name),
            peer,
            runtime: Handle::current(),
            sleep: None,
        }
    }
}

impl Drop for SimConnection {
    fn drop(&mut self) {
        self.shared.with(|state| state.drop_end(self.id, self.side));
    }
}

impl Connection for SimConnection {
    fn endpoints(&self) -> String {
        self.ends.clone()
    }

    /// Each host has an address of its own; limits count by it.
    fn peer(&self) -> PeerAddr {
        let host = Ipv4Addr::from_bits(0x0a00_0001 + self.peer as u32);
        let port = (self.id % 0xffff) as u16 + 1;
        PeerAddr::Socket((host, port).into())
    }
}

impl AsyncRead for SimConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        room: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if room.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            let read = (this.shared).with(|state| state.read(this.id, this.side, room, cx.waker()));
            let Read::Wait(until) = read? else {
                return Poll::Ready(Ok(()));
            };
            let Some(until) = until else {
                return Poll::Pending;
            };
            let sleep = this.sleep.get_or_insert_with(|| {
                let _inside = this.runtime.enter();
                Box::pin(tokio::time::sleep_until(until))
            });
            if sleep.deadline() != until {
                sleep.as_mut().reset(until);
            }
            ready!(sleep.as_mut().poll(cx));
        }
    }
}

impl AsyncWrite for SimConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        (self.shared).with(|state| state.write(self.id, self.side, bytes, cx.waker()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.with(|state| state.shut(self.id, self.side));
        Poll::Ready(Ok(()))
    }
}
