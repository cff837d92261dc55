//! The lanes' protocol for a part. Frames whose first byte is below 16 belong to `cuda_basic`, which carries what cannot be lent.

use super::proof::Number;
use super::{ChannelFault, OFFER_LEN, Offer, Uuid};
use crate::device::cuda::MOST_SPANNED;
use crate::error::legible;
use crate::process::Token;
use crate::sys::segment::SegmentId;

/// Where a tensor lies, on this device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemoryLocation {
    /// Its range counts in all allocations together.
    pub(super) offer: Offer,
    pub(super) device: Uuid,
    /// Length of the offer's own allocation, in bytes.
    pub(super) len: u64,
    /// Further allocations behind that one, and their lengths.
    pub(super) behind: Vec<(SegmentId, u64)>,
}

impl MemoryLocation {
    /// All allocations that it spans, and their lengths.
    pub(super) fn all(&self) -> impl Iterator<Item = (SegmentId, u64)> {
        let first = (self.offer.segment, self.len);
        std::iter::once(first).chain(self.behind.iter().copied())
    }
}

/// From the writer's lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromWriter {
    Offer(MemoryLocation),
    /// Nothing of this device was offered yet: this is memory that holds this number, in one allocation.
    Prove(MemoryLocation, Number),
    /// It will be offered to the process that brings this number to the writer's exchange.
    Invite(Token),
    /// It cannot be lent.
    Unavailable,
}

/// From the reader's lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FromReader {
    Taken,
    /// It has brought the invitation.
    Connected,
    /// It has read the number.
    Proved,
    /// It cannot be taken, or was not offered: send it through main memory. A reason means that nothing can ever be taken.
    Detour(Option<String>),
}

const OFFER: u8 = 16;
const INVITE: u8 = 17;
const UNAVAILABLE: u8 = 18;
const PROVE: u8 = 19;
const OFFER_SPANNING: u8 = 20;
const TAKEN: u8 = 16;
const CONNECTED: u8 = 17;
const DETOUR: u8 = 18;
const DETOUR_ALWAYS: u8 = 19;
const PROVED: u8 = 20;

/// The longest reason, in bytes.
const REASON: usize = 500;

fn nonsense(body: &[u8]) -> ChannelFault {
    ChannelFault(format!("{} bytes that make no sense", body.len()))
}

fn place(first: u8, lies: &MemoryLocation) -> Vec<u8> {
    let (offer, len) = (lies.offer.encode(), lies.len.to_le_bytes());
    let mut place = [&[first], &offer[..], &lies.device, &len].concat();
    for (segment, len) in &lies.behind {
        place.extend([&segment[..], &len.to_le_bytes()].concat());
    }
    place
}

/// Decodes one to [`MOST_SPANNED`] allocations, without the first.
fn behind(rest: &[u8]) -> Option<Vec<(SegmentId, u64)>> {
    let (all, left) = rest.as_chunks::<24>();
    let is_fit = (1..MOST_SPANNED).contains(&all.len()) && left.is_empty();
    let one = |one: &[u8; 24]| {
        let (segment, len) = one.split_first_chunk()?;
        Some((*segment, u64::from_le_bytes(len.try_into().ok()?)))
    };
    is_fit.then(|| all.iter().map(one).collect())?
}

impl FromWriter {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Offer(lies) if lies.behind.is_empty() => place(OFFER, lies),
            Self::Offer(lies) => place(OFFER_SPANNING, lies),
            Self::Prove(lies, number) => [&place(PROVE, lies), &number[..]].concat(),
            Self::Invite(number) => [&[INVITE], &number[..]].concat(),
            Self::Unavailable => vec![UNAVAILABLE],
        }
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, ChannelFault> {
        let decode = || match body.split_first()? {
            (first @ (&OFFER | &PROVE | &OFFER_SPANNING), rest) => {
                let (offer, rest) = rest.split_at_checked(OFFER_LEN)?;
                let (device, rest) = rest.split_first_chunk()?;
                let (len, rest) = rest.split_first_chunk()?;
                let mut lies = MemoryLocation {
                    offer: Offer::decode(offer)?,
                    device: *device,
                    len: u64::from_le_bytes(*len),
                    behind: Vec::new(),
                };
                match (*first, rest) {
                    (OFFER, []) => Some(Self::Offer(lies)),
                    (OFFER_SPANNING, rest) => {
                        lies.behind = behind(rest)?;
                        Some(Self::Offer(lies))
                    }
                    (PROVE, number) => Some(Self::Prove(lies, number.try_into().ok()?)),
                    _ => None,
                }
            }
            (&INVITE, rest) => Some(Self::Invite(rest.try_into().ok()?)),
            (&UNAVAILABLE, []) => Some(Self::Unavailable),
            _ => None,
        };
        decode().ok_or_else(|| nonsense(body))
    }
}

impl FromReader {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Taken => vec![TAKEN],
            Self::Connected => vec![CONNECTED],
            Self::Proved => vec![PROVED],
            Self::Detour(None) => vec![DETOUR],
            Self::Detour(Some(reason)) => {
                let end = reason.floor_char_boundary(REASON);
                [&[DETOUR_ALWAYS], &reason.as_bytes()[..end]].concat()
            }
        }
    }

    /// `None`: the frame belongs to `cuda_basic`.
    pub(super) fn decode(body: &[u8]) -> Result<Option<Self>, ChannelFault> {
        match body {
            [TAKEN] => Ok(Some(Self::Taken)),
            [CONNECTED] => Ok(Some(Self::Connected)),
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
        let mut lies = MemoryLocation {
            offer,
            device: [0x22; 16],
            len: 2 << 20,
            behind: Vec::new(),
        };
        let told = FromWriter::Offer(lies.clone());
        assert_eq!(told.encode(), examples("cuda_ipc")["OFFER"]);
        lies.behind.push(([0x33; 16], 4 << 20));
        let told = FromWriter::Offer(lies);
        assert_eq!(told.encode(), examples("cuda_ipc")["SPANNING"]);
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
        let lies = |behind| MemoryLocation {
            offer,
            device: [7; 16],
            len: 2 << 20,
            behind,
        };
        let spans = |count| FromWriter::Offer(lies(vec![([9; 16], 4 << 20); count]));
        let all = [
            spans(0),
            spans(1),
            FromWriter::Prove(lies(Vec::new()), [8; 16]),
            FromWriter::Invite([6; 16]),
            FromWriter::Unavailable,
        ];
        for said in all {
            let bytes = said.encode();
            for len in 0..bytes.len() {
                assert!(FromWriter::decode(&bytes[..len]).is_err(), "{said:?} {len}");
            }
            assert!(FromWriter::decode(&[&bytes[..], &[0]].concat()).is_err());
            assert_eq!(FromWriter::decode(&bytes), Ok(said));
        }
        let most = spans(MOST_SPANNED - 1);
        assert_eq!(FromWriter::decode(&most.encode()), Ok(most));
        assert!(FromWriter::decode(&spans(MOST_SPANNED).encode()).is_err());
        let always = FromReader::Detour(Some("no descriptors".to_owned()));
        let others = [
            FromReader::Taken,
            FromReader::Connected,
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
