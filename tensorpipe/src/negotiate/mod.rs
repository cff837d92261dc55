//! Making pipes: carries out the handshake that [`proto::handshake`](crate::proto::handshake) defines.
//!
//! The listener chooses, by its own order of preference. If it chose a better transport, the connector joins with a random 128-bit token
//! that works once and over that transport only. The connector uses the new connection at once. Until the listener sends JOINED, the
//! connector keeps the first connection and remembers what it has written. If it is rejected, it goes back to the first connection and
//! repeats that.
//!
//! If a token is configured, both ends first prove that they have it. Such a pipe has a key, and so does a pipe whose first connection has
//! keys of its own (TLS). Then both ends of every further connection prove that it belongs to the pipe.
//!
//! A pipe is upgraded only to transports with a `upgrade_address`. No built-in transport leads out of the machine this way, so a listener
//! cannot make its peers connect to hosts of its choice.

mod arrivals;
mod choose;
mod connect;
mod establish;
mod extra_connections;
mod joining;
mod proving;
mod receive;
mod ticket;

pub(crate) use arrivals::{Arrived, arrivals};
pub(crate) use connect::connect;
pub(crate) use receive::{Door, ListenerState, receive, turn_away};

use std::sync::Arc;

use bytes::BufMut as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::Identity;
use crate::ambient;
use crate::channels::Channel;
use crate::context::Inner;
use crate::device::DeviceOffer;
use crate::error::{Error, PeerFault, with_advice};
use crate::proto::wire::hello::{Brochure, ChannelOffer, TransportOffer};
use crate::transports::{Connection, Transport};

/// Bytes read at once during a handshake: memory for a connection grows with what the peer sends.
const PIECE: usize = 4 << 10;

/// A connection whose handshake is under way.
struct Handshaking {
    connection: Box<dyn Connection>,
    /// Read but not used yet.
    input: Vec<u8>,
    /// The peer's name, for errors.
    name: Arc<str>,
}

impl Handshaking {
    fn new(connection: Box<dyn Connection>, name: impl Into<Arc<str>>) -> Self {
        Self {
            connection,
            input: Vec::new(),
            name: name.into(),
        }
    }

    /// Reads up to `most` bytes more. Cancel safe. Returns how many; 0 at the end.
    async fn read_more(&mut self, most: usize) -> std::io::Result<usize> {
        // Room that is doubled would be twice of what an unproven peer has sent.
        self.input.reserve_exact(most);
        let mut room = (&mut self.input).limit(most);
        self.connection.read_buf(&mut room).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let sent = async {
            self.connection.write_all(bytes).await?;
            self.connection.flush().await
        };
        sent.await.map_err(|error| self.broken(&error))
    }

    /// Waits for the peer's first bytes. `false`: the peer is gone, without any; an error for all else that ends the connection.
    async fn wait_for_first_bytes(&mut self) -> Result<bool, Error> {
        match self.read_more(PIECE).await {
            Ok(len) => Ok(len > 0),
            Err(error) if is_end(&error) => Ok(false),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Reads until `handle` has enough. `handle` returns how many bytes it used, and its result.
    async fn read<T>(
        &mut self,
        mut handle: impl FnMut(&[u8]) -> Result<(usize, Option<T>), PeerFault>,
    ) -> Result<T, Error> {
        loop {
            if !self.input.is_empty() {
                let handled = handle(&self.input);
                let (used, found) = handled.map_err(|fault| self.fault(fault))?;
                self.input.drain(..used);
                if let Some(found) = found {
                    return Ok(found);
                }
            }
            match self.read_more(PIECE).await {
                Ok(0) => return Err(self.lost("it was closed during the handshake")),
                Ok(_) => {}
                Err(error) => return Err(self.broken(&error)),
            }
        }
    }

    /// Waits until the connection ends. Keeps what the peer sends before that, but reads no more than one piece of it.
    async fn ended(&mut self) -> Error {
        while self.input.len() < PIECE {
            match self.read_more(PIECE - self.input.len()).await {
                Ok(0) => return self.lost("it was closed during the handshake"),
                Ok(_) => {}
                Err(error) => return self.broken(&error),
            }
        }
        std::future::pending().await
    }

    fn fault(&self, fault: PeerFault) -> Error {
        Error::Peer {
            pipe: self.name.clone(),
            fault,
        }
    }

    /// A transport may report a precise error, for example that the peer failed to authenticate.
    fn broken(&self, error: &std::io::Error) -> Error {
        said(error).map_or_else(|| self.lost(&with_advice(error)), Error::clone)
    }

    fn lost(&self, reason: &str) -> Error {
        Error::Lost {
            pipe: self.name.clone(),
            reason: reason.into(),
        }
    }
}

/// What the transport itself says of an error, if it does.
fn said(error: &std::io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Whether the peer is gone, and nothing is wrong here.
fn is_end(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    match said(error) {
        Some(error) => matches!(error, Error::Lost { .. }),
        None => matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof),
    }
}

/// The peer's identity: as the transport of the first connection established it, and by the token of this name.
fn identified(conn: &Handshaking, token: Option<Arc<str>>) -> Option<Identity> {
    let over = conn.connection.identity();
    match token {
        None => over,
        Some(name) => Some(Identity::Token {
            name,
            over: over.map(Arc::new),
        }),
    }
}

/// Whether a channel can be used between two devices, with their descriptors, on a pipe over a transport.
fn reaches(
    channel: &dyn Channel,
    over: &dyn Transport,
    ours: DeviceOffer<'_>,
    theirs: DeviceOffer<'_>,
) -> Result<(), String> {
    channel.reaches(ours, theirs)?;
    match is_proven(channel, over) {
        true => Ok(()),
        false => Err(unproven(over.name())),
    }
}

/// Descriptors are only the peer's claims. Only a transport can prove that the peer is in this process.
fn is_proven(channel: &dyn Channel, over: &dyn Transport) -> bool {
    over.in_process() || !channel.in_process()
}

fn unproven(transport: &str) -> String {
    format!("it is for two ends in one process, which a pipe over {transport} does not show")
}

/// What this context offers to a listener.
fn brochure(context: &Inner) -> Brochure {
    let transports = context.transports.iter();
    let transports = transports
        .map(|t| TransportOffer {
            name: t.name().to_owned(),
            domain: t.domain(),
        })
        .collect();
    let channels = context.channels.iter().map(|channel| ChannelOffer {
        name: channel.name().to_owned(),
        connections: channel.connections(),
        devices: channel.devices(),
    });
    Brochure {
        transports,
        channels: channels.collect(),
    }
}

/// Whether trying again can help: a listener that is not there yet, is restarting, or is full.
pub(crate) fn is_transient(error: &Error) -> bool {
    match error {
        Error::System(refused) => !refused.is_lasting(),
        Error::Lost { .. } | Error::Timeout { .. } => true,
        Error::Rejected { transient, .. } => *transient,
        _ => false,
    }
}

/// From 0 to 1.
pub(crate) fn random_fraction() -> f64 {
    f64::from(ambient::random_u64() as u8) / 256.0
}
