//! The handshake: one round trip, or two where a token is proved ([`proving`]).
//!
//! ```text
//! connector                              listener
//!   preface, HELLO (brochure)  ------->
//!                              <-------  preface, ANSWER (what was chosen)   or REJECT
//!   stay: MESSAGE …            ------->
//!   upgrade: on the other transport
//!         preface, HELLO (join token), MESSAGE …  ------->
//!                              <-------  preface, JOINED, MESSAGE …          or REJECT
//!         or, where that fails, STAY, MESSAGE … on the first connection
//! ```

mod proving;
mod select;

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use proving::ExpectAnswer;
pub(crate) use proving::{ExpectChallenge, ExpectProof, Opened, Proven};
pub(crate) use select::{LocalChannel, LocalTransport, Selection, select};

use super::wire::frame::{HEADER_LEN, Header, Kind, check_len};
use super::wire::hello::{
    Answer, CHALLENGE_LEN, HANDSHAKE_MAX, KEY_MAX, PROOF_LEN, Purpose, Reject, decode_joined,
    decode_key, decode_stay, put_joined,
};
use super::wire::{MAGIC, PREFACE_LEN, VERSION, VERSION_MIN, preface};
use crate::error::PeerFault;
use crate::keys::{Proof, is_same};

/// What the listener said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Answer(Box<Answer>),
    Reject(Reject),
    /// The connection is one of the pipe's.
    Joined,
}

/// What a connector has said first.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum FirstFrame {
    /// What the connection is for.
    Hello(Purpose),
    /// It wants a new pipe and proves nothing, although a token is asked for. The rest of what it sent was not read.
    Unproven,
    /// It has a token, and wants to prove that.
    Key(Opened),
}

/// The connector's side: waits for the listener's preface, then for its ANSWER, or, on a connection that joins, for JOINED.
#[derive(Debug, Default)]
pub(crate) struct ClientHandshake {
    opening: Opening,
    joins: Joins,
}

/// Whether a connection joins a pipe.
#[derive(Debug, Default)]
enum Joins {
    #[default]
    No,
    /// It joins a pipe without a key.
    Yes,
    /// It joins a pipe with a key: by this the listener has to prove that it has the key.
    By(Proof),
}

impl ClientHandshake {
    /// For a connection that joins. `proof`: by which the listener proves the pipe's key, if the pipe has one.
    pub(crate) fn joining(proof: Option<Proof>) -> Self {
        Self {
            joins: proof.map_or(Joins::Yes, Joins::By),
            ..Self::default()
        }
    }

    /// What to send first.
    pub(crate) fn hello(purpose: &Purpose) -> Vec<u8> {
        behind_preface(|out| purpose.put(out))
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more. What follows
    /// the reply belongs to the pipe.
    pub(crate) fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Reply>), PeerFault> {
        let (used, frame) = self.opening.handle(input)?;
        let Some((kind, body)) = frame else {
            return Ok((used, None));
        };
        let reply = match kind {
            Kind::Joined => self.joins.heard(decode_joined(body)?)?,
            Kind::Answer if matches!(self.joins, Joins::No) => {
                Reply::Answer(Box::new(Answer::decode(body)?))
            }
            Kind::Reject => Reply::Reject(Reject::decode(body)?),
            other => return Err(other.unexpected(self.joins.instead())),
        };
        Ok((used, Some(reply)))
    }
}

impl Joins {
    /// JOINED has come.
    fn heard(&self, proof: Option<Proof>) -> Result<Reply, PeerFault> {
        match self {
            Self::No => Err(Kind::Joined.unexpected(self.instead())),
            Self::Yes => Ok(Reply::Joined),
            Self::By(wanted) if proof.is_some_and(|proof| is_same(&proof, wanted)) => {
                Ok(Reply::Joined)
            }
            Self::By(_) => Err(PeerFault::Unproven {
                what: "the key of the pipe that this connection was to join".to_owned(),
            }),
        }
    }

    fn instead(&self) -> &'static str {
        match self {
            Self::No => "instead of an answer",
            Self::Yes | Self::By(_) => "instead of JOINED",
        }
    }
}

/// The listener's side: waits for the connector's preface, then for its HELLO or KEY, and, after telling it to upgrade, for STAY.
#[derive(Debug, Default)]
pub(crate) struct ServerHandshake {
    opening: Opening,
    requires_token: bool,
}

impl ServerHandshake {
    /// `requires_token`: only a connector that has proved a token gets a new pipe.
    pub(crate) fn new(requires_token: bool) -> Self {
        Self {
            requires_token,
            ..Self::default()
        }
    }

    /// Takes what has come in so far. Returns how much of it was used; call again with the rest and more.
    pub(crate) fn handle(
        &mut self,
        input: &[u8],
    ) -> Result<(usize, Option<FirstFrame>), PeerFault> {
        let (used, frame) = self.opening.handle(input)?;
        let heard = match frame {
            None => return Ok((used, None)),
            Some((Kind::Hello, body)) if self.requires_token && Purpose::is_pipe(body) => {
                FirstFrame::Unproven
            }
            Some((Kind::Hello, body)) => FirstFrame::Hello(Purpose::decode(body)?),
            Some((Kind::Key, body)) => {
                let (name, _) = decode_key(body)?;
                let frame = &input[..used][used - HEADER_LEN - body.len()..];
                FirstFrame::Key(Opened {
                    name,
                    said: [&self.opening.preface.unwrap_or_default(), frame].concat(),
                })
            }
            Some((other, _)) => return Err(other.unexpected("instead of HELLO")),
        };
        Ok((used, Some(heard)))
    }

    /// The same for STAY: returns its reason. `wanted`: if the pipe has a key, the proof that the STAY is the connector's.
    pub(crate) fn handle_stay(
        input: &[u8],
        wanted: Option<&Proof>,
    ) -> Result<(usize, Option<String>), PeerFault> {
        let (used, frame) = whole_frame(input)?;
        match frame {
            None => Ok((used, None)),
            Some((Kind::Stay, body)) => {
                let (reason, proof) = decode_stay(body)?;
                let is_proved = |wanted| proof.is_some_and(|proof| is_same(&proof, wanted));
                match wanted.is_none_or(is_proved) {
                    true => Ok((used, Some(reason))),
                    false => Err(PeerFault::Unproven {
                        what: "the key of the pipe that is to stay".to_owned(),
                    }),
                }
            }
            Some((other, _)) => Err(other.unexpected("instead of STAY")),
        }
    }

    /// The bytes that accept the pipe.
    pub(crate) fn answer(answer: &Answer) -> Vec<u8> {
        behind_preface(|out| answer.put(out))
    }

    /// What to send on a connection that has joined.
    pub(crate) fn joined(proof: Option<&Proof>) -> Vec<u8> {
        behind_preface(|out| put_joined(out, proof))
    }

    /// The bytes that reject the connection.
    pub(crate) fn reject(reject: &Reject) -> Vec<u8> {
        behind_preface(|out| reject.put(out))
    }

    /// What to answer a peer whose first bytes were at `fault`, for this reason, in words that it understands.
    pub(crate) fn answer_to(fault: &PeerFault, reason: String) -> Option<Vec<u8>> {
        match fault {
            PeerFault::Version { .. } => Some(Self::reject(&Reject {
                transient: false,
                reason,
            })),
            // Without the alert it would try again, as if the listener were about to come.
            PeerFault::BadMagic { hint, .. } if *hint == IS_TLS => Some(TLS_ALERT.to_vec()),
            _ => None,
        }
    }
}

fn behind_preface(put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = preface().to_vec();
    put(&mut out);
    out
}

/// What an end waits for first: the other's preface, and the frame behind it.
#[derive(Debug, Default)]
struct Opening {
    preface: Option<[u8; PREFACE_LEN]>,
}

impl Opening {
    /// Takes what has come in so far. Returns how much of it was used, and the frame once it is there.
    fn handle<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Option<Whole<'a>>), PeerFault> {
        let mut used = 0;
        if self.preface.is_none() {
            self.preface = check_preface(input)?;
            if self.preface.is_none() {
                return Ok((0, None));
            }
            used = PREFACE_LEN;
        }
        let (len, frame) = whole_frame(&input[used..])?;
        Ok((used + len, frame))
    }
}

/// A frame's kind and body.
type Whole<'a> = (Kind, &'a [u8]);

/// The frame at the front of `input` if it is there whole, and its length.
fn whole_frame(input: &[u8]) -> Result<(usize, Option<Whole<'_>>), PeerFault> {
    let Some((header, rest)) = input.split_first_chunk() else {
        return Ok((0, None));
    };
    let Header { len, kind, .. } = Header::decode(header)?;
    check_len(kind, len, longest(kind))?;
    let Some(kind) = kind else {
        return Err(PeerFault::Unexpected {
            frame: "skippable",
            when: "during the handshake",
        });
    };
    Ok(match rest.get(..len as usize) {
        None => (0, None),
        Some(body) => (HEADER_LEN + body.len(), Some((kind, body))),
    })
}

/// The longest body of a frame of this kind. Frames of a proof have exact ones: no proof would cover bytes behind their fields.
fn longest(kind: Option<Kind>) -> u32 {
    match kind {
        Some(Kind::Key) => KEY_MAX,
        Some(Kind::Challenge) => CHALLENGE_LEN,
        Some(Kind::Proof) => PROOF_LEN,
        _ => HANDSHAKE_MAX,
    }
}

/// Checks the preface at the front of `input`, as far as it is there. Returns it once it is there whole and fits.
fn check_preface(input: &[u8]) -> Result<Option<[u8; PREFACE_LEN]>, PeerFault> {
    let magic = &input[..input.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        let first = input[..input.len().min(16)].escape_ascii().to_string();
        return Err(PeerFault::BadMagic {
            first,
            hint: hint(input),
        });
    }
    let Some(preface) = input.first_chunk::<PREFACE_LEN>() else {
        return Ok(None);
    };
    let high = u16::from_le_bytes([preface[8], preface[9]]);
    let low = u16::from_le_bytes([preface[10], preface[11]]);
    if low > VERSION || high < VERSION_MIN || low > high {
        return Err(PeerFault::Version {
            low,
            high,
            our_low: VERSION_MIN,
            our_high: VERSION,
        });
    }
    Ok(Some(*preface))
}

const IS_TLS: &str =
    ", that is TLS, which this address does not expect: connect by `tcp://`, or serve `tls://`";

/// The fatal alert `protocol_version` (RFC 8446, 5.1 and 6).
const TLS_ALERT: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 70];

fn hint(first: &[u8]) -> &'static str {
    const VERBS: [&[u8]; 6] = [b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"PRI"];
    if VERBS.iter().any(|verb| first.starts_with(verb)) {
        ", that is an HTTP request; this port serves no HTTP"
    } else if first.starts_with(b"HTTP") {
        ", that is an HTTP server; connect to another port"
    } else if first.starts_with(&[0x16, 0x03]) {
        IS_TLS
    } else if first.starts_with(&[0x15, 0x03]) {
        ", that is an alert of TLS: connect there by `tls://`"
    } else {
        ""
    }
}
