//! A peer that has much to say: what it makes this side hold, and what it makes this side look at, stays bounded.

use super::hostile::{bulk, control, data, head};
use crate::error::PeerFault;
use crate::proto::Event;
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::Control;

#[test]
fn go_aheads_that_are_never_fetched_are_a_fault() {
    let mut pair = Pair::new();
    let one = head(&[(1, bulk(0, false))]);
    let mut sent = 0;
    // Each is read at once, so that its credit comes back, in a WINDOW that is not fetched either.
    while pair.b.fault.is_none() && sent < 100_000 {
        pair.b.receive(&one, pair.now);
        pair.b.receive(&data(sent, 0, 1), pair.now);
        sent += 1;
    }
    assert!(
        matches!(pair.b.fault, Some(PeerFault::CreditExceeded { .. })),
        "after {sent} messages: {:?}",
        pair.b.fault
    );
    assert!(pair.b.pipe.outbox.queued() < 70_000);
}

#[test]
fn there_are_never_more_questions_than_messages() {
    let mut pair = Pair::new();
    pair.b.eager_reader = false;
    for number in 0..1000 {
        let question = control(&[Control::Flush { message: number }]);
        pair.b.receive(&[head(&[]), question].concat(), pair.now);
        // Everything but the first message is read at once.
        if number > 0 {
            pair.b.read(number);
        }
        assert_eq!(pair.b.fault, None);
        assert_eq!(pair.b.pipe.incoming.messages.len(), 1);
        assert_eq!(pair.b.pipe.incoming.questions(), 1);
        pair.step();
    }
    pair.b.read(0);
    assert_eq!(pair.b.pipe.incoming.questions(), 0);
    pair.b.record = Some(Vec::new());
    pair.run();
    let sent = pair.b.record.take().unwrap();
    let answer = control(&[Control::Flushed { message: 999 }]);
    assert!(sent.starts_with(&answer), "one answer for all: {sent:?}");
    let answers = pair.b.frames.iter().filter(|(kind, _)| *kind == 23);
    assert_eq!(answers.count(), 1);
}

#[test]
fn what_is_no_news_is_told_once() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        pair.b.write(&message("m"));
    }
    pair.run();
    let text = String::new;
    let go_away = |next| Control::GoAway { next, text: text() };
    let flushed = |message| Control::Flushed { message };
    let said = [
        go_away(3),
        go_away(3),
        go_away(2),
        go_away(3),
        flushed(1),
        flushed(1),
        flushed(0),
        flushed(2),
    ];
    let (used, _) = pair.b.pipe.handle(&control(&said), pair.now).unwrap();
    assert_eq!(used, control(&said).len());
    let mut told = Vec::new();
    while let Some(event) = pair.b.pipe.poll_event() {
        told.push(match event {
            Event::GoAway { next, .. } => ("ignores from", next),
            Event::Flushed { message } => ("has read", message),
            other => panic!("{other:?}"),
        });
    }
    let news = [
        ("ignores from", 3),
        ("ignores from", 2),
        ("has read", 1),
        ("has read", 2),
    ];
    assert_eq!(told, news);
}

#[test]
fn a_go_ahead_names_what_it_skips_in_any_order() {
    let mut pair = Pair::new();
    let mut parts = message("parts");
    for _ in 0..5 {
        parts = parts.tensor(3000);
    }
    pair.b.write(&parts);
    pair.step();
    let skip = vec![4, 0, 0xffff, 2, 4, 17];
    pair.b
        .receive(&control(&[Control::Grant { message: 0, skip }]), pair.now);
    let started: Vec<_> = pair.b.started.iter().map(|op| op.part).collect();
    assert_eq!(started, [1, 3]);
}
