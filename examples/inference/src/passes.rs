//! Decides which sentences go through the model together.
//!
//! The model computes a rectangle: every sentence of a pass is padded to the longest one. More passes read all weights more
//! often; fewer passes compute more padding. So a run is sorted by length and cut where the sum of both costs is least. The
//! size of a pass is bounded, because attention takes memory that grows with the square of the length.

use std::ops::Range;

/// The most tokens of a pass, padding included; one sentence alone may have more.
const LARGEST: usize = 8192;

/// Fixed cost of a pass, in tokens. Measured for all-MiniLM-L6-v2 on one core: 4.5 ms a pass and 0.4 ms a token.
const PASS: usize = 12;

/// One rectangle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pass {
    /// The rows of the run that are in this pass.
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
}

/// Divides sentences of these `lengths` into passes; every row is in exactly one.
pub fn passes(lengths: &[u32]) -> Vec<Pass> {
    let mut rows: Vec<usize> = (0..lengths.len()).collect();
    rows.sort_by_key(|row| lengths[*row]);
    let sorted: Vec<usize> = rows.iter().map(|row| lengths[*row] as usize).collect();
    let pass = |cut: Range<usize>| Pass {
        width: sorted[cut.end - 1],
        tokens: sorted[cut.clone()].iter().sum(),
        rows: rows[cut].to_vec(),
    };
    cuts(&sorted).into_iter().map(pass).collect()
}

/// Where to cut sentences that are `sorted` by length, so that the passes cost the least.
fn cuts(sorted: &[usize]) -> Vec<Range<usize>> {
    // `best[n]`: the least cost of the first `n` sentences, and the sentence at which their last pass begins.
    let mut best = vec![(0, 0)];
    for (last, width) in sorted.iter().enumerate() {
        let end = last + 1;
        let begins = (0..=last).rev();
        let fitting = begins.take_while(|begin| {
            let area = (end - begin) * width;
            area <= LARGEST || *begin == last
        });
        let costs = fitting.map(|begin| (best[begin].0 + PASS + (end - begin) * width, begin));
        best.extend(costs.min());
    }
    let mut cuts = Vec::new();
    let mut end = sorted.len();
    while end > 0 {
        let begin = best[end].1;
        cuts.push(begin..end);
        end = begin;
    }
    cuts.reverse();
    cuts
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
        // One token of padding for each of eight sentences costs less than another pass, two tokens cost more.
        let mut lengths = [8; 8].to_vec();
        lengths.push(9);
        assert_eq!(rows(&lengths).len(), 1);
        lengths[8] = 10;
        assert_eq!(rows(&lengths).len(), 2);
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
    fn every_row_is_in_one_pass() {
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
        }
        assert_eq!(super::passes(&[]), []);
    }

    #[test]
    fn no_other_way_to_cut_costs_less() {
        let sorted = [2, 3, 3, 9, 11, 12, 12, 30, 41, 41];
        let cost = |cuts: &[Range<usize>]| -> usize {
            let costs = cuts
                .iter()
                .map(|cut| PASS + cut.len() * sorted[cut.end - 1]);
            costs.sum()
        };
        // Each bit says whether there is a cut behind a sentence.
        let all = (0u32..1 << (sorted.len() - 1)).map(|bits| {
            let mut cuts = Vec::new();
            let mut begin = 0;
            for end in 1..=sorted.len() {
                if end == sorted.len() || bits >> (end - 1) & 1 == 1 {
                    cuts.push(begin..end);
                    begin = end;
                }
            }
            cost(&cuts)
        });
        assert_eq!(cost(&cuts(&sorted)), all.min().unwrap());
    }
}
