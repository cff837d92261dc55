//! What two processes say to each other over an exchange: packets of at most [`PACKET_MAX`] bytes.

use crate::process::Token;
use crate::sys::segment::SegmentId;

/// The longest packet, in bytes.
pub(in crate::channels) const PACKET_MAX: usize = 256;

const MAGIC: [u8; 5] = *b"tple\x02";

/// One packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::channels) enum Packet {
    /// From a borrower: a value that it could get only over a pipe. It is the first packet, and one follows for each further pipe.
    Hello(Token),
    /// From a borrower: it wants to map a segment that it was told of.
    Fetch(SegmentId),
    /// From a lender, in answer to `Hello`; the first one comes with the ledger.
    Welcome(Token),
    /// Comes with the segment's descriptor.
    Segment(SegmentId),
    /// This borrower may not have such a segment, or no such invitation was given out.
    None(SegmentId),
    /// The lender has released a segment: the borrower can unmap it.
    Retired(SegmentId),
    /// From a process that reads memory (channel `cma`): where is your export table?
    Where { to: Token },
    /// The export table is at this address in the answering process.
    Here(u64),
}

impl Packet {
    pub(in crate::channels) fn encode(&self) -> Vec<u8> {
        let (kind, parts): (u8, [&[u8]; 3]) = match self {
            Self::Hello(invitation) => (1, [&MAGIC, invitation, &[]]),
            Self::Fetch(id) => (2, [id, &[], &[]]),
            Self::Welcome(invitation) => (3, [&MAGIC, invitation, &[]]),
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

    /// `None` if this is no packet of this version.
    pub(in crate::channels) fn decode(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let id = || SegmentId::try_from(rest).ok();
        let token = || Token::try_from(rest.strip_prefix(&MAGIC)?).ok();
        match kind {
            1 => token().map(Self::Hello),
            2 => id().map(Self::Fetch),
            3 => token().map(Self::Welcome),
            4 => id().map(Self::Segment),
            5 => id().map(Self::None),
            6 => id().map(Self::Retired),
            7 => token().map(|to| Self::Where { to }),
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
            Packet::Hello([1; 16]),
            Packet::Fetch([3; 16]),
            Packet::Welcome([2; 16]),
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
