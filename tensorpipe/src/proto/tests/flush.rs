//! A flush is answered when the peer's application has called read for everything up to it.

use crate::error::ResetCode;
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::Kind;

fn three() -> Pair {
    let mut pair = Pair::lazy();
    pair.a.write_times(3, &message("m").tensor(100));
    pair.a.pipe.flush(2);
    pair.run();
    pair
}

#[test]
fn it_waits_for_every_message_before() {
    let mut pair = three();
    for (message, flushed) in [(2, &[][..]), (0, &[]), (1, &[2])] {
        pair.read(message);
        assert_eq!(pair.a.flushed, flushed);
    }
    pair.settle();
}

#[test]
fn a_refused_or_abandoned_message_counts_as_read() {
    let mut pair = three();
    pair.b.refuse(0, ResetCode::Refused);
    pair.read(1);
    assert!(pair.a.flushed.is_empty());
    pair.a.reset(2);
    pair.settle();
    assert_eq!(pair.a.flushed, [2]);
}

#[test]
fn a_refused_message_counts_before_its_writer_has_heard() {
    let mut pair = three();
    pair.b.refuse(0, ResetCode::Refused);
    pair.b.read(1);
    pair.b.read(2);
    pair.step();
    assert_eq!(pair.b.sent(Kind::Flushed), 1);
    pair.settle();
}

#[test]
fn one_that_comes_late_is_answered_at_once() {
    let mut pair = Pair::new();
    pair.send(&message("m"));
    pair.a.pipe.flush(0);
    pair.settle();
    assert_eq!(pair.a.flushed, [0]);
}

#[test]
fn of_a_hole_it_is_answered_when_what_is_before_was_read() {
    let mut pair = Pair::lazy();
    pair.a.write(&message("0"));
    for hole in 1..4 {
        pair.a.write(&message("hole"));
        pair.a.reset(hole);
    }
    pair.a.pipe.flush(2);
    pair.run();
    assert!(pair.a.flushed.is_empty());
    pair.b.read(0);
    pair.settle();
    assert_eq!(pair.a.flushed, [3], "it tells how far reading has come");
}

#[test]
fn it_is_not_asked_before_its_message_has_left() {
    let mut pair = Pair::lazy();
    pair.a.write_times(10, &message("m"));
    pair.a.pipe.flush(9);
    pair.run();
    assert_eq!(pair.b.fault, None);
    (0..10).for_each(|message| pair.read(message));
    pair.settle();
    assert_eq!(pair.a.flushed, [9]);
}

#[test]
fn it_is_asked_once_for_a_message_however_many_want_to_know() {
    let mut pair = Pair::lazy();
    // Before it has left, while the question is on its way or waits, and after the answer.
    for (number, expected) in [(0, 1), (1, 2)] {
        pair.a.write(&message("m"));
        for _ in 0..4 {
            (0..100).for_each(|_| pair.a.pipe.flush(number));
            pair.run();
        }
        pair.read(number);
        (0..100).for_each(|_| pair.a.pipe.flush(number));
        pair.settle();
        assert_eq!(pair.a.sent(Kind::Flush), expected);
        assert_eq!(pair.a.flushed.last(), Some(&number));
    }
}
