//! Names whoever keeps its thread: a call engine says when it polls somebody else's code, and the heartbeat looks.
//!
//! A poll that never returns says nothing of itself. Its caller hears of a deadline only, and the server's other calls may hang with it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use nix::unistd::gettid;

use super::driver::tuning::{HEARTBEAT_KEPT, POLL_KEPT};
use crate::log_limit::LogLimit;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, Weak, lock, thread_local};
use crate::sys::fork::{OnceBox, Owner, PerProcess};
use crate::sys::workers::panics;

/// What is polled, by its names in the log.
#[derive(Clone, Copy, Debug)]
pub struct Polled(&'static Named);

/// Names that were given once, and further ones: as many as a program has methods. Without a lock, which a forked child might inherit.
#[derive(Debug)]
struct Named {
    /// How many come before it.
    index: usize,
    service: &'static str,
    method: &'static str,
    /// Of polls that last. Those that end, and those of others, do not keep them from being told of.
    lasts: PerProcess<LogLimit>,
    /// Of polls that have ended.
    took: PerProcess<LogLimit>,
    next: OnceBox<Self>,
}

static FIRST: OnceBox<Named> = OnceBox::new();

impl Polled {
    /// Code that is polled under these names.
    pub fn named(service: &'static str, method: &'static str) -> Self {
        let (mut place, mut index) = (&FIRST, 0);
        loop {
            let named = place.get_or_init(|| Named {
                index,
                service,
                method,
                lasts: PerProcess::new(),
                took: PerProcess::new(),
                next: OnceBox::new(),
            });
            if (named.service, named.method) == (service, method) {
                return Self(named);
            }
            (place, index) = (&named.next, index + 1);
        }
    }

    fn at(index: usize) -> Option<Self> {
        let mut named = std::iter::successors(FIRST.get(), |named| named.next.get());
        named.nth(index).map(Self)
    }

    /// Runs `poll`. If it keeps its thread for some seconds, that is logged meanwhile, in a process that has a pipe.
    #[inline]
    pub fn watch<R>(self, poll: impl FnOnce() -> R) -> R {
        let _poll = Poll {
            outer: set(self.0.index + 1),
        };
        poll()
    }

    /// Logs that a poll took this time, if that is long.
    #[inline]
    pub fn took(self, took: Duration) {
        if took >= POLL_KEPT {
            self.warn_of(took);
        }
    }

    #[cold]
    fn warn_of(self, took: Duration) {
        let Named {
            service, method, ..
        } = *self.0;
        if let Some(more) = self.0.took.get(LogLimit::new).admits() {
            panics(|| {
                tracing::warn!(
                    service,
                    method,
                    ?took,
                    more,
                    "a handler kept its thread without an await and, unless within `block_in_place`, perhaps all pipes of its runtime: compute in `spawn_blocking`"
                );
            });
        }
    }
}

/// What a thread polls. Only that thread writes.
#[derive(Default)]
struct Slot {
    /// The index of a [`Named`], and one more; 0 for none.
    what: AtomicUsize,
    /// How often that has changed.
    changes: AtomicU64,
}

impl Slot {
    /// Whoever sees `what` sees that it has changed.
    #[inline]
    fn set(&self, what: usize) -> usize {
        let before = self.what.load(Ordering::Relaxed);
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Relaxed);
        self.what.store(what, Ordering::Release);
        before
    }
}

thread_local! {
    static SLOT: RefCell<Option<(Owner, Arc<Slot>)>> = const { RefCell::new(None) };
}

/// Sets it for this thread, unless that ends and has lost its slot. Returns what it was before.
#[inline]
fn set(what: usize) -> usize {
    let before = SLOT.try_with(|place| {
        let place = &mut *place.borrow_mut();
        match place {
            Some((owner, slot)) if !owner.is_other_process() => slot.set(what),
            // A forked child's first thread has its parent's slot.
            _ => place.insert((Owner::here(), enlist())).1.set(what),
        }
    });
    before.unwrap_or(0)
}

/// A poll under way. One may be within another, on a runtime that is blocked on there. The time of the outer one begins anew with each.
struct Poll {
    outer: usize,
}

impl Drop for Poll {
    fn drop(&mut self) {
        set(self.outer);
    }
}

/// A thread as the heartbeat saw it last.
struct Seen {
    slot: Weak<Slot>,
    thread: i32,
    changes: u64,
    since: Instant,
    is_told: bool,
}

impl Seen {
    /// This thread, which has this slot.
    fn new(slot: &Arc<Slot>) -> Self {
        Self {
            slot: Arc::downgrade(slot),
            thread: gettid().as_raw(),
            changes: 0,
            since: Instant::now(),
            is_told: false,
        }
    }
}

fn threads() -> &'static Mutex<Vec<Seen>> {
    static THREADS: PerProcess<Mutex<Vec<Seen>>> = PerProcess::new();
    THREADS.get(Mutex::default)
}

#[cold]
fn enlist() -> Arc<Slot> {
    let slot = Arc::default();
    let mut threads = lock(threads());
    threads.retain(|seen| seen.slot.strong_count() > 0);
    threads.push(Seen::new(&slot));
    slot
}

/// What a look at all threads finds.
#[derive(Default)]
pub(super) struct Look {
    /// A thread polls.
    pub(super) polls: bool,
    /// Polls that have kept their threads for long by now, each once. Of many of one method a few in each round.
    pub(super) kept: Vec<Kept>,
}

/// A poll that keeps its thread.
pub(super) struct Kept {
    polled: Polled,
    thread: i32,
    at_least: Duration,
}

pub(super) fn look(now: Instant) -> Look {
    look_at(&mut lock(threads()), now)
}

/// What was found could not be told.
pub(super) fn forget_told() {
    lock(threads())
        .iter_mut()
        .for_each(|seen| seen.is_told = false);
}

fn look_at(threads: &mut Vec<Seen>, now: Instant) -> Look {
    let mut look = Look::default();
    threads.retain_mut(|seen| {
        let Some(slot) = seen.slot.upgrade() else {
            return false;
        };
        let what = slot.what.load(Ordering::Acquire);
        let changes = slot.changes.load(Ordering::Relaxed);
        if changes != seen.changes {
            (seen.changes, seen.since, seen.is_told) = (changes, now, false);
        }
        look.polls |= what != 0;
        let at_least = now.saturating_duration_since(seen.since);
        if at_least >= HEARTBEAT_KEPT
            && !seen.is_told
            && let Some(polled) = what.checked_sub(1).and_then(Polled::at)
            && polled.0.lasts.get(LogLimit::new).admits().is_some()
        {
            seen.is_told = true;
            look.kept.push(Kept {
                polled,
                thread: seen.thread,
                at_least,
            });
        }
        true
    });
    look
}

impl Kept {
    pub(super) fn tell(&self) {
        let Named {
            service, method, ..
        } = *self.polled.0;
        tracing::warn!(
            service,
            method,
            thread = self.thread,
            at_least = ?self.at_least,
            "a handler keeps its thread without an await and, unless within `block_in_place`, perhaps all pipes of its runtime: compute in `spawn_blocking`"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_lasts_is_told_of_once_and_another_one_again() {
        let polled = Polled::named("Store", "push");
        assert_eq!(polled.0.index, Polled::named("Store", "push").0.index);
        polled.watch(|| ());
        let slot = SLOT.with_borrow(|slot| slot.as_ref().unwrap().1.clone());
        let mut threads = vec![Seen::new(&slot)];
        let (mut now, moment) = (Instant::now(), Duration::from_nanos(1));
        // Looks when the poll has begun, just before its time is up, then, and later.
        let mut told = || {
            let begin = now;
            now += 3 * HEARTBEAT_KEPT;
            let kept = HEARTBEAT_KEPT;
            [Duration::ZERO, kept - moment, kept, 2 * kept].map(|after| {
                let look = look_at(&mut threads, begin + after);
                let told = look.kept.first().map(|kept| kept.polled.0.method);
                (look.polls, told)
            })
        };
        let once = |method| [None, None, Some(method), None].map(|told| (true, told));
        let nothing = [(false, None); 4];
        assert_eq!(polled.watch(&mut told), once("push"));
        assert_eq!(told(), nothing, "it has ended");
        polled.watch(|| {
            assert_eq!(told(), once("push"), "another one");
            let within = Polled::named("Store", "pull").watch(&mut told);
            assert_eq!(within, once("pull"));
            assert_eq!(told(), once("push"), "it goes on");
        });
        let panics = || polled.watch(|| panic!("thrown to see that the poll ends"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(told(), nothing, "it has panicked");
    }

    #[test]
    fn of_many_threads_those_that_were_not_told_of_have_their_turn_later() {
        let polled = Polled::named("Store", "many");
        let slots = [(); 7].map(|()| Arc::new(Slot::default()));
        let mut threads: Vec<_> = slots.iter().map(Seen::new).collect();
        for slot in &slots {
            slot.set(polled.0.index + 1);
        }
        let begin = Instant::now();
        let mut told = |after| look_at(&mut threads, begin + after).kept.len();
        assert_eq!([Duration::ZERO, HEARTBEAT_KEPT].map(&mut told), [0, 5]);
        assert_eq!(threads.iter().filter(|seen| !seen.is_told).count(), 2);
    }

    #[test]
    fn a_thread_that_has_ended_is_forgotten() {
        let slot = Arc::default();
        let mut threads = vec![Seen::new(&slot)];
        look_at(&mut threads, Instant::now());
        assert_eq!(threads.len(), 1);
        drop(slot);
        look_at(&mut threads, Instant::now());
        assert!(threads.is_empty());
    }
}
