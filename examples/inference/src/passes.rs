//! Which sentences go through the model together.
//!
//! The model computes a rectangle: every sentence of a pass is padded to the longest one. Sorted by length and cut where
//! padding would cost too much, a run of mixed lengths computes little more than its own tokens, and a pass is never so
//! large that its attention, which grows with the square of the length, fills the memory.

/// The most tokens of a pass, padding included; one sentence alone may have more.
const LARGEST: usize = 8192;

/// Padding that a pass may always have, in tokens: another pass reads all weights again, which takes as long as
/// computing about so many.
const FREE: usize = 32;

/// Beyond that, the part of a pass that may be padding: one in so many.
const SHARE: usize = 5;

/// One rectangle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The rows of the run that are in it.
    pub rows: Vec<usize>,
    /// Tokens in the longest of them.
    pub width: usize,
    /// Tokens of all of them.
    pub tokens: usize,
}

impl Pass {
    /// Tokens that are computed for nothing.
    pub fn padding(&self) -> usize {
        self.rows.len() * self.width - self.tokens
    }

    fn takes(&self, length: usize) -> bool {
        let area = (self.rows.len() + 1) * length;
        let padding = area - self.tokens - length;
        area <= LARGEST && padding <= FREE.max(area / SHARE)
    }
}

/// Divides sentences of these `lengths` into passes; every row is in exactly one.
pub fn passes(lengths: &[u32]) -> Vec<Pass> {
    let mut rows: Vec<usize> = (0..lengths.len()).collect();
    rows.sort_by_key(|row| lengths[*row]);
    let mut passes: Vec<Pass> = Vec::new();
    for row in rows {
        let length = lengths[row] as usize;
        match passes.last_mut() {
            // No row before this one is longer.
            Some(pass) if pass.takes(length) => {
                pass.rows.push(row);
                pass.width = length;
                pass.tokens += length;
            }
            _ => passes.push(Pass {
                rows: vec![row],
                width: length,
                tokens: length,
            }),
        }
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(lengths: &[u32]) -> Vec<Vec<usize>> {
        passes(lengths).into_iter().map(|pass| pass.rows).collect()
    }

    #[test]
    fn sentences_of_like_lengths_share_a_pass() {
        assert_eq!(rows(&[9, 7, 8]), [[1, 2, 0]]);
        assert_eq!(rows(&[5; 32]), [(0..32).collect::<Vec<_>>()]);
        // A short one beside a few others costs less than a pass of its own.
        assert_eq!(rows(&[20, 6, 18]), [[1, 2, 0]]);
    }

    #[test]
    fn a_long_sentence_does_not_make_short_ones_long() {
        let mut lengths = [8; 31].to_vec();
        lengths.push(256);
        let passes = passes(&lengths);
        assert_eq!(passes.len(), 2);
        assert_eq!((passes[0].rows.len(), passes[0].padding()), (31, 0));
        assert_eq!(
            (passes[1].rows.as_slice(), passes[1].width),
            (&[31][..], 256)
        );
    }

    #[test]
    fn a_pass_is_bounded() {
        for length in [1, 256, 512, 10_000] {
            let passes = passes(&[length; 1000]);
            let largest = passes.iter().map(|pass| pass.rows.len() * pass.width);
            assert!(largest.max().unwrap() <= LARGEST.max(length as usize));
        }
    }

    #[test]
    fn every_row_is_in_one_pass_and_little_is_wasted() {
        // Lengths that come in no order.
        let lengths: Vec<u32> = (0..500u32).map(|i| 2 + (i * 7919) % 255).collect();
        let passes = passes(&lengths);
        let mut rows: Vec<usize> = passes.iter().flat_map(|pass| pass.rows.clone()).collect();
        rows.sort_unstable();
        assert_eq!(rows, (0..500).collect::<Vec<_>>());
        for pass in &passes {
            let lengths = pass.rows.iter().map(|row| lengths[*row] as usize);
            assert_eq!(Some(pass.width), lengths.clone().max());
            assert_eq!(pass.tokens, lengths.sum::<usize>());
            let area = pass.rows.len() * pass.width;
            assert!(pass.padding() <= FREE.max(area / SHARE), "{pass:?}");
        }
        assert_eq!(super::passes(&[]), []);
    }
}
