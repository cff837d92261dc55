//! The writer abandons a message: queued, sent, under way, or long handed over.

use crate::error::ResetCode;
use crate::proto::OpId;
use crate::proto::sim::{Pair, message};

const CODE: ResetCode = ResetCode::Cancelled;

#[test]
fn queued_it_becomes_a_hole_and_numbers_stay_in_step() {
    let mut pair = Pair::new();
    for i in 0..5 {
        pair.a.write(&message(&format!("{i}")).tensor(1000));
    }
    for hole in [0, 2, 3] {
        pair.a.reset(hole);
        assert!(!pair.a.pipe.is_writing(hole));
    }
    pair.a.pipe.flush(4);
    pair.settle();
    let got = pair.b.delivered.iter();
    let got: Vec<_> = got.map(|got| (got.message, &got.metadata[..])).collect();
    assert_eq!(got, [(1, &b"1"[..]), (4, b"4")]);
    assert_eq!(pair.b.resets, [], "what never came is no news");
    assert_eq!((&pair.a.written, &pair.a.flushed), (&vec![1, 4], &vec![4]));
}

#[test]
fn a_hole_needs_no_credit() {
    let mut pair = Pair::lazy();
    for hole in 0..20 {
        pair.a.write(&message("hole"));
        pair.a.reset(hole);
    }
    pair.a.write_times(12, &message("m"));
    pair.run();
    assert_eq!(pair.b.ready, (20..28).collect::<Vec<_>>());
    (28..32).for_each(|waiting| pair.a.reset(waiting));
    pair.run();
    assert_eq!(pair.a.pipe.unwritten(), 0);
    (20..28).for_each(|message| pair.b.read(message));
    pair.settle();
}

#[test]
fn waiting_for_the_go_ahead_it_is_gone_before_it_was_read() {
    let mut pair = Pair::lazy();
    pair.send(&message("gone").tensor(1000));
    assert_eq!(pair.b.ready, [0]);
    pair.a.reset(0);
    pair.settle();
    assert_eq!(pair.b.resets, [(0, CODE)]);
    assert!(!pair.b.pipe.grant(0, &[]), "a read that comes now is told");
    let why = pair.b.pipe.take_reset(0).unwrap();
    assert_eq!((why.code, &*why.text), (CODE, "enough"));
    assert!(pair.b.pipe.take_reset(0).is_none(), "once");
    assert_eq!(pair.b.cancelled, [], "no channel was at work on it");
}

#[test]
fn whoever_refuses_it_then_or_has_read_it_before_needs_no_reason() {
    let mut pair = Pair::lazy();
    for message_of in ["refused", "read"] {
        pair.send(&message(message_of).tensor(1000));
    }
    pair.b.read(1);
    [0, 1].into_iter().for_each(|number| pair.a.reset(number));
    pair.settle();
    pair.b.pipe.refuse(0, CODE, "");
    for number in [0, 1] {
        assert!(pair.b.pipe.take_reset(number).is_none(), "{number}");
    }
}

#[test]
fn as_the_go_ahead_is_on_its_way_the_go_ahead_means_nothing() {
    let mut pair = Pair::lazy().latency(5);
    pair.send(&message("gone").tensor(1000));
    pair.b.read(0);
    pair.step();
    pair.a.reset(0);
    pair.settle();
    assert_eq!(pair.b.resets, [(0, CODE)]);
    assert_eq!(pair.b.cancelled, [OpId::incoming(0, 0)]);
    assert!(pair.a.started.is_empty());
}

#[test]
fn during_its_bulk_the_rest_does_not_leave() {
    let mut pair = Pair::new().rate(2000);
    let half = message("half").tensor(500_000).tensor(10_000);
    pair.a.write(&half);
    pair.run_for(40);
    assert_eq!(pair.a.started.len(), 2);
    pair.a.reset(0);
    pair.a.write(&message("next"));
    pair.settle();
    assert_eq!(pair.a.cancelled.len(), 1, "the other part was handed over");
    assert_eq!(pair.b.resets, [(0, CODE)]);
    assert_eq!(pair.b.cancelled, [OpId::incoming(0, 0)]);
    assert!(pair.a_to_b.sent < 150_000);
    assert_eq!(pair.b.delivered.len(), 1);
}

#[test]
fn with_its_last_chunk_half_way_out_no_channel_hears_that_it_was_sent() {
    let mut pair = Pair::new().rate(200);
    pair.a.write(&message("half").tensor(1000));
    pair.run_for(4);
    assert_eq!(pair.a.started.len(), 1);
    pair.a.reset(0);
    pair.settle();
    assert_eq!(pair.a.cancelled, pair.a.started);
    assert!(pair.a.written.is_empty());
}

#[test]
fn handed_over_it_is_still_named_to_the_reader() {
    let mut pair = Pair::new();
    pair.send(&message("call").tensor(1000));
    assert_eq!((pair.a.written.len(), pair.b.delivered.len()), (1, 1));
    pair.a.reset(0);
    pair.settle();
    assert_eq!(pair.b.resets, [(0, CODE)]);
}

#[test]
fn a_number_that_was_never_written_is_ignored() {
    let mut pair = Pair::new();
    pair.a.reset(5);
    pair.run();
    assert!(pair.a.frames.is_empty());
    assert_eq!(pair.a.write(&message("0")), 0);
    pair.settle();
    assert_eq!(pair.b.delivered.len(), 1);
}
