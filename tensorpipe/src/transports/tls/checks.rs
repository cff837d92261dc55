//! What TLS leaves out of a handshake that resumes a session, and what it does not insist on.
//!
//! Invariant: no connection is there whose peer's certificate is not good at that moment, or that was made for another protocol. A session
//! renews itself each time it is resumed, and nobody looks at the certificate again but this.

use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::{
    ClientConfig, ClientConnection, Error, HandshakeKind, ServerConfig, ServerConnection,
};

use super::config::PROTOCOL;

/// How a connector shakes hands, and whom it believes.
#[derive(Clone)]
pub(super) struct Connects {
    pub(super) config: Arc<ClientConfig>,
    pub(super) believes: Arc<WebPkiServerVerifier>,
}

/// The same of a listener: `None` where it asks for no certificates.
#[derive(Clone)]
pub(super) struct Listens {
    pub(super) config: Arc<ServerConfig>,
    pub(super) believes: Option<Arc<dyn ClientCertVerifier>>,
}

impl Connects {
    /// The listener that a handshake has led to.
    pub(super) fn check(
        &self,
        session: &ClientConnection,
        name: &ServerName<'_>,
    ) -> io::Result<()> {
        speaks(session.alpn_protocol())?;
        if session.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        let chain = session.peer_certificates().unwrap_or_default();
        let (own, others) = chain.split_first().ok_or_else(none)?;
        let believed = self
            .believes
            .verify_server_cert(own, others, name, &[], UnixTime::now());
        believed.map(drop).map_err(refused)
    }
}

impl Listens {
    /// The connector that has shaken hands.
    pub(super) fn check(&self, session: &ServerConnection) -> io::Result<()> {
        speaks(session.alpn_protocol())?;
        let Some(believes) = &self.believes else {
            return Ok(());
        };
        if session.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        let chain = session.peer_certificates().unwrap_or_default();
        let (own, others) = chain.split_first().ok_or_else(none)?;
        let believed = believes.verify_client_cert(own, others, UnixTime::now());
        believed.map(drop).map_err(refused)
    }
}

fn speaks(protocol: Option<&[u8]>) -> io::Result<()> {
    match protocol == Some(PROTOCOL) {
        true => Ok(()),
        false => Err(refused(Error::NoApplicationProtocol)),
    }
}

fn none() -> io::Error {
    refused(Error::NoCertificatesPresented)
}

fn refused(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
