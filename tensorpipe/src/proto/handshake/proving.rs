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
//! it reads the HELLO behind it. Each PROOF is of the frame that follows, and of all that both have said before. The key
//! by which they prove is the pipe's from then on ([`PipeKey`]).

use super::{Opening, Reply, behind_preface, whole_frame};
use crate::error::PeerFault;
use crate::keys::{Binding, By, Nonce, PipeKey, Proof, Secret, Transcript, is_same};
use crate::proto::wire::frame::Kind;
use crate::proto::wire::hello::{
    Answer, Purpose, Reject, decode_challenge, decode_proof, put_challenge, put_key, put_proof,
};
use crate::proto::wire::preface;

/// A connector has named its token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    /// The name that the connector claims.
    pub(crate) name: String,
    /// Its preface and KEY.
    pub(crate) said: Vec<u8>,
}

/// What a listener made of a KEY.
#[derive(Debug)]
pub(crate) enum Proven {
    /// The listener has the secret.
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
pub(crate) struct ExpectAnswer(Proving);

/// The listener has proved that it has the secret, and waits for PROOF and HELLO.
#[derive(Debug)]
pub(crate) struct ExpectProof(Proving);

/// One end: proves what it says, and checks the other end's proofs.
#[derive(Debug)]
struct Proving {
    token: String,
    key: PipeKey,
    /// All bytes so far, of both ends.
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
                let listener = Proving { token, key, said };
                listener.check(By::Challenge, &proof)?;
                Proven::Listener(ExpectAnswer(listener))
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
    /// The bytes to send.
    pub(crate) fn hello(&mut self, purpose: &Purpose) -> Vec<u8> {
        let mut hello = Vec::new();
        purpose.put(&mut hello);
        self.0.say(By::Hello, &hello)
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), PeerFault> {
        if let (used, Some((Kind::Reject, body))) = whole_frame(input)? {
            return Ok((used, Some(Reply::Reject(Reject::decode(body)?))));
        }
        let instead = ["instead of an answer"; 2];
        match self.0.hear(By::Answer, Kind::Answer, input, instead)? {
            None => Ok((0, None)),
            Some((used, body)) => {
                let reply = Reply::Answer(Box::new(Answer::decode(body)?));
                Ok((used, Some(reply)))
            }
        }
    }

    /// The pipe's key.
    pub(crate) fn key(&self) -> &PipeKey {
        &self.0.key
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
        (Self(Proving { token, key, said }), challenge)
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more. A HELLO is decoded only behind
    /// its proof.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Purpose>), PeerFault> {
        let instead = ["instead of PROOF", "instead of HELLO"];
        match self.0.hear(By::Hello, Kind::Hello, input, instead)? {
            None => Ok((0, None)),
            Some((used, body)) => Ok((used, Some(Purpose::decode(body)?))),
        }
    }

    /// The bytes that accept the pipe.
    pub(crate) fn answer(&mut self, answer: &Answer) -> Vec<u8> {
        let mut out = Vec::new();
        answer.put(&mut out);
        self.0.say(By::Answer, &out)
    }

    /// The bytes that reject it.
    pub(crate) fn reject(reject: &Reject) -> Vec<u8> {
        let mut out = Vec::new();
        reject.put(&mut out);
        out
    }

    /// The pipe's key.
    pub(crate) fn key(&self) -> &PipeKey {
        &self.0.key
    }

    /// The name of the connector's token.
    pub(crate) fn token(&self) -> &str {
        &self.0.token
    }
}

impl Proving {
    /// `frame`, behind the proof that it comes from this end.
    fn say(&mut self, by: By, frame: &[u8]) -> Vec<u8> {
        self.said.add(frame);
        let mut out = Vec::new();
        put_proof(&mut out, &self.key.prove(by, &self.said));
        out.extend_from_slice(frame);
        out
    }

    /// The body of the expected frame behind its proof, and the length of both frames; `None` until they are there. `instead`: the words
    /// for another frame in the place of either.
    fn hear<'a>(
        &mut self,
        by: By,
        expected: Kind,
        input: &'a [u8],
        instead: [&'static str; 2],
    ) -> Result<Option<(usize, &'a [u8])>, PeerFault> {
        let (proved, body) = match whole_frame(input)? {
            (_, None) => return Ok(None),
            (len, Some((Kind::Proof, body))) => (len, body),
            (_, Some((other, _))) => return Err(other.unexpected(instead[0])),
        };
        let proof = decode_proof(body)?;
        let rest = &input[proved..];
        match whole_frame(rest)? {
            (_, None) => Ok(None),
            (len, Some((kind, body))) if kind == expected => {
                self.said.add(&rest[..len]);
                self.check(by, &proof)?;
                Ok(Some((proved + len, body)))
            }
            (_, Some((other, _))) => Err(other.unexpected(instead[1])),
        }
    }

    /// Checks that `proof` covers all that was said.
    fn check(&self, by: By, proof: &Proof) -> Result<(), PeerFault> {
        match is_same(&self.key.prove(by, &self.said), proof) {
            true => Ok(()),
            false => Err(PeerFault::Unproven {
                what: format!("the secret of token `{}`", self.token.escape_debug()),
            }),
        }
    }
}
