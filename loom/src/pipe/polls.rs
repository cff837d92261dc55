//! Busy-polling: while the connection wakes nobody, some task polls for all that wait.
//!
//! Models that use `act_on_wakes` run without the background task's tick, so they fail if only the tick would find a message.

use loom::future::block_on;

use super::core::Core;
use super::driver::poll_time;
use super::tasks::{Pipe, Task, call_for, join_others_for, wait_for};
use crate::check;
use crate::sync::Arc;

/// An operation polls, polls again, and sleeps. It gets its message whenever the message comes.
pub fn an_operation_that_polls_gets_its_message() {
    check(3, || {
        let pipe = Pipe::that_can_be_polled(&[true, false]);
        let polling = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        pipe.core.arrive();
        polling.join().unwrap();
    });
}

/// Operations sleep. One of them finds the peer awake and polls for its message, which may already be here.
pub fn an_operation_polls_as_its_peer_does() {
    for answers in [&[true, false][..], &[false], &[true, true]] {
        check(2, move || {
            let pipe = Pipe::that_can_be_polled(&[]);
            poll_time::answer_behind_peer(answers);
            let mut asleep = Task::new(wait_for(pipe.core.clone(), 2));
            let polling = pipe.spawn(|core, _| {
                core.driver.found_peer_awake();
                block_on(wait_for(core.clone(), 1));
            });
            pipe.core.arrive();
            polling.join().unwrap();
            pipe.core.arrive();
            pipe.act_on_wakes(&mut asleep);
            assert!(asleep.is_ready, "nobody polls for it");
        });
    }
}

/// A task that does not wait writes an answer and finds the peer awake. The background task polls for the next message.
pub fn the_background_task_polls_as_its_peer_does() {
    for answers in [&[true, false][..], &[false], &[true, true]] {
        check(2, move || {
            let pipe = Pipe::that_listens_and_can_be_polled(&[], |_, _| ());
            poll_time::answer_behind_peer(answers);
            let serving = pipe.spawn(|core, background| {
                core.driver.found_peer_awake();
                assert!(core.driver.is_to_poll_for_peer());
                core.driver.wakers.wake_background();
                while background.act_on_wakes(core) {}
            });
            pipe.core.arrive();
            serving.join().unwrap();
            pipe.core.arrive();
            pipe.act_on_wakes(None);
            assert_eq!(pipe.core.received(), 2, "nobody polls");
        });
    }
}

/// Two operations wait, and one of them is dropped. Either may be the poller.
pub fn a_poller_leaves_while_another_waits() {
    for answers in [&[true, true, false][..], &[false, true, true, false]] {
        check(2, move || {
            let pipe = Pipe::that_can_be_polled(answers);
            let mut waiting = Task::new(wait_for(pipe.core.clone(), 1));
            let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
            pipe.core.arrive();
            pipe.act_on_wakes(&mut waiting);
            leaving.join().unwrap();
            pipe.act_on_wakes(&mut waiting);
            assert!(waiting.is_ready, "nobody polls for it");
        });
    }
}

/// An operation sleeps. Another one switches polling on, may find its message at once, and leaves without having polled.
pub fn a_sleeper_outlasts_one_that_finds_its_message_at_once() {
    check(3, || {
        let pipe = Pipe::that_can_be_polled(&[false, true]);
        let mut asleep = Task::new(wait_for(pipe.core.clone(), 2));
        let finding = pipe.spawn(|core, _| block_on(wait_for(core.clone(), 1)));
        pipe.core.arrive();
        pipe.core.arrive();
        finding.join().unwrap();
        pipe.act_on_wakes(&mut asleep);
        assert!(asleep.is_ready, "nobody polls for it");
    });
}

/// Two calls wait. The newer one takes over polling and leaves before the older one.
pub fn a_newer_operation_takes_over() {
    check(2, || {
        let pipe = Pipe::that_can_be_polled(&[true, true, false]);
        let mut older = Task::new(call_for(pipe.core.clone(), 2));
        let newer = pipe.spawn(|core, _| block_on(call_for(core.clone(), 1)));
        pipe.core.arrive();
        pipe.act_on_wakes(&mut older);
        newer.join().unwrap();
        pipe.core.arrive();
        pipe.act_on_wakes(&mut older);
        assert!(older.is_ready, "nobody polls for it");
    });
}

/// An operation begins and relies on others to drive for it, while all the others leave.
pub fn a_poller_leaves_one_that_others_drive_for() {
    for answers in [
        &[true; 8][..],
        &[true, true, true, true],
        &[true, false],
        &[false],
    ] {
        check(2, move || {
            let pipe = Pipe::that_can_be_polled(answers);
            let mut asleep = Task::new(call_for(pipe.core.clone(), 9));
            let poller = Task::new(call_for(pipe.core.clone(), 9));
            asleep.act_on_wakes();
            let leaving = pipe.spawn(move |_, _| drop((asleep, poller)));
            let mut waiting = Task::new(join_others_for(pipe.core.clone(), 1));
            leaving.join().unwrap();
            pipe.act_on_wakes(&mut waiting);
            pipe.core.arrive();
            pipe.act_on_wakes(&mut waiting);
            assert!(waiting.is_ready, "nobody polls for it");
        });
    }
}

/// The background task is woken to poll and finds that a newer operation polls already. Then that operation leaves.
pub fn a_poller_leaves_while_the_background_task_comes() {
    check(3, || {
        let pipe = Pipe::that_can_be_polled(&[true; 8]);
        let mut asleep = Task::new(call_for(pipe.core.clone(), 1));
        drop(Task::new(call_for(pipe.core.clone(), 9)));
        let newer = Task::new(call_for(pipe.core.clone(), 9));
        asleep.act_on_wakes();
        let comes = pipe.spawn(|core, background| background.act_on_wakes(core));
        drop(newer);
        comes.join().unwrap();
        pipe.act_on_wakes(&mut asleep);
        pipe.core.arrive();
        pipe.act_on_wakes(&mut asleep);
        assert!(asleep.is_ready, "nobody polls for it");
    });
}

/// Two pollers leave one after the other while an older operation sleeps: the background task comes each time.
pub fn each_poller_that_leaves_is_followed() {
    check(1, || {
        let pipe = Pipe::that_can_be_polled(&[true; 8]);
        let mut asleep = Task::new(call_for(pipe.core.clone(), 3));
        for message in 1..=2 {
            let mut polls = Task::new(call_for(pipe.core.clone(), message));
            // The previous poller sees that another one polls.
            asleep.act_on_wakes();
            pipe.background.act_on_wakes(&pipe.core);
            pipe.core.arrive();
            polls.act_on_wakes();
            assert!(polls.is_ready, "it does not poll");
            drop(polls);
            assert!(pipe.background.act_on_wakes(&pipe.core), "nobody follows");
        }
    });
}

/// A message comes as the last operation leaves, while it may be the poller, and while the background task ticks: it lies there until the tick at most.
pub fn the_tick_finds_polling_that_was_left_on() {
    check(2, || {
        let pipe = Pipe::that_can_be_polled(&[true, true]);
        let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        let ticking = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        leaving.join().unwrap();
        ticking.join().unwrap();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "nobody polls any more");
    });
}

/// The last operation leaves while the background task ticks. Ticks must go on as long as polling is on.
pub fn the_tick_goes_on_while_polling_is_on() {
    check(3, || {
        let pipe = Pipe::that_can_be_polled(&[true, true, true]);
        let mut leaving = Task::new(wait_for(pipe.core.clone(), 1));
        pipe.background.act(&pipe.core);
        leaving.act_on_wakes();
        let ticking = pipe.spawn(|core, background| background.act(core));
        drop(leaving);
        ticking.join().unwrap();
        pipe.core.arrive();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "nobody polls any more");
    });
}

/// The poller's future is polled once and then forgotten. The background task notices, and the connection asks to be woken.
pub fn the_tick_finds_a_forgotten_poller() {
    check(2, || {
        let pipe = Pipe::that_can_be_polled(&[true, true]);
        let poller = pipe.spawn(|core, _| Task::new(wait_for(core.clone(), 1)));
        let ticking = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        let forgotten = poller.join().unwrap();
        ticking.join().unwrap();
        pipe.settle(None);
        assert_eq!(pipe.core.received(), 1, "nobody polls");
        drop(forgotten);
    });
}

/// An operation sleeps behind a forgotten poller: the tick wakes it.
pub fn an_operation_waits_behind_a_forgotten_poller() {
    check(3, || {
        let pipe = Pipe::that_can_be_polled(&[false, true, true]);
        let mut waiting = Task::new(wait_for(pipe.core.clone(), 1));
        let poller = pipe.spawn(|core, _| Task::new(wait_for(core.clone(), 1)));
        pipe.core.arrive();
        let forgotten = poller.join().unwrap();
        pipe.settle(&mut waiting);
        assert!(waiting.is_ready, "it sleeps for ever");
        drop(forgotten);
    });
}

/// The pipe listens, so it takes messages at any time. An operation comes and goes. Afterwards some task polls, or the
/// connection asks to be woken.
pub fn an_operation_leaves_a_pipe_that_listens() {
    for answers in [&[true, true, false][..], &[false, true, true]] {
        check(2, move || {
            let pipe = Pipe::that_can_be_polled(answers);
            pipe.core.driver.listen();
            let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
            pipe.act_on_wakes(None);
            pipe.core.arrive();
            pipe.act_on_wakes(None);
            leaving.join().unwrap();
            pipe.act_on_wakes(None);
            assert_eq!(pipe.core.received(), 1, "nobody polls");
        });
    }
}

/// The pipe listens. An operation finds that its polling was stopped meanwhile, and leaves.
pub fn a_poller_that_was_stopped_leaves_no_trace() {
    check(2, || {
        let pipe = Pipe::that_can_be_polled(&[false, true, false, true]);
        pipe.core.driver.listen();
        let leaving = pipe.spawn(|core, _| {
            let mut task = Task::new(wait_for(core.clone(), 1));
            task.act_on_wakes();
        });
        pipe.act_on_wakes(None);
        leaving.join().unwrap();
        pipe.core.arrive();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 1, "nobody polls");
    });
}

/// A pipe begins to listen as an operation leaves its polling on.
pub fn a_pipe_begins_to_listen() {
    check(2, || {
        let pipe = Pipe::that_can_be_polled(&[true, true, false]);
        let leaving = pipe.spawn(|core, _| drop(Task::new(wait_for(core.clone(), 1))));
        pipe.core.driver.listen();
        pipe.core.drive();
        pipe.act_on_wakes(None);
        leaving.join().unwrap();
        pipe.core.arrive();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 1, "nobody polls");
    });
}

/// Messages for a handler come while the background task polls. The handler gets and answers each of them, although a round that
/// found one is not followed by another round.
pub fn a_handler_is_polled_for() {
    check(2, || {
        let answer = |core: &Arc<Core>, _| core.answer();
        let pipe = Pipe::that_listens_and_can_be_polled(&[true, true, false], answer);
        let serving = pipe.spawn(|core, background| while background.act_on_wakes(core) {});
        pipe.core.arrive();
        pipe.core.arrive();
        serving.join().unwrap();
        pipe.act_on_wakes(None);
        assert_eq!(pipe.core.received(), 2, "nobody polls");
        assert_eq!(pipe.core.sent(), 2, "an answer is left behind");
    });
}

/// A message is written while another thread finds one by polling and only hands it to the handler. The written message leaves.
pub fn one_is_written_while_one_that_is_polled_for_comes() {
    check(3, || {
        let pipe = Pipe::that_listens_and_can_be_polled(&[true; 8], |_, _| ());
        pipe.background.act_on_wakes(&pipe.core);
        assert!(pipe.core.driver.is_polling());
        pipe.core.arrive();
        let driving = pipe.spawn(|core, _| core.drive());
        pipe.core.write();
        driving.join().unwrap();
        assert_eq!(pipe.core.sent(), 1, "it is left behind");
    });
}
