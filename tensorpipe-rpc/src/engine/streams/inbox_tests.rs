//! The receiving end of a stream: order, bounds, and what its sender is told.

use super::*;
use crate::engine::streams::WINDOW;

fn message(inbox: &Inbox, id: u64, items: u64, bytes: u64) -> bool {
    let announced = inbox.announced(id, Tally { items, bytes }, true);
    announced.unwrap() == Announced::Wanted
}

/// Whether the inbox says that the sender sent more than it may.
fn is_excess(inbox: &Inbox, items: u64, bytes: u64) -> bool {
    inbox.announced(9, Tally { items, bytes }, true).is_none()
}

/// An inbox whose budget is unbounded.
fn alone() -> Inbox {
    Inbox::new(WINDOW, UnreadBudget::new(u64::MAX, 0))
}

fn take(inbox: &Inbox) -> Option<Batch> {
    match inbox.take(None) {
        Received::Items(batch) => Some(batch),
        _ => None,
    }
}

#[test]
fn whoever_sends_more_than_it_may_is_found_out() {
    let inbox = alone();
    assert!(is_excess(&inbox, 0, 0), "no items");
    assert!(message(&inbox, 0, INITIAL_WINDOW.items, 1));
    assert!(is_excess(&inbox, 1, 1));

    let inbox = alone();
    assert!(message(&inbox, 0, 1, INITIAL_WINDOW.bytes - 1));
    assert!(message(&inbox, 1, 1, u64::MAX), "one of any size");
    assert!(is_excess(&inbox, 1, 0));

    let inbox = alone();
    inbox.finish();
    assert!(is_excess(&inbox, 1, 1) && is_excess(&inbox, u64::MAX, 0));
}

#[test]
fn a_closed_stream_wants_nothing_and_names_what_is_on_its_way() {
    let inbox = alone();
    (0..3).for_each(|id| assert!(message(&inbox, id, 1, 10)));
    inbox.complete(1, Arguments::default());
    assert_eq!(inbox.close(), [0, 2]);
    assert!(!message(&inbox, 3, 1, 1));
    inbox.complete(0, Arguments::default());
    assert!(matches!(inbox.take(None), Received::Closed));
}

/// The sender uses all its credit, and the reader consumes at any pace. The stream never stalls, and unread bytes are bounded.
#[test]
fn the_sender_is_told_in_time_and_not_for_each_item() {
    for size in [0, 1, 100, 5000, 300 << 10, 9 << 20] {
        let inbox = alone();
        let (mut allowed, mut sent, mut told) = (INITIAL_WINDOW, Tally::default(), 0);
        for id in 0..5000 {
            if sent.items >= allowed.items || sent.bytes >= allowed.bytes {
                // All sent items are consumed, one by one, until a grant comes.
                while let Some(batch) = take(&inbox) {
                    if let Some(more) = inbox.consumed(&batch) {
                        (allowed, told) = (more, told + 1);
                    }
                }
                assert!(sent.items < allowed.items && sent.bytes < allowed.bytes);
            }
            assert!(message(&inbox, id, 1, size));
            inbox.complete(id, Arguments::default());
            sent.items += 1;
            sent.bytes += size;
            let state = lock(&inbox.state);
            let unread = sent.bytes - state.consumed.bytes;
            assert!(unread <= WINDOW.bytes + size, "{unread}");
            let unread = sent.items - state.consumed.items;
            assert!(unread <= WINDOW.items, "{unread}");
        }
        let windows = 5000 * (1 + size / 1024) / 256 + 64;
        assert!(told <= windows, "told {told} times of {size} bytes");
    }
}

/// Two of three streams take full windows. The third goes on with what they left.
#[test]
fn where_nothing_is_left_a_stream_goes_on_in_small_steps() {
    let most = 2 * WINDOW.bytes;
    let unread = UnreadBudget::new(most, 0);
    let streams = [(); 3].map(|()| Inbox::new(WINDOW, unread.clone()));
    let step = |inbox: &Inbox, id| {
        assert!(message(inbox, id, 1, INITIAL_WINDOW.bytes));
        inbox.complete(id, Arguments::default());
        let batch = take(inbox).unwrap();
        inbox.consumed(&batch);
        lock(&inbox.state).allowed.bytes
    };
    let allowed = streams.each_ref().map(|inbox| step(inbox, 0));
    let full = INITIAL_WINDOW.bytes + WINDOW.bytes;
    // The third gets what the other two left of two windows.
    assert_eq!(
        allowed,
        [
            full,
            full,
            2 * INITIAL_WINDOW.bytes + 2 * INITIAL_WINDOW.bytes
        ]
    );
    assert_eq!(unread.taken(), most);
    // It goes on, and never gets more.
    for id in 1..50 {
        let allowed = step(&streams[2], id);
        assert!(allowed - (id + 1) * INITIAL_WINDOW.bytes <= 3 * INITIAL_WINDOW.bytes);
        assert!(unread.taken() <= most);
    }
    let [first, ..] = &streams;
    first.close();
    // There is room again, and its next grants use it.
    let last = (50..53).map(|id| step(&streams[2], id)).max().unwrap();
    assert!(last > 50 * INITIAL_WINDOW.bytes + WINDOW.bytes, "{last}");
    drop(streams);
    assert_eq!(unread.taken(), 0);
}

#[test]
fn what_is_here_or_awaited_is_taken_and_what_is_neither_waits_for_room() {
    let unread = UnreadBudget::new(1 << 20, 8);
    let inbox = || Inbox::new(WINDOW, unread.clone());
    let large = Tally {
        items: 1,
        bytes: 9 << 20,
    };
    // One item gets through alone, however large.
    let first = inbox();
    assert_eq!(first.announced(0, large, false).unwrap(), Announced::Wanted);
    let excess = large.bytes - INITIAL_WINDOW.bytes;
    assert_eq!(unread.taken(), excess);
    let second = inbox();
    let announced = second.announced(0, large, false).unwrap();
    assert_eq!((announced, unread.taken()), (Announced::NoRoom, excess));
    let awaited = inbox();
    assert!(matches!(
        awaited.take(Some(Waker::noop())),
        Received::Nothing
    ));
    assert_eq!(
        awaited.announced(0, large, false).unwrap(),
        Announced::Wanted
    );
    let here = inbox();
    assert_eq!(here.announced(0, large, true).unwrap(), Announced::Wanted);
    assert_eq!(unread.taken(), 3 * excess);
    // The budget is overdrawn, but a stream's own window is still its own.
    let small = Tally {
        items: 1,
        bytes: INITIAL_WINDOW.bytes,
    };
    let own = inbox();
    assert_eq!(own.announced(0, small, false).unwrap(), Announced::Wanted);
    // All bytes come back.
    drop((first, second, awaited, here, own));
    assert_eq!(unread.taken(), 0);
}

/// While a message waits for room, its sender gets no bytes, so no other message takes its place.
#[test]
fn nothing_is_granted_from_the_announcement_of_a_message_without_room_on() {
    let unread = UnreadBudget::new(9 << 20, 8);
    let inbox = Inbox::new(WINDOW, unread.clone());
    let half = INITIAL_WINDOW.bytes / 2;
    assert!(message(&inbox, 0, 1, half));
    inbox.complete(0, Arguments::default());
    let batch = take(&inbox).unwrap();
    unread.force_acquire(9 << 20);
    let large = Tally {
        items: 1,
        bytes: 1 << 20,
    };
    let announced = inbox.announced(1, large, false).unwrap();
    assert_eq!(announced, Announced::NoRoom);
    unread.release(9 << 20);
    let granted = inbox.consumed(&batch).unwrap();
    assert_eq!(granted.bytes, INITIAL_WINDOW.bytes);
    assert!(inbox.unhold().is_none(), "it is not held yet");
    assert_eq!(unread.taken(), 0);
    assert!(inbox.close().is_empty());
    assert_eq!(unread.taken(), 0);
}

#[test]
fn what_was_taken_for_a_stream_that_has_ended_comes_back_and_its_sender_is_told_nothing() {
    let ends: [fn(&Inbox); 2] = [Inbox::finish, |inbox| drop(inbox.close())];
    for end in ends {
        let unread = UnreadBudget::new(u64::MAX, 0);
        let inbox = Inbox::new(WINDOW, unread.clone());
        assert!(message(&inbox, 0, INITIAL_WINDOW.items, 9 << 20));
        inbox.complete(0, Arguments::default());
        let batch = take(&inbox).unwrap();
        end(&inbox);
        assert_eq!(inbox.consumed(&batch), None);
        assert_eq!(unread.taken(), 0);
    }
}
