//! A stream's sender waits until its reader makes room or goes away.

use std::future::poll_fn;
use std::task::Poll;

use loom::future::block_on;
use loom::thread;

use super::credits::{Credits, SendCredit};
use super::{INITIAL_WINDOW, Tally};
use crate::check;
use crate::sync::Arc;

/// Sends up to `items` items while the reader takes them. Returns how many were sent.
fn send(credits: &Credits, items: u64) -> u64 {
    for sent in 0..items {
        let has_room = block_on(poll_fn(|cx| match credits.room(cx.waker()) {
            SendCredit::Items(_) => Poll::Ready(true),
            SendCredit::None => Poll::Pending,
            SendCredit::Closed => Poll::Ready(false),
        }));
        if !has_room {
            return sent;
        }
        credits.sent(1, 1);
    }
    items
}

fn up_to(items: u64) -> Tally {
    Tally {
        items,
        ..INITIAL_WINDOW
    }
}

/// loom reports a sender that would wait for ever.
pub fn a_sender_that_waits_for_room_is_woken() {
    check(None, || {
        let credits = Arc::new(Credits::new());
        let of_reader = credits.clone();
        let reader = thread::spawn(move || {
            of_reader.allow(up_to(2));
            of_reader.allow(up_to(3));
        });
        assert_eq!(send(&credits, 3), 3);
        reader.join().unwrap();
    });
}

/// A later grant may arrive first: the earlier one then takes nothing back.
pub fn room_is_made_by_two_threads() {
    check(2, || {
        let credits = Arc::new(Credits::new());
        let allow = |items| {
            let credits = credits.clone();
            thread::spawn(move || credits.allow(up_to(items)))
        };
        let readers = [allow(2), allow(3)];
        assert_eq!(send(&credits, 3), 3);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// The reader drops its stream while the sender waits.
pub fn a_sender_that_nobody_reads_ends() {
    check(None, || {
        let credits = Arc::new(Credits::new());
        let of_reader = credits.clone();
        let reader = thread::spawn(move || {
            of_reader.allow(up_to(2));
            of_reader.close();
        });
        let sent = send(&credits, 4);
        assert!(sent <= 2, "{sent}");
        reader.join().unwrap();
    });
}
