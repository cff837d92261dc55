//! What TLS leaves out of a handshake that resumes a session, and what it does not insist on.
//!
//! Invariant: no connector has a connection whose listener's certificate is not good at that moment, and no end has one of another
//! protocol. A session renews itself each time it is resumed, and only this checks the certificate again. A listener that asks for
//! certificates gives no sessions.

use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Error, HandshakeKind};

use super::config::PROTOCOL;

/// How a connector shakes hands, and whom it believes.
#[derive(Clone)]
pub(super) struct Connects {
    pub(super) config: Arc<ClientConfig>,
    pub(super) believes: Arc<WebPkiServerVerifier>,
}

impl Connects {
    /// The listener that a handshake has led to.
    pub(super) fn check(
        &self,
        session: &ClientConnection,
        name: &ServerName<'_>,
    ) -> io::Result<()> {
        check_alpn(session.alpn_protocol())?;
        if session.handshake_kind() != Some(HandshakeKind::Resumed) {
            return Ok(());
        }
        let chain = session.peer_certificates().unwrap_or_default();
        let (own, others) = chain
            .split_first()
            .ok_or_else(|| refused(Error::NoCertificatesPresented))?;
        let believed = self
            .believes
            .verify_server_cert(own, others, name, &[], UnixTime::now());
        believed.map(drop).map_err(refused)
    }
}

/// Whether the peer has agreed to this protocol.
pub(super) fn check_alpn(protocol: Option<&[u8]>) -> io::Result<()> {
    match protocol == Some(PROTOCOL) {
        true => Ok(()),
        false => Err(refused(Error::NoApplicationProtocol)),
    }
}

fn refused(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
