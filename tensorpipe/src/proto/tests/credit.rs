//! A slow reader bounds what is under way, in messages and in bytes: the rest waits at the writer, and arrives in order. What
//! it finishes comes back as credit.

use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::frame::Kind;

#[test]
fn writes_wait_for_reads_and_keep_their_order() {
    let mut pair = Pair::lazy();
    let messages: Vec<_> = (0..50)
        .map(|i| message(&format!("{i}")).payload(i).tensor(i * 100))
        .collect();
    for message in &messages {
        pair.a.write(message);
    }
    pair.run();
    let credit: Vec<_> = (0..8).collect();
    assert_eq!(pair.b.ready, credit, "as many as there is credit for");
    let unwritten = pair.a.pipe.unwritten();
    assert_eq!(unwritten, 49, "only the first needs no go-ahead");
    for (i, message) in messages.iter().enumerate() {
        pair.read(i as u64);
        let delivered = pair.b.delivered.last().unwrap();
        assert_eq!(delivered.message, i as u64);
        assert_eq!(delivered.parts, message.parts());
    }
    pair.settle();
    assert_eq!(pair.a.written, (0..50).collect::<Vec<_>>());
    let windows = pair.b.sent(Kind::Window);
    assert_eq!(windows, 12, "one for each half of a window");
}

#[test]
fn one_message_that_is_never_read_does_not_pile_up_what_was_handed_over_behind_it() {
    let mut pair = Pair::lazy();
    pair.send(&message("stuck").tensor(1000));
    for i in 1..=200 {
        pair.send(&message("passes"));
        pair.read(i);
        assert_eq!(pair.a.pipe.unwritten(), 1);
    }
    pair.b.read(0);
    pair.settle();
}

#[test]
fn bytes_in_flight_are_bounded() {
    let mut pair = Pair::lazy();
    for _ in 0..20 {
        pair.a.write(&message(&"m".repeat(4000)));
    }
    for read in 0..20 {
        pair.run();
        let outstanding = pair.b.pipe.receive_window.outstanding();
        assert!(outstanding.bytes <= 16 << 10);
        let left = 20 - read;
        assert!((left.min(3)..=left.min(4)).contains(&outstanding.messages));
        pair.b.read(read);
    }
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 20);
}

/// WIRE.md says what a message takes. Both ends count the same, to the last byte.
#[test]
fn what_rides_and_what_names_parts_takes_credit() {
    let metadata = "m".repeat(100);
    let mut pair = Pair::lazy();
    let several = message(&metadata).payload(10).tensor(20).tensor(3000);
    let mut parts = several.outgoing(pair.a.pipe.peer_limits());
    for (part, len) in parts.iter_mut().zip([1, 3, 7]) {
        part.metadata = vec![0; len].into();
    }
    (pair.a.pipe)
        .write(metadata.as_bytes(), &mut parts, None)
        .unwrap();
    pair.run();
    let outstanding = pair.b.pipe.receive_window.outstanding();
    let expected = (10 + 20) + (100 + 1 + 3 + 7) + 64 * (1 + 3);
    assert_eq!(outstanding.bytes, expected);
    // Three more fit exactly, and a fourth does not.
    let each = 64 + 64 + 100 + 2 + 64 * 3;
    let mut reader = limits();
    reader.window_bytes = 3 * each;
    let mut pair = Pair::with(limits(), reader, None).told();
    for _ in 0..4 {
        pair.a.write(&message(&metadata).payload(64).payload(64));
    }
    pair.run();
    assert_eq!(pair.b.pipe.receive_window.outstanding().bytes, 3 * each);
    assert_eq!(pair.b.ready, [0, 1, 2]);
    (0..4).for_each(|message| pair.read(message));
    pair.settle();
}

#[test]
fn the_largest_message_always_gets_its_credit() {
    // A window of exactly one largest message: no freed byte may be kept back.
    let mut limits = limits();
    limits.window_bytes = u64::from(limits.frame_max());
    limits.window_messages = 1000;
    let mut pair = Pair::with(limits, limits, None);
    let mut largest = message(&"m".repeat(4096 - 16));
    largest.payloads = vec![vec![7; 16]; 16];
    for _ in 0..20 {
        pair.a.write(&message(&"s".repeat(1000)));
        pair.send(&largest);
    }
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 40);
}
