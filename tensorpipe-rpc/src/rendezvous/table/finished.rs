//! The set of finished steps.
//!
//! Steps mostly count up, so they are kept as ranges: a thousand finished steps in a row are one range. Invariant: ranges do not
//! touch, and there are at most [`RANGES`] of them. Beyond that, the lowest is forgotten.

use std::collections::BTreeMap;

/// How many ranges are kept.
const RANGES: usize = 1024;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// From first to last, both included.
    ranges: BTreeMap<u64, u64>,
}

impl Finished {
    pub(super) fn contains(&self, step: u64) -> bool {
        let below = self.ranges.range(..=step).next_back();
        below.is_some_and(|(_, last)| step <= *last)
    }

    pub(super) fn insert(&mut self, step: u64) {
        if self.contains(step) {
            return;
        }
        let after = step.checked_add(1);
        let last = after.and_then(|next| self.ranges.remove(&next));
        let last = last.unwrap_or(step);
        let below = self.ranges.range_mut(..step).next_back();
        match below {
            Some((_, end)) if *end + 1 == step => *end = last,
            _ => {
                self.ranges.insert(step, last);
            }
        }
        if self.ranges.len() > RANGES {
            self.ranges.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_long_run_of_steps_costs_one_range() {
        let mut finished = Finished::default();
        for step in (0..10_000).rev().chain([u64::MAX, u64::MAX - 1]) {
            finished.insert(step);
        }
        assert_eq!(finished.ranges.len(), 2);
        assert!(finished.contains(9_999) && !finished.contains(10_000));
        assert!(finished.contains(u64::MAX));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut finished = Finished::default();
        for step in 0..10_000 {
            finished.insert(step * 2);
        }
        assert_eq!(finished.ranges.len(), RANGES);
        assert!(finished.contains(19_998) && !finished.contains(0));
    }

    proptest! {
        #[test]
        fn it_is_a_set(steps in proptest::collection::vec(0u64..40, 0..60)) {
            let mut finished = Finished::default();
            let mut known = BTreeSet::new();
            for step in steps {
                finished.insert(step);
                known.insert(step);
                for step in 0..42 {
                    prop_assert_eq!(finished.contains(step), known.contains(&step));
                }
                for ((_, end), (next, _)) in finished.ranges.iter().zip(finished.ranges.iter().skip(1)) {
                    prop_assert!(end + 1 < *next, "two ranges touch");
                }
            }
        }
    }
}
