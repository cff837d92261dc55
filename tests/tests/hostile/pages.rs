//! Memory comes in pages: one byte of a tensor may make two mebibytes resident. The budget counts what becomes resident.

use super::memory::with_huge_pages;
use super::raw::{GRANT, PING, PONG, Raw, data, frame, message, tensor};
use super::server::Target;
use super::stream::Way;

/// What the server may take for messages that are not complete.
const BUDGET: u64 = 64 << 20;

/// And what it may take beside: buffers of connections, tables, and what the allocator keeps.
const BESIDE: u64 = 24 << 20;

const HOSTILE_PEERS: u64 = 4;

/// Announces as much as one pipe may, in tensors of `len` bytes, and sends the first `sent` bytes of each.
fn announce(target: &Target, len: u64, sent: usize) -> Raw {
    let parts = BUDGET / len;
    let mut raw = Raw::open(&target.pipes);
    let announced = vec![tensor(0, 0, 0, &[len]); parts as usize];
    raw.send(&message(b"", &announced, b""));
    raw.frame_of(GRANT);
    if sent > 0 {
        let first = (0..parts).flat_map(|part| data(0, part as u16, &vec![1; sent]));
        raw.send(&first.collect::<Vec<u8>>());
    }
    // What was sent before it is there.
    raw.send(&frame(PING, &[1; 8]));
    raw.frame_of(PONG);
    raw
}

/// What the server has grown by when the hostile peers have sent so much: with huge pages, or without, whichever is more.
fn grown_by(len: u64, sent: usize) -> u64 {
    let grown = [true, false].map(|huge| grown_with(huge, len, sent));
    grown[0].max(grown[1])
}

fn grown_with(huge_pages: bool, len: u64, sent: usize) -> u64 {
    let budget = BUDGET.to_string();
    let budget = [
        &[("TEST_BUDGET", &*budget)][..],
        &with_huge_pages(huge_pages),
    ]
    .concat();
    let target = Target::start_with(Way::Tcp, &budget);
    if sent > 0 {
        target.account().allow(BUDGET);
    }
    target.serves();
    let before = target.resident();
    let hostile_peers: Vec<_> = (0..HOSTILE_PEERS)
        .map(|_| announce(&target, len, sent))
        .collect();
    let grown = target.resident().saturating_sub(before);
    println!(
        "{HOSTILE_PEERS} hostile peers announce {} MiB in tensors of {len} bytes and send {sent} bytes of each: {} KiB more, huge pages: {huge_pages}",
        (HOSTILE_PEERS * BUDGET) >> 20,
        grown >> 10
    );
    drop(hostile_peers);
    // What they held is free for others.
    target.stays_unharmed();
    grown
}

#[test]
fn a_byte_of_each_huge_page_counts_for_all_of_it() {
    let grown = grown_by(2 << 20, 1);
    assert!(grown <= BUDGET + BESIDE, "{grown}");
}

/// A tensor of another length: it begins on huge pages and ends on small ones.
#[test]
fn a_byte_of_each_large_tensor_is_within_the_budget() {
    let grown = grown_by((2 << 20) + 1, 1);
    assert!(grown <= BUDGET + BESIDE, "{grown}");
}

#[test]
fn what_is_announced_in_small_tensors_takes_no_memory() {
    for len in [33 << 10, (2 << 20) - 1] {
        let grown = grown_by(len, 0);
        assert!(grown <= BESIDE, "{grown}");
    }
}

#[test]
fn a_byte_of_each_small_tensor_counts_for_its_block() {
    for len in [33 << 10, 300_000, (2 << 20) - 1] {
        let grown = grown_by(len, 1);
        assert!(grown <= BUDGET + BESIDE, "{grown}");
    }
}
