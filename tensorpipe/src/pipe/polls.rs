//! Names whoever keeps its thread: a call engine says when it polls somebody else's code, and the heartbeat looks.
//!
//! A poll that never returns says nothing of itself. Its caller hears of a deadline only, and the server's other calls may hang with it.

use std::cell::OnceCell;
use std::time::{Duration, Instant};

use nix::unistd::gettid;

use super::driver::tuning::HEARTBEAT_KEPT;
use crate::log_limit::LogLimit;
use crate::sync::{Arc, AtomicU64, AtomicUsize, Mutex, Ordering, Weak, lock, thread_local};
use crate::sys::fork::{OnceBox, PerProcess};

/// What is polled, by its names in the log.
#[derive(Clone, Copy, Debug)]
pub struct Polled(usize);

/// Its names. A batch has no service.
type Names = (Option<&'static str>, &'static str);

/// Names that were given once, and further ones. As many as a program has methods. Without a lock, since a forked child knows them, too.
struct Named {
    names: Names,
    next: OnceBox<Self>,
}

static FIRST: OnceBox<Named> = OnceBox::new();

impl Polled {
    /// Code that is polled under these names.
    pub fn named(service: Option<&'static str>, method: &'static str) -> Self {
        let names = (service, method);
        let (mut place, mut index) = (&FIRST, 0);
        loop {
            let named = place.get_or_init(|| Named {
                names,
                next: OnceBox::new(),
            });
            if named.names == names {
                return Self(index);
            }
            (place, index) = (&named.next, index + 1);
        }
    }

    fn names(self) -> Option<Names> {
        let named = std::iter::successors(FIRST.get(), |named| named.next.get());
        named.map(|named| named.names).nth(self.0)
    }

    /// Runs `poll`. If it keeps its thread for some seconds, that is logged meanwhile, while the process has a pipe.
    #[inline]
    pub fn watch<R>(self, poll: impl FnOnce() -> R) -> R {
        let _poll = Poll {
            outer: set(self.0 + 1),
        };
        poll()
    }
}

/// What a thread polls. Only that thread writes.
#[derive(Default)]
struct Slot {
    /// Which [`Polled`], and one more; 0 for none.
    what: AtomicUsize,
    /// How often that has changed.
    changes: AtomicU64,
}

impl Slot {
    #[inline]
    fn set(&self, what: usize) -> usize {
        let before = self.what.load(Ordering::Relaxed);
        self.what.store(what, Ordering::Relaxed);
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Relaxed);
        before
    }
}

thread_local! {
    /// A forked child's first thread has its parent's, at which nobody looks.
    static SLOT: OnceCell<Arc<Slot>> = const { OnceCell::new() };
}

/// Sets it for this thread, unless that ends and has lost its slot. Returns what it was before.
#[inline]
fn set(what: usize) -> usize {
    let before = SLOT.try_with(|slot| slot.get_or_init(enlist).set(what));
    before.unwrap_or(0)
}

/// A poll under way. One may be within another, on a runtime that is blocked on there.
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

fn threads() -> &'static Mutex<Vec<Seen>> {
    static THREADS: PerProcess<Mutex<Vec<Seen>>> = PerProcess::new();
    THREADS.get(Mutex::default)
}

#[cold]
fn enlist() -> Arc<Slot> {
    let slot = Arc::default();
    lock(threads()).push(Seen::new(&slot));
    slot
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

/// A poll that keeps its thread.
#[derive(Debug)]
pub(super) struct Kept {
    names: Names,
    thread: i32,
    at_least: Duration,
}

/// Polls that have kept their threads for long by now, each once.
pub(super) fn kept(now: Instant) -> Vec<Kept> {
    look(&mut lock(threads()), now)
}

fn look(threads: &mut Vec<Seen>, now: Instant) -> Vec<Kept> {
    let mut kept = Vec::new();
    threads.retain_mut(|seen| {
        let Some(slot) = seen.slot.upgrade() else {
            return false;
        };
        let changes = slot.changes.load(Ordering::Relaxed);
        if changes != seen.changes {
            (seen.changes, seen.since, seen.is_told) = (changes, now, false);
        }
        let at_least = now.saturating_duration_since(seen.since);
        let polled = slot.what.load(Ordering::Relaxed).checked_sub(1);
        if at_least >= HEARTBEAT_KEPT
            && let Some(names) = polled.and_then(|index| Polled(index).names())
            && !std::mem::replace(&mut seen.is_told, true)
        {
            kept.push(Kept {
                names,
                thread: seen.thread,
                at_least,
            });
        }
        true
    });
    kept
}

impl Kept {
    pub(super) fn tell(&self) {
        static LIMIT: PerProcess<LogLimit> = PerProcess::new();
        if let Some(more) = LIMIT.get(LogLimit::new).admits() {
            let (service, method) = self.names;
            tracing::warn!(
                service,
                method,
                thread = self.thread,
                at_least = ?self.at_least,
                more,
                "a handler keeps its thread without an await and, unless within `block_in_place`, perhaps all pipes of its runtime: compute in `spawn_blocking`"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_lasts_is_told_of_once_and_another_one_again() {
        let names = (Some("Store"), "push");
        let polled = Polled::named(names.0, names.1);
        assert_eq!(polled.0, Polled::named(names.0, names.1).0);
        polled.watch(|| ());
        let mut threads = SLOT.with(|slot| vec![Seen::new(slot.get().unwrap())]);
        let (mut now, moment) = (Instant::now(), Duration::from_nanos(1));
        // Looks when the poll has begun, just before its time is up, then, and later.
        let mut told = || {
            let begin = now;
            now += 3 * HEARTBEAT_KEPT;
            let kept = HEARTBEAT_KEPT;
            [Duration::ZERO, kept - moment, kept, 2 * kept].map(|after| {
                let told = look(&mut threads, begin + after);
                told.first().map(|kept| kept.names)
            })
        };
        let (nothing, once) = ([None; 4], [None, None, Some(names), None]);
        assert_eq!(polled.watch(&mut told), once);
        assert_eq!(told(), nothing, "it has ended");
        polled.watch(|| {
            assert_eq!(told(), once, "another one");
            let within = Polled::named(None, "batched").watch(&mut told);
            assert_eq!(within, [None, None, Some((None, "batched")), None]);
            assert_eq!(told(), once, "it goes on");
        });
        let panics = || polled.watch(|| panic!("thrown to see that the poll ends"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(told(), nothing, "it has panicked");
    }

    #[test]
    fn a_thread_that_has_ended_is_forgotten() {
        let thread = || {
            Polled::named(None, "ends").watch(|| ());
            SLOT.with(|slot| Seen::new(slot.get().unwrap()))
        };
        let mut threads = vec![std::thread::spawn(thread).join().unwrap()];
        look(&mut threads, Instant::now());
        assert!(threads.is_empty());
    }
}
