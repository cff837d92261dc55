//! A handshake in which both ends prove that they have the same secret, and neither sends it.
//!
//! ```text
//! connector                                  listener
//!   preface, KEY (name, number)    ------->
//!                                  <-------  preface, CHALLENGE (number, proof)   or REJECT
//!   PROOF, HELLO (brochure)        ------->
//!                                  <-------  PROOF, ANSWER                        or REJECT
//! ```
//!
//! The listener proves first, so the connector shows its brochure to nobody else; the listener checks the connector's PROOF before
//! it looks at the HELLO behind it. Each PROOF is of the frame that follows, and of all that both have said before. The key
//! by which they prove is the pipe's from then on ([`PipeKey`]).

use super::{Opening, Reply, behind_preface, whole_frame};
use crate::error::PeerFault;
use crate::keys::{Binding, By, Nonce, PipeKey, Proof, Secret, Transcript, is_same};
use crate::proto::wire::frame::Kind;
use crate::proto::wire::hello::{Answer, Purpose, Reject};
use crate::proto::wire::preface;
use crate::proto::wire::proof::{
    decode_challenge, decode_proof, put_challenge, put_key, put_proof,
};

/// A connector has named its token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// As it says.
    pub(crate) name: String,
    /// Its preface and KEY.
    pub(super) said: Vec<u8>,
}

/// What a listener made of a KEY.
#[derive(Debug)]
pub(crate) enum Proven {
    /// It has the secret.
    Listener(ExpectAnswer),
    Reject(Reject),
}

/// The connector has said which token it has, and waits for CHALLENGE.
#[derive(Debug)]
pub(crate) struct ExpectChallenge {
    opening: Opening,
    secret: Secret,
    said: Transcript,
}

/// The connector knows that the listener has the secret, says HELLO, and waits for ANSWER.
#[derive(Debug)]
pub(crate) struct ExpectAnswer {
    token: String,
    key: PipeKey,
    said: Transcript,
}

/// The listener has proved that it has the secret, and waits for PROOF and HELLO.
#[derive(Debug)]
pub(crate) struct ExpectProof {
    token: String,
    key: PipeKey,
    said: Transcript,
}

impl ExpectChallenge {
    /// Proves `secret`, on a connection that may have keys of its own. Returns what to send first, too.
    pub(crate) fn begin(
        secret: &Secret,
        nonce: &Nonce,
        binding: Option<&Binding>,
    ) -> (Self, Vec<u8>) {
        let first = behind_preface(|out| put_key(out, secret.name(), nonce));
        let mut said = Transcript::new(binding);
        said.add(&first);
        let begun = Self {
            opening: Opening::default(),
            secret: secret.clone(),
            said,
        };
        (begun, first)
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Proven>), PeerFault> {
        let (used, frame) = self.opening.handle(input)?;
        let proven = match frame {
            None => return Ok((used, None)),
            Some((Kind::Challenge, body)) => {
                let (nonce, proof) = decode_challenge(body)?;
                let mut said = self.said.clone();
                said.add(&self.opening.preface.unwrap_or_default());
                said.add(&nonce);
                let key = PipeKey::of_token(&self.secret, &said);
                let token = self.secret.name().to_string();
                check(&key, By::Challenge, &said, &proof, &token)?;
                Proven::Listener(ExpectAnswer { token, key, said })
            }
            Some((Kind::Reject, body)) => Proven::Reject(Reject::decode(body)?),
            Some((other, _)) => {
                return Err(other.unexpected("instead of CHALLENGE: it asks for no token"));
            }
        };
        Ok((used, Some(proven)))
    }
}

impl ExpectAnswer {
    /// What to send.
    pub(crate) fn hello(&mut self, purpose: &Purpose) -> Vec<u8> {
        let mut hello = Vec::new();
        purpose.put(&mut hello);
        behind_proof(&self.key, By::Hello, &mut self.said, &hello)
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), PeerFault> {
        let (used, body) = match whole_frame(input)? {
            (used, None) => return Ok((used, None)),
            (used, Some((Kind::Reject, body))) => {
                return Ok((used, Some(Reply::Reject(Reject::decode(body)?))));
            }
            (used, Some((Kind::Proof, body))) => (used, body),
            (_, Some((other, _))) => return Err(other.unexpected("instead of an answer")),
        };
        let proof = decode_proof(body)?;
        let rest = &input[used..];
        match whole_frame(rest)? {
            (_, None) => Ok((0, None)),
            (len, Some((Kind::Answer, body))) => {
                self.said.add(&rest[..len]);
                check(&self.key, By::Answer, &self.said, &proof, &self.token)?;
                let reply = Reply::Answer(Box::new(Answer::decode(body)?));
                Ok((used + len, Some(reply)))
            }
            (_, Some((other, _))) => Err(other.unexpected("instead of an answer")),
        }
    }

    /// The pipe's.
    pub(crate) fn key(&self) -> &PipeKey {
        &self.key
    }
}

impl ExpectProof {
    /// Challenges a connector to prove `secret`. Returns what to send, too.
    pub(crate) fn challenge(
        opened: &Opened,
        secret: &Secret,
        nonce: &Nonce,
        binding: Option<&Binding>,
    ) -> (Self, Vec<u8>) {
        let mut said = Transcript::new(binding);
        said.add(&opened.said);
        said.add(&preface());
        said.add(nonce);
        let key = PipeKey::of_token(secret, &said);
        let proof = key.prove(By::Challenge, &said);
        let challenge = behind_preface(|out| put_challenge(out, nonce, &proof));
        let token = opened.name.clone();
        (Self { token, key, said }, challenge)
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more. What does not follow a
    /// proof is not looked at.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Purpose>), PeerFault> {
        let (used, body) = match whole_frame(input)? {
            (used, None) => return Ok((used, None)),
            (used, Some((Kind::Proof, body))) => (used, body),
            (_, Some((other, _))) => return Err(other.unexpected("instead of PROOF")),
        };
        let proof = decode_proof(body)?;
        let rest = &input[used..];
        match whole_frame(rest)? {
            (_, None) => Ok((0, None)),
            (len, Some((Kind::Hello, body))) => {
                self.said.add(&rest[..len]);
                check(&self.key, By::Hello, &self.said, &proof, &self.token)?;
                Ok((used + len, Some(Purpose::decode(body)?)))
            }
            (_, Some((other, _))) => Err(other.unexpected("instead of HELLO")),
        }
    }

    /// What to send when the pipe is wanted.
    pub(crate) fn answer(&mut self, answer: &Answer) -> Vec<u8> {
        let mut out = Vec::new();
        answer.put(&mut out);
        behind_proof(&self.key, By::Answer, &mut self.said, &out)
    }

    /// What to send when it is not.
    pub(crate) fn reject(reject: &Reject) -> Vec<u8> {
        let mut out = Vec::new();
        reject.put(&mut out);
        out
    }

    /// The pipe's.
    pub(crate) fn key(&self) -> &PipeKey {
        &self.key
    }

    /// The name of the connector's token.
    pub(crate) fn token(&self) -> &str {
        &self.token
    }
}

/// A frame behind the proof that it is this end which says it.
fn behind_proof(key: &PipeKey, by: By, said: &mut Transcript, frame: &[u8]) -> Vec<u8> {
    said.add(frame);
    let mut out = Vec::new();
    put_proof(&mut out, &key.prove(by, said));
    out.extend_from_slice(frame);
    out
}

fn check(
    key: &PipeKey,
    by: By,
    said: &Transcript,
    proof: &Proof,
    token: &str,
) -> Result<(), PeerFault> {
    match is_same(&key.prove(by, said), proof) {
        true => Ok(()),
        false => Err(PeerFault::Unproven {
            what: format!("the secret of token `{}`", token.escape_debug()),
        }),
    }
}
