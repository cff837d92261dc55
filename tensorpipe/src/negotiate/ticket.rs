//! Tokens that a listener gives out.
//!
//! Invariant: a token works once, only over the transports that it was issued for, and only while its ticket lives. So the pipe goes over
//! the transports of its route, and that transport has checked the peer: `shm` its user, `memory` its process. If the pipe has a key, the
//! connection also proves that it comes from the pipe's other end, and receives a proof that this is the pipe's listener.

use std::collections::hash_map::Entry;
use std::sync::Weak;

use tokio::sync::oneshot;

use super::Handshaking;
use super::receive::ListenerState;
use crate::address::PeerAddr;
use crate::error::{Error, SystemError};
use crate::keys::{Join, JoinKind, PipeKey, Proof, is_same};
use crate::process::random_token;
use crate::proto::handshake::ServerHandshake;
use crate::proto::wire::hello::Token;
use crate::sync::lock;
use crate::transports::Connection;

/// Who waits for a connection with a token.
pub(super) struct Waiting {
    /// The transports over which the connection may come.
    over: Vec<String>,
    kind: JoinKind,
    /// The pipe's key.
    key: Option<PipeKey>,
    /// The peer at the pipe's other end, as far as it is known.
    peer: PeerAddr,
    joins: oneshot::Sender<Arrived>,
}

/// A connection that may join its pipe.
pub(super) struct Arrived {
    pub(super) conn: Handshaking,
    /// What to send when it joins.
    pub(super) joined: Vec<u8>,
}

impl Arrived {
    /// Tells it that it has joined.
    pub(super) async fn let_join(mut self) -> Result<Box<dyn Connection>, Error> {
        self.conn.send(&self.joined).await?;
        Ok(self.conn.into_connection())
    }
}

/// A token given out, good until this is dropped.
pub(super) struct Ticket {
    listener_state: Weak<ListenerState>,
    token: Token,
}

impl Ticket {
    /// For a connection over one of these transports, of a pipe with this key to this peer. `None` once the listener has stopped.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub(super) fn issue(
        listener_state: &Weak<ListenerState>,
        kind: JoinKind,
        over: &[&str],
        key: Option<&PipeKey>,
        peer: PeerAddr,
    ) -> Result<Option<(Self, oneshot::Receiver<Arrived>)>, SystemError> {
        let token = random_token()?;
        let (joins, receiver) = oneshot::channel();
        let waiting = Waiting {
            over: over.iter().map(|&name| name.to_owned()).collect(),
            kind,
            key: key.cloned(),
            peer,
            joins,
        };
        let Some(open) = listener_state.upgrade() else {
            return Ok(None);
        };
        lock(&open.expected).insert(token, waiting);
        let listener_state = listener_state.clone();
        Ok(Some((
            Self {
                listener_state,
                token,
            },
            receiver,
        )))
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }
}

/// Hands a connection to whoever waits for it. If it may not join, returns it with the reason.
pub(super) fn redeem(
    listener_state: &ListenerState,
    token: &Token,
    proof: Option<&Proof>,
    transport: &str,
    conn: Handshaking,
) -> Result<(), (Handshaking, String)> {
    let unknown = || "this token is unknown, or was used, or came too late".to_owned();
    let mut expected = lock(&listener_state.expected);
    let (waiting, joined) = match expected.entry(*token) {
        Entry::Vacant(_) => return Err((conn, unknown())),
        Entry::Occupied(entry) => {
            let Waiting {
                over,
                kind,
                key,
                peer,
                ..
            } = entry.get();
            let binding = conn.connection.exporter_secret();
            let join = Join {
                kind: *kind,
                over: transport,
                token,
                binding: binding.as_ref(),
            };
            let said = key.as_ref().map(|key| (key.join(&join), key.joined(&join)));
            // Answer as if there were no such token; the rightful connection can still come.
            if let Some((wanted, _)) = &said
                && !(proof.is_some_and(|proof| is_same(proof, wanted))
                    && may_be_one(*peer, conn.connection.peer()))
            {
                return Err((conn, unknown()));
            }
            if !over.iter().any(|name| name == transport) {
                let over = over.join(" or ");
                // The rightful connection can still come.
                return Err((
                    conn,
                    format!("this token is good over {over}, and came over {transport}"),
                ));
            }
            let joined = ServerHandshake::joined(said.as_ref().map(|(_, joined)| joined));
            (entry.remove(), joined)
        }
    };
    drop(expected);
    // The pipe may have given up waiting.
    let sent = waiting.joins.send(Arrived { conn, joined });
    sent.map_err(|arrived| (arrived.conn, unknown()))
}

/// Whether two addresses may belong to one peer. The kernel tells local processes apart. A remote peer has another address for each
/// connection.
fn may_be_one(one: PeerAddr, other: PeerAddr) -> bool {
    let is_process = |peer| matches!(peer, PeerAddr::Process { .. });
    one == other || !(is_process(one) && is_process(other))
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(listener_state) = self.listener_state.upgrade() {
            drop(lock(&listener_state.expected).remove(&self.token));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::duplex;

    use super::*;
    use crate::context::Context;
    use crate::transports::{ShmTransport, Transport};

    const PEER: PeerAddr = PeerAddr::SameProcess;

    fn listener_state() -> Arc<ListenerState> {
        let (pipes, _) = super::super::arrivals(1);
        Arc::new(ListenerState::new(Context::new().inner, Vec::new(), pipes))
    }

    /// A connection with this proof that comes over this transport.
    fn comes(
        listener_state: &ListenerState,
        token: &Token,
        proof: Option<&Proof>,
        over: &str,
    ) -> Result<(), String> {
        let (connection, _) = duplex(100);
        let conn = Handshaking::new(Box::new(connection), "a");
        redeem(listener_state, token, proof, over, conn).map_err(|(_, reason)| reason)
    }

    #[test]
    fn a_ticket_of_a_pipe_with_a_key_is_good_with_its_proof_alone_and_once() {
        let listener_state = listener_state();
        let still = Arc::downgrade(&listener_state);
        let (key, other) = ([1; 32], [2; 32]);
        let (key, other) = (PipeKey::of_connection(&key), PipeKey::of_connection(&other));
        let kind = JoinKind::Channel;
        let (ticket, mut joined) = Ticket::issue(&still, kind, &["shm", "tcp"], Some(&key), PEER)
            .unwrap()
            .unwrap();
        let token = ticket.token();
        let join = Join {
            kind,
            over: "tcp",
            token: &token,
            binding: None,
        };
        // An eavesdropper has read the token; or a proof is for another connection, another pipe, or another kind of join.
        let kind = JoinKind::Upgrade;
        let mut nearly = key.join(&join);
        nearly[0] ^= 1;
        for proof in [
            None,
            Some(nearly),
            Some(other.join(&join)),
            Some(key.joined(&join)),
            Some(key.join(&Join { kind, ..join })),
            Some(key.join(&Join {
                over: "shm",
                ..join
            })),
            Some(key.join(&Join {
                binding: Some(&[1; 32]),
                ..join
            })),
        ] {
            let reason = comes(&listener_state, &token, proof.as_ref(), "tcp").unwrap_err();
            assert!(reason.contains("unknown"), "{reason}");
        }
        let proof = key.join(&join);
        comes(&listener_state, &token, Some(&proof), "tcp").unwrap();
        let arrived = joined.try_recv().unwrap();
        assert!(arrived.joined.ends_with(&key.joined(&join)));
        comes(&listener_state, &token, Some(&proof), "tcp").unwrap_err();
    }

    #[test]
    fn of_a_pipe_without_a_key_the_token_is_enough() {
        let listener_state = listener_state();
        let still = Arc::downgrade(&listener_state);
        for proof in [None, Some([7; 32])] {
            let issued = Ticket::issue(&still, JoinKind::Upgrade, &["tcp"], None, PEER);
            let (ticket, _joined) = issued.unwrap().unwrap();
            comes(&listener_state, &ticket.token(), proof.as_ref(), "tcp").unwrap();
        }
    }

    #[tokio::test]
    async fn another_process_does_not_join_whatever_it_proves() {
        let listener_state = listener_state();
        let key = PipeKey::of_connection(&[1; 32]);
        let shm = ShmTransport::new();
        let own = std::process::id();
        let address = format!("tickets of {own}");
        let mut acceptor = shm.listen(&address).await.unwrap();
        let host = PeerAddr::Socket(([10, 0, 0, 7], 4000).into());
        let process = |pid| PeerAddr::Process {
            pid: Some(pid),
            uid: crate::sys::machine::user(),
        };
        for (peer, joins) in [
            (process(own), true),
            (host, true),
            (process(own + 1), false),
        ] {
            let accepts = std::future::poll_fn(|cx| acceptor.poll_accept(cx));
            let (here, there) = tokio::join!(shm.connect(&address), accepts);
            let (_here, there) = (here.unwrap(), there.unwrap());
            let still = Arc::downgrade(&listener_state);
            let kind = JoinKind::Further;
            let issued = Ticket::issue(&still, kind, &["shm"], Some(&key), peer);
            let (ticket, _joined) = issued.unwrap().unwrap();
            let token = ticket.token();
            let join = Join {
                kind,
                over: "shm",
                token: &token,
                binding: None,
            };
            let proof = key.join(&join);
            let conn = Handshaking::new(there, "a");
            let redeemed = redeem(&listener_state, &token, Some(&proof), "shm", conn);
            assert_eq!(redeemed.is_ok(), joins, "{peer}");
        }
    }
}
