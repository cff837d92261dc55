//! Connections that join a pipe after its handshake, because a channel asks for them ([`ConnectionSource`]).
//!
//! Invariant: a token is expected for as long as the future that waits for it lives. Neither end keeps its listener or its
//! context alive.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::connect::{JoinRequest, ask_to_join};
use super::receive::ListenerState;
use super::ticket::Ticket;
use crate::address::PeerAddr;
use crate::channels::{ConnectionSource, Expected};
use crate::error::{Error, PeerFault};
use crate::keys::{JoinKind, PipeKey};
use crate::proto::handshake::Reply;
use crate::transports::{Connection, Transport};

/// The source for the end that connected. `at` tells where the pipe is by then; an attempt fails `after` so long.
pub(super) fn joins(
    at: impl Fn() -> (Arc<dyn Transport>, String) + Send + Sync + 'static,
    peer: Arc<str>,
    key: Option<PipeKey>,
    after: Duration,
) -> ConnectionSource {
    ConnectionSource::Joins(Arc::new(move |token| {
        let ((transport, address), peer) = (at(), peer.clone());
        let ask = JoinRequest {
            token,
            kind: JoinKind::Further,
            key: key.clone(),
        };
        Box::pin(async move {
            let joined = join(&*transport, &address, peer.clone(), &ask);
            match tokio::time::timeout(after, joined).await {
                Ok(joined) => joined,
                Err(_) => Err(Error::Timeout {
                    what: format!("a further connection to {peer}").into(),
                    after,
                    hint: "its listener does not answer; raise `Timeouts::handshake` if it is only slow",
                }),
            }
        })
    }))
}

/// The source for the end that accepted, on a pipe over `transport`.
pub(super) fn expects(
    listener_state: &Arc<ListenerState>,
    transport: &str,
    peer: Arc<str>,
    address: PeerAddr,
    key: Option<PipeKey>,
) -> ConnectionSource {
    let listener_state: Weak<ListenerState> = Arc::downgrade(listener_state);
    let transport = transport.to_owned();
    ConnectionSource::Expects(Arc::new(move || {
        let peer = peer.clone();
        let over: &[&str] = &[&transport];
        let issued = Ticket::issue(
            &listener_state,
            JoinKind::Further,
            over,
            key.as_ref(),
            address,
        );
        // Without a token, the channel goes on with the connections that it has.
        let (ticket, joined) = issued.ok().flatten()?;
        Some(Expected {
            token: ticket.token(),
            connection: Box::pin(async move {
                let _ticket = ticket;
                let arrived = joined.await.map_err(|_| Error::Lost {
                    pipe: peer,
                    reason: "the listener stopped before a further connection came".into(),
                })?;
                arrived.let_join().await
            }),
        })
    }))
}

/// Joins, and waits for the listener's JOINED: bytes written before that could be lost, or reach somebody else.
pub(super) async fn join(
    transport: &dyn Transport,
    address: &str,
    peer: Arc<str>,
    ask: &JoinRequest,
) -> Result<Box<dyn Connection>, Error> {
    let (mut conn, mut handshake) = ask_to_join(transport, address, ask).await?;
    match conn.read(|input| handshake.handle(input)).await? {
        Reply::Joined => Ok(conn.into_connection()),
        Reply::Reject(reject) => Err(Error::Rejected {
            peer,
            reason: reject.reason.into(),
            transient: reject.transient,
        }),
        Reply::Answer(_) => Err(Error::Peer {
            pipe: peer,
            fault: PeerFault::Unexpected {
                frame: "ANSWER",
                when: "instead of JOINED",
            },
        }),
    }
}
