//! The pipe calls the handler for each message, in order and one call at a time, on whichever thread drives.

use std::collections::VecDeque;

use loom::cell::UnsafeCell;
use loom::thread;

use super::core::Core;
use super::driver::{DeliveryLock, Rest};
use super::tasks::Pipe;
use crate::check;
use crate::sync::{Arc, AtomicUsize, Mutex, Ordering, lock};

/// Two threads bring messages. The thread that holds the delivery lock delivers the messages of both.
pub fn two_deliver_at_once() {
    check(2, || deliver_at_once(2, 2));
}

/// Like [`two_deliver_at_once`], with three threads.
pub fn three_deliver_at_once() {
    check(3, || deliver_at_once(3, 1));
}

fn deliver_at_once(threads: usize, each: u32) {
    let inbox = loom::sync::Arc::new(Inbox::default());
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let inbox = inbox.clone();
            thread::spawn(move || inbox.bring(each))
        })
        .collect();
    inbox.bring(each);
    for other in others {
        other.join().unwrap();
    }
    let all = each * u32::try_from(threads).expect("a few threads");
    assert_eq!(lock(&inbox.queue).1, all);
    assert_eq!(*lock(&inbox.delivered), (0..all).collect::<Vec<_>>());
}

#[derive(Default)]
struct Inbox {
    lock: DeliveryLock,
    /// Messages, and the number of the next one.
    queue: Mutex<(VecDeque<u32>, u32)>,
    /// The queue's length, for threads without the lock.
    queued: AtomicUsize,
    /// Only one thread may call the handler at a time, and it must see the effects of earlier calls.
    handler: UnsafeCell<()>,
    delivered: Mutex<Vec<u32>>,
}

impl Inbox {
    fn bring(&self, messages: u32) {
        for _ in 0..messages {
            {
                let (queue, next) = &mut *lock(&self.queue);
                queue.push_back(*next);
                self.queued.store(queue.len(), Ordering::Release);
                *next += 1;
            }
            let next = || {
                let message = self.next();
                message.map(|message| self.handle(message)).is_some()
            };
            let is_left = || self.queued.load(Ordering::Acquire) > 0;
            let rest = self.lock.deliver(next, is_left, || false);
            assert_eq!(rest, Rest::None);
        }
    }

    fn next(&self) -> Option<u32> {
        let (queue, _) = &mut *lock(&self.queue);
        let message = queue.pop_front()?;
        self.queued.store(queue.len(), Ordering::Release);
        Some(message)
    }

    fn handle(&self, message: u32) {
        self.handler.with_mut(|_| {
            assert!(self.lock.is_held_here() && self.lock.is_held());
            lock(&self.delivered).push(message);
        });
    }
}

/// A round stops early to deliver a message, and then continues with the messages behind it.
pub fn a_round_that_stops_for_a_message_goes_on() {
    check(3, || {
        let core = Arc::new(Core::new(Some(|_, _| ())));
        messages_come_in(&core);
        assert_eq!(core.received(), 3, "a message is left behind");
    });
}

/// The handler answers each message from inside a drive, while other threads drive too: every answer leaves.
pub fn what_a_handler_writes_leaves() {
    check(2, || {
        let core = Arc::new(Core::new(Some(|core, _| core.write())));
        messages_come_in(&core);
        assert_eq!(core.received(), 3, "a message is left behind");
        assert_eq!(core.sent(), 3, "an answer is left behind");
    });
}

/// The handler leaves its answers queued for the round that follows: every answer leaves.
pub fn what_a_handler_leaves_behind_leaves() {
    check(2, || {
        let core = Arc::new(Core::new(Some(|core, _| core.answer())));
        messages_come_in(&core);
        assert_eq!(core.received(), 3, "a message is left behind");
        assert_eq!(core.sent(), 3, "an answer is left behind");
    });
}

/// Reading pauses because too many messages wait for the handler. The thread that delivers them makes reading resume.
pub fn reading_goes_on_once_the_handler_has_caught_up() {
    check(3, || {
        let pipe = Pipe::that_waits_for_its_handler();
        (0..3).for_each(|_| pipe.core.arrive_unseen());
        let other = pipe.spawn(|core, _| core.drive());
        pipe.core.drive();
        other.join().unwrap();
        pipe.background.act_on_wakes(&pipe.core);
        assert_eq!(pipe.core.received(), 3, "a message is left behind");
    });
}

/// A thread that has delivered enough leaves the rest to a task that it wakes, while another thread reads on.
pub fn what_a_thread_with_enough_leaves_is_delivered() {
    check(3, || {
        let pipe = Pipe::that_delivers_one_at_a_time();
        (0..3).for_each(|_| pipe.core.arrive_unseen());
        let other = pipe.spawn(|core, _| core.drive());
        pipe.core.drive();
        other.join().unwrap();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 3, "a message is not read");
        assert_eq!(pipe.core.delivered(), 3, "a message is left behind");
    });
}

/// Three messages, on two threads.
fn messages_come_in(core: &Arc<Core>) {
    let peer = {
        let core = core.clone();
        thread::spawn(move || {
            core.arrive();
            core.arrive();
            core.drive();
        })
    };
    core.arrive();
    core.drive();
    peer.join().unwrap();
}
