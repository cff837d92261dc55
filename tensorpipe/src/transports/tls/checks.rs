//! Checks that TLS skips when a session is resumed, or does not insist on.
//!
//! Invariant: a connector gets no connection whose listener's certificate is not valid at that moment, and no end gets a connection of
//! another protocol. A session renews itself each time it is resumed, and only this module checks the certificate again. A listener that
//! asks for certificates gives out no sessions.

use std::io;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, Error, HandshakeKind};

use super::config::PROTOCOL;

/// How a connector performs the handshake, and which listeners it trusts.
#[derive(Clone)]
pub(super) struct Connects {
    pub(super) config: Arc<ClientConfig>,
    pub(super) verifier: Arc<WebPkiServerVerifier>,
}

impl Connects {
    /// Checks the listener that a handshake has led to.
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
            .verifier
            .verify_server_cert(own, others, name, &[], UnixTime::now());
        believed.map(drop).map_err(refused)
    }
}

/// Checks that the peer has agreed to this protocol.
pub(super) fn check_alpn(protocol: Option<&[u8]>) -> io::Result<()> {
    match protocol == Some(PROTOCOL) {
        true => Ok(()),
        false => Err(refused(Error::NoApplicationProtocol)),
    }
}

fn refused(error: Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
