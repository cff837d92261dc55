//! TLS 1.3 around [`tcp`](super::TcpTransport): `tls://HOST:PORT`. Feature `tls`; rustls with the provider `ring`.
//!
//! - **Trust.** A connector accepts a listener whose certificate leads to one that it [trusts](TlsConfig::trust) and names the host of the
//!   URL. A listener may require [certificates of connectors](TlsConfig::clients), and then rejects those without one.
//! - **Upgrades.** It has no upgrade address: no peer upgrades a pipe to it, nor one of its pipes to `tcp`. A pipe that begins here may be
//!   upgraded to shared memory; its two ends then prove the key of this connection.
//! - **Goodbye.** A pipe that ends in good order sends `close_notify`. A connection that ends without it was cut.
//! - **Handshake.** An accepted connection does its handshake on a task of its own, which ends with the connection. It counts against the
//!   listener's time and places for connections that have said nothing yet.
//! - **Resumption.** A connector that returns within a day resumes its session, without the listener's certificate. The certificate from
//!   before is checked again all the same ([`checks`]). If connectors show certificates, sessions are not resumed, so that each connector
//!   learns what is wrong with its own. New certificates and keys start without sessions.

mod checks;
mod config;
mod connection;
mod handshake;
mod names;
mod session;

pub use config::{Pem, TlsConfig};

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ServerConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use self::checks::Connects;
use self::connection::TlsConnection;
use self::handshake::Shaking;
use super::{Acceptor, BoxFuture, Connection, TcpTransport, Transport};
use crate::error::{Error, Misuse};
use crate::sync::{Mutex, lock};

/// Transport `tls`: `tls://HOST:PORT`.
///
/// A clone is the same transport: keep one to [`reload`](TlsTransport::reload) its files.
///
/// ```no_run
/// use tensorpipe::Context;
/// use tensorpipe::transports::{Pem, TlsConfig, TlsTransport};
///
/// # fn main() -> Result<(), tensorpipe::Misuse> {
/// // A server, and whom it lets in.
/// let config = TlsConfig::new()
///     .certificate(Pem::file("server.pem"), Pem::file("server.key"))
///     .clients(Pem::file("ca.pem"));
/// let tls = TlsTransport::new(config)?;
/// let context = Context::builder().prefer_transport(tls.clone()).build()?;
/// // Later, when the files have changed:
/// tls.reload()?;
///
/// // A client.
/// let config = TlsConfig::new()
///     .trust(Pem::file("ca.pem"))
///     .certificate(Pem::file("client.pem"), Pem::file("client.key"));
/// let context = Context::builder().prefer_transport(TlsTransport::new(config)?).build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TlsTransport {
    tcp: Arc<TcpTransport>,
    now: Arc<Mutex<Now>>,
    /// Held while a configuration is loaded and installed, so that the last request wins.
    loading: Arc<Mutex<()>>,
}

/// The current configuration, and what was made from it.
struct Now {
    config: TlsConfig,
    sides: Sides,
}

/// What each side can do with a configuration.
#[derive(Clone)]
struct Sides {
    connects: Option<Connects>,
    listens: Option<Arc<ServerConfig>>,
}

impl Now {
    /// The settings for a handshake that begins now, and the name that the listener must prove.
    fn connects(&self, address: &str) -> Result<(Connects, ServerName<'static>), Error> {
        let client = self.sides.connects.clone().ok_or_else(|| {
            let text =
                "this end trusts no listener: give it the roots of some by `TlsConfig::trust`";
            Misuse::Other(text.to_owned())
        })?;
        let name = self.config.expected()?;
        Ok((client, name.map_or_else(|| host(address), Ok)?))
    }
}

impl TlsTransport {
    /// With these certificates and keys.
    ///
    /// # Errors
    /// [`Misuse::Config`] if one cannot be read, or they do not fit.
    pub fn new(config: TlsConfig) -> Result<Self, Misuse> {
        let sides = config.load()?;
        Ok(Self {
            tcp: Arc::new(TcpTransport::new()),
            now: Arc::new(Mutex::new(Now { config, sides })),
            loading: Arc::default(),
        })
    }

    /// Reads the files again. Handshakes that begin from now on use their content. Existing connections and pipes go on:
    /// [close](crate::Pipe::close) a pipe if you do not trust its [peer](crate::Pipe::peer) any more.
    ///
    /// # Errors
    /// [`Misuse::Config`] if one cannot be read, or they do not fit: then everything stays as it was.
    pub fn reload(&self) -> Result<(), Misuse> {
        let _loading = lock(&self.loading);
        let config = lock(&self.now).config.clone();
        self.load(config)
    }

    /// Uses another configuration from now on.
    ///
    /// # Errors
    /// As [`reload`](Self::reload).
    pub fn replace(&self, config: TlsConfig) -> Result<(), Misuse> {
        let _loading = lock(&self.loading);
        self.load(config)
    }

    /// The caller holds [`loading`](Self::loading).
    fn load(&self, config: TlsConfig) -> Result<(), Misuse> {
        let sides = config.load()?;
        *lock(&self.now) = Now { config, sides };
        Ok(())
    }
}

impl fmt::Debug for TlsTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsTransport")
    }
}

/// The host of `HOST:PORT`, as a certificate names it.
fn host(address: &str) -> Result<ServerName<'static>, Misuse> {
    let address = address.strip_suffix('/').unwrap_or(address);
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(host.to_owned()).map_err(|_| Misuse::Address {
        url: format!("tls://{address}"),
        reason: "its host is no name that a certificate can have".to_owned(),
    })
}

/// The address `bound`, with the host that was asked for if that is a name: a certificate may be for that alone.
fn named(asked: &str, bound: String) -> String {
    match (host(asked), asked.rsplit_once(':'), bound.rsplit_once(':')) {
        (Ok(ServerName::DnsName(_)), Some((name, _)), Some((_, port))) => format!("{name}:{port}"),
        _ => bound,
    }
}

impl Transport for TlsTransport {
    fn name(&self) -> &'static str {
        "tls"
    }

    fn domain(&self) -> Vec<u8> {
        self.tcp.domain()
    }

    fn has_sessions(&self) -> bool {
        true
    }

    fn connect<'a>(
        &'a self,
        address: &'a str,
    ) -> BoxFuture<'a, Result<Box<dyn Connection>, Error>> {
        Box::pin(async move {
            lock(&self.now).connects(address)?;
            let tcp = self.tcp.connect(address).await?;
            // Read again: connecting may have taken long.
            let (client, name) = lock(&self.now).connects(address)?;
            let (ends, peer) = (tcp.endpoints(), tcp.peer());
            let connector = TlsConnector::from(client.config.clone());
            let connected = connector.connect(name.clone(), Shaking::new(tcp)).await;
            let checked = connected.and_then(|stream| {
                client.check(stream.get_ref().1, &name)?;
                Ok(stream)
            });
            let stream = checked.map_err(|error| connection::failed(address, &error))?;
            let connection = TlsConnection::connected(stream, ends, peer);
            Ok(Box::new(connection) as Box<dyn Connection>)
        })
    }

    fn listen<'a>(&'a self, address: &'a str) -> BoxFuture<'a, Result<Box<dyn Acceptor>, Error>> {
        Box::pin(async move {
            if lock(&self.now).sides.listens.is_none() {
                let text =
                    "a listener shows a certificate: give it one by `TlsConfig::certificate`";
                return Err(Misuse::Other(text.to_owned()).into());
            }
            let tcp = self.tcp.listen(address).await?;
            Ok(Box::new(TlsAcceptor {
                address: named(address, tcp.address()),
                tcp,
                now: self.now.clone(),
            }) as Box<dyn Acceptor>)
        })
    }
}

struct TlsAcceptor {
    address: String,
    tcp: Box<dyn Acceptor>,
    now: Arc<Mutex<Now>>,
}

impl Acceptor for TlsAcceptor {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<Result<Box<dyn Connection>, Error>> {
        self.tcp.poll_accept(cx).map_ok(|tcp| {
            let connection = TlsConnection::accepted(self.now.clone(), tcp);
            Box::new(connection) as Box<dyn Connection>
        })
    }
}

#[cfg(test)]
mod tests;
