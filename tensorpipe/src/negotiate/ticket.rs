//! Tokens that a listener gives out.
//!
//! Invariant: a token is good once, and while its ticket lives.

use std::sync::Weak;

use tokio::sync::oneshot;

use super::Guest;
use super::receive::Entrance;
use crate::process::random_token;
use crate::proto::wire::hello::Token;
use crate::sync::lock;

/// A token given out, good until this is dropped.
pub(super) struct Ticket {
    entrance: Weak<Entrance>,
    token: Token,
}

impl Ticket {
    /// `None` once the listener has stopped.
    pub(super) fn issue(entrance: &Weak<Entrance>) -> Option<(Self, oneshot::Receiver<Guest>)> {
        let token = random_token();
        let (sender, receiver) = oneshot::channel();
        lock(&entrance.upgrade()?.expected).insert(token, sender);
        let entrance = entrance.clone();
        Some((Self { entrance, token }, receiver))
    }

    pub(super) fn token(&self) -> Token {
        self.token
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(entrance) = self.entrance.upgrade() {
            drop(lock(&entrance.expected).remove(&self.token));
        }
    }
}
