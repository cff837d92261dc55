//! Connections that a channel asks for after the handshake.
//!
//! The end that listens gives out a token, and the lanes carry it to the other end. That end connects with the token, to the address where
//! the pipe was connected or upgraded to. A pipe that never needs further connections never makes any. The pipe does not depend on them: if
//! the listener has stopped, or a firewall lets no more connections through, the channel goes on without.

use std::sync::Arc;

use crate::error::Error;
use crate::transports::{BoxFuture, Connection};

/// What a connection joins its pipe with: random, and valid once.
pub type JoinToken = [u8; 16];

/// Makes a connection with a token.
type Join =
    dyn Fn(JoinToken) -> BoxFuture<'static, Result<Box<dyn Connection>, Error>> + Send + Sync;

/// How an end of a pipe gets further connections.
#[derive(Clone)]
#[non_exhaustive]
pub enum ConnectionSource {
    /// The end that connected: joins with a token that the other end has given out. The future is bounded by
    /// [`Timeouts::handshake`](crate::Timeouts::handshake); it ends when the listener has accepted, or fails. Dropping it closes the
    /// connection.
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

/// A connection that the peer may make.
#[must_use = "the token is good only while this lives"]
pub struct Expected {
    /// The token that the peer has to send.
    pub token: JoinToken,
    /// The connection, once the peer has joined. Unbounded: the peer may never join. Fails when the listener stops. Dropping it makes
    /// the token void.
    pub connection: BoxFuture<'static, Result<Box<dyn Connection>, Error>>,
}

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expected")
    }
}
