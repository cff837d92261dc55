//! A thread that wants to drive while another one does leaves a kick. Its work must be done all the same.

use loom::thread;

use super::core::Core;
use super::dispatch::When;
use super::tasks::Pipe;
use crate::check;
use crate::sync::{Arc, lock};

/// Two threads write at once. When both have returned, everything has left.
pub fn two_write_at_once() {
    check(3, || write_at_once(2));
}

/// Like [`two_write_at_once`], with three. Two leave kicks, to a thread that drives or is about to drive.
pub fn three_write_at_once() {
    check(2, || write_at_once(3));
}

/// One thread polls for work while another one writes: the poll sees work that the writer had to leave.
pub fn one_polls_while_another_writes() {
    check(3, || {
        let core = Arc::new(Core::new(None));
        let other = {
            let core = core.clone();
            thread::spawn(move || core.write())
        };
        if core.poll() {
            core.drive();
        }
        other.join().unwrap();
        assert_eq!(core.sent(), 1, "something is left behind");
    });
}

/// One message is sent directly, without a round of driving, while another is written: both leave.
pub fn one_leaves_at_once_while_another_is_written() {
    check(3, || {
        let core = Arc::new(Core::new(None));
        let other = {
            let core = core.clone();
            thread::spawn(move || core.write())
        };
        core.submit(When::Now, false);
        other.join().unwrap();
        assert_eq!(core.sent(), 2, "something is left behind");
    });
}

/// Part of a message leaves at once, and other threads send the rest while they drive. The sender learns the outcome.
pub fn one_that_leaves_in_part_is_heard_of() {
    check(3, || {
        let core = Arc::new(Core::that_sends_in_part());
        let other = {
            let core = core.clone();
            thread::spawn(move || core.drive())
        };
        let submitted = core.submit(When::Now, true);
        other.join().unwrap();
        assert_eq!(core.sent(), 1, "something is left behind");
        assert!(core.is_written(submitted), "its writer waits for ever");
        assert_eq!(lock(&core.shared).state.in_part, None);
    });
}

/// Messages are left to the background task, while another one is written: its round does for that one what it could not do
/// for itself meanwhile.
pub fn some_are_left_to_the_background_task_while_another_is_written() {
    check(3, || {
        let pipe = Pipe::new();
        let other = pipe.spawn(|core, _| core.write());
        pipe.core.write_soon();
        pipe.core.write_soon();
        other.join().unwrap();
        pipe.background.act_on_wakes(&pipe.core);
        assert_eq!(pipe.core.sent(), 3, "something is left behind");
    });
}

/// Two threads leave messages to the background task, and one of them wakes it. This includes a message that the protocol queued.
pub fn two_leave_theirs_to_the_background_task() {
    for leave in [Core::write_soon, Core::queue_soon] {
        check(3, move || {
            let pipe = Pipe::new();
            let other = pipe.spawn(move |core, background| {
                leave(core);
                background.act_on_wakes(core);
            });
            pipe.core.write_soon();
            other.join().unwrap();
            pipe.background.act_on_wakes(&pipe.core);
            assert_eq!(pipe.core.sent(), 2, "something is left behind");
        });
    }
}

fn write_at_once(threads: u32) {
    let core = Arc::new(Core::new(None));
    let others: Vec<_> = (1..threads)
        .map(|_| {
            let core = core.clone();
            thread::spawn(move || core.write())
        })
        .collect();
    core.write();
    for other in others {
        other.join().unwrap();
    }
    assert_eq!(core.sent(), threads, "something is left behind");
}
