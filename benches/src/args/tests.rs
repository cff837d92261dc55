//! Command lines, as they are understood and as they are not.

use clap::CommandFactory;

use super::*;
use crate::plan::tests::plan;

#[test]
fn the_command_line_is_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn lists_are_split_and_defaults_are_as_documented() {
    let line = "tp-bench baseline --case echo,upload --size 0,4KiB,1MiB --json";
    let parsed = Arguments::try_parse_from(line.split(' ')).expect("valid");
    let Command::Baseline(baseline) = parsed.command else {
        panic!("another command");
    };
    assert_eq!(baseline.case, [Case::Echo, Case::Upload]);
    assert_eq!(baseline.options.size, [Size(0), Size(4096), Size(1 << 20)]);
    assert_eq!(baseline.options.alloc, Alloc::Heap);
    assert_eq!(baseline.options.runtime, Flavor::Current);
    assert_eq!(baseline.options.transport, None);
    assert!(baseline.options.json && !baseline.options.pin);
    assert!(!baseline.options.sum && !baseline.options.limits);
}

#[test]
fn leased_rounds_begin_awake_unless_that_is_not_wanted() {
    let heap = plan("rpc", Case::Upload, 1 << 20);
    let mut leased = heap.clone();
    leased.channel = Some("lease".to_owned());
    leased.alloc = Alloc::Pool;
    let (awake, as_they_are) = (Begin::Awake, Begin::AsTheyAre);
    for (warm, expected) in [
        (Warm::Leased, [as_they_are, awake]),
        (Warm::Hot, [as_they_are, Begin::Hot]),
        (Warm::Always, [awake, awake]),
        (Warm::Never, [as_they_are, as_they_are]),
    ] {
        let found = [&heap, &leased].map(|plan| warm.begin(plan));
        assert_eq!(found, expected, "{warm:?}");
    }
}

#[test]
fn wrong_values_are_refused() {
    for wrong in [
        "--size 4apples",
        "--seconds -1",
        "--seconds nan",
        "--case fly",
        "--runtime x",
        "--lanes 0",
        "--lanes 17",
        "--pace 0",
        "--warm up",
    ] {
        let line = format!("tp-bench baseline {wrong}");
        assert!(
            Arguments::try_parse_from(line.split(' ')).is_err(),
            "{wrong}"
        );
    }
    assert!(Arguments::try_parse_from(["tp-bench", "compare", "--runs", "0"]).is_err());
}
