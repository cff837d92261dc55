//! The reader takes a message without some of its parts.

use crate::error::ResetCode;
use crate::proto::sim::{Pair, limits, message};
use crate::proto::wire::frame::Kind;

#[test]
fn skipped_parts_never_leave() {
    let mut pair = Pair::lazy();
    let sent = message("three").tensor(5000).tensor(3000).tensor(10);
    pair.send(&sent);
    pair.b.read_but(0, &[0]);
    pair.settle();
    let mut parts = sent.parts();
    parts[0] = None;
    assert_eq!(pair.b.contents(), [parts]);
    assert_eq!(pair.a.written, [0], "for the writer it is handed over");
    assert_eq!(pair.a.sent(Kind::Data), 3);
}

#[test]
fn a_message_without_bulk_is_skipped_without_a_word() {
    let mut pair = Pair::lazy();
    pair.send(&message("small").tensor(50));
    pair.b.refuse(0, ResetCode::Skipped);
    pair.settle();
    assert_eq!(pair.a.written, [0]);
    assert!(pair.a.refused.is_empty() && pair.b.frames.is_empty());
}

#[test]
fn a_reader_may_skip_as_many_parts_as_a_message_can_have() {
    let mut limits = limits();
    limits.parts = u16::MAX;
    limits.metadata = 1 << 20;
    limits.window_bytes = 1 << 26;
    let mut pair = Pair::with(limits, limits, None).told();
    let mut sent = message("many");
    sent.payloads = vec![vec![1; 65]; 10_000];
    pair.send(&sent);
    let all: Vec<u16> = (0..10_000).collect();
    pair.b.read_but(0, &all);
    pair.settle();
    assert_eq!(pair.b.contents(), [vec![None; 10_000]]);
    assert_eq!(pair.a.written, [0], "for the writer it is handed over");
    assert!(pair.a.started.is_empty());
}

#[test]
fn finishing_before_all_is_there_refuses_the_rest() {
    let mut pair = Pair::lazy().rate(2000);
    pair.a.write(&message("big").tensor(500_000));
    pair.run_for(5);
    pair.b.read(0);
    pair.run_for(20);
    pair.b.forget(0);
    pair.settle();
    assert_eq!(pair.a.refused, [(0, ResetCode::Skipped)]);
    assert!(pair.a.written.is_empty());
}
