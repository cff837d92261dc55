//! What the lane of a peer may say, at random. The target `lanes` in `fuzz/` looks for more.
#![allow(missing_docs, reason = "a test")]

#[path = "lanes/mod.rs"]
mod meeting;

use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_lane_says_nothing_is_left(input in prop::collection::vec(any::<u8>(), 0..500)) {
        meeting::lanes(&input);
    }
}
