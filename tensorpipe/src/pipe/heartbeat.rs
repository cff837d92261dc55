//! Keeps pipes alive whose runtime is blocked: one thread serves all pipes of its process.
//!
//! The thread that drives a pipe answers its pings, and that takes the pipe's runtime. A task that blocks its thread can keep the whole
//! runtime from sockets and timers: on the only thread, or on the one that waited for them last, while all others sleep until a task is
//! ready. So this thread, which belongs to no runtime,
//!
//! - wakes a task of each runtime with a pipe that has been at rest since the last round. A sleeping thread of the runtime runs it, and goes
//!   on to wait for sockets and timers. If it has not run by the next round, the runtime is stalled: then this wakes those who wait for
//!   the pipe on other runtimes, which go on without its sockets and timers;
//! - tells the peer of a pipe that is silent for too long that the process lives, for [`Timeouts::blocked`](crate::Timeouts::blocked) at
//!   most. A stopped process does not.
//!
//! Invariant: while the process runs and `blocked` has not passed, no pipe is silent for 3/4 of its bound. A healthy one never
//! is for 5/8: its peer asks after half of that bound. The thread reads nothing and gives a handler nothing: it tells it only
//! that its runtime is stalled.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::runtime::Id;

use super::core::Core;
use super::driver::tuning::{
    HEARTBEAT_CHECKS, HEARTBEAT_LONGEST, HEARTBEAT_SHORTEST, HEARTBEAT_SILENT,
};
use crate::ambient;
use crate::error::SystemError;
use crate::log_limit::LogLimit;
use crate::sync::{Arc, Mutex, Weak, lock};
use crate::sys::fork::PerProcess;
use crate::sys::workers::panics;

/// Keeps a pipe alive from now on.
pub(super) fn watch(core: &Arc<Core>) -> Result<(), SystemError> {
    if ambient::is_virtual(&core.runtime) {
        return Ok(());
    }
    static HEARTBEAT: PerProcess<Mutex<State>> = PerProcess::new();
    let pipe = Watched::new(core);
    let mut state = lock(HEARTBEAT.get(Mutex::default));
    let sooner = state.next.is_none_or(|next| pipe.due < next);
    match &state.thread {
        Some(thread) if sooner => thread.unpark(),
        Some(_) => {}
        None => {
            let thread = std::thread::Builder::new().name("tp-alive".to_owned());
            let thread = thread.spawn(|| beat(HEARTBEAT.get(Mutex::default)));
            let refused =
                |error| SystemError::new("clone", "the thread that keeps pipes alive", error);
            state.thread = Some(thread.map_err(refused)?.thread().clone());
        }
    }
    state.pipes.push(pipe);
    Ok(())
}

#[derive(Default)]
struct State {
    pipes: Vec<Watched>,
    thread: Option<Thread>,
    /// The next round; none while there is no pipe.
    next: Option<Instant>,
}

fn beat(state: &Mutex<State>) -> ! {
    loop {
        let mut pipes = std::mem::take(&mut lock(state).pipes);
        let (now, mut woken) = (Instant::now(), HashMap::new());
        pipes.retain_mut(|pipe| {
            if !pipe.is_due(now) {
                return true;
            }
            // A third party's connection may panic. Its pipe is not watched any more: the next drive panics in the same way.
            let goes_on = catch_unwind(AssertUnwindSafe(|| pipe.check(now, &mut woken)));
            pipe.due = now + pipe.pause();
            goes_on.unwrap_or(false)
        });
        let mut looked_at = lock(state);
        looked_at.pipes.append(&mut pipes);
        looked_at.next = looked_at.pipes.iter().map(|pipe| pipe.due).min();
        let next = looked_at.next;
        drop(looked_at);
        // Freed before the pause, which may be long: it has room for all pipes.
        drop(pipes);
        match next {
            Some(next) => std::thread::park_timeout(next.saturating_duration_since(Instant::now())),
            None => std::thread::park(),
        }
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

    /// Returns whether another round follows. `woken`: the runtimes that were woken in this one, and since when they have not run.
    fn check(&mut self, now: Instant, woken: &mut HashMap<Id, Instant>) -> bool {
        let Some(core) = self.core.upgrade() else {
            return false;
        };
        if self.has_written(&core, now) {
            self.blocked = None;
            if self.stalled.is_none() {
                return true;
            }
        }
        if now.saturating_duration_since(self.since) >= HEARTBEAT_SILENT * self.pause {
            let blocked = *self.blocked.get_or_insert(self.since);
            if now.saturating_duration_since(blocked) < core.timeouts.blocked {
                core.send_keep_alive();
                self.has_written(&core, now);
            }
        }
        let ask = || core.driver.wakers.ask_background(now);
        let asked = *woken.entry(self.runtime).or_insert_with(ask);
        match now.saturating_duration_since(asked) >= self.pause / 2 {
            true => self.tell_stalled(&core, now),
            false => (self.stalled, self.is_told) = (None, false),
        }
        !lock(&core.shared).is_over()
    }

    /// Its runtime has not run since a round before. That is logged if it lasts.
    fn tell_stalled(&mut self, core: &Arc<Core>, now: Instant) {
        panics(|| core.tell_stalled());
        let time = now - *self.stalled.get_or_insert(now);
        if !self.is_told && time >= HEARTBEAT_SILENT * self.pause {
            self.is_told = true;
            panics(|| warn_of_stalled(core, time));
        }
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
    static LIMIT: LogLimit = LogLimit::new();
    if let Some(others) = LIMIT.admits() {
        tracing::warn!(
            pipe = %core.name,
            ?time,
            others = others.unwrap_or(0),
            "the runtime of a pipe does not run: something blocks its thread (compute in `spawn_blocking`, or within `block_in_place`), or nobody runs it (one of `current_thread` runs within `block_on` only)"
        );
    }
}

impl Core {
    /// Tells the peer that this process lives, unless somebody drives just now. The rest of a drive, with wakers and the handler,
    /// is left to the background task.
    fn send_keep_alive(self: &Arc<Self>) {
        if let Some(mut io) = self.driver.hold() {
            let mut shared = lock(&self.shared);
            shared.state.send_keep_alive();
            io.take_frames(&mut shared);
            drop(shared);
            io.send_gathered(self);
        }
        if self.driver.is_kicked() {
            // A thread found the connection taken. The background task may be on a runtime that is blocked.
            self.driver.wakers.notify();
        }
        self.driver.wakers.wake_background();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::Message;
    use crate::pipe::tests::memory_pair;
    use crate::sync::{AtomicBool, Ordering};

    #[tokio::test]
    async fn a_silent_pipe_says_that_it_lives_until_it_was_blocked_for_too_long() {
        let (client, _server) = memory_pair().await;
        let core = client.core();
        client.write(Message::new("the last words")).await.unwrap();
        let said = || core.counters.bytes_out();
        let (begin, moment) = (Instant::now(), Duration::from_nanos(1));
        let bound = core.timeouts.blocked;
        for (after, lives) in [(bound - moment, true), (bound, false)] {
            let (mut pipe, mut woken) = (Watched::new(core), HashMap::new());
            assert!(pipe.check(begin, &mut woken) && woken.is_empty());
            let before = said();
            let silent = HEARTBEAT_SILENT * pipe.pause;
            pipe.check(begin + silent - moment, &mut woken);
            assert_eq!(said(), before);
            assert!(woken.keys().eq([&core.runtime.id()]));
            pipe.check(begin + silent, &mut woken);
            let once = said();
            assert!(once > before && woken.len() == 1);
            pipe.check(begin + after, &mut woken);
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
            pipe.check(begin + time, &mut HashMap::new());
            pipe.stalled.is_some()
        };
        let half = Watched::new(core).pause / 2;
        // The first check finds what the handshake has written.
        assert!([Duration::ZERO; 3].iter().all(|at| !is_stalled_after(*at)));
        assert!(!is_stalled_after(half - Duration::from_nanos(1)));
        assert!(is_stalled_after(half) && is_stalled_after(half));
        // It runs.
        let later = begin + HEARTBEAT_LONGEST;
        while core.driver.wakers.ask_background(later) != later {
            tokio::task::yield_now().await;
        }
    }

    /// The background task may be on the very runtime that is blocked.
    #[tokio::test]
    async fn whoever_found_it_busy_with_the_connection_is_woken_to_do_its_own_work() {
        #[derive(Default)]
        struct Woken(AtomicBool);
        impl Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let (client, _server) = memory_pair().await;
        let core = client.core();
        let (woken, mut slot) = (Arc::new(Woken::default()), None);
        core.driver
            .wakers
            .register(&mut slot, &woken.clone().into());
        let is_woken = || woken.0.load(Ordering::SeqCst);
        core.send_keep_alive();
        assert!(!is_woken(), "nobody has work");
        core.driver.kick();
        core.send_keep_alive();
        assert!(is_woken(), "what it has to do is forgotten");
    }
}
