//! What the two lanes of a pipe say to each other about a tensor.

use smallvec::SmallVec;

use super::{Fault, OFFER_LEN, Offer};
use crate::error::legible;
use crate::process::Token;

/// From the writer's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FromWriter {
    /// The tensor lies here.
    Offer(Offer),
    /// A copy of the tensor lies here.
    Copy(Offer),
    /// It cannot be lent now: ask for its bytes.
    Unavailable,
    /// It lies in memory that the reader has lent to the writer, under this entry of the reader's ledger.
    SentBack(Offer),
    /// It will be offered to the process that brings this number to the writer's exchange.
    Invite(Token),
}

/// From the reader's lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromReader {
    /// The offer was taken.
    Taken,
    /// It could not be taken: send the bytes on the pipe's connection.
    Stream,
    /// As `Stream`, and no later offer can be taken either, for this reason.
    StreamAlways(String),
    /// The invitation was brought: make the offer now.
    Connected,
}

const OFFER: u8 = 1;
const UNAVAILABLE: u8 = 2;
const SENT_BACK: u8 = 3;
const INVITE: u8 = 4;
const COPY: u8 = 5;
/// A flag beside the kind: somebody waits for the answer.
const AWAITED: u8 = 0x80;
const TAKEN: u8 = 1;
const STREAM: u8 = 2;
const STREAM_ALWAYS: u8 = 3;
const CONNECTED: u8 = 4;

/// The longest reason, in bytes.
const REASON: usize = 500;

impl FromWriter {
    /// The offer, and whether it is of a copy.
    pub(super) fn offer(self) -> Option<(Offer, bool)> {
        match self {
            Self::Offer(offer) => Some((offer, false)),
            Self::Copy(offer) => Some((offer, true)),
            Self::Unavailable | Self::SentBack(_) | Self::Invite(_) => None,
        }
    }

    /// `awaited`: somebody waits for the answer.
    pub(super) fn encode(&self, awaited: bool) -> SmallVec<[u8; 1 + OFFER_LEN]> {
        let (kind, offer) = match self {
            Self::Unavailable => return SmallVec::from_slice(&[UNAVAILABLE]),
            Self::Invite(number) => {
                let mut out = SmallVec::from_slice(&[INVITE]);
                out.extend_from_slice(number);
                return out;
            }
            Self::Offer(offer) => (OFFER, offer),
            Self::Copy(offer) => (COPY, offer),
            Self::SentBack(offer) => (SENT_BACK, offer),
        };
        let awaited = if awaited { AWAITED } else { 0 };
        let mut out = SmallVec::from_buf([kind | awaited; 1 + OFFER_LEN]);
        out[1..].copy_from_slice(&offer.encode());
        out
    }

    /// The frame, and whether somebody waits for the answer.
    pub(super) fn decode(body: &[u8]) -> Result<(Self, bool), Fault> {
        if body == [UNAVAILABLE] {
            return Ok((Self::Unavailable, false));
        }
        let nonsense = || Fault("an offer that makes no sense".to_owned());
        let (kind, rest) = body.split_first().ok_or_else(nonsense)?;
        if *kind == INVITE {
            let number = Token::try_from(rest).map_err(|_| nonsense())?;
            return Ok((Self::Invite(number), false));
        }
        let offer = Offer::decode(rest).ok_or_else(nonsense)?;
        let told = match *kind & !AWAITED {
            OFFER => Self::Offer(offer),
            COPY => Self::Copy(offer),
            SENT_BACK => Self::SentBack(offer),
            _ => return Err(nonsense()),
        };
        Ok((told, *kind & AWAITED != 0))
    }
}

impl FromReader {
    /// [`FromReader::Taken`], encoded.
    pub(super) const TAKEN: &'static [u8] = &[TAKEN];

    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Taken => Self::TAKEN.to_vec(),
            Self::Stream => vec![STREAM],
            Self::Connected => vec![CONNECTED],
            Self::StreamAlways(reason) => {
                let end = reason.floor_char_boundary(REASON);
                [&[STREAM_ALWAYS], &reason.as_bytes()[..end]].concat()
            }
        }
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, Fault> {
        match body {
            [TAKEN] => Ok(Self::Taken),
            [STREAM] => Ok(Self::Stream),
            [CONNECTED] => Ok(Self::Connected),
            [STREAM_ALWAYS, reason @ ..] if reason.len() <= REASON => Ok(Self::StreamAlways(
                legible(&String::from_utf8_lossy(reason)),
            )),
            _ => Err(Fault("an answer that makes no sense".to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ledger::Entry;

    #[test]
    fn frames_come_back_and_what_is_none_is_a_fault() {
        let offer = FromWriter::Offer(Offer {
            segment: [3; 16],
            offset: 1 << 40,
            len: 5,
            entry: Entry {
                slot: 4095,
                generation: 8,
                number: 1 << 60,
            },
        });
        for awaited in [true, false] {
            let decoded = FromWriter::decode(&offer.encode(awaited));
            assert_eq!(decoded, Ok((offer, awaited)));
        }
        let bytes = offer.encode(false);
        assert_eq!(bytes.len(), 49);
        let mut yours = bytes.to_vec();
        yours[0] = 3;
        let (sent_back, _) = FromWriter::decode(&yours).unwrap();
        assert!(matches!(sent_back, FromWriter::SentBack(_)));
        assert_eq!(*sent_back.encode(false), yours[..]);
        yours[0] = 5;
        let (copy, _) = FromWriter::decode(&yours).unwrap();
        assert!(matches!(copy, FromWriter::Copy(_)));
        assert_eq!(*copy.encode(false), yours[..]);
        for told in [FromWriter::Unavailable, FromWriter::Invite([6; 16])] {
            assert_eq!(FromWriter::decode(&told.encode(true)), Ok((told, false)));
        }
        let always = FromReader::StreamAlways("another user's".to_owned());
        for answer in [
            FromReader::Taken,
            FromReader::Stream,
            FromReader::Connected,
            always,
        ] {
            assert_eq!(FromReader::decode(&answer.encode()), Ok(answer));
        }
        let long = FromReader::StreamAlways("ü".repeat(400)).encode();
        assert!(FromReader::decode(&long).is_ok());
        assert!(FromReader::decode(&[&long[..], b"xx"].concat()).is_err());
        let mut wild = bytes.to_vec();
        wild[33..37].copy_from_slice(&4096u32.to_le_bytes());
        let longer = [&bytes[..], &[0]].concat();
        for bad in [&[][..], &[9], &[4; 18], &bytes[..48], &longer, &wild] {
            assert!(FromWriter::decode(bad).is_err(), "{bad:?}");
        }
        assert!(FromReader::decode(&[]).is_err() && FromReader::decode(&[1, 1]).is_err());
    }
}
