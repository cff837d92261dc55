//! A TLS connection. An accepted one does its handshake on a task of its own, which ends with the connection.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use rustls::server::Acceptor;
use rustls::{AlertDescription, CertificateError, Connection as Session, InvalidMessage};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinHandle;
use tokio_rustls::{LazyConfigAcceptor, client, server};

use super::Now;
use super::checks::check_alpn;
use super::handshake::Shaking;
use super::names::names;
use super::session::Open;
use crate::address::{Identity, PeerAddr};
use crate::error::{Error, PeerFault};
use crate::sync::{Mutex, lock};
use crate::transports::Connection;

/// The label for the exported secret that a pipe's keys are bound to (RFC 5705).
const EXPORTED: &[u8] = b"EXPERIMENTAL-tensorpipe";

pub(super) struct TlsConnection {
    stream: Stream,
    /// The last value of `set_polled`.
    polled: bool,
    /// The endpoints of the TCP connection below.
    ends: String,
    peer: PeerAddr,
}

enum Stream {
    Accepting(Accepting),
    Open(Box<Open>),
    /// The handshake failed.
    Closed(Error),
}

/// A handshake under way.
struct Accepting {
    task: JoinHandle<io::Result<server::TlsStream<Shaking>>>,
    /// Who waits to read and who to write during the handshake.
    waiting: [Option<Waker>; 2],
}

/// Indices of the wakers.
const READS: usize = 0;
const WRITES: usize = 1;

impl Drop for Accepting {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl TlsConnection {
    pub(super) fn connected(
        stream: client::TlsStream<Shaking>,
        ends: String,
        peer: PeerAddr,
    ) -> Self {
        let (tcp, session) = stream.into_inner();
        Self {
            stream: Stream::Open(Box::new(Open::new(tcp.done(), session))),
            polled: false,
            ends,
            peer,
        }
    }

    /// Call within a runtime. The handshake uses the configuration that is current when the connector's hello arrives.
    pub(super) fn accepted(now: Arc<Mutex<Now>>, tcp: Box<dyn Connection>) -> Self {
        let (ends, peer) = (tcp.endpoints(), tcp.peer());
        let tcp = Shaking::new(tcp);
        let task = async move {
            let hello = LazyConfigAcceptor::new(Acceptor::default(), tcp).await?;
            let listens = lock(&now).sides.listens.clone();
            // The configuration was replaced by one without a certificate after this end began to listen.
            let gone = || io::Error::other("this end has no certificate any more");
            let stream = hello.into_stream(listens.ok_or_else(gone)?).await?;
            check_alpn(stream.get_ref().1.alpn_protocol())?;
            Ok(stream)
        };
        Self {
            stream: Stream::Accepting(Accepting {
                task: tokio::spawn(task),
                waiting: [None, None],
            }),
            polled: false,
            ends,
            peer,
        }
    }

    fn session(&self) -> Option<&Session> {
        match &self.stream {
            Stream::Open(open) => Some(open.session()),
            Stream::Accepting(_) | Stream::Closed(_) => None,
        }
    }

    fn poll_open(&mut self, does: usize, cx: &mut Context<'_>) -> Poll<io::Result<&mut Open>> {
        if let Stream::Accepting(Accepting { task, waiting }) = &mut self.stream {
            waiting[does] = Some(cx.waker().clone());
            // The task wakes whoever polled last, who then wakes the other waiter.
            let accepted = ready!(Pin::new(task).poll(cx));
            waiting
                .iter_mut()
                .filter_map(Option::take)
                .for_each(Waker::wake);
            self.stream = match accepted.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(stream) => {
                    let (tcp, session) = stream.into_inner();
                    let mut open = Open::new(tcp.done(), session);
                    open.set_polled(self.polled);
                    Stream::Open(Box::new(open))
                }
                Err(error) => Stream::Closed(failed(&self.ends, &error)),
            };
        }
        Poll::Ready(match &mut self.stream {
            Stream::Open(open) => Ok(open),
            Stream::Closed(error) => Err(io::Error::other(error.clone())),
            Stream::Accepting(_) => unreachable!("it was waited for"),
        })
    }

    /// Turns an error from TLS into one that says which side is to blame.
    fn explained<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.map_err(|error| match is_of_tls(&error) {
            true => io::Error::other(failed(&self.ends, &error)),
            false => error,
        })
    }
}

fn is_of_tls(error: &io::Error) -> bool {
    let inner = error.get_ref();
    inner.is_some_and(|inner| inner.is::<rustls::Error>())
}

/// Why there is no connection to `peer`.
pub(super) fn failed(peer: &str, error: &io::Error) -> Error {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let Some(inner) = inner else {
        let hint = match error.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "; perhaps the other end speaks no TLS: then it is `tcp`"
            }
            _ => "",
        };
        return Error::Lost {
            pipe: peer.into(),
            reason: format!("while TLS shook hands: {error}{hint}").into(),
        };
    };
    let hint = match inner {
        rustls::Error::AlertReceived(alert) => {
            return Error::Rejected {
                peer: peer.into(),
                reason: format!("{inner}{}", hint_of(*alert)).into(),
                transient: false,
            };
        }
        rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            "; it leads to none that this end trusts"
        }
        rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => "; connect by a name that it has, or say which by `TlsConfig::server_name`",
        rustls::Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => "; a new one is due, or the clock of this machine is wrong",
        rustls::Error::NoCertificatesPresented => "; this listener asks for one",
        rustls::Error::InvalidMessage(InvalidMessage::HandshakePayloadTooLarge) => {
            "; a handshake has 32 KiB for it, with the certificates"
        }
        rustls::Error::InvalidCertificate(error) if is_of_ca(error) => {
            "; it is that of a CA itself: have the CA issue another one for its holder"
        }
        rustls::Error::InvalidMessage(_) => "; perhaps it speaks no TLS: then it is `tcp`",
        _ => "",
    };
    Error::Peer {
        pipe: peer.into(),
        fault: PeerFault::Tls {
            reason: format!("{inner}{hint}"),
        },
    }
}

/// Whether a server shows the certificate of its CA, as one does that was made by `openssl req -x509`.
fn is_of_ca(error: &CertificateError) -> bool {
    matches!(error, CertificateError::Other(_)) && error.to_string().contains("CaUsedAsEndEntity")
}

fn hint_of(alert: AlertDescription) -> &'static str {
    match alert {
        AlertDescription::CertificateRequired => {
            "; it asks for a certificate, see `TlsConfig::certificate`"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "; it does not trust the certificate of this end"
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateUnknown => {
            "; it does not take the certificate of this end, which may be of another CA, or no certificate to connect with"
        }
        AlertDescription::CertificateExpired => "; the certificate of this end has expired",
        AlertDescription::ProtocolVersion => {
            "; perhaps it speaks no TLS 1.3, or none: then it is `tcp`"
        }
        AlertDescription::NoApplicationProtocol => "; it speaks another protocol",
        _ => "",
    }
}

impl Connection for TlsConnection {
    fn endpoints(&self) -> String {
        self.ends.clone()
    }

    fn peer(&self) -> PeerAddr {
        self.peer
    }

    fn identity(&self) -> Option<Identity> {
        let chain = self.session()?.peer_certificates()?;
        Some(Identity::Certificates {
            names: names(chain.first()?).into(),
            chain: chain.iter().map(|one| one.to_vec()).collect(),
        })
    }

    fn exporter_secret(&self) -> Option<[u8; 32]> {
        let session = self.session()?;
        let exported = session.export_keying_material([0; 32], EXPORTED, None);
        exported.ok()
    }

    // `is_ready` keeps its default: rustls may hold content that the connection below does not know about.
    fn can_poll(&self) -> bool {
        true
    }

    fn poll_is_syscall(&self) -> bool {
        true
    }

    fn set_polled(&mut self, polled: bool) {
        self.polled = polled;
        if let Stream::Open(open) = &mut self.stream {
            open.set_polled(polled);
        }
    }
}

impl AsyncRead for TlsConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(ready!(self.poll_open(READS, cx))?.poll_read(cx, buf));
        Poll::Ready(self.explained(read))
    }
}

impl AsyncWrite for TlsConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_open(WRITES, cx))?.poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(WRITES, cx))?.poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_open(WRITES, cx))?.poll_shutdown(cx)
    }
}
