//! A slow reader bounds what is under way, in messages and in bytes; what it finishes comes back as credit.

use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::frame::Kind;

#[test]
fn messages_in_flight_are_bounded() {
    let mut pair = Pair::lazy();
    for _ in 0..40 {
        pair.a.write(&message("m"));
    }
    for read in 0..40 {
        pair.run();
        assert!(pair.b.pipe.incoming.messages.len() <= 8);
        pair.b.read(read);
    }
    pair.settle();
    let windows = pair.b.sent(Kind::Window);
    assert_eq!(windows, 10, "one for each half of a window");
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
