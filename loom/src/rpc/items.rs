//! A stream's reader. Items arrive, or stay with their sender until there is room, and the reader may drop the stream.

use std::future::poll_fn;
use std::task::{Poll, Waker};

use loom::future::block_on;
use loom::thread;

use super::inbox::{Announced, Inbox, ItemsMessage, Received};
use super::unread::UnreadBudget;
use super::{CallStreams, INITIAL_WINDOW, Outcome, Tally};
use crate::Incoming;
use crate::check;
use crate::codec::Arguments;
use crate::header::Header;
use crate::sync::{Arc, Mutex, lock};

/// Two streams of a connection. The first is modelled; the second has used up the room that they share.
#[derive(Clone)]
struct Connection {
    unread: Arc<UnreadBudget>,
    streams: Arc<CallStreams>,
}

const ROOM: u64 = 1;

impl Connection {
    fn new() -> Self {
        let unread = UnreadBudget::new(ROOM, 1);
        unread.force_acquire(ROOM);
        let streams = CallStreams::new(INITIAL_WINDOW, &unread);
        Self { unread, streams }
    }

    fn inbox(&self) -> &Inbox {
        self.streams.inbox.as_ref().unwrap()
    }

    /// A message arrives whose bytes are with its sender, as in `Engine::items_arrive`.
    fn arrives(&self, message: u64, bytes: u64) {
        let kept = || ItemsMessage {
            header: Header { call: message },
            incoming: Incoming,
        };
        let size = Tally { items: 1, bytes };
        match self.inbox().announced(message, size, false) {
            Some(Announced::Wanted) => self.read(kept()),
            Some(Announced::Unwanted) => {}
            // As `Engine::hold_items`.
            Some(Announced::NoRoom) => {
                assert!(self.unread.hold(), "another message is kept");
                if self.inbox().hold(kept()) {
                    self.unread.wait(&self.streams);
                    self.read_held();
                } else {
                    self.unread.release_held();
                }
            }
            None => panic!("it sent too much"),
        }
    }

    /// Reads the message's bytes, which come at once.
    fn read(&self, message: ItemsMessage) {
        self.inbox().complete(message.header.call, Arguments);
        // As `Engine::items_complete`.
        if let Some(outcome) = self.streams.held.release(self.inbox()) {
            assert_eq!(self.streams.outcome.complete(outcome), None);
        }
    }

    /// The call's outcome arrives, as in `Engine::reply_complete`.
    fn is_answered(&self) {
        if let Some(outcome) = self.streams.held.hold(Outcome::Value, self.inbox()) {
            assert_eq!(self.streams.outcome.complete(outcome), None);
        }
    }

    fn read_held(&self) {
        self.unread.one_at_a_time(|| {
            while let Some((streams, message)) = self.unread.next() {
                let unread = self.unread.clone();
                Self { unread, streams }.read(*message);
            }
        });
    }

    /// As `Engine::take_items`.
    fn take(&self, waker: Option<&Waker>) -> Received {
        loop {
            match self.inbox().take(waker) {
                Received::Held(message) => self.read(*message),
                received => return received,
            }
        }
    }

    /// Waits for an item. Returns whether there was one.
    fn read_one(&self) -> bool {
        self.read_and_grant().is_some()
    }

    /// Waits for an item. Returns the grant that its sender gets for it, if there was one.
    fn read_and_grant(&self) -> Option<Option<Tally>> {
        let received = block_on(poll_fn(|cx| match self.take(Some(cx.waker())) {
            Received::Nothing => Poll::Pending,
            received => Poll::Ready(received),
        }));
        let Received::Items(batch) = received else {
            return None;
        };
        let granted = self.inbox().consumed(&batch);
        self.read_held();
        Some(granted)
    }

    /// Reads to the end. Returns the number of items.
    fn read_all(&self) -> u64 {
        let mut items = 0;
        while self.read_one() {
            items += 1;
        }
        items
    }

    /// The stream's end arrives, as in `Engine::end_arrives`.
    fn ends(&self) {
        self.inbox().finish();
        self.read_held();
    }

    /// The other stream is read, which makes room.
    fn room_comes(&self) {
        self.unread.release(ROOM);
        self.read_held();
    }

    /// Asserts that all room taken for the stream is back and that no message counts as kept.
    fn is_even(&self, others: u64) {
        assert!(
            others == 0 || !self.unread.try_acquire(1),
            "too much is back"
        );
        assert!(self.unread.try_acquire(ROOM - others), "bytes are taken");
        assert!(self.unread.hold(), "a message is kept");
    }
}

/// The sender's window: the stream's own allowance, and all of the shared room.
const WINDOW: Tally = Tally {
    items: 2,
    bytes: INITIAL_WINDOW.bytes + ROOM,
};

/// The size of an item that exceeds the stream's own allowance.
const LARGE: u64 = INITIAL_WINDOW.bytes + ROOM;

/// loom reports a reader that would wait for ever.
pub fn a_reader_that_waits_for_items_is_woken() {
    check(3, || {
        let connection = Connection::new();
        let here = connection.clone();
        let peer = thread::spawn(move || {
            here.arrives(1, 1);
            here.inbox().finish();
        });
        assert_eq!(connection.read_all(), 1);
        peer.join().unwrap();
    });
}

/// The other stream keeps its room. The item is fetched only because the reader asks for it.
pub fn a_reader_that_waits_reads_what_was_kept() {
    check(3, || {
        let connection = Connection::new();
        let here = connection.clone();
        let peer = thread::spawn(move || here.arrives(1, LARGE));
        assert!(connection.read_one());
        peer.join().unwrap();
        connection.is_even(ROOM);
    });
}

/// Nobody reads the stream yet, but room comes. The item is fetched in advance, as the application may be slow to ask.
pub fn room_that_comes_fetches_what_was_kept() {
    check(3, || {
        let connection = Connection::new();
        let here = connection.clone();
        let peer = thread::spawn(move || here.arrives(1, LARGE));
        connection.room_comes();
        peer.join().unwrap();
        assert!(!connection.inbox().is_incomplete());
        let Received::Items(batch) = connection.take(None) else {
            panic!("it was not fetched");
        };
        connection.inbox().consumed(&batch);
        connection.inbox().finish();
        connection.is_even(0);
    });
}

/// The other of two streams ends and frees the room that was kept for it.
pub fn an_end_makes_room_for_what_was_kept() {
    check(3, || {
        let unread = UnreadBudget::new(ROOM, 1);
        let stream = || CallStreams::new(WINDOW, &unread);
        let of = |streams| Connection {
            unread: unread.clone(),
            streams,
        };
        let (ends, kept) = (of(stream()), of(stream()));
        // The sender of the ending stream was granted all of the room and uses none of it.
        ends.arrives(1, 1);
        assert!(ends.read_one());
        let here = kept.clone();
        let peer = thread::spawn(move || here.arrives(1, LARGE));
        ends.ends();
        peer.join().unwrap();
        assert!(!kept.inbox().is_incomplete());
    });
}

/// Room comes while the reader asks: the kept item is read exactly once.
pub fn what_was_kept_is_read_once() {
    check(2, || {
        let connection = Connection::new();
        let (here, other) = (connection.clone(), connection.clone());
        let peer = thread::spawn(move || {
            here.arrives(1, LARGE);
            here.inbox().finish();
        });
        let room = thread::spawn(move || other.room_comes());
        assert_eq!(connection.read_all(), 1);
        peer.join().unwrap();
        room.join().unwrap();
        connection.is_even(0);
    });
}

/// The reader drops the stream while an item finds no room, and while room comes.
pub fn a_stream_that_is_dropped_leaves_nothing() {
    check(2, || {
        let connection = Connection::new();
        let (here, other) = (connection.clone(), connection.clone());
        let peer = thread::spawn(move || here.arrives(1, LARGE));
        let room = thread::spawn(move || other.room_comes());
        connection.inbox().close();
        connection.read_held();
        peer.join().unwrap();
        room.join().unwrap();
        connection.is_even(0);
    });
}

/// The reader fetches the last item, which was kept, while the call's outcome comes: the call ends.
pub fn a_call_ends_with_its_last_item() {
    check(3, || {
        let connection = Connection::new();
        let here = connection.clone();
        let peer = thread::spawn(move || {
            here.arrives(1, LARGE);
            here.is_answered();
        });
        assert!(connection.read_one());
        peer.join().unwrap();
        let outcome = connection.streams.outcome.poll(None);
        assert_eq!(outcome, Some(Outcome::Value), "it waits for its deadline");
    });
}

/// An item finds no room, and room comes. If the reader then grants more before the item is kept, the next item finds its place taken.
pub fn nothing_is_granted_while_an_item_is_about_to_be_kept() {
    const MORE: u64 = 4 * ROOM;
    check(3, || {
        let unread = UnreadBudget::new(MORE, 1);
        unread.force_acquire(MORE);
        let window = Tally {
            items: 2,
            bytes: INITIAL_WINDOW.bytes + MORE,
        };
        let streams = CallStreams::new(window, &unread);
        let connection = Connection { unread, streams };
        // The first item earns its sender two more.
        connection.arrives(1, 1);
        assert!(connection.read_one());
        connection.arrives(2, 1);
        let granted = Arc::new(Mutex::new(0));
        let (here, grant) = (connection.clone(), granted.clone());
        let peer = thread::spawn(move || {
            here.arrives(3, LARGE);
            let sends_more = *lock(&grant) > 2 + LARGE;
            if sends_more {
                here.arrives(4, LARGE);
            }
            here.ends();
            u64::from(sends_more)
        });
        connection.unread.release(MORE);
        connection.read_held();
        if let Some(Some(grant)) = connection.read_and_grant() {
            *lock(&granted) = grant.bytes;
        }
        let read = connection.read_all();
        assert_eq!(read, 1 + peer.join().unwrap());
        connection.is_even(0);
    });
}
