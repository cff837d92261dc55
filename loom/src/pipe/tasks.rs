//! The tasks around a model's pipe: operations, and the background task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;

use super::core::Core;
use super::driver::{Interest, Waiter, poll_time};
use crate::sync::{Arc, lock};

/// A pipe with a background task, which acts only when it is told to.
pub(super) struct Pipe {
    pub(super) core: Arc<Core>,
    pub(super) background: Arc<Background>,
}

impl Pipe {
    /// A pipe whose connection always asks to be woken.
    pub(super) fn new() -> Self {
        Self::with(Core::new(None))
    }

    /// A pipe whose connection can be polled, and is not. For how long it pays to poll, `answers` says.
    pub(super) fn that_can_be_polled(answers: &'static [bool]) -> Self {
        Self::polled_with(answers, None)
    }

    /// The same with a handler, which takes messages at any time.
    pub(super) fn that_listens_and_can_be_polled(
        answers: &'static [bool],
        handler: fn(&Arc<Core>, u32),
    ) -> Self {
        let pipe = Self::polled_with(answers, Some(handler));
        pipe.core.driver.listen();
        pipe
    }

    fn polled_with(answers: &'static [bool], handler: Option<fn(&Arc<Core>, u32)>) -> Self {
        poll_time::answer(&[]);
        let pipe = Self::with(Core::that_can_be_polled(handler));
        poll_time::answer(answers);
        pipe
    }

    /// A pipe that does no more than one message in a slice.
    pub(super) fn that_has_enough() -> Self {
        Self::with(Core::that_has_enough())
    }

    /// A pipe whose handler is waited for with each message.
    pub(super) fn that_waits_for_its_handler() -> Self {
        Self::with(Core::that_waits_for_its_handler())
    }

    fn with(core: Core) -> Self {
        let core = Arc::new(core);
        let background = Arc::new(Background {
            woken: Woken::new(),
            polls: AtomicBool::new(false),
            ticks: AtomicBool::new(false),
        });
        // It begins by driving.
        background.woken.clone().wake();
        background.act(&core);
        // The first operation of all also starts the ticks: that wake would hide the loss of another one.
        drop(Task::new(wait_for(core.clone(), 1)));
        background.act(&core);
        Self { core, background }
    }

    pub(super) fn spawn<T: 'static>(
        &self,
        run: impl FnOnce(&Arc<Core>, &Background) -> T + 'static,
    ) -> thread::JoinHandle<T> {
        let (core, background) = (self.core.clone(), self.background.clone());
        thread::spawn(move || run(&core, &background))
    }

    /// `task` and the background task, whose timer never ends, act until neither is woken any more.
    pub(super) fn act_on_wakes<'a>(&self, task: impl Into<Option<&'a mut Task>>) {
        let mut task = task.into();
        while task.as_mut().is_some_and(|task| task.act_on_wakes())
            || self.background.act_on_wakes(&self.core)
        {}
    }

    /// What happens when no thread is left: the background task acts, and `task`.
    pub(super) fn settle<'a>(&self, task: impl Into<Option<&'a mut Task>>) {
        let mut task = task.into();
        for _ in 0..3 {
            task.as_mut().map(|task| task.act_on_wakes());
            self.background.act(&self.core);
        }
        task.map(Task::act_on_wakes);
    }
}

/// The background task, as far as it drives.
pub(super) struct Background {
    woken: Arc<Woken>,
    polls: AtomicBool,
    /// Its timer is set to the next tick.
    ticks: AtomicBool,
}

impl Background {
    /// It has been woken, or its timer ends.
    pub(super) fn act(&self, core: &Arc<Core>) {
        if !self.act_on_wakes(core) && self.ticks.load(Ordering::Relaxed) {
            core.driver.tick(core);
            self.sleep(core);
        }
    }

    /// The same, but the timer does not end.
    pub(super) fn act_on_wakes(&self, core: &Arc<Core>) -> bool {
        let woken = self.woken.take();
        if woken {
            let mut polls = self.polls.load(Ordering::Relaxed);
            let waker = self.woken.waker();
            let goes_on = (core.driver).drive_in_background(core, &mut polls, &waker);
            self.polls.store(polls, Ordering::Relaxed);
            if !goes_on {
                self.sleep(core);
            }
        }
        woken
    }

    fn sleep(&self, core: &Core) {
        self.ticks
            .store(core.driver.wakers.is_ticking(), Ordering::Relaxed);
    }
}

/// Awaits so many messages.
pub(super) async fn wait_for(core: Arc<Core>, messages: u32) {
    let mut waiter = Waiter::new(core);
    poll_fn(|cx| {
        waiter.poll(cx, Interest::Read(messages.into()), |shared| {
            (shared.received >= messages).then_some(())
        })
    })
    .await;
}

/// The same for an operation with a state of its own.
pub(super) async fn call_for(core: Arc<Core>, messages: u32) {
    call(core, messages, false).await;
}

/// The same for one whose message left with others: they drive for it.
pub(super) async fn join_others_for(core: Arc<Core>, messages: u32) {
    call(core, messages, true).await;
}

async fn call(core: Arc<Core>, messages: u32, mut with_others: bool) {
    let mut waiter = Waiter::new(core.clone());
    poll_fn(|cx| {
        match std::mem::take(&mut with_others) {
            true => waiter.count(cx.waker()),
            false => waiter.drive(cx.waker()),
        }
        let mut shared = lock(&core.shared);
        if shared.received >= messages {
            return Poll::Ready(());
        }
        shared
            .waiting
            .push((0, Interest::Read(messages.into()), cx.waker().clone()));
        drop(shared);
        waiter.poll_again(cx.waker());
        Poll::Pending
    })
    .await;
}

/// A task that acts only when it is told to.
pub(super) struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
    pub(super) is_ready: bool,
}

impl Task {
    /// Polled once.
    pub(super) fn new(future: impl Future<Output = ()> + 'static) -> Self {
        let mut task = Self {
            future: Box::pin(future),
            woken: Woken::new(),
            is_ready: false,
        };
        task.poll();
        task
    }

    /// Acts if it has been woken. Returns whether it was.
    pub(super) fn act_on_wakes(&mut self) -> bool {
        let woken = self.woken.take() && !self.is_ready;
        if woken {
            self.poll();
        }
        woken
    }

    fn poll(&mut self) {
        let waker = self.woken.waker();
        let polled = self.future.as_mut().poll(&mut Context::from_waker(&waker));
        self.is_ready = polled.is_ready();
    }
}

/// A task that was woken. No step of a model: the tasks' runtime sees to that.
struct Woken(AtomicBool);

impl Woken {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false)))
    }

    fn waker(self: &Arc<Self>) -> Waker {
        self.clone().into()
    }

    fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}
