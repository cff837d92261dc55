//! A silent peer is found within the bound; a quiet or busy one is left alone.

use std::time::Duration;

use crate::proto::sim::{Pair, TICK, limits, message};

const SILENCE: Duration = Duration::from_secs(10);

fn pair() -> Pair {
    Pair::with(limits(), limits(), Some(SILENCE))
}

#[test]
fn two_quiet_ends_stay_together() {
    let mut pair = pair();
    pair.run_for(10 * SILENCE);
    assert!(pair.a.silent.is_none() && pair.b.silent.is_none());
    assert!(
        pair.a.frames.len() < 50,
        "a few pings: {}",
        pair.a.frames.len()
    );
}

#[test]
fn a_stalled_link_is_found_within_the_bound() {
    let mut pair = pair();
    pair.a.write(&message("m").tensor(10_000));
    pair.run();
    let since = pair.now;
    pair.a_to_b.stalled = true;
    pair.b_to_a.stalled = true;
    pair.run_for(2 * SILENCE);
    for end in [&pair.a, &pair.b] {
        let (quiet, at) = end.silent.unwrap();
        assert!(quiet >= SILENCE - 2 * TICK && at - since <= SILENCE + 2 * TICK);
    }
}

#[test]
fn a_suspended_process_asks_before_it_judges() {
    let mut pair = pair();
    // The whole machine slept; the peer did not.
    pair.now += 100 * SILENCE;
    pair.run_for(SILENCE);
    assert!(pair.a.silent.is_none() && pair.b.silent.is_none());
}

#[test]
fn a_peer_that_only_sends_bulk_is_heard() {
    let mut pair = pair();
    pair.a.write(&message("slow").tensor(60_000));
    pair.a_to_b.bytes_per_tick = 1;
    pair.run_for(5 * SILENCE);
    assert!(pair.a.silent.is_none() && pair.b.silent.is_none());
    pair.a_to_b.bytes_per_tick = usize::MAX;
    pair.run_for(TICK * 10);
    assert_eq!(pair.b.delivered.len(), 1);
}

/// Its one chunk takes six times as long as a peer may be silent; its answers to pings wait behind it.
#[test]
fn a_slow_chunk_counts_as_a_sign_of_life() {
    let long = 60_000;
    let mut wide = limits();
    wide.chunk = long as u32;
    for split in [1, 7, usize::MAX] {
        let mut pair = Pair::with(wide, wide, Some(SILENCE));
        pair.b.direct = true;
        pair.b.split = split;
        pair.a.write(&message("slow").tensor(long));
        pair.a_to_b.bytes_per_tick = 1;
        pair.run_for(TICK * long as u32);
        assert!(pair.b.delivered.is_empty(), "it is still coming");
        assert!(pair.a.silent.is_none(), "{:?}", pair.a.silent);
        assert!(pair.b.silent.is_none(), "{:?}", pair.b.silent);
        pair.run_for(TICK * 2000);
        assert_eq!(pair.b.delivered.len(), 1);
    }
}

/// Where the chunk stops coming, its peer is as silent as any other.
#[test]
fn a_chunk_that_stalls_does_not() {
    let mut wide = limits();
    wide.chunk = 60_000;
    let mut pair = Pair::with(wide, wide, Some(SILENCE));
    pair.b.direct = true;
    pair.a.write(&message("slow").tensor(60_000));
    pair.a_to_b.bytes_per_tick = 1;
    pair.run_for(2 * SILENCE);
    assert!(pair.b.silent.is_none());
    let since = pair.now;
    pair.a_to_b.stalled = true;
    pair.run_for(SILENCE + 2 * TICK);
    let (_, at) = pair.b.silent.unwrap();
    assert!(at - since >= SILENCE - 2 * TICK && at - since <= SILENCE + 2 * TICK);
}

#[test]
fn no_bound_and_an_endless_one_never_fire() {
    for silence in [None, Some(Duration::MAX)] {
        let mut pair = Pair::with(limits(), limits(), silence);
        pair.a_to_b.stalled = true;
        pair.run_for(SILENCE);
        assert!(pair.b.silent.is_none());
        assert_eq!(pair.b.pipe.next_timeout(), None);
    }
}
