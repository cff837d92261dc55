//! The listener's side of the handshake.

use super::{Opening, whole_frame};
use crate::error::PeerFault;
use crate::proto::wire::frame::Kind;
use crate::proto::wire::hello::{Answer, Purpose, Reject, decode_stay, put_joined};
use crate::proto::wire::preface;

/// Waits for the connector's preface, then for its HELLO, and, after telling it to move, for STAY.
#[derive(Debug, Default)]
pub(crate) struct ServerHandshake {
    opening: Opening,
}

impl ServerHandshake {
    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Purpose>), PeerFault> {
        let (used, frame) = self.opening.handle(input)?;
        match frame {
            None => Ok((used, None)),
            Some((Kind::Hello, body)) => Ok((used, Some(Purpose::decode(body)?))),
            Some((other, _)) => Err(other.unexpected("instead of HELLO")),
        }
    }

    /// The same for STAY: its reason.
    pub(crate) fn handle_stay(input: &[u8]) -> Result<(usize, Option<String>), PeerFault> {
        let (used, frame) = whole_frame(input)?;
        match frame {
            None => Ok((used, None)),
            Some((Kind::Stay, body)) => Ok((used, Some(decode_stay(body)?))),
            Some((other, _)) => Err(other.unexpected("instead of STAY")),
        }
    }

    /// What to send when the pipe is wanted.
    pub(crate) fn answer(answer: &Answer) -> Vec<u8> {
        let mut out = preface().to_vec();
        answer.put(&mut out);
        out
    }

    /// What to send on a connection that has joined.
    pub(crate) fn joined() -> Vec<u8> {
        let mut out = preface().to_vec();
        put_joined(&mut out);
        out
    }

    /// What to send when it is not wanted.
    pub(crate) fn reject(reject: &Reject) -> Vec<u8> {
        let mut out = preface().to_vec();
        reject.put(&mut out);
        out
    }
}
