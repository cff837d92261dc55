//! Tokens that a listener gives out.
//!
//! Invariant: a token is good once, over the transports that it was given out for, and while its ticket lives. So a pipe
//! goes over what its route says, and who comes has been looked at by that transport: its user by `shm`, its process by
//! `memory`.

use std::collections::hash_map::Entry;
use std::sync::Weak;

use tokio::sync::oneshot;

use super::Handshaking;
use super::receive::Entrance;
use crate::process::random_token;
use crate::proto::wire::hello::Token;
use crate::sync::lock;

/// Who waits for a connection with a token.
pub(super) struct Waiting {
    /// Over one of these.
    over: Vec<String>,
    joins: oneshot::Sender<Handshaking>,
}

/// A token given out, good until this is dropped.
pub(super) struct Ticket {
    entrance: Weak<Entrance>,
    token: Token,
}

impl Ticket {
    /// For a connection over one of these transports. `None` once the listener has stopped.
    pub(super) fn issue(
        entrance: &Weak<Entrance>,
        over: &[&str],
    ) -> Option<(Self, oneshot::Receiver<Handshaking>)> {
        let token = random_token();
        let (joins, receiver) = oneshot::channel();
        let over = over.iter().map(|&name| name.to_owned()).collect();
        lock(&entrance.upgrade()?.expected).insert(token, Waiting { over, joins });
        let entrance = entrance.clone();
        Some((Self { entrance, token }, receiver))
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }
}

/// Gives a connection to who waits for it; back with the reason if it may not join.
pub(super) fn redeem(
    entrance: &Entrance,
    token: &Token,
    transport: &str,
    conn: Handshaking,
) -> Result<(), (Handshaking, String)> {
    let unknown = || "this token is unknown, or was used, or came too late".to_owned();
    let mut expected = lock(&entrance.expected);
    let waiting = match expected.entry(*token) {
        Entry::Vacant(_) => return Err((conn, unknown())),
        Entry::Occupied(entry) => {
            let over = &entry.get().over;
            if !over.iter().any(|name| name == transport) {
                let over = over.join(" or ");
                // Whom it was meant for can still come.
                return Err((
                    conn,
                    format!("this token is good over {over}, and came over {transport}"),
                ));
            }
            entry.remove()
        }
    };
    drop(expected);
    // Its pipe may have gone on without it.
    waiting.joins.send(conn).map_err(|conn| (conn, unknown()))
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(entrance) = self.entrance.upgrade() {
            drop(lock(&entrance.expected).remove(&self.token));
        }
    }
}
