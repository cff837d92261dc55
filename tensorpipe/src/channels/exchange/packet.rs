//! What two processes say to each other over an exchange: packets of at most [`PACKET_MAX`] bytes.

use crate::process::Token;
use crate::sys::segment::SegmentId;

/// The longest packet, in bytes.
pub(in crate::channels) const PACKET_MAX: usize = 256;

const MAGIC: [u8; 5] = *b"tple\x01";

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::channels) enum Packet {
    /// The first of a borrower: who it is, and whom it wants.
    Hello { from: Token, to: Token },
    /// It wants to map a segment that it was told of.
    Fetch(SegmentId),
    /// The first of a lender; with the ledger.
    Welcome,
    /// With the segment.
    Segment(SegmentId),
    /// There is no such segment for this borrower.
    None(SegmentId),
    /// The lender has let go of a segment: it can be unmapped.
    Retired(SegmentId),
    /// From a process that reads memory (channel `cma`): where does this one say what there is to read?
    Where { to: Token },
    /// At this address of the process that answers.
    Here(u64),
}

impl Packet {
    pub(in crate::channels) fn encode(&self) -> Vec<u8> {
        let (kind, parts): (u8, [&[u8]; 3]) = match self {
            Self::Hello { from, to } => (1, [&MAGIC, from, to]),
            Self::Fetch(id) => (2, [id, &[], &[]]),
            Self::Welcome => (3, [&MAGIC, &[], &[]]),
            Self::Segment(id) => (4, [id, &[], &[]]),
            Self::None(id) => (5, [id, &[], &[]]),
            Self::Retired(id) => (6, [id, &[], &[]]),
            Self::Where { to } => (7, [&MAGIC, to, &[]]),
            Self::Here(address) => (8, [&address.to_le_bytes(), &[], &[]]),
        };
        let mut out = vec![kind];
        parts.iter().for_each(|part| out.extend_from_slice(part));
        out
    }

    /// `None` for what is no packet of this version.
    pub(in crate::channels) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let id = || SegmentId::try_from(rest).ok();
        match kind {
            1 => {
                let tokens = rest.strip_prefix(&MAGIC)?;
                let (from, to) = tokens.split_first_chunk()?;
                Some(Self::Hello {
                    from: *from,
                    to: to.try_into().ok()?,
                })
            }
            2 => id().map(Self::Fetch),
            3 if rest == MAGIC => Some(Self::Welcome),
            4 => id().map(Self::Segment),
            5 => id().map(Self::None),
            6 => id().map(Self::Retired),
            7 => Some(Self::Where {
                to: rest.strip_prefix(&MAGIC)?.try_into().ok()?,
            }),
            8 => Some(Self::Here(u64::from_le_bytes(rest.try_into().ok()?))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_come_back_and_others_are_none() {
        let all = [
            Packet::Hello {
                from: [1; 16],
                to: [2; 16],
            },
            Packet::Fetch([3; 16]),
            Packet::Welcome,
            Packet::Segment([4; 16]),
            Packet::None([5; 16]),
            Packet::Retired([6; 16]),
            Packet::Where { to: [7; 16] },
            Packet::Here(1 << 40),
        ];
        for packet in all {
            let bytes = packet.encode();
            assert!(bytes.len() <= PACKET_MAX);
            assert_eq!(Packet::decode(&bytes), Some(packet));
            for len in 0..bytes.len() {
                assert_eq!(Packet::decode(&bytes[..len]), None);
            }
            assert_eq!(Packet::decode(&[&bytes[..], &[0]].concat()), None);
        }
        assert_eq!(Packet::decode(&[9; 17]), None);
    }
}
