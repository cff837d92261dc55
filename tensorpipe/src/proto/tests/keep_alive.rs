//! A silent peer is found within the bound; a quiet or busy one is left alone.

use std::time::{Duration, Instant};

use crate::proto::sim::{End, Pair, limits, message};
use crate::proto::wire::frame::Kind;

/// In milliseconds, as the clock runs.
const SILENCE: u64 = 10_000;

fn pair() -> Pair {
    with_chunk(limits().chunk)
}

fn with_chunk(chunk: u32) -> Pair {
    let mut limits = limits();
    limits.chunk = chunk;
    Pair::with(limits, limits, Some(Duration::from_millis(SILENCE)))
}

/// It gave its peer up within the bound, give or take a tick for each way.
fn assert_found(end: &End, since: Instant) {
    let (quiet, at) = end.silent.unwrap();
    let bound = Duration::from_millis(SILENCE - 2)..=Duration::from_millis(SILENCE + 2);
    assert!(quiet >= *bound.start() && bound.contains(&(at - since)));
}

fn assert_together(pair: &Pair) {
    assert_eq!((pair.a.silent, pair.b.silent), (None, None));
}

#[test]
fn two_quiet_ends_stay_together() {
    let mut pair = pair();
    pair.run_for(10 * SILENCE);
    assert_together(&pair);
    let sent = pair.a.frames.len();
    assert!(sent < 50, "a few pings: {sent}");
}

#[test]
fn a_stalled_link_is_found_within_the_bound() {
    let mut pair = pair();
    pair.send(&message("m").tensor(10_000));
    let since = pair.now;
    pair.a_to_b.stalled = true;
    pair.b_to_a.stalled = true;
    pair.run_for(2 * SILENCE);
    assert_found(&pair.a, since);
    assert_found(&pair.b, since);
}

#[test]
fn a_suspended_process_asks_before_it_judges() {
    let mut pair = pair();
    // The whole machine slept; the peer did not.
    pair.now += Duration::from_millis(100 * SILENCE);
    pair.run_for(SILENCE);
    assert_together(&pair);
}

/// Whoever checks early finds nothing to do.
#[test]
fn before_its_time_nobody_is_asked_or_given_up() {
    let mut pair = pair();
    pair.b_to_a.stalled = true;
    let half = Duration::from_millis(SILENCE / 2);
    for asked in [0, 1] {
        let due = pair.a.pipe.next_timeout().unwrap();
        let early = due - half / 2;
        assert_eq!(pair.a.pipe.handle_timeout(early), Ok(()));
        pair.step();
        assert_eq!(pair.a.sent(Kind::Ping), asked);
        while pair.now < due {
            pair.step();
        }
    }
    assert!(pair.a.silent.is_some());
}

/// Its one chunk takes six times as long as a peer may be silent; its answers to pings wait behind it.
#[test]
fn a_slow_chunk_counts_as_a_sign_of_life() {
    let long = 6 * SILENCE as usize;
    for split in [1, 7, usize::MAX] {
        let mut pair = with_chunk(long as u32).rate(1);
        pair.b.split = split;
        pair.a.write(&message("slow").tensor(long));
        pair.run_for(long as u64);
        assert!(pair.b.delivered.is_empty(), "it is still coming");
        assert_together(&pair);
        pair.run_for(2000);
        assert_eq!(pair.b.delivered.len(), 1);
    }
}

/// Where the chunk stops coming, its peer is as silent as any other.
#[test]
fn a_chunk_that_stalls_does_not() {
    let mut pair = with_chunk(60_000).rate(1);
    pair.a.write(&message("slow").tensor(60_000));
    pair.run_for(2 * SILENCE);
    assert!(pair.b.silent.is_none());
    let since = pair.now;
    pair.a_to_b.stalled = true;
    pair.run_for(SILENCE + 2);
    assert_found(&pair.b, since);
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
