//! Connections that a channel asks for after the handshake.
//!
//! The listener's end gives out a token, and the lanes carry it to the other end. That one joins with it, at the address where the pipe
//! began or was moved to. So a pipe that never needs them never makes them. Nothing of the pipe depends on them: the listener may have
//! stopped, or something between the two may let no more connections through, and a channel goes on without.

use std::sync::Arc;

use crate::error::Error;
use crate::transports::{BoxFuture, Connection};

/// What a connection joins its pipe with: random, and good for once.
pub type JoinToken = [u8; 16];

/// Makes a connection with a token.
type Join =
    dyn Fn(JoinToken) -> BoxFuture<'static, Result<Box<dyn Connection>, Error>> + Send + Sync;

/// How an end of a pipe gets further connections.
#[derive(Clone)]
#[non_exhaustive]
pub enum ConnectionSource {
    /// The end that connected: joins with a token that the other has given out. The future is bounded by
    /// [`Timeouts::handshake`](crate::Timeouts::handshake); it ends when the listener has said yes, or fails. Dropping it
    /// lets go of the connection.
    Joins(Arc<Join>),
    /// The end that accepted: gives out a token, unless its listener has stopped.
    Expects(Arc<dyn Fn() -> Option<Expected> + Send + Sync>),
}

impl std::fmt::Debug for ConnectionSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Joins(_) => "Joins",
            Self::Expects(_) => "Expects",
        })
    }
}

/// A connection that may come.
#[must_use = "the token is good only while this lives"]
pub struct Expected {
    /// What it has to join with.
    pub token: JoinToken,
    /// The connection, once it has joined. Unbounded: it may never come. Fails when the listener stops. Dropping it makes the
    /// token void.
    pub connection: BoxFuture<'static, Result<Box<dyn Connection>, Error>>,
}

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expected")
    }
}
