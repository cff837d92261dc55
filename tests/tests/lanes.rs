//! Random hostile lanes. The fuzz target `lanes` in `fuzz/` searches further.
#![allow(missing_docs, reason = "a test")]

#[path = "lanes/mod.rs"]
mod meeting;

use proptest::prelude::*;

#[test]
fn what_the_target_begins_with_leaves_nothing() {
    let seeds = tensorpipe_rpc::fuzzing::seeds();
    let mut count = 0;
    for (_, seed) in seeds.iter().filter(|(target, _)| *target == "lanes") {
        meeting::lanes(seed);
        count += 1;
    }
    assert_eq!(count, 8);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, max_shrink_iters: 20, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_lane_says_nothing_is_left(input in prop::collection::vec(any::<u8>(), 0..500)) {
        meeting::lanes(&input);
    }
}
