//! Keeps pipes alive whose runtime is blocked: one thread serves all pipes of its process.
//!
//! The thread that drives a pipe answers its pings, and that takes the pipe's runtime. A task that blocks its thread can keep the whole
//! runtime from sockets and timers: on the only thread, or on the one that waited for them last, while all others sleep until a task is
//! ready. So this thread, which belongs to no runtime,
//!
//! - wakes a task of each runtime with a pipe. A sleeping thread of the runtime runs it, and goes on to wait for sockets and timers. If it
//!   has not run by the next round, the runtime is stalled: then those who wait for the pipe on other runtimes are woken, and go on without
//!   its sockets and timers. A pipe that is closing ends by its bound;
//! - tells of handlers that keep their threads (`polls`);
//! - tells the peer of a pipe that is silent for too long that the process lives, for [`Timeouts::blocked`](crate::Timeouts::blocked) at
//!   most. A stopped process does not.
//!
//! Invariant: while the process runs and `blocked` has not passed, no pipe is silent for 3/4 of its bound. A healthy one never
//! is for 5/8: its peer asks after half of that bound. The thread runs nobody else's code but a connection's: another one, if the system
//! gives one, tells handlers that their runtime is stalled, or that their pipe has ended, wakes whoever waits, logs, and drops the last of a pipe.

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::runtime::{Handle, Id};

use super::core::Core;
use super::driver::tuning::{
    HEARTBEAT_CHECKS, HEARTBEAT_KEPT, HEARTBEAT_LONGEST, HEARTBEAT_SHORTEST, HEARTBEAT_SILENT,
};
use super::polls::{self, Look};
use crate::ambient;
use crate::error::SystemError;
use crate::log_limit::LogLimit;
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::sys::fork::PerProcess;
use crate::sys::workers::{self, panics};

/// Keeps a pipe alive from now on.
pub(super) fn watch(core: &Arc<Core>) -> Result<(), SystemError> {
    if ambient::is_virtual(&core.runtime) {
        return Ok(());
    }
    let pipe = Watched::new(core);
    let mut state = lock(heartbeat());
    let sooner = state.next.is_none_or(|next| pipe.due < next);
    match &state.thread {
        Some(thread) if sooner => thread.unpark(),
        Some(_) => {}
        None => {
            let thread = std::thread::Builder::new().name("tp-alive".to_owned());
            let thread = thread.spawn(|| beat(heartbeat()));
            let refused =
                |error| SystemError::new("clone", "the thread that keeps pipes alive", error);
            state.thread = Some(thread.map_err(refused)?.thread().clone());
        }
    }
    state.pipes.push(pipe);
    Ok(())
}

fn heartbeat() -> &'static Mutex<State> {
    static HEARTBEAT: PerProcess<Mutex<State>> = PerProcess::new();
    HEARTBEAT.get(Mutex::default)
}

#[derive(Default)]
struct State {
    pipes: Vec<Watched>,
    thread: Option<Thread>,
    /// The next round; none while there is no pipe.
    next: Option<Instant>,
    /// Stalled runtimes of whose pipes another thread tells just now.
    telling: HashSet<Id>,
}

fn beat(state: &Mutex<State>) -> ! {
    loop {
        let mut pipes = std::mem::take(&mut lock(state).pipes);
        let (now, mut round) = (Instant::now(), Round::of(&pipes));
        pipes.retain_mut(|pipe| {
            if !pipe.is_due(now) {
                return true;
            }
            // A third party's connection may panic. Its pipe is not watched any more: the next drive panics in the same way.
            let goes_on = catch_unwind(AssertUnwindSafe(|| pipe.check(now, &mut round)));
            pipe.due = pipe.next(now);
            goes_on.unwrap_or(false)
        });
        round.tell();
        let Look { polls, kept } = polls::look(Instant::now());
        if !kept.is_empty() {
            let tell = move || {
                for kept in kept {
                    panics(|| kept.tell());
                }
            };
            // Not here if there is no thread: the handler may keep a lock of the log's.
            if workers::take(None, tell).is_err() {
                polls::forget_told();
            }
        }
        let mut looked_at = lock(state);
        looked_at.pipes.append(&mut pipes);
        looked_at.next = looked_at.pipes.iter().map(|pipe| pipe.due).min();
        let next = looked_at.next;
        drop(looked_at);
        // Freed before the pause, which may be long: it has room for all pipes.
        drop(pipes);
        match next {
            Some(next) => std::thread::park_timeout(next.saturating_duration_since(Instant::now())),
            // A handler may outlive the last pipe.
            None if polls => std::thread::park_timeout(HEARTBEAT_KEPT),
            None => std::thread::park(),
        }
    }
}

/// What a round finds out of the pipes' runtimes.
#[derive(Default)]
struct Round {
    /// The first pipe of each, which is asked in all rounds.
    first: HashMap<Id, Weak<Core>>,
    /// Those that were woken, and since when they have not run.
    asked: HashMap<Id, Instant>,
    /// Pipes of stalled ones, and what is to be logged.
    stalled: HashMap<Id, (Handle, Vec<Stalled>)>,
}

struct Stalled {
    core: Weak<Core>,
    /// That it has lasted so long is to be logged.
    warning: Option<Duration>,
}

impl Round {
    fn of(pipes: &[Watched]) -> Self {
        let mut first = HashMap::new();
        for pipe in pipes {
            let of_runtime = first.entry(pipe.runtime);
            of_runtime.or_insert_with(|| pipe.core.clone());
        }
        Self {
            first,
            ..Self::default()
        }
    }

    /// Wakes the runtime of a pipe, once. Returns since when it has been woken and has not run.
    fn ask(&mut self, core: &Arc<Core>, now: Instant) -> Instant {
        let id = core.runtime.id();
        if let Some(asked) = self.asked.get(&id) {
            return *asked;
        }
        let first = self.first.get(&id).and_then(Weak::upgrade);
        let first = first.unwrap_or_else(|| core.clone());
        // One that is over may have no task any more.
        let is_over = lock(&first.shared).is_over();
        let to_ask = if is_over { core } else { &first };
        let asked = to_ask.driver.wakers.ask_background(now);
        self.asked.insert(id, asked);
        let_go(first);
        asked
    }

    /// Has another thread tell of those that are stalled. They let go of what is somebody else's, and this thread keeps all pipes alive.
    fn tell(self) {
        for (id, (runtime, stalled)) in self.stalled {
            lock(heartbeat()).telling.insert(id);
            let tell = move || {
                for pipe in stalled {
                    panics(|| pipe.tell());
                }
                lock(heartbeat()).telling.remove(&id);
            };
            elsewhere(&runtime, tell);
        }
    }
}

/// Runs somebody else's code on another thread. If there is none, it runs here: the runtime may be stalled.
fn elsewhere(runtime: &Handle, run: impl FnOnce() + Send + 'static) {
    if let Err(run) = workers::take(Some(runtime), run) {
        panics(run);
    }
}

impl Stalled {
    fn tell(&self) {
        let Some(core) = self.core.upgrade() else {
            return;
        };
        core.tell_stalled();
        if let Some(time) = self.warning {
            warn_of_stalled(&core, time);
        }
    }
}

/// Whatever the last handle on a pipe frees is dropped on another thread.
fn let_go(core: Arc<Core>) {
    if let Some(last) = Arc::into_inner(core) {
        elsewhere(&last.runtime.clone(), move || drop(last));
    }
}

struct Watched {
    core: Weak<Core>,
    runtime: Id,
    pause: Duration,
    /// When its next round is.
    due: Instant,
    /// Bytes that were written to the peer by now...
    written: u64,
    /// ...and since when there are no more.
    since: Instant,
    /// Since when nobody else has written any.
    blocked: Option<Instant>,
    /// Since when the runtime has not run.
    stalled: Option<Instant>,
    /// That was logged.
    is_told: bool,
}

impl Watched {
    fn new(core: &Arc<Core>) -> Self {
        let silence = core.timeouts.silence.unwrap_or(HEARTBEAT_LONGEST);
        let pause = silence.clamp(HEARTBEAT_SHORTEST, HEARTBEAT_LONGEST) / HEARTBEAT_CHECKS;
        Self {
            core: Arc::downgrade(core),
            runtime: core.runtime.id(),
            pause,
            due: Instant::now() + pause,
            written: 0,
            since: Instant::now(),
            blocked: None,
            stalled: None,
            is_told: false,
        }
    }

    /// Until the next round. While the runtime is stalled, others wait for its end.
    fn pause(&self) -> Duration {
        match self.stalled {
            Some(_) => self.pause / HEARTBEAT_CHECKS,
            None => self.pause,
        }
    }

    /// Whether it is its turn, or half of its pause is over: so all pipes with the same pause soon share their rounds.
    fn is_due(&self, now: Instant) -> bool {
        self.due <= now + self.pause() / 2
    }

    /// When its next round is: before it would be silent for too long.
    fn next(&self, now: Instant) -> Instant {
        let (next, silent) = (now + self.pause(), self.since + self.silent());
        if silent > now { next.min(silent) } else { next }
    }

    /// Without a byte for so long it is silent.
    fn silent(&self) -> Duration {
        HEARTBEAT_SILENT * self.pause
    }

    /// Returns whether another round follows.
    fn check(&mut self, now: Instant, round: &mut Round) -> bool {
        let Some(core) = self.core.upgrade() else {
            return false;
        };
        let (is_gone, is_over) = {
            let shared = lock(&core.shared);
            (shared.is_gone(), shared.is_over())
        };
        if !is_gone {
            self.look(&core, is_over, now, round);
        }
        let_go(core);
        !is_gone
    }

    fn look(&mut self, core: &Arc<Core>, is_over: bool, now: Instant, round: &mut Round) {
        if is_over || self.has_written(core, now) {
            self.blocked = None;
        } else if now.saturating_duration_since(self.since) >= self.silent() {
            let blocked = *self.blocked.get_or_insert(self.since);
            if now.saturating_duration_since(blocked) < core.timeouts.blocked {
                core.send_keep_alive();
                self.has_written(core, now);
            }
        }
        let asked = round.ask(core, now);
        match now.saturating_duration_since(asked) >= self.pause / 2 {
            true => self.stalls(core, now, round),
            false => (self.stalled, self.is_told) = (None, false),
        }
    }

    /// Its runtime has not run since a round before. That is logged if it lasts.
    fn stalls(&mut self, core: &Core, now: Instant, round: &mut Round) {
        let time = now - *self.stalled.get_or_insert(now);
        if lock(heartbeat()).telling.contains(&self.runtime) {
            return;
        }
        let is_long = !self.is_told && time >= self.silent();
        self.is_told |= is_long;
        let of_runtime = round.stalled.entry(self.runtime);
        let (_, pipes) = of_runtime.or_insert_with(|| (core.runtime.clone(), Vec::new()));
        pipes.push(Stalled {
            core: self.core.clone(),
            warning: is_long.then_some(time),
        });
    }

    /// Whether bytes have left since it was asked last.
    fn has_written(&mut self, core: &Core, now: Instant) -> bool {
        let written = core.counters.bytes_out();
        if written == self.written {
            return false;
        }
        (self.written, self.since) = (written, now);
        true
    }
}

/// A log is what tells a runtime that does not run from a network that is slow. Bounded, since all pipes of a runtime stall at once.
fn warn_of_stalled(core: &Core, time: Duration) {
    static LIMIT: PerProcess<LogLimit> = PerProcess::new();
    if let Some(others) = LIMIT.get(LogLimit::new).admits() {
        tracing::warn!(
            pipe = %core.name,
            ?time,
            others = others.unwrap_or(0),
            "the runtime of a pipe does not run: something blocks its thread (compute in `spawn_blocking`, or within `block_in_place`), or nobody runs it (one of `current_thread` runs within `block_on` only)"
        );
    }
}

impl Core {
    /// Tells the peer that this process lives. A thread that drives or polls just now sends it. The rest of a drive, with wakers and the
    /// handler, is left to the background task.
    fn send_keep_alive(self: &Arc<Self>) {
        lock(&self.shared).state.send_keep_alive();
        if let Some(mut io) = self.driver.hold_or_kick() {
            let mut shared = lock(&self.shared);
            io.take_frames(&mut shared);
            drop(shared);
            io.send_gathered(self);
        }
        if self.driver.is_kicked() {
            // A thread found the connection taken. The background task may be on a runtime that is blocked.
            let core = self.clone();
            elsewhere(&self.runtime, move || core.driver.wakers.notify());
        }
        self.driver.wakers.wake_background();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::engine::{EnginePipe, Handler, Held};
    use crate::pipe::tests::{Woken, memory_pair};
    use crate::pipe::{Incoming, MessageStats};
    use crate::{Error, Message};

    #[tokio::test]
    async fn a_silent_pipe_says_that_it_lives_until_it_was_blocked_for_too_long() {
        let (client, _server) = memory_pair().await;
        let core = client.core();
        client.write(Message::new("the last words")).await.unwrap();
        let said = || core.counters.bytes_out();
        let (begin, moment) = (Instant::now(), Duration::from_nanos(1));
        let bound = core.timeouts.blocked;
        for (after, lives) in [(bound - moment, true), (bound, false)] {
            let (mut pipe, mut round) = (Watched::new(core), Round::default());
            assert!(pipe.check(begin, &mut round));
            assert!(round.asked.keys().eq([&core.runtime.id()]));
            assert_eq!(pipe.next(begin), begin + pipe.pause);
            let (before, silent) = (said(), pipe.silent());
            let almost = begin + silent - moment;
            pipe.check(almost, &mut round);
            assert_eq!((said(), pipe.next(almost)), (before, begin + silent));
            pipe.check(begin + silent, &mut round);
            let once = said();
            assert!(once > before && round.asked.len() == 1);
            pipe.check(begin + after, &mut round);
            assert_eq!(said() > once, lives);
        }
    }

    /// Rounds may follow each other at once.
    #[tokio::test]
    async fn a_runtime_is_stalled_that_has_had_the_time_to_run() {
        let (client, _server) = memory_pair().await;
        let (core, begin) = (client.core(), Instant::now());
        let mut pipe = Watched::new(core);
        assert!(!pipe.is_due(begin), "it is checked in the rounds of others");
        let mut is_stalled_after = |time| {
            // Also while others write.
            pipe.written = u64::MAX;
            pipe.check(begin + time, &mut Round::default());
            pipe.stalled.is_some()
        };
        let half = Watched::new(core).pause / 2;
        assert!([Duration::ZERO; 3].iter().all(|at| !is_stalled_after(*at)));
        assert!(!is_stalled_after(half - Duration::from_nanos(1)));
        assert!(is_stalled_after(half) && is_stalled_after(half));
        // It runs.
        let later = begin + HEARTBEAT_LONGEST;
        while core.driver.wakers.ask_background(later) != later {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn a_close_that_the_peer_has_confirmed_is_in_good_order_although_it_took_too_long() {
        let mut stalled = tokio::runtime::Builder::new_current_thread();
        let stalled = stalled.enable_all().build().unwrap();
        let (client, server) = stalled.block_on(memory_pair());
        let core = client.core();
        core.close_within(Duration::ZERO);
        // The confirmation is here then, and nobody has read it.
        server.core().drive();
        assert!(lock(&core.shared).ended.is_none());
        core.tell_stalled();
        let ended = lock(&core.shared).ended.clone().unwrap();
        let in_good_order = matches!(ended, Error::Closed { by_peer: false, .. });
        assert!(in_good_order, "{ended}");
    }

    /// Another thread keeps the connection for ever.
    #[test]
    fn the_goodbye_of_a_pipe_whose_runtime_does_not_run_is_bounded() {
        let mut stalled = tokio::runtime::Builder::new_current_thread();
        let stalled = stalled.enable_all().build().unwrap();
        let (client, _server) = stalled.block_on(memory_pair());
        let core = client.core();
        let _kept = core.driver.hold().unwrap();
        core.fail(core.lost("by design"));
        let by = Instant::now() + Duration::from_secs(20);
        while !lock(&core.shared).is_gone() {
            assert!(Instant::now() < by, "whoever closes it waits for ever");
            core.tell_stalled();
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Tells on which thread it was told, and does not return before it may.
    struct Told(Mutex<(mpsc::Sender<ThreadId>, mpsc::Receiver<()>)>);

    impl Handler for Told {
        fn incoming(&self, incoming: Incoming) {
            incoming.skip();
        }

        fn message(&self, _: u64, _: Result<Message, Error>, _: MessageStats, _: Held) {}

        fn closed(&self, _: &Error) {}

        fn stalled(&self) {
            let (tell, may) = &*lock(&self.0);
            tell.send(thread::current().id()).unwrap();
            let _ = may.recv();
        }
    }

    #[tokio::test]
    async fn a_handler_is_told_on_another_thread_one_time_after_another() {
        const LONG: Duration = Duration::from_secs(20);
        let (client, _server) = memory_pair().await;
        let ((tell, told), (end, may)) = (mpsc::channel(), mpsc::channel());
        let handler = Told(Mutex::new((tell, may)));
        client.set_handler(Arc::new(handler)).unwrap();
        let (core, begin) = (client.core(), Instant::now());
        let mut pipe = Watched::new(core);
        let mut tells_after = |pauses: u32| {
            let mut round = Round::default();
            pipe.check(begin + pauses * HEARTBEAT_LONGEST, &mut round);
            let tells = !round.stalled.is_empty();
            round.tell();
            tells
        };
        assert!(!tells_after(0) && tells_after(1));
        let thread = told.recv_timeout(LONG).unwrap();
        assert_ne!(thread, thread::current().id());
        assert!(!tells_after(2), "it is being told");
        drop(end);
        let by = Instant::now() + LONG;
        while !tells_after(3) {
            assert!(Instant::now() < by, "it is told no more");
            thread::sleep(Duration::from_millis(1));
        }
        told.recv_timeout(LONG).unwrap();
    }

    /// Whichever pipe is first in a round.
    #[tokio::test]
    async fn all_pipes_of_a_runtime_ask_the_same_one() {
        let ((one, _a), (two, _b)) = (memory_pair().await, memory_pair().await);
        let pipes = [Watched::new(one.core()), Watched::new(two.core())];
        let (begin, later) = (Instant::now(), Duration::from_secs(1));
        for (core, now) in [(one.core(), begin), (two.core(), begin + later)] {
            assert_eq!(Round::of(&pipes).ask(core, now), begin);
        }
    }

    /// The background task may be on the very runtime that is blocked.
    #[tokio::test]
    async fn whoever_found_it_busy_with_the_connection_is_woken_to_do_its_own_work() {
        let (client, _server) = memory_pair().await;
        let core = client.core();
        let ((woken, waker), mut slot) = (Woken::new(), None);
        core.driver.wakers.register(&mut slot, &waker);
        core.send_keep_alive();
        assert_eq!(woken.count(), 0, "nobody has work");
        core.driver.kick();
        core.send_keep_alive();
        let by = Instant::now() + Duration::from_secs(20);
        while woken.count() == 0 {
            assert!(Instant::now() < by, "what it has to do is forgotten");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
