//! The handshake: one round trip.
//!
//! ```text
//! connector                              listener
//!   preface, HELLO (brochure)  ------->
//!                              <-------  preface, ANSWER (what was chosen)   or REJECT
//!   stay: MESSAGE …            ------->
//!   move: on the other transport
//!         preface, HELLO (join token), MESSAGE …  ------->
//!                              <-------  preface, JOINED, MESSAGE …          or REJECT
//!         or, where that fails, STAY, MESSAGE … on the first connection
//! ```

mod select;

pub(crate) use select::{LocalChannel, LocalTransport, Selection, select};

use super::wire::frame::{HEADER_LEN, Header, Kind, check_len};
use super::wire::hello::{Answer, HANDSHAKE_MAX, Purpose, Reject, decode_stay, put_joined};
use super::wire::{MAGIC, PREFACE_LEN, VERSION, VERSION_MIN, preface};
use crate::error::PeerFault;

/// What the listener said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Answer(Box<Answer>),
    Reject(Reject),
    /// The connection is one of the pipe's.
    Joined,
}

/// The connector's side: waits for the listener's preface, then for its ANSWER, or, on a connection that joins, for JOINED.
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
            Kind::Joined if self.joins => Reply::Joined,
            Kind::Answer if !self.joins => Reply::Answer(Box::new(Answer::decode(body)?)),
            Kind::Reject => Reply::Reject(Reject::decode(body)?),
            other if self.joins => return Err(other.unexpected("instead of JOINED")),
            other => return Err(other.unexpected("instead of an answer")),
        };
        Ok((used, Some(reply)))
    }
}

/// The listener's side: waits for the connector's preface, then for its HELLO, and, after telling it to move, for STAY.
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
        behind_preface(|out| answer.put(out))
    }

    /// What to send on a connection that has joined.
    pub(crate) fn joined() -> Vec<u8> {
        behind_preface(put_joined)
    }

    /// What to send when it is not wanted.
    pub(crate) fn reject(reject: &Reject) -> Vec<u8> {
        behind_preface(|out| reject.put(out))
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
    preface_seen: bool,
}

impl Opening {
    /// Takes what has come in so far. Returns how much of it was used, and the frame once it is there.
    fn handle<'a>(&mut self, input: &'a [u8]) -> Result<(usize, Option<Whole<'a>>), PeerFault> {
        let mut used = 0;
        if !self.preface_seen {
            self.preface_seen = check_preface(input)?;
            if !self.preface_seen {
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
    check_len(kind, len, HANDSHAKE_MAX)?;
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

/// Checks the preface at the front of `input`, as far as it is there. `Ok(true)`: it is there whole and fits.
fn check_preface(input: &[u8]) -> Result<bool, PeerFault> {
    let magic = &input[..input.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        let first = input[..input.len().min(16)].escape_ascii().to_string();
        return Err(PeerFault::BadMagic {
            first,
            hint: hint(input),
        });
    }
    let Some(preface) = input.first_chunk::<PREFACE_LEN>() else {
        return Ok(false);
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
    Ok(true)
}

fn hint(first: &[u8]) -> &'static str {
    const VERBS: [&[u8]; 6] = [b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"PRI"];
    if VERBS.iter().any(|verb| first.starts_with(verb)) {
        ", that is an HTTP request; this port serves no HTTP"
    } else if first.starts_with(b"HTTP") {
        ", that is an HTTP server; connect to another port"
    } else if first.starts_with(&[0x16, 0x03]) {
        ", that is TLS, which this address does not expect"
    } else {
        ""
    }
}
