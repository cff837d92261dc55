//! The lanes' protocol for a part; integers are little-endian.
//!
//! ```text
//!  0     1            9        11
//!  1     piece u64    allowed u16     reader: so long is a piece, so many may be sent
//!  2     allowed u16                  reader: so many by now
//! ```

use std::ops::Range;

use super::ChannelFault;

/// Pieces of a part that are under way at each end. Chosen: each GPU copies a few while others travel.
pub(super) const WINDOW: u16 = 8;

/// The longest piece, in bytes, except for huge parts: at 50 GB/s it takes 80 µs, so that its control frames cost little in comparison.
const PIECE_MAX: u64 = 4 << 20;

/// The shortest piece, in bytes, except for short parts.
const PIECE_MIN: u64 = 256 << 10;

/// A peer may not ask for shorter pieces: each costs some microseconds.
const PIECE_LEAST: u64 = 64 << 10;

/// A peer may not ask for longer pieces of a device's memory, except for huge parts: this side pins as much for each. Chosen: four times the
/// longest piece.
const PIECE_MOST: u64 = 16 << 20;

/// How a part is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Length of the part, in bytes; never 0.
    len: u64,
    /// Length of each piece but the last.
    piece: u64,
}

impl Cut {
    /// For a part that is staged.
    pub(super) fn new(len: u64) -> Self {
        let piece = (len / u64::from(WINDOW)).next_multiple_of(PIECE_LEAST);
        let piece = piece.clamp(PIECE_MIN, PIECE_MAX);
        // A piece's number has 16 bits.
        let least = len
            .div_ceil(u64::from(u16::MAX))
            .next_multiple_of(PIECE_LEAST);
        Self {
            len,
            piece: piece.max(least).min(len),
        }
    }

    /// In one piece.
    pub(super) fn whole(len: u64) -> Self {
        Self { len, piece: len }
    }

    /// The longest piece of a part that this side pins for its peer.
    pub(super) fn most(len: u64) -> u64 {
        Self::new(len).piece.max(PIECE_MOST)
    }

    /// As the peer wants it cut, for a part whose length this side knows.
    fn of_peer(len: u64, piece: u64, most: u64) -> Option<Self> {
        let is_short = piece < PIECE_LEAST && piece < len;
        let is_long = piece.min(len) > most;
        let cut = Self { len, piece };
        (!is_short && !is_long && piece > 0 && len.div_ceil(piece) <= u64::from(u16::MAX))
            .then_some(cut)
    }

    /// How many pieces there are.
    pub(super) fn count(self) -> u16 {
        // Whoever makes a `Cut` ensures that this fits.
        self.len.div_ceil(self.piece) as u16
    }

    /// Where piece `number`, from 1 on, lies in the part.
    pub(super) fn range(self, number: u16) -> Range<usize> {
        let start = (u64::from(number) - 1) * self.piece;
        start as usize..(start + self.piece).min(self.len) as usize
    }
}

/// From a part's reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Say {
    Begin { piece: u64, allowed: u16 },
    Allow(u16),
}

impl Say {
    pub(super) fn begin(cut: Cut, allowed: u16) -> Self {
        let piece = cut.piece;
        Self::Begin { piece, allowed }
    }

    pub(super) fn encode(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(11);
        match self {
            Self::Begin { piece, allowed } => {
                out.push(1);
                out.extend(piece.to_le_bytes());
                out.extend(allowed.to_le_bytes());
            }
            Self::Allow(allowed) => {
                out.push(2);
                out.extend(allowed.to_le_bytes());
            }
        }
        out
    }

    pub(super) fn decode(body: &[u8]) -> Result<Self, ChannelFault> {
        match *body {
            [1, ref piece @ .., low, high] if piece.len() == 8 => {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(piece);
                Ok(Self::Begin {
                    piece: u64::from_le_bytes(bytes),
                    allowed: u16::from_le_bytes([low, high]),
                })
            }
            [2, low, high] => Ok(Self::Allow(u16::from_le_bytes([low, high]))),
            _ => Err(ChannelFault(format!(
                "a control frame of {} bytes that says nothing",
                body.len()
            ))),
        }
    }
}

/// Decodes what the reader says about a part of `len` bytes: how it is cut, and how many pieces may be sent by now. No piece may be longer
/// than `most`.
pub(super) fn told(
    before: Option<(Cut, u16)>,
    said: Say,
    len: u64,
    most: u64,
) -> Result<(Cut, u16), ChannelFault> {
    let (cut, allowed, least) = match (before, said) {
        (None, Say::Begin { piece, allowed }) => {
            let cut = Cut::of_peer(len, piece, most);
            let fault = || ChannelFault(format!("pieces of {piece} bytes of a part of {len}"));
            (cut.ok_or_else(fault)?, allowed, 1)
        }
        (Some((cut, before)), Say::Allow(allowed)) => (cut, allowed, before.saturating_add(1)),
        _ => return Err(ChannelFault(format!("{said:?} out of turn"))),
    };
    let is_more = before.is_none_or(|(_, before)| allowed > before);
    if is_more && (least..=cut.count()).contains(&allowed) {
        return Ok((cut, allowed));
    }
    let count = cut.count();
    Err(ChannelFault(format!(
        "{allowed} of {count} pieces are allowed"
    )))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire_md::examples;

    fn told(before: Option<(Cut, u16)>, said: Say, len: u64) -> Result<(Cut, u16), ChannelFault> {
        super::told(before, said, len, Cut::most(len))
    }

    #[test]
    fn what_is_said_is_understood() {
        for say in [Say::begin(Cut::new(5 << 20), 7), Say::Allow(300)] {
            assert_eq!(Say::decode(&say.encode()), Ok(say));
        }
        for body in [&[][..], &[1; 10], &[1; 12], &[2], &[2; 4], &[3; 3]] {
            assert!(Say::decode(body).is_err(), "{body:?}");
        }
    }

    #[test]
    fn the_example_is_what_is_sent() {
        let begin = Say::begin(Cut::new(8 << 20), 8);
        assert_eq!(begin.encode(), examples("cuda_basic")["BEGIN"]);
    }

    #[test]
    fn a_reader_that_lies_is_found_out() {
        let begin = |piece, allowed| Say::Begin { piece, allowed };
        let mb = 1 << 20;
        assert!(told(None, begin(mb, 4), 4 * mb).is_ok());
        assert!(told(None, begin(10, 1), 10).is_ok(), "all of it");
        assert!(told(None, begin(u64::MAX, 1), 10).is_ok(), "and more");
        let all = begin(u64::MAX, 1);
        assert!(super::told(None, all, PIECE_MOST + 1, u64::MAX).is_ok());
        for (said, len) in [
            (begin(0, 1), mb),
            (begin(100, 1), mb),
            (begin(PIECE_LEAST, 1), PIECE_LEAST << 16),
            (begin(mb, 0), mb),
            (begin(u64::MAX, 1), PIECE_MOST + 1),
            (begin(PIECE_MOST + 1, 1), 2 * PIECE_MOST),
            (begin(mb, 5), 4 * mb),
            (Say::Allow(1), mb),
        ] {
            assert!(told(None, said, len).is_err(), "{said:?} of {len}");
        }
        let cut = Cut::new(100 * mb);
        let then = |said| told(Some((cut, 5)), said, 100 * mb);
        assert_eq!(then(Say::Allow(25)), Ok((cut, 25)));
        assert!(then(Say::Allow(5)).is_err() && then(Say::Allow(26)).is_err());
        assert!(then(begin(mb, 6)).is_err());
        let longest = 65535 * PIECE_LEAST;
        let all = told(None, begin(PIECE_LEAST, 65535), longest).unwrap();
        assert!(told(Some(all), Say::Allow(65535), longest).is_err());
    }

    proptest! {
        #[test]
        fn pieces_cover_the_part(len in prop_oneof![1u64..1 << 24, 1u64..1 << 60]) {
            let cut = Cut::new(len);
            let count = cut.count();
            prop_assert!(count > 0);
            prop_assert_eq!(told(None, Say::begin(cut, count), len), Ok((cut, count)));
            prop_assert_eq!(cut.range(1).start, 0);
            prop_assert_eq!(cut.range(count).end as u64, len);
            let last = cut.range(count);
            prop_assert!(!last.is_empty() && count == 1 || cut.range(count - 1).end == last.start);
        }
    }
}
