//! The entries of the table by which the sender chooses a channel: from which size on it pays, over what, for which memory.

use std::borrow::Cow;

use crate::device::MemoryKind;

/// One byte more than a frame takes of a part by default. A part that does not fit the frame counts as at least this long.
const BEYOND: u64 = (64 << 10) + 1;

/// From which size on a channel pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pays {
    /// Parts of this many bytes and more are better off over it than in the message's frame, or over a channel of lower priority. A value
    /// up to 64 KiB is compared with the frame alone: if the frame has no room, the channel pays for smaller parts, too.
    From(u64),
    /// Parts without room in the frame are; others are better off in the frame.
    BeyondFrame,
    /// No part is, but those that no other channel carries.
    LastResort,
}

/// An entry of the table by which the sender chooses: when a channel [`Pays`], over a transport, for a kind of memory.
///
/// A channel brings its own ([`Channel::thresholds`](crate::channels::Channel::thresholds)); a context may say otherwise
/// ([`ContextBuilder::threshold`](crate::ContextBuilder::threshold)). What comes of them for a pipe is in its
/// [`Route`](crate::Route).
///
/// ```
/// # fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use tensorpipe::{Context, device::MemoryKind, channels::{Pays, Threshold}};
///
/// let context = Context::builder()
///     // Ordinary memory is read by `cma` from 16 MiB on where the pipe is a tcp connection,
///     .threshold("cma", Threshold::new(Pays::From(16 << 20)).over("tcp"))
///     // and what lies in the pool is lent only from 64 KiB on.
///     .threshold("lease", Threshold::new(Pays::From(64 << 10)).of(MemoryKind::Pool))
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Threshold {
    /// When it pays.
    pub pays: Pays,
    /// Where the pipe goes over this transport; over any where it is `None`.
    pub transport: Option<Cow<'static, str>>,
    /// For this kind of memory; for all of the channel's where it is `None`.
    pub memory: Option<MemoryKind>,
}

impl Threshold {
    /// Over every transport, for all memory.
    pub const fn new(pays: Pays) -> Self {
        Self {
            pays,
            transport: None,
            memory: None,
        }
    }

    /// Only where the pipe goes over this transport.
    #[must_use]
    pub fn over(mut self, transport: impl Into<Cow<'static, str>>) -> Self {
        self.transport = Some(transport.into());
        self
    }

    /// Only for this kind of memory.
    #[must_use]
    pub const fn of(mut self, memory: MemoryKind) -> Self {
        self.memory = Some(memory);
        self
    }

    fn fits(&self, transport: &str, memory: MemoryKind) -> bool {
        let over = self.transport.as_deref();
        over.is_none_or(|over| over == transport) && self.memory.is_none_or(|own| own == memory)
    }
}

/// The entry that counts for a channel and one kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EffectiveThreshold {
    pub(super) pays: Pays,
    /// The channel's or the context's entry names just this kind of memory.
    pub(super) is_specific: bool,
}

/// The entry that counts for a channel: the last of the context's `own` that fits, else the first of the channel's `shipped`. `None`: it
/// does not carry such memory, whatever the context says.
pub(super) fn effective_threshold<'a>(
    shipped: &[Threshold],
    own: impl DoubleEndedIterator<Item = &'a Threshold>,
    transport: &str,
    memory: MemoryKind,
) -> Option<EffectiveThreshold> {
    let fits = |threshold: &&Threshold| threshold.fits(transport, memory);
    let shipped = shipped.iter().find(fits)?;
    let said = own.rev().find(fits).unwrap_or(shipped);
    Some(EffectiveThreshold {
        pays: said.pays,
        is_specific: shipped.memory.is_some() || said.memory.is_some(),
    })
}

impl Pays {
    /// Whether it is better than the frame for a part of this length.
    pub(super) fn beats_frame(self, len: u64) -> bool {
        matches!(self, Self::From(bytes) if bytes <= len)
    }

    /// By how many bytes a part of this length is too short for it, where the frame has no room.
    pub(super) fn misses_by(self, len: u64) -> u64 {
        match self {
            Self::From(bytes) => bytes.saturating_sub(len.max(BEYOND)),
            Self::BeyondFrame => 0,
            Self::LastResort => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_entry_that_fits_counts_and_a_context_has_the_last_word() {
        let shipped = [
            Threshold::new(Pays::LastResort).over("shm"),
            Threshold::new(Pays::From(100)).of(MemoryKind::Heap),
            Threshold::new(Pays::From(200)).of(MemoryKind::Pool),
        ];
        let said = |own: &[Threshold], transport, memory| {
            let counts = effective_threshold(&shipped, own.iter(), transport, memory);
            counts.map(|counts| counts.pays)
        };
        assert_eq!(said(&[], "shm", MemoryKind::Pool), Some(Pays::LastResort));
        assert_eq!(said(&[], "tcp", MemoryKind::Pool), Some(Pays::From(200)));
        assert_eq!(said(&[], "tcp", MemoryKind::Borrowed), None);
        let own = [
            Threshold::new(Pays::From(1)),
            Threshold::new(Pays::From(2)).over("tcp"),
            Threshold::new(Pays::BeyondFrame)
                .over("tcp")
                .of(MemoryKind::Pool),
        ];
        assert_eq!(said(&own, "shm", MemoryKind::Heap), Some(Pays::From(1)));
        assert_eq!(said(&own, "tcp", MemoryKind::Heap), Some(Pays::From(2)));
        assert_eq!(said(&own, "tcp", MemoryKind::Pool), Some(Pays::BeyondFrame));
        let borrowed = said(&own, "tcp", MemoryKind::Borrowed);
        assert_eq!(borrowed, None, "nobody makes it carry what it cannot");
    }

    #[test]
    fn a_small_threshold_is_about_the_frame_and_a_large_one_about_the_channels_behind() {
        let (small, large) = (Pays::From(4097), Pays::From(4 << 20));
        for (pays, len, beats_frame, misses_by) in [
            (small, 1, false, 0),
            (small, 4096, false, 0),
            (small, 4097, true, 0),
            (large, 1, false, (4 << 20) - BEYOND),
            (large, (4 << 20) - 1, false, 1),
            (large, 4 << 20, true, 0),
            (Pays::BeyondFrame, 1, false, 0),
            (Pays::BeyondFrame, u64::MAX, false, 0),
            (Pays::LastResort, u64::MAX, false, u64::MAX),
        ] {
            assert_eq!(pays.beats_frame(len), beats_frame, "{pays:?} {len}");
            assert_eq!(pays.misses_by(len), misses_by, "{pays:?} {len}");
        }
    }
}
