//! Waiting by looking: while the connection wakes nobody, whoever waits is looked for by somebody.
//!
//! Where the tasks only act on wakes, what only the tick finds is not found.

use loom::future::block_on;

use super::tasks::{Pipe, Task, call_for, wait_for};
use crate::check;

/// An operation looks, looks again, and sleeps: whenever its message comes, it gets it.
pub fn an_operation_that_looks_gets_its_message() {
    check(3, || {
        let pipe = Pipe::that_can_be_hot(&[true, false]);
        let looking = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        pipe.core.arrive();
        looking.join().unwrap();
    });
}

/// Two operations wait, one of which is dropped: either may be the one that looks.
pub fn a_spinner_leaves_while_another_waits() {
    for answers in [&[true, true, false][..], &[false, true, true, false]] {
        check(2, move || {
            let pipe = Pipe::that_can_be_hot(answers);
            let mut waiting = Task::new(wait_for(pipe.core.clone(), 1));
            let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
            pipe.core.arrive();
            pipe.act_on_wakes(&mut waiting);
            leaving.join().unwrap();
            pipe.act_on_wakes(&mut waiting);
            assert!(waiting.is_ready, "nobody looks for it");
        });
    }
}

/// An operation sleeps. Another one makes the pipe hot, may find its message at once, and leaves without having looked.
pub fn a_sleeper_outlasts_one_that_finds_its_message_at_once() {
    check(3, || {
        let pipe = Pipe::that_can_be_hot(&[false, true]);
        let mut asleep = Task::new(wait_for(pipe.core.clone(), 2));
        let finding = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        pipe.core.arrive();
        pipe.core.arrive();
        finding.join().unwrap();
        pipe.act_on_wakes(&mut asleep);
        assert!(asleep.is_ready, "nobody looks for it");
    });
}

/// Two calls wait: the newer one takes over, and leaves before the older one.
pub fn a_newer_operation_takes_over() {
    check(2, || {
        let pipe = Pipe::that_can_be_hot(&[true, true, false]);
        let mut older = Task::new(call_for(pipe.core.clone(), 2));
        let newer = pipe.spawn(|core, _| block_on(call_for(core.clone(), 1)));
        pipe.core.arrive();
        pipe.act_on_wakes(&mut older);
        newer.join().unwrap();
        pipe.core.arrive();
        pipe.act_on_wakes(&mut older);
        assert!(older.is_ready, "nobody looks for it");
    });
}

/// A message comes as the last operation leaves, while it may be the spinner, and while the background task looks after
/// it: it lies there until the tick at most.
pub fn the_tick_finds_a_pipe_that_was_left_hot() {
    check(2, || {
        let pipe = Pipe::that_can_be_hot(&[true, true]);
        let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        let ticking = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        leaving.join().unwrap();
        ticking.join().unwrap();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "nobody looks any more");
    });
}

/// The last operation leaves while the background task looks after it: that look must not be the last one.
pub fn the_tick_goes_on_while_the_pipe_is_hot() {
    check(3, || {
        let pipe = Pipe::that_can_be_hot(&[true, true, true]);
        let mut leaving = Task::new(wait_for(pipe.core.clone(), 1));
        pipe.background.act(&pipe.core);
        leaving.act_on_wakes();
        let ticking = pipe.spawn(|core, background| background.act(core));
        drop(leaving);
        ticking.join().unwrap();
        pipe.core.arrive();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "nobody looks any more");
    });
}

/// A spinner is polled once and then forgotten. The background task finds out, and the connection asks to be woken.
pub fn the_tick_finds_a_forgotten_spinner() {
    check(2, || {
        let pipe = Pipe::that_can_be_hot(&[true, true]);
        let spinner = pipe.spawn(|core, _| Task::new(wait_for(core.clone(), 1)));
        let ticking = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        let forgotten = spinner.join().unwrap();
        ticking.join().unwrap();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "nobody looks");
        drop(forgotten);
    });
}

/// An operation waits, asleep, and a spinner is forgotten: the tick gets it going.
pub fn an_operation_waits_behind_a_forgotten_spinner() {
    check(3, || {
        let pipe = Pipe::that_can_be_hot(&[false, true, true]);
        let mut waiting = Task::new(wait_for(pipe.core.clone(), 1));
        let spinner = pipe.spawn(|core, _| Task::new(wait_for(core.clone(), 1)));
        pipe.core.arrive();
        let forgotten = spinner.join().unwrap();
        pipe.settle(&mut waiting);
        assert!(waiting.is_ready, "it sleeps for ever");
        drop(forgotten);
    });
}

/// Messages are taken at any time. An operation comes and goes: afterwards somebody looks, or the connection asks to be
/// woken.
pub fn an_operation_leaves_a_pipe_that_listens() {
    for answers in [&[true, true, false][..], &[false, true, true]] {
        check(2, move || {
            let pipe = Pipe::that_can_be_hot(answers);
            pipe.core.listen();
            let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
            pipe.act_on_wakes(None);
            pipe.core.arrive();
            pipe.act_on_wakes(None);
            leaving.join().unwrap();
            pipe.act_on_wakes(None);
            assert_eq!(pipe.core.received(), 1, "nobody looks");
        });
    }
}

/// An operation finds that the pipe, which listens, was cooled in between, and leaves.
pub fn a_spinner_that_was_cooled_leaves_no_trace() {
    check(2, || {
        let pipe = Pipe::that_can_be_hot(&[false, true, false, true]);
        pipe.core.listen();
        let leaving = pipe.spawn(|core, _| {
            let mut task = Task::new(wait_for(core.clone(), 1));
            task.act_on_wakes();
        });
        pipe.act_on_wakes(None);
        leaving.join().unwrap();
        pipe.core.arrive();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 1, "nobody looks");
    });
}

/// A pipe begins to listen as an operation leaves it hot.
pub fn a_pipe_begins_to_listen() {
    check(2, || {
        let pipe = Pipe::that_can_be_hot(&[true, true, false]);
        let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        pipe.core.listen();
        pipe.core.drive();
        pipe.act_on_wakes(None);
        leaving.join().unwrap();
        pipe.core.arrive();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 1, "nobody looks");
    });
}
