//! The connection's wakes reach somebody who drives: whoever is woken may leave, be forgotten, or be overtaken.

use loom::future::block_on;

use super::driver::runtime::end_slices;
use super::tasks::{Pipe, Task, wait_for};
use crate::check;

/// A message comes in while an operation, awaited for a moment only, leaves: it drives, or hands the wake on to the
/// background task.
pub fn an_operation_that_leaves_hands_its_wake_on() {
    check(3, || {
        let pipe = Pipe::new();
        let operation = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        pipe.core.arrive();
        operation.join().unwrap();
        pipe.background.act_on_wakes(&pipe.core);
        assert_eq!(pipe.core.received(), 1, "the wake is lost");
    });
}

/// The same while a third thread drives, and says so.
pub fn a_wake_outlives_those_who_drive_meanwhile() {
    check(3, || {
        let pipe = Pipe::new();
        let operation = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        let writer = pipe.spawn(|core, _| core.write());
        pipe.core.arrive();
        operation.join().unwrap();
        writer.join().unwrap();
        pipe.background.act_on_wakes(&pipe.core);
        assert_eq!(pipe.core.received(), 1, "the wake is lost");
    });
}

/// A future is polled once and then forgotten, not dropped. The background task finds out, drives, and later wakes are its
/// own.
pub fn a_forgotten_operation_loses_the_role() {
    check(3, || {
        let pipe = Pipe::new();
        let operation = pipe.spawn(|core, _| Task::new(wait_for(core.clone(), 1)));
        let background = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        let forgotten = operation.join().unwrap();
        background.join().unwrap();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "the wake is lost");
        // Now it certainly was woken.
        pipe.core.arrive();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 2, "a later wake is lost");
        pipe.core.arrive();
        pipe.background.act_on_wakes(&pipe.core);
        assert_eq!(pipe.core.received(), 3, "it has the role again");
        drop(forgotten);
    });
}

/// Two operations wait for a message each, on tasks of their own: one of them is woken, the other one through it.
pub fn two_operations_wait() {
    check(2, || {
        let pipe = Pipe::new();
        let first = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        let second = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 2)));
        pipe.core.arrive();
        pipe.core.arrive();
        // Without a background task: loom finds whoever would wait for ever.
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// One operation waits, another one comes and goes and may take the wake with it.
pub fn an_operation_waits_behind_one_that_leaves() {
    check(2, || {
        let pipe = Pipe::new();
        let waiting = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        pipe.core.arrive();
        waiting.join().unwrap();
        leaving.join().unwrap();
    });
}

/// An operation waits behind a forgotten one, which got the wake: the background task's tick gets both going.
pub fn an_operation_waits_behind_a_forgotten_one() {
    check(3, || {
        let pipe = Pipe::new();
        let mut waiting = Task::new(wait_for(pipe.core.clone(), 1));
        let forgotten = Task::new(wait_for(pipe.core.clone(), 1));
        let background = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        background.join().unwrap();
        pipe.settle(&mut waiting);
        assert!(waiting.is_ready, "it sleeps for ever");
        drop(forgotten);
    });
}

/// Two threads drive, and leave what is more than one message to whoever is woken: the background task, or an operation.
pub fn what_is_left_for_another_turn_is_done() {
    check(2, || {
        let pipe = Pipe::that_has_enough();
        let mut waiting = Task::new(wait_for(pipe.core.clone(), 3));
        let peer = pipe.spawn(|core, _| {
            core.arrive();
            core.arrive();
            core.drive();
        });
        pipe.core.arrive();
        pipe.core.drive();
        peer.join().unwrap();
        pipe.act_on_wakes(&mut waiting);
        assert_eq!(pipe.core.received(), 3, "a message is left behind");
        assert!(waiting.is_ready, "it sleeps for ever");
    });
}

/// A turn is over and somebody is woken for the rest, while another thread writes and may leave that to whoever is woken.
pub fn one_writes_when_a_turn_is_over() {
    check(3, || {
        let pipe = Pipe::that_has_enough();
        pipe.core.arrive_unseen();
        pipe.core.arrive_unseen();
        let other = pipe.spawn(|core, background| {
            core.drive();
            background.act_on_wakes(core);
        });
        pipe.core.write();
        pipe.background.act_on_wakes(&pipe.core);
        other.join().unwrap();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 2, "a message is left behind");
        assert_eq!(pipe.core.sent(), 1, "one to be sent is left behind");
    });
}

/// The same where so much is done between two rounds that the slice is over.
pub fn one_writes_when_a_handler_has_taken_the_turn() {
    check(3, || {
        let pipe = Pipe::new();
        end_slices(2);
        let other = pipe.spawn(|core, background| {
            core.write();
            background.act_on_wakes(core);
        });
        pipe.core.write();
        other.join().unwrap();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.sent(), 2, "a message is left behind");
    });
}
