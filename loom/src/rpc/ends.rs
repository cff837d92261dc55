//! The end of a call. Its answer, its deadline, the loss of its connection and a caller that leaves may each bring it, at once.

use std::future::poll_fn;
use std::task::Poll;
use std::time::{Duration, Instant};

use loom::future::block_on;
use loom::thread;

use super::slot::CallSlot;
use super::table::{Answers, Calls, Reading};
use super::{CallData, Outcome};
use crate::check;
use crate::error::CallError;
use crate::header::Header;
use crate::sync::{Arc, Mutex, lock};

const CALL: u64 = 1;
const REQUEST: u64 = 2;
const REPLY: u64 = 3;

/// What the pipe was told.
#[derive(Default)]
struct Pipe {
    is_lost: bool,
    /// The number of times that the request was taken back.
    resets: usize,
    /// The reply's tensors are on their way.
    is_reading: bool,
    /// How often the peer was told to forget what the reply refers to.
    releases: usize,
}

/// The methods say whose steps they are.
struct Connection {
    calls: Calls,
    slot: Arc<CallSlot>,
    pipe: Mutex<Pipe>,
}

impl Connection {
    /// A call whose deadline has passed once anybody looks. Its reply has references.
    fn new() -> Arc<Self> {
        let deadline = Some((Instant::now(), Duration::ZERO));
        Arc::new(Self {
            calls: Calls::default(),
            slot: Arc::new(CallSlot::new(CALL, deadline, CallData::default())),
            pipe: Mutex::default(),
        })
    }

    /// As `Engine::call`, and as the pipe numbers a message.
    fn call(&self) {
        self.calls.insert(&self.slot);
        let is_late = {
            let pipe = lock(&self.pipe);
            (!pipe.is_lost).then(|| !self.slot.try_set_message(REQUEST))
        };
        match is_late {
            Some(false) => {}
            Some(true) => lock(&self.pipe).resets += 1,
            None => {
                let failed = Outcome::Failed(CallError);
                self.calls.complete(&self.slot, failed);
            }
        }
    }

    fn awaited(&self) -> Outcome {
        block_on(poll_fn(|cx| {
            match self.slot.outcome.poll(Some(cx.waker())) {
                Some(outcome) => Poll::Ready(outcome),
                None => Poll::Pending,
            }
        }))
    }

    /// As `Engine::cancel`: the caller leaves.
    fn cancel(&self) {
        if self.calls.give_up(&self.slot) {
            self.reset(&self.slot);
        }
        self.discard(self.slot.outcome.abandon());
    }

    /// As `Engine::reset_call`.
    fn reset(&self, slot: &CallSlot) {
        let on_its_way = self.calls.on_its_way(slot);
        if on_its_way.request.is_some() {
            lock(&self.pipe).resets += 1;
        }
        if on_its_way.reply.is_some() {
            lock(&self.pipe).is_reading = false;
            self.release();
        }
    }

    fn discard(&self, outcome: Option<Outcome>) {
        if outcome == Some(Outcome::Value) {
            self.release();
        }
    }

    fn release(&self) {
        lock(&self.pipe).releases += 1;
    }

    /// As the watcher of deadlines.
    fn deadline_passes(&self) {
        for (slot, _) in self.calls.take_due(Instant::now()).0 {
            slot.fail(CallError);
            self.reset(&slot);
        }
    }

    /// As `Engine::reply_arrives`.
    fn reply_arrives(&self, is_whole: bool) {
        match self.calls.answer(REPLY, Header { call: CALL }, is_whole) {
            Answers::Call { slot, is_whole } if is_whole => self.reply_complete(&slot),
            Answers::Call { .. } => {
                lock(&self.pipe).is_reading = true;
                if !self.calls.is_reading(REPLY) {
                    lock(&self.pipe).is_reading = false;
                }
            }
            Answers::Nobody => self.release(),
            Answers::Answered | Answers::Unasked => {
                panic!("it is the only reply, to the only call")
            }
        }
    }

    /// As `Receiver::message`: the reply's tensors are here.
    fn rest_arrives(&self) {
        if !std::mem::take(&mut lock(&self.pipe).is_reading) {
            return;
        }
        if let Some((_, Reading::Reply(slot))) = self.calls.take_reading(REPLY) {
            self.reply_complete(&slot);
        }
    }

    /// As `Engine::reply_complete`.
    fn reply_complete(&self, slot: &CallSlot) {
        self.discard(self.calls.complete(slot, Outcome::Value));
    }

    /// As `Calls::closed`.
    fn is_lost(&self) {
        lock(&self.pipe).is_lost = true;
        self.calls.fail_where(|_| Some(CallError));
        let reading = std::mem::take(&mut self.calls.table().reading);
        drop(reading);
    }

    /// Asserts that nothing of the call is left.
    fn has_ended(&self) {
        let table = self.calls.table();
        assert!(table.slots.is_empty(), "the call is in the table");
        assert!(table.reading.is_empty(), "its reply is being read");
    }
}

/// The answer comes whole, or in two parts, while the deadline passes.
fn answered_or_late(is_whole: bool) {
    check(4, move || {
        let connection = Connection::new();
        let watcher = connection.clone();
        let watcher = thread::spawn(move || watcher.deadline_passes());
        connection.call();
        let peer = connection.clone();
        let peer = thread::spawn(move || {
            peer.reply_arrives(is_whole);
            peer.rest_arrives();
        });
        let outcome = connection.awaited();
        watcher.join().unwrap();
        peer.join().unwrap();
        connection.has_ended();
        let pipe = lock(&connection.pipe);
        // A reply that the caller does not get is given back, and the request taken back. The deadline may take back one that is
        // being answered, too.
        let is_late = outcome != Outcome::Value;
        assert_eq!(pipe.releases, usize::from(is_late));
        assert!(pipe.resets == 1 || pipe.resets == 0 && !is_late);
        assert!(!pipe.is_reading, "a reply is read that nobody wants");
    });
}

/// The call has one outcome. A late one is taken back at the peer, and so is what its answer refers to.
pub fn an_answer_meets_the_deadline() {
    answered_or_late(true);
}

/// The same where the answer's tensors follow its header.
pub fn an_answer_in_parts_meets_the_deadline() {
    answered_or_late(false);
}

/// The caller drops its future while the deadline passes and an answer begins to come, to which something happens then.
/// `ended` sees what the pipe was told.
fn a_caller_leaves(then: fn(&Connection), ended: fn(&Pipe)) {
    check(3, move || {
        let connection = Connection::new();
        connection.call();
        let (watcher, peer) = (connection.clone(), connection.clone());
        let watcher = thread::spawn(move || watcher.deadline_passes());
        let peer = thread::spawn(move || {
            peer.reply_arrives(false);
            then(&peer);
        });
        connection.cancel();
        watcher.join().unwrap();
        peer.join().unwrap();
        connection.has_ended();
        ended(&lock(&connection.pipe));
    });
}

/// The rest of the answer comes: it is given back once.
pub fn a_caller_that_leaves_leaves_nothing() {
    a_caller_leaves(Connection::rest_arrives, |pipe| {
        assert_eq!(pipe.releases, 1);
        assert!(pipe.resets <= 1 && !pipe.is_reading);
    });
}

/// The connection is lost instead.
pub fn an_answer_that_breaks_off_leaves_nothing() {
    a_caller_leaves(Connection::is_lost, |pipe| assert!(pipe.releases <= 1));
}

/// The caller leaves as the answer's header comes, and the rest never does: nothing is read any more.
pub fn an_answer_that_stalls_is_given_up() {
    check(None, || {
        let connection = Connection::new();
        connection.call();
        let peer = connection.clone();
        let peer = thread::spawn(move || peer.reply_arrives(false));
        connection.cancel();
        peer.join().unwrap();
        connection.has_ended();
        let pipe = lock(&connection.pipe);
        assert_eq!((pipe.releases, pipe.resets), (1, 1));
        assert!(!pipe.is_reading);
    });
}

/// The connection is lost while the call is made: the caller hears of it, whichever came first.
pub fn a_call_over_a_lost_connection_fails() {
    check(None, || {
        let connection = Connection::new();
        let peer = connection.clone();
        let peer = thread::spawn(move || peer.is_lost());
        connection.call();
        assert_eq!(connection.awaited(), Outcome::Failed(CallError));
        peer.join().unwrap();
        connection.has_ended();
    });
}
