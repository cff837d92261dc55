//! The reader takes a message without some of its parts.

use crate::error::ResetCode;
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::Kind;

#[test]
fn skipped_parts_never_leave() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    let sent = message("three").tensor(5000).tensor(3000).tensor(10);
    pair.a.write(&sent);
    pair.run();
    pair.b.read_but(0, &[0]);
    pair.run();
    let mut parts = sent.parts();
    parts[0] = None;
    assert_eq!(pair.b.delivered[0].parts, parts);
    assert_eq!(pair.a.written, [0], "for the writer it is handed over");
    let data = pair
        .a
        .frames
        .iter()
        .filter(|(kind, _)| *kind == Kind::Data as u8);
    assert_eq!(data.count(), 3);
    pair.assert_clean();
}

#[test]
fn a_message_of_which_everything_is_skipped_is_handed_over() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    pair.a.write(&message("two").tensor(5000).tensor(3000));
    pair.run();
    pair.b.read_but(0, &[0, 1]);
    pair.run();
    assert_eq!(pair.b.delivered[0].parts, [None, None]);
    assert_eq!(pair.a.written, [0]);
    assert!(pair.a.started.is_empty());
    pair.assert_clean();
}

#[test]
fn a_message_without_bulk_is_skipped_without_a_word() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    pair.a.write(&message("small").tensor(50));
    pair.run();
    pair.b.refuse(0, ResetCode::Skipped);
    pair.run();
    assert_eq!(pair.a.written, [0]);
    assert!(pair.a.refused.is_empty() && pair.b.frames.is_empty());
    pair.assert_clean();
}

#[test]
fn a_reader_may_skip_as_many_parts_as_a_message_can_have() {
    let mut limits = crate::proto::sim::limits();
    limits.parts = u16::MAX;
    limits.metadata = 1 << 20;
    limits.window_bytes = 1 << 26;
    let mut pair = Pair::with(limits, limits, None);
    pair.b.eager_reader = false;
    let mut sent = message("many");
    sent.payloads = vec![vec![1; 65]; 10_000];
    pair.a.write(&sent);
    pair.run();
    let all: Vec<u16> = (0..10_000).collect();
    pair.b.read_but(0, &all);
    pair.run();
    assert_eq!(pair.a.written, [0]);
    pair.assert_clean();
}

#[test]
fn finishing_before_all_is_there_refuses_the_rest() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    pair.a.write(&message("big").tensor(500_000));
    pair.a_to_b.bytes_per_tick = 2000;
    pair.run_for(std::time::Duration::from_millis(5));
    pair.b.read(0);
    pair.run_for(std::time::Duration::from_millis(20));
    pair.b.forget(0);
    pair.run();
    assert_eq!(pair.a.refused, [(0, ResetCode::Skipped)]);
    assert!(pair.a.written.is_empty());
    pair.assert_clean();
}
