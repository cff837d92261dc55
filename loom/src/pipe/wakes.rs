//! The connection's wakes reach somebody who drives: whoever is woken may leave, be forgotten, or be overtaken.

use std::future::poll_fn;
use std::sync::atomic::AtomicBool;
use std::task::{Context, Poll, Wake, Waker};

use loom::future::block_on;
use loom::thread;

use super::core::Core;
use super::waiter::{Interest, Waiter};
use crate::check;
use crate::sync::{Arc, Ordering};

/// A message comes in while an operation, awaited for a moment only, leaves: it drives, or hands the wake on to the
/// background task.
pub fn an_operation_that_leaves_hands_its_wake_on() {
    check(3, || {
        let pipe = Pipe::new();
        let operation = pipe.spawn(|core, _| drop(Polled::once(core)));
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
        let operation = pipe.spawn(|core, _| drop(Polled::once(core)));
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
        let operation = pipe.spawn(|core, _| Polled::once(core));
        let background = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        let forgotten = operation.join().unwrap();
        background.join().unwrap();
        pipe.settle(|| ());
        assert_eq!(pipe.core.received(), 1, "the wake is lost");
        // Now it certainly was woken.
        pipe.core.arrive();
        pipe.settle(|| ());
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
        let first = pipe.spawn(|core, _| wait_for(core, 1));
        let second = pipe.spawn(|core, _| wait_for(core, 2));
        pipe.core.arrive();
        pipe.core.arrive();
        // Without a background task: loom finds whoever would wait for ever.
        first.join().unwrap();
        second.join().unwrap();
    });
}

/// One operation waits, another one comes and goes and may take the wake with it.
pub fn an_operation_waits_behind_one_that_leaves() {
    check(3, || {
        let pipe = Pipe::new();
        let waiting = pipe.spawn(|core, _| wait_for(core, 1));
        let leaving = pipe.spawn(|core, _| drop(Polled::once(core)));
        pipe.core.arrive();
        waiting.join().unwrap();
        leaving.join().unwrap();
    });
}

/// An operation waits behind a forgotten one, which got the wake: the background task's look gets both going.
pub fn an_operation_waits_behind_a_forgotten_one() {
    check(3, || {
        let pipe = Pipe::new();
        let woken = Woken::new();
        let mut waiting = Polled::new(&pipe.core);
        waiting.poll(&woken.waker());
        let forgotten = Polled::once(&pipe.core);
        let background = pipe.spawn(|core, background| background.act(core));
        pipe.core.arrive();
        background.join().unwrap();
        pipe.settle(|| {
            if woken.take() {
                waiting.poll(&woken.waker());
            }
        });
        assert!(waiting.ready, "it sleeps for ever");
        drop(forgotten);
    });
}

fn wait_for(core: &Arc<Core>, messages: u32) {
    let mut waiter = Waiter::new(core.clone());
    block_on(poll_fn(|cx| {
        waiter.poll(cx, Interest::Descriptor, |shared| {
            (shared.received >= messages).then_some(())
        })
    }));
}

/// A pipe with a background task, which acts only when it is told to.
struct Pipe {
    core: Arc<Core>,
    background: std::sync::Arc<Background>,
}

impl Pipe {
    fn new() -> Self {
        let core = Arc::new(Core::new(None));
        let background = std::sync::Arc::new(Background {
            woken: Woken::new(),
            ticks: AtomicBool::new(false),
        });
        core.poller.set_background(&background.woken.waker());
        // The first operation of all also starts the looks: that wake would hide the loss of another one.
        drop(Polled::once(&core));
        background.act(&core);
        Self { core, background }
    }

    fn spawn<T: 'static>(
        &self,
        run: impl FnOnce(&Arc<Core>, &Background) -> T + 'static,
    ) -> thread::JoinHandle<T> {
        let (core, background) = (self.core.clone(), self.background.clone());
        thread::spawn(move || run(&core, &background))
    }

    /// What happens when no thread is left: the background task acts, and `others`.
    fn settle(&self, mut others: impl FnMut()) {
        for _ in 0..3 {
            others();
            self.background.act(&self.core);
        }
        others();
    }
}

/// The background task, as far as it drives.
struct Background {
    woken: std::sync::Arc<Woken>,
    /// Its timer is set to the next look.
    ticks: AtomicBool,
}

impl Background {
    /// It has been woken, or its timer ends.
    fn act(&self, core: &Core) {
        if !self.act_on_wakes(core) && self.ticks.load(Ordering::SeqCst) {
            if core.poller.tick() {
                core.drive();
            }
            self.sleep(core);
        }
    }

    /// The same, but the timer does not end.
    fn act_on_wakes(&self, core: &Core) -> bool {
        let woken = self.woken.take();
        if woken {
            core.drive();
            self.sleep(core);
        }
        woken
    }

    fn sleep(&self, core: &Core) {
        let ticks = core.poller.is_ticking();
        self.ticks.store(ticks, Ordering::SeqCst);
    }
}

/// An operation that waits for the first message, on a task that need not act when it is woken.
struct Polled {
    waiter: Waiter,
    ready: bool,
}

impl Polled {
    fn new(core: &Arc<Core>) -> Self {
        Self {
            waiter: Waiter::new(core.clone()),
            ready: false,
        }
    }

    /// Polled once, and not again.
    fn once(core: &Arc<Core>) -> Self {
        let mut polled = Self::new(core);
        polled.poll(Waker::noop());
        polled
    }

    fn poll(&mut self, waker: &Waker) {
        let cx = Context::from_waker(waker);
        let polled = self.waiter.poll(&cx, Interest::Descriptor, |shared| {
            (shared.received > 0).then_some(())
        });
        self.ready |= polled == Poll::Ready(());
    }
}

/// A task that was woken. No step of a model: the tasks' runtime sees to that.
struct Woken(AtomicBool);

impl Woken {
    fn new() -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self(AtomicBool::new(false)))
    }

    fn waker(self: &std::sync::Arc<Self>) -> Waker {
        self.clone().into()
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::SeqCst)
    }
}

impl Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}
