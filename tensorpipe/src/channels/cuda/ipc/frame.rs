//! What the two lanes say to each other about a part. First bytes below 16 are those of `cuda_basic`, which carries what cannot be lent.

use super::proof::Number;
use super::{ChannelFault, OFFER_LEN, Offer, Uuid};
use crate::error::legible;
use crate::process::Token;

/// From the writer's lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FromWriter {
    /// It lies there, on this device, in physical memory of so many bytes.
    Offer(Offer, Uuid, u64),
    /// Of this device nothing was offered yet: memory that holds this number, which lies as an offer does.
    Prove(Offer, Uuid, u64, Number),
    /// It is offered to whoever brings this to the writer's exchange.
    Invite(Token),
    /// It cannot be lent.
    Cannot,
}

/// From the reader's lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromReader {
    Taken,
    /// It has brought the invitation.
    Came,
    /// It has read the number.
    Proved,
    /// It cannot be taken, or was not offered: by way of main memory, then. With a reason: nothing will ever be taken.
    Detour(Option<String>),
}

const OFFER: u8 = 16;
const INVITE: u8 = 17;
const CANNOT: u8 = 18;
const PROVE: u8 = 19;
const TAKEN: u8 = 16;
const CAME: u8 = 17;
const DETOUR: u8 = 18;
const DETOUR_ALWAYS: u8 = 19;
const PROVED: u8 = 20;

/// Of a reason, in bytes.
const REASON: usize = 500;

fn nonsense(body: &[u8]) -> ChannelFault {
    ChannelFault(format!("{} bytes that make no sense", body.len()))
}

fn place(first: u8, offer: &Offer, device: &Uuid, len: u64) -> Vec<u8> {
    [&[first], &offer.encode()[..], device, &len.to_le_bytes()].concat()
}

impl FromWriter {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Offer(offer, device, len) => place(OFFER, offer, device, *len),
            Self::Prove(offer, device, len, number) => {
                [&place(PROVE, offer, device, *len), &number[..]].concat()
            }
            Self::Invite(number) => [&[INVITE], &number[..]].concat(),
            Self::Cannot => vec![CANNOT],
        }
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, ChannelFault> {
        let decode = || match body.split_first()? {
            (first @ (&OFFER | &PROVE), rest) => {
                let (offer, rest) = rest.split_at_checked(OFFER_LEN)?;
                let (device, rest) = rest.split_first_chunk()?;
                let (len, rest) = rest.split_first_chunk()?;
                let (offer, len) = (Offer::decode(offer)?, u64::from_le_bytes(*len));
                match (*first, rest) {
                    (OFFER, []) => Some(Self::Offer(offer, *device, len)),
                    (PROVE, number) => {
                        Some(Self::Prove(offer, *device, len, number.try_into().ok()?))
                    }
                    _ => None,
                }
            }
            (&INVITE, rest) => Some(Self::Invite(rest.try_into().ok()?)),
            (&CANNOT, []) => Some(Self::Cannot),
            _ => None,
        };
        decode().ok_or_else(|| nonsense(body))
    }
}

impl FromReader {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Taken => vec![TAKEN],
            Self::Came => vec![CAME],
            Self::Proved => vec![PROVED],
            Self::Detour(None) => vec![DETOUR],
            Self::Detour(Some(reason)) => {
                let end = reason.floor_char_boundary(REASON);
                [&[DETOUR_ALWAYS], &reason.as_bytes()[..end]].concat()
            }
        }
    }

    /// `None`: it is for `cuda_basic`.
    pub(super) fn decode(body: &[u8]) -> Result<Option<Self>, ChannelFault> {
        match body {
            [TAKEN] => Ok(Some(Self::Taken)),
            [CAME] => Ok(Some(Self::Came)),
            [PROVED] => Ok(Some(Self::Proved)),
            [DETOUR] => Ok(Some(Self::Detour(None))),
            [DETOUR_ALWAYS, reason @ ..] if reason.len() <= REASON => {
                let reason = legible(&String::from_utf8_lossy(reason));
                Ok(Some(Self::Detour(Some(reason))))
            }
            [first, ..] if *first < 16 => Ok(None),
            _ => Err(nonsense(body)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ledger::Entry;
    use crate::wire_md::examples;

    #[test]
    fn the_example_is_what_is_sent() {
        let offer = Offer {
            segment: [0x11; 16],
            offset: 4 << 10,
            len: 8 << 10,
            entry: Entry {
                slot: 5,
                generation: 12,
                number: 0x8877_6655_4433_2211,
            },
        };
        let told = FromWriter::Offer(offer, [0x22; 16], 2 << 20);
        assert_eq!(told.encode(), examples("cuda_ipc")["OFFER"]);
    }

    #[test]
    fn what_is_said_is_understood() {
        let offer = Offer {
            segment: [3; 16],
            offset: 1 << 40,
            len: 5,
            entry: Entry {
                slot: 4095,
                generation: 8,
                number: 1 << 60,
            },
        };
        let all = [
            FromWriter::Offer(offer, [7; 16], 2 << 20),
            FromWriter::Prove(offer, [7; 16], 2 << 20, [8; 16]),
            FromWriter::Invite([6; 16]),
            FromWriter::Cannot,
        ];
        for said in all {
            let bytes = said.encode();
            assert_eq!(FromWriter::decode(&bytes), Ok(said));
            for len in 0..bytes.len() {
                assert!(FromWriter::decode(&bytes[..len]).is_err(), "{said:?} {len}");
            }
            assert!(FromWriter::decode(&[&bytes[..], &[0]].concat()).is_err());
        }
        let always = FromReader::Detour(Some("no descriptors".to_owned()));
        let others = [
            FromReader::Taken,
            FromReader::Came,
            FromReader::Proved,
            FromReader::Detour(None),
        ];
        for said in others.into_iter().chain([always]) {
            assert_eq!(FromReader::decode(&said.encode()), Ok(Some(said)));
        }
        let long = FromReader::Detour(Some("ü".repeat(400))).encode();
        assert!(FromReader::decode(&long).is_ok());
        assert!(FromReader::decode(&[&long[..], b"xx"].concat()).is_err());
        assert_eq!(FromReader::decode(&[1; 11]), Ok(None));
        assert!(FromReader::decode(&[]).is_err() && FromReader::decode(&[16, 0]).is_err());
    }
}
