//! The receiving end of a stream: order, bounds, and what its sender is told.

use super::*;
use crate::engine::streams::WINDOW;

fn message(inbox: &Inbox, id: u64, items: u64, bytes: u64) -> bool {
    inbox.announced(id, Tally { items, bytes }).unwrap()
}

fn body() -> Arguments {
    Arguments::default()
}

fn take(inbox: &Inbox) -> Option<Batch> {
    match inbox.take(None) {
        Received::Items(batch) => Some(batch),
        _ => None,
    }
}

#[test]
fn items_come_in_the_order_of_their_messages() {
    let inbox = Inbox::new(WINDOW);
    (0..3).for_each(|id| assert!(message(&inbox, id, 1, 10)));
    inbox.complete(2, body());
    inbox.complete(1, body());
    assert!(matches!(inbox.take(None), Received::Nothing));
    assert!(inbox.is_incomplete());
    inbox.complete(0, body());
    assert!(!inbox.is_incomplete());
    inbox.finish();
    (0..3).for_each(|_| assert!(take(&inbox).is_some()));
    assert!(matches!(inbox.take(None), Received::Finished));
}

#[test]
fn whoever_sends_more_than_it_may_is_found_out() {
    let inbox = Inbox::new(WINDOW);
    assert!(inbox.announced(0, Tally::default()).is_err(), "no items");
    assert!(message(&inbox, 0, FIRST.items, 1));
    assert!(inbox.announced(1, Tally { items: 1, bytes: 1 }).is_err());

    let inbox = Inbox::new(WINDOW);
    assert!(message(&inbox, 0, 1, FIRST.bytes - 1));
    assert!(message(&inbox, 1, 1, u64::MAX), "one of any size");
    assert!(inbox.announced(2, Tally { items: 1, bytes: 0 }).is_err());

    let inbox = Inbox::new(WINDOW);
    inbox.finish();
    assert!(inbox.announced(0, Tally { items: 1, bytes: 1 }).is_err());
    let huge = Tally {
        items: u64::MAX,
        bytes: 0,
    };
    assert!(inbox.announced(0, huge).is_err());
}

#[test]
fn a_closed_stream_wants_nothing_and_names_what_is_on_its_way() {
    let inbox = Inbox::new(WINDOW);
    (0..3).for_each(|id| assert!(message(&inbox, id, 1, 10)));
    inbox.complete(1, body());
    assert_eq!(inbox.close(), [0, 2]);
    assert!(!inbox.announced(3, Tally { items: 1, bytes: 1 }).unwrap());
    inbox.complete(0, body());
    assert!(matches!(inbox.take(None), Received::Closed));
}

/// A sender that uses all that it may, and a reader that consumes at any pace: it never stands still, and what lies unread is
/// bounded.
#[test]
fn the_sender_is_told_in_time_and_not_for_each_item() {
    for size in [0, 1, 100, 5000, 300 << 10, 9 << 20] {
        let inbox = Inbox::new(WINDOW);
        let (mut allowed, mut sent, mut told) = (FIRST, Tally::default(), 0);
        for id in 0..5000 {
            if sent.items >= allowed.items || sent.bytes >= allowed.bytes {
                // All that was sent is consumed, bit by bit: then it is told more.
                while let Some(batch) = take(&inbox) {
                    if let Some(more) = inbox.consumed(&batch) {
                        (allowed, told) = (more, told + 1);
                    }
                }
                assert!(sent.items < allowed.items && sent.bytes < allowed.bytes);
            }
            assert!(message(&inbox, id, 1, size));
            inbox.complete(id, body());
            sent.items += 1;
            sent.bytes += size;
            let state = lock(&inbox.state);
            let unread = sent.bytes - state.consumed.bytes;
            assert!(unread <= WINDOW.bytes + size, "{unread}");
        }
        let windows = 5000 * (1 + size / 1024) / 256 + 64;
        assert!(told <= windows, "told {told} times of {size} bytes");
    }
}
