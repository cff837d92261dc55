//! The tasks around a model's pipe: operations, and the background task.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use loom::thread;

use super::core::Core;
use super::driver::{Interest, Waiter, poll_time};
use crate::sync::{Arc, lock};

/// A pipe with a background task that acts only when the model lets it.
pub(super) struct Pipe {
    pub(super) core: Arc<Core>,
    pub(super) background: Arc<Background>,
}

impl Pipe {
    /// A pipe whose connection always asks to be woken.
    pub(super) fn new() -> Self {
        Self::with(Core::new(None))
    }

    /// A pipe whose connection can be busy-polled; polling is off at first. `answers` say how many polls pay.
    pub(super) fn that_can_be_polled(answers: &'static [bool]) -> Self {
        Self::polled_with(answers, None)
    }

    /// Like [`that_can_be_polled`](Self::that_can_be_polled), with a handler, which takes messages at any time.
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

    /// A pipe that handles at most one message in a slice.
    pub(super) fn that_has_enough() -> Self {
        Self::with(Core::that_has_enough())
    }

    /// A pipe that reads no further message until its handler has taken the last one.
    pub(super) fn that_waits_for_its_handler() -> Self {
        Self::with(Core::that_waits_for_its_handler())
    }

    /// A pipe of which no thread delivers two messages in a row.
    pub(super) fn that_delivers_one_at_a_time() -> Self {
        Self::with(Core::that_delivers_one_at_a_time())
    }

    fn with(core: Core) -> Self {
        let core = Arc::new(core);
        let background = Arc::new(Background {
            woken: Woken::new(),
            polls: AtomicBool::new(false),
            ticks: AtomicBool::new(false),
        });
        // The background task begins by driving.
        background.woken.clone().wake();
        background.act(&core);
        // The very first operation also starts the ticks. Its wake would hide a lost one, so it is taken out here.
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

    /// Runs `task` and the background task until neither is woken any more. The timer does not fire.
    pub(super) fn act_on_wakes<'a>(&self, task: impl Into<Option<&'a mut Task>>) {
        let mut task = task.into();
        while task.as_mut().is_some_and(|task| task.act_on_wakes())
            || self.background.act_on_wakes(&self.core)
        {}
    }

    /// Runs the background task and `task` when no other thread is left.
    pub(super) fn settle<'a>(&self, task: impl Into<Option<&'a mut Task>>) {
        let mut task = task.into();
        for _ in 0..3 {
            task.as_mut().map(|task| task.act_on_wakes());
            self.background.act(&self.core);
        }
        task.map(Task::act_on_wakes);
    }
}

/// The driving part of the background task.
pub(super) struct Background {
    woken: Arc<Woken>,
    polls: AtomicBool,
    /// Whether the timer is set to the next tick.
    ticks: AtomicBool,
}

impl Background {
    /// Acts if the task was woken; otherwise its timer fires.
    pub(super) fn act(&self, core: &Arc<Core>) {
        if !self.act_on_wakes(core) && self.ticks.load(Ordering::Relaxed) {
            core.driver.tick(core);
            self.sleep(core);
        }
    }

    /// Acts if the task was woken. The timer does not fire.
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

/// Waits for the given number of messages.
pub(super) async fn wait_for(core: Arc<Core>, messages: u32) {
    let mut waiter = Waiter::new(core);
    poll_fn(|cx| {
        waiter.poll(cx, Interest::Read(messages.into()), |shared| {
            (shared.received >= messages).then_some(())
        })
    })
    .await;
}

/// Like [`wait_for`], for an operation with its own state.
pub(super) async fn call_for(core: Arc<Core>, messages: u32) {
    call(core, messages, false).await;
}

/// Like [`call_for`], for an operation whose message left with others: those drive for it.
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
        shared.waited += 1;
        let key = (Interest::Read(messages.into()), shared.waited);
        shared.waiting.insert(key, cx.waker().clone());
        drop(shared);
        waiter.poll_again(cx.waker());
        Poll::Pending
    })
    .await;
}

/// A task that acts only when the model lets it.
pub(super) struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
    pub(super) is_ready: bool,
}

impl Task {
    /// Makes a task and polls it once.
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

/// Whether a task was woken. Access is no step of a model: a real runtime takes care of the ordering.
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
