//! The reader does not want a message, or no more of it.

use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::Kind;

const CODE: ResetCode = ResetCode::Refused;

fn slow() -> Pair {
    Pair::lazy().rate(2000).latency(3)
}

#[test]
fn before_it_is_read_nothing_of_its_bulk_leaves() {
    let mut pair = slow();
    pair.send(&message("no").tensor(100_000));
    pair.send(&message("yes").tensor(1000));
    pair.b.refuse(0, CODE);
    pair.b.read(1);
    pair.settle();
    assert_eq!(pair.a.refused, [(0, CODE)]);
    assert_eq!(pair.a.written, [1]);
    assert_eq!(pair.a.started.len(), 1);
    assert_eq!(pair.a.cancelled, [], "its channel never had it");
    assert_eq!(pair.b.cancelled, [], "nor this one");
    assert_eq!(pair.b.resets, [], "the writer's confirmation is not news");
}

#[test]
fn during_its_bulk_the_rest_does_not_leave_and_what_is_on_its_way_is_thrown_away() {
    let mut pair = slow();
    pair.send(&message("no").tensor(500_000));
    pair.b.read(0);
    pair.run_for(30);
    assert!(!pair.a.started.is_empty());
    pair.b.refuse(0, CODE);
    pair.send(&message("yes"));
    assert_eq!(pair.a.refused, [(0, CODE)]);
    assert_eq!(pair.a.cancelled, pair.a.started);
    assert_eq!(pair.b.cancelled, [OpId::incoming(0, 0)]);
    assert!(pair.a_to_b.sent < 200_000, "{}", pair.a_to_b.sent);
    assert_eq!(pair.b.ready, [1], "the pipe goes on");
    pair.b.read(1);
    pair.settle();
}

#[test]
fn while_it_is_being_reset_both_sides_agree_that_it_is_gone() {
    let mut pair = slow();
    pair.send(&message("no").tensor(500_000));
    pair.b.read(0);
    pair.run_for(30);
    pair.a.reset(0);
    pair.b.refuse(0, CODE);
    pair.settle();
    assert_eq!(pair.b.resets, [], "the reader has had its say");
}

#[test]
fn twice_is_once() {
    let mut pair = slow();
    pair.send(&message("no").tensor(100_000));
    pair.b.refuse(0, CODE);
    pair.b.refuse(0, CODE);
    assert!(!pair.b.pipe.grant(0, &[]), "it is not there any more");
    assert!(!pair.b.pipe.expect(OpId::incoming(0, 0), Vec::new(), 0));
    pair.b.pipe.finish(0);
    pair.settle();
    assert_eq!(pair.a.refused, [(0, CODE)]);
    assert_eq!((pair.b.resets.len(), pair.b.frames.len()), (0, 1));
}

#[test]
fn in_the_same_breath_as_the_go_ahead_nothing_follows_the_confirmation() {
    let mut pair = slow();
    pair.send(&message("no").tensor(100_000));
    pair.b.read(0);
    pair.b.refuse(0, CODE);
    pair.settle();
    assert_eq!(pair.a.refused, [(0, CODE)]);
}

#[test]
fn a_small_message_too_is_refused_with_a_reason() {
    let mut pair = slow();
    pair.send(&message("no").tensor(10));
    assert_eq!(pair.a.written, [0]);
    pair.b.refuse(0, CODE);
    // Nothing of it is to come, but its writer has not heard.
    pair.b.pipe.finish(0);
    assert_eq!(pair.b.pipe.receive_window.outstanding().messages, 1);
    pair.settle();
    assert_eq!(pair.a.refused, [(0, CODE)], "although it was handed over");
    assert_eq!(pair.b.resets, []);
}

#[test]
fn refused_messages_keep_their_credit_until_the_writer_has_heard() {
    let mut pair = slow();
    pair.a.write_times(20, &message("no").tensor(100));
    pair.run();
    for message in 0..8 {
        pair.b.refuse(message, CODE);
    }
    assert_eq!(pair.b.pipe.receive_window.outstanding().messages, 8);
    pair.run();
    assert_eq!(pair.b.ready, (8..16).collect::<Vec<_>>());
    (8..20).for_each(|message| pair.read(message));
    pair.settle();
}

// The reader takes a message without some of its parts.

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
