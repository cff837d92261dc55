//! The listener's side of a handshake in which both ends prove that they have the same token.
//!
//! Invariant: a peer that does not prove it learns only that a token is asked for. An unknown name and a wrong proof get the same answers,
//! after the same work.

use super::Handshaking;
use crate::error::{Error, PeerFault};
use crate::keys::{PipeKey, Tokens};
use crate::process::random_nonce;
use crate::proto::handshake::{ExpectProof, Opened, ServerHandshake};
use crate::proto::wire::hello::{Answer, Purpose, Reject};

/// What a connector is told when it did not prove its token, whatever was wrong.
const WRONG: &str = "it did not prove that it has a token of this listener's";

/// How a listener answers a connector.
pub(super) enum Answering {
    Plainly,
    /// After a proof.
    Proving(Box<ExpectProof>),
}

impl Answering {
    /// What to send when the pipe is wanted.
    pub(super) fn answer(&mut self, answer: &Answer) -> Vec<u8> {
        match self {
            Self::Plainly => ServerHandshake::answer(answer),
            Self::Proving(proof) => proof.answer(answer),
        }
    }

    /// What to send when it is not.
    pub(super) fn reject(&self, reject: &Reject) -> Vec<u8> {
        match self {
            Self::Plainly => ServerHandshake::reject(reject),
            Self::Proving(_) => ExpectProof::reject(reject),
        }
    }

    /// The token's name and the pipe's key.
    pub(super) fn proved(&self) -> Option<(&str, &PipeKey)> {
        match self {
            Self::Plainly => None,
            Self::Proving(proof) => Some((proof.token(), proof.key())),
        }
    }
}

/// Challenges a connector that named a token. Returns its purpose if it proves that it has the token; otherwise tells it that it did not.
pub(super) async fn prove(
    tokens: &Tokens,
    conn: &mut Handshaking,
    opened: &Opened,
) -> Result<(Purpose, Answering), Error> {
    let binding = conn.connection.exporter_secret();
    let secret = tokens.named(&opened.name);
    let (mut proof, challenge) =
        ExpectProof::challenge(opened, secret, &random_nonce()?, binding.as_ref());
    conn.send(&challenge).await?;
    match conn.read(|input| proof.handle(input)).await {
        Ok(purpose) => Ok((purpose, Answering::Proving(Box::new(proof)))),
        // It heard first whether this end has the secret.
        Err(Error::Lost { pipe, .. }) => {
            let name = opened.name.escape_debug();
            let reason = format!(
                "it left when it was to prove token `{name}`: that is another secret here, or none at all"
            );
            let reason = reason.into();
            Err(Error::Lost { pipe, reason })
        }
        Err(error) => {
            if let Error::Peer {
                fault: PeerFault::Unproven { .. },
                ..
            } = &error
            {
                // The peer may have gone already.
                let _ = conn.turn_away(ExpectProof::reject, WRONG).await;
            }
            Err(error)
        }
    }
}
