//! A peer that has much to say: what it makes this side hold, and what it makes this side look at, stays bounded.

use crate::proto::OpId;
use crate::proto::sim::frames::{bulk, chunk, control, head, reset};
use crate::proto::sim::{Pair, message};
use crate::proto::wire::frame::{Control, Kind};

#[test]
fn go_aheads_that_are_never_fetched_are_a_fault() {
    let mut pair = Pair::new();
    let one = head(&[(1, bulk(0, false))]);
    // Each is read at once, so that its credit comes back, in a WINDOW that is not fetched either.
    for sent in 0..100_000 {
        pair.tell(&one);
        pair.tell(&chunk(sent, 0, 1));
    }
    let said = pair.b.complaint();
    assert!(said.contains("beyond its credit"), "{said}");
    assert!(pair.b.pipe.outbox.control.len() < 70_000);
}

/// So are answers of channels that leave when there is time, which there never is.
#[test]
fn answers_that_wait_for_their_time_count() {
    let mut pair = Pair::lazy();
    pair.send(&message("bulk").tensor(5000));
    pair.b.read(0);
    for _ in 0..70_000 {
        pair.b.pipe.channel_delayed(OpId::incoming(0, 0), b"thanks");
    }
    pair.tell(&control([Control::Ping(1)]));
    let said = pair.b.complaint();
    assert!(said.contains("beyond its credit"), "{said}");
}

#[test]
fn however_many_ask_one_answer_is_for_all() {
    let mut pair = Pair::lazy();
    // Every second one was given up before it left.
    for message in (0..2000).step_by(2) {
        pair.tell(&head(&[]));
        let hole = message + 1;
        pair.tell(&control([reset(hole, false), Control::Flush(hole)]));
        // Everything but the first message is read at once.
        if message > 0 {
            pair.b.read(message);
        }
        assert_eq!(pair.b.fault, None);
        assert_eq!(pair.b.pipe.incoming.messages.len(), 1);
        pair.step();
    }
    pair.b.read(0);
    pair.b.record.clear();
    pair.run();
    let answer = control([Control::Flushed(1999)]);
    assert!(pair.b.record.starts_with(&answer), "{:?}", pair.b.record);
    assert_eq!(pair.b.sent(Kind::Flushed), 1);
}

#[test]
fn what_is_no_news_is_told_once() {
    let mut pair = Pair::new();
    for _ in 0..3 {
        pair.b.write(&message("m"));
    }
    pair.run();
    for next in [3, 3, 2, 3] {
        let text = String::new();
        pair.tell(&control([Control::GoAway { next, text }]));
    }
    for message in [1, 1, 0, 2] {
        pair.tell(&control([Control::Flushed(message)]));
    }
    assert_eq!(pair.b.goaway, [3, 2]);
    assert_eq!(pair.b.flushed, [1, 2]);
}

#[test]
fn a_go_ahead_names_what_it_skips_in_any_order() {
    let mut pair = Pair::new();
    let parts = (0..5).fold(message("parts"), |message, _| message.tensor(3000));
    pair.b.write(&parts);
    pair.step();
    let skip = vec![0xffff, 17, 4, 4, 2, 0];
    pair.tell(&control([Control::Grant { message: 0, skip }]));
    assert_eq!(pair.b.parts_started(), [1, 3]);
    // And as many as a message can have.
    pair.b.write(&parts);
    pair.step();
    let skip = (0..u16::MAX).collect();
    pair.tell(&control([Control::Grant { message: 1, skip }]));
    assert_eq!(
        (pair.b.complaint(), pair.b.started.len()),
        (String::new(), 2)
    );
}
