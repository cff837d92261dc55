//! What a thread does for all of its pipes, and when it polls none of them for a while.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread_local;
use std::time::Instant;

use nix::sys::resource::{UsageWho, getrusage};

use super::tuning::{
    ARRIVALS_PER_LOOK, LONG_PAUSE, PAUSE, PAUSE_LONGEST, POLLS_PAY, PREEMPTIONS, SLEEPER_POLLS,
};
use super::wakers::NO_THREAD;
use crate::sys::fork::OnceBox;

/// The process's socket from which bytes came last.
pub(super) static LAST_SOCKET: LastSocket = LastSocket::new();

thread_local! {
    static COUNTS: ThreadCounts = const { ThreadCounts::new() };
}

/// Each poll changes them, so they are changed in place.
#[derive(Debug)]
pub(super) struct ThreadCounts {
    thread: Cell<u64>,
    /// Polls of a pipe, and those that found something.
    pub(super) polled: Cell<u64>,
    pub(super) found: Cell<u64>,
    /// How often bytes came, polled for or not.
    pub(super) came: Cell<u64>,
    /// Until it has polled so often, something may come for a pipe that sleeps.
    sleepers_until: Cell<u64>,
    /// Its pollers wait for a look of its runtime at all sockets, and how often bytes will have come when they ask for the next one.
    look_is_due: Cell<bool>,
    looks_at: Cell<u64>,
    /// Drives of one pipe in a row count once: they say nothing about how many pipes the thread has.
    pub(super) driven: Cell<u64>,
    /// The pipe that it drove last.
    last_driven: Cell<usize>,
    /// For too long nothing has come for any of its pipes.
    pub(super) is_idle: Cell<bool>,
    /// It polls no pipe until so often bytes have come, or until then.
    pauses_until: Cell<Option<(u64, Instant)>>,
    stops: Cell<Stops>,
}

/// When the thread stopped polling a pipe, and what it had counted by then.
#[derive(Clone, Copy, Debug)]
struct Stops {
    /// How often bytes had come when it last stopped, and when it last did so as it was idle.
    came: Option<u64>,
    came_idle: Option<u64>,
    /// Polls that had found something, and how often the system had taken the core from it, when it last was idle.
    found: u64,
    preempted_idle: u64,
    /// Since when preemptions are counted, and how many there had been.
    preempted: Option<(Instant, u64)>,
}

/// Calls `f` with the counts of this thread. Between two calls the task may have moved to another one: compare
/// [`thread`](ThreadCounts::thread).
pub(super) fn with_counts<R>(f: impl FnOnce(&ThreadCounts) -> R) -> R {
    COUNTS.with(f)
}

/// A number of this thread alone.
pub(super) fn this_thread() -> u64 {
    with_counts(ThreadCounts::thread)
}

/// How often the system has taken the core from this thread although it had more to do.
pub(super) fn preemptions() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_THREAD);
    usage.map_or(0, |usage| {
        usage.involuntary_context_switches().unsigned_abs()
    })
}

/// Notes that the runtime of the thread on which it is woken has looked at all sockets.
pub(super) fn look_waker() -> &'static Waker {
    static WAKER: OnceBox<Waker> = OnceBox::new();
    WAKER.get_or_init(|| Arc::new(Looked).into())
}

struct Looked;

impl Wake for Looked {
    fn wake(self: Arc<Self>) {
        with_counts(ThreadCounts::has_looked);
    }
}

/// The address of a pipe.
pub(super) struct LastSocket(AtomicUsize);

impl LastSocket {
    pub(super) const fn new() -> Self {
        Self(AtomicUsize::new(0))
    }

    /// Bytes have come from this pipe's socket. Returns whether they came from no other one since they did last.
    pub(super) fn is_again(&self, pipe: usize) -> bool {
        // Not exchanged: all threads come here, and to be wrong now and then costs little.
        let is_again = self.0.load(Ordering::Relaxed) == pipe;
        if !is_again {
            self.0.store(pipe, Ordering::Relaxed);
        }
        is_again
    }
}

impl ThreadCounts {
    pub(super) const fn new() -> Self {
        Self {
            thread: Cell::new(NO_THREAD),
            polled: Cell::new(0),
            found: Cell::new(0),
            came: Cell::new(0),
            sleepers_until: Cell::new(0),
            look_is_due: Cell::new(false),
            looks_at: Cell::new(0),
            driven: Cell::new(0),
            last_driven: Cell::new(0),
            is_idle: Cell::new(false),
            pauses_until: Cell::new(None),
            stops: Cell::new(Stops {
                came: None,
                came_idle: None,
                found: 0,
                preempted_idle: 0,
                preempted: None,
            }),
        }
    }

    /// Which thread.
    pub(super) fn thread(&self) -> u64 {
        static THREADS: AtomicU64 = AtomicU64::new(NO_THREAD + 1);
        if self.thread.get() == NO_THREAD {
            self.thread.set(THREADS.fetch_add(1, Ordering::Relaxed));
        }
        self.thread.get()
    }

    /// Counts a poll of a pipe.
    pub(super) fn poll(&self, found: bool) {
        add(&self.polled, 1);
        add(&self.found, u64::from(found));
    }

    /// Counts that bytes came.
    pub(super) fn arrival(&self) {
        add(&self.came, 1);
    }

    /// Something has come for a pipe that slept, and soon may come for it again.
    pub(super) fn wakes_sleeper(&self) {
        let until = self.polled.get() + SLEEPER_POLLS;
        self.sleepers_until.set(until);
    }

    #[cfg(test)]
    pub(super) fn forget_sleepers(&self) {
        self.sleepers_until.set(0);
        self.looks_at.set(self.came.get() + ARRIVALS_PER_LOOK);
    }

    /// Whether a poller is to poll behind the next look of its runtime at all sockets. A poller of a socket (`io_is_syscall`) asks for one if
    /// something has come lately for a pipe that slept, or much for those that are polled. The runtime looks once no task is ready, so all
    /// pollers wait for it.
    pub(super) fn is_look_due(&self, io_is_syscall: bool) -> bool {
        let came = self.came.get();
        if io_is_syscall && (came >= self.looks_at.get() || self.has_sleepers()) {
            self.looks_at.set(came + ARRIVALS_PER_LOOK);
            self.look_is_due.set(true);
        }
        self.look_is_due.get()
    }

    /// The runtime has looked, or will not.
    pub(super) fn has_looked(&self) {
        self.look_is_due.set(false);
    }

    pub(super) fn has_sleepers(&self) -> bool {
        self.polled.get() < self.sleepers_until.get()
    }

    /// Counts a drive of a pipe with this address.
    pub(super) fn drive(&self, pipe: usize) {
        if self.last_driven.replace(pipe) != pipe {
            add(&self.driven, 1);
        }
    }

    /// Whether the thread polls no pipe for now.
    pub(super) fn pauses(&self, now: impl FnOnce() -> Instant) -> bool {
        (self.pauses_until.get())
            .is_some_and(|(came, until)| self.came.get() < came && now() < until)
    }

    fn pause(&self, arrivals: u64, now: Instant) {
        let came = self.came.get() + arrivals;
        self.pauses_until.set(Some((came, now + PAUSE_LONGEST)));
    }

    /// A pipe is polled no more, because nothing came or the thread pauses. It pauses if it is idle and others want its core, unless
    /// polling has paid. It pauses for longer if others take the core all the time: the peer is one of them then, most likely.
    #[cold]
    pub(super) fn stops_polling(&self, now: Instant, preemptions: impl FnOnce() -> u64) {
        let is_idle = self.is_idle.take();
        let mut stops = self.stops.get();
        let stopped = match is_idle {
            true => &mut stops.came_idle,
            false => &mut stops.came,
        };
        // Of all its pipes, which find the same, the first one counts.
        if stopped.replace(self.came.get()) == Some(self.came.get()) {
            return;
        }
        let preemptions = preemptions();
        if is_idle {
            let found = self.found.get() - std::mem::replace(&mut stops.found, self.found.get());
            let before = std::mem::replace(&mut stops.preempted_idle, preemptions);
            if preemptions > before && found < POLLS_PAY {
                self.pause(PAUSE, now);
            }
        }
        let (since, before) = *stops.preempted.get_or_insert((now, preemptions));
        let times = preemptions.saturating_sub(before);
        // A forked child's count begins anew.
        if times >= PREEMPTIONS || preemptions < before {
            stops.preempted = Some((now, preemptions));
            let passed = now.saturating_duration_since(since);
            if passed.as_millis() < u128::from(times) {
                self.pause(LONG_PAUSE, now);
            }
        }
        self.stops.set(stops);
    }
}

pub(super) fn add(count: &Cell<u64>, more: u64) {
    count.set(count.get() + more);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn drives_of_one_pipe_in_a_row_count_once() {
        let counts = ThreadCounts::new();
        for pipe in [1, 1, 1, 2, 1, 1] {
            counts.drive(pipe);
        }
        assert_eq!(counts.driven.get(), 3);
    }

    #[test]
    fn bytes_from_one_socket_in_a_row_are_told_from_those_of_several() {
        let last = LastSocket::new();
        let again = [1, 1, 1, 2, 2, 1, 2].map(|pipe| last.is_again(pipe));
        assert_eq!(again, [false, true, true, false, true, false, false]);
    }

    #[test]
    fn all_pollers_wait_for_the_look_that_a_poller_of_a_socket_asks_for() {
        let counts = ThreadCounts::new();
        let (shm, tcp) = (|| counts.is_look_due(false), || counts.is_look_due(true));
        assert!(tcp(), "nothing is known of the past");
        for _ in 0..3 {
            counts.has_looked();
            assert!(!tcp() && !shm());
            (0..ARRIVALS_PER_LOOK).for_each(|_| counts.arrival());
            assert!(!shm(), "no socket is polled");
            assert!(tcp() && shm() && tcp());
        }
    }

    #[test]
    fn a_thread_that_loses_its_core_again_and_again_pauses() {
        let now = Instant::now();
        let after = |ms| now + Duration::from_millis(ms);
        for (name, preemptions, later, pauses) in [
            ("a peer", 102 + PREEMPTIONS, after(3), true),
            ("other programs", 102 + PREEMPTIONS, after(60), false),
            ("once by chance", 101, now, false),
            ("a forked child", 0, now, false),
        ] {
            let counts = ThreadCounts::new();
            counts.stops_polling(now, || 100);
            assert!(
                !counts.pauses(|| now),
                "{name}: nothing is known of the past"
            );
            counts.arrival();
            counts.stops_polling(later, || preemptions);
            assert_eq!(counts.pauses(|| later), pauses, "{name}");
            counts.stops_polling(later, || panic!("another pipe of the same thread"));
            assert!(!counts.pauses(|| later + PAUSE_LONGEST), "{name}");
            add(&counts.came, LONG_PAUSE);
            assert!(!counts.pauses(|| later), "{name}");
        }
    }
}
