//! A wake from the connection always reaches a task that drives, even if the woken task leaves, is forgotten, or is overtaken.

use loom::future::block_on;

use super::driver::runtime::end_slices;
use super::tasks::{Pipe, Task, wait_for};
use crate::check;

/// A message comes while an operation that waited only briefly leaves. The operation drives, or passes the wake to the
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

/// Like the model above, while a third thread drives.
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

/// A future is polled once and then forgotten, not dropped. The background task notices and drives, and gets later wakes
/// itself.
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
        // The background task was certainly woken by now.
        pipe.core.arrive();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 2, "a later wake is lost");
        pipe.core.arrive();
        pipe.background.act_on_wakes(&pipe.core);
        assert_eq!(pipe.core.received(), 3, "it has the role again");
        drop(forgotten);
    });
}

/// Two operations on tasks of their own wait for a message each. The connection wakes one, which wakes the other.
pub fn two_operations_wait() {
    check(2, || {
        let pipe = Pipe::new();
        let first = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        let second = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 2)));
        pipe.core.arrive();
        pipe.core.arrive();
        // No background task runs. loom reports an operation that would wait for ever.
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// One operation waits; another one comes and goes, and must not take the wake with it.
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

/// An operation waits behind a forgotten one that got the wake. The background task's tick makes both go on.
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

/// Two threads drive one message each and leave the rest to the task that is woken: the background task or an operation.
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

/// A slice is over and a task is woken for the rest. Another thread writes meanwhile and may leave its message to that task.
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

/// Like the model above, but the handler's work between two rounds ends the slice.
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
