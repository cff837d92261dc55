//! An offer: memory that one process offers to another, and the loan that taking it would begin.

use std::ops::Range;

use crate::sys::ledger::{Debts, Entry};
use crate::sys::segment::SegmentId;

/// Of an offer on the wire, in bytes.
pub(in crate::channels) const OFFER_LEN: usize = 48;

/// Where a tensor lies, and which loan it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channels) struct Offer {
    pub(in crate::channels) segment: SegmentId,
    /// Within the segment, in bytes.
    pub(in crate::channels) offset: u64,
    /// In bytes.
    pub(in crate::channels) len: u64,
    pub(in crate::channels) entry: Entry,
}

impl Offer {
    pub(in crate::channels) fn encode(&self) -> [u8; OFFER_LEN] {
        let mut out = [0; OFFER_LEN];
        out[..16].copy_from_slice(&self.segment);
        out[16..24].copy_from_slice(&self.offset.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        out[32..36].copy_from_slice(&self.entry.slot.to_le_bytes());
        out[36..40].copy_from_slice(&self.entry.generation.to_le_bytes());
        out[40..].copy_from_slice(&self.entry.number.to_le_bytes());
        out
    }

    /// The range within the segment.
    pub(in crate::channels) fn range(&self) -> Option<Range<usize>> {
        let start = usize::try_from(self.offset).ok()?;
        Some(start..start.checked_add(usize::try_from(self.len).ok()?)?)
    }

    /// `None` if the bytes are malformed, or name an entry that no ledger has.
    pub(in crate::channels) fn decode(mut rest: &[u8]) -> Option<Self> {
        let offer = Self {
            segment: take(&mut rest)?,
            offset: u64::from_le_bytes(take(&mut rest)?),
            len: u64::from_le_bytes(take(&mut rest)?),
            entry: Entry {
                slot: u32::from_le_bytes(take(&mut rest)?),
                generation: u32::from_le_bytes(take(&mut rest)?),
                number: u64::from_le_bytes(take(&mut rest)?),
            },
        };
        (rest.is_empty() && Debts::is_entry(offer.entry)).then_some(offer)
    }
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, left) = rest.split_first_chunk()?;
    *rest = left;
    Some(*first)
}
