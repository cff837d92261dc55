//! The connector's side of the handshake.

use super::Opening;
use crate::error::PeerFault;
use crate::proto::wire::frame::Kind;
use crate::proto::wire::hello::{Answer, Purpose, Reject};
use crate::proto::wire::preface;

/// What the listener said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Answer(Box<Answer>),
    Reject(Reject),
    /// The connection is one of the pipe's.
    Joined,
}

/// Waits for the listener's preface, then for its ANSWER, or, on a connection that joins, for JOINED.
#[derive(Debug, Default)]
pub(crate) struct ClientHandshake {
    opening: Opening,
    joins: bool,
}

impl ClientHandshake {
    /// For a connection that joins.
    pub(crate) fn joining() -> Self {
        Self {
            joins: true,
            ..Self::default()
        }
    }

    /// What to send first.
    pub(crate) fn hello(purpose: &Purpose) -> Vec<u8> {
        let mut out = preface().to_vec();
        purpose.put(&mut out);
        out
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more. What follows
    /// the reply belongs to the pipe.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), PeerFault> {
        let (used, frame) = self.opening.handle(input)?;
        let Some((kind, body)) = frame else {
            return Ok((used, None));
        };
        let reply = match kind {
            Kind::Joined if self.joins => Reply::Joined,
            Kind::Answer if !self.joins => Reply::Answer(Box::new(Answer::decode(body)?)),
            Kind::Reject => Reply::Reject(Reject::decode(body)?),
            other if self.joins => return Err(other.unexpected("instead of JOINED")),
            other => return Err(other.unexpected("instead of an answer")),
        };
        Ok((used, Some(reply)))
    }
}
