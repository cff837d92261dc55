//! The budget for unread bytes of all streams of one connection.
//!
//! Each stream has [`INITIAL_WINDOW`] to itself. Grants beyond that, and items that exceed a grant, take
//! bytes from this budget. They come back as items are consumed. Two kinds of items are taken even without room: those that are
//! here already, and those that a reader waits for. The limit on open streams bounds the windows that streams have to themselves.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::inbox::{Inbox, ItemsMessage};
use super::{CallStreams, INITIAL_WINDOW};
use crate::lock::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// So many streams may be open at once, however small the budget is.
const OPEN_AT_LEAST: u64 = 64;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct UnreadBudget {
    most: u64,
    taken: AtomicU64,
    /// How many messages may stay unread at their sender. Each takes one of the pipe's message slots.
    most_held: usize,
    /// How many do now.
    held: AtomicUsize,
    /// How often held messages were to be read since somebody began to.
    asked: AtomicUsize,
    /// Streams that hold a message, or held one, the longest wait first. Each is listed once.
    waiting: Mutex<VecDeque<Weak<CallStreams>>>,
    /// Streams that the peer has opened. Each may send [`INITIAL_WINDOW`] before anybody reads.
    opened: AtomicUsize,
}

/// A stream that the peer has opened counts as open until this is dropped.
pub(crate) struct StreamPermit(Arc<UnreadBudget>);

/// Who is at it. If its work panics, the next to ask begins.
struct AtIt<'a>(&'a AtomicUsize);

impl Drop for AtIt<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::SeqCst);
    }
}

impl Drop for StreamPermit {
    fn drop(&mut self) {
        self.0.opened.fetch_sub(1, Ordering::AcqRel);
    }
}

impl UnreadBudget {
    pub(crate) fn new(most: u64, most_held: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            most_held,
            ..Self::default()
        })
    }

    /// The peer opens one more stream. Open streams may have as many bytes to themselves as the budget holds, and [`OPEN_AT_LEAST`]
    /// of them are always allowed. The error is the number that may be open.
    pub(crate) fn open(self: &Arc<Self>) -> Result<StreamPermit, u64> {
        let most = (self.most / INITIAL_WINDOW.bytes).max(OPEN_AT_LEAST);
        let place = StreamPermit(self.clone());
        match self.opened.fetch_add(1, Ordering::AcqRel) as u64 {
            before if before < most => Ok(place),
            _ => Err(most),
        }
    }

    /// Takes `wanted` bytes, or as many as are left.
    pub(super) fn acquire_up_to(&self, wanted: u64) -> u64 {
        let mut got = 0;
        let _ = self.update(|taken| {
            got = wanted.min(self.most.saturating_sub(taken));
            Some(taken + got)
        });
        got
    }

    /// Takes `wanted` bytes, or none. A request larger than the whole budget is granted when nothing else is taken.
    pub(super) fn try_acquire(&self, wanted: u64) -> bool {
        let all = |taken: u64| {
            let sum = taken.saturating_add(wanted);
            (taken == 0 || sum <= self.most).then_some(sum)
        };
        self.update(all).is_ok()
    }

    /// Takes `wanted` bytes, even if the budget does not have them.
    pub(super) fn force_acquire(&self, wanted: u64) {
        let _ = self.update(|taken| Some(taken.saturating_add(wanted)));
    }

    pub(super) fn release(&self, bytes: u64) {
        if bytes > 0 {
            let _ = self.update(|taken| Some(taken.saturating_sub(bytes)));
        }
    }

    fn update(&self, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        let order = Ordering::SeqCst;
        self.taken.fetch_update(order, order, change)
    }

    /// Counts one more held message. Returns `false` if there are too many.
    pub(super) fn hold(&self) -> bool {
        let has_room = self.held.fetch_add(1, Ordering::SeqCst) < self.most_held;
        if !has_room {
            self.release_held();
        }
        has_room
    }

    /// One held message fewer.
    pub(super) fn release_held(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// Puts a stream that holds a message in the queue for room.
    pub(super) fn wait(&self, streams: &Arc<CallStreams>) {
        if streams.waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut waiting = lock(&self.waiting);
        // Dropped streams do not leave the queue by themselves. Without them it is no longer than the number of open streams.
        waiting.retain(|streams| streams.strong_count() > 0);
        waiting.push_back(Arc::downgrade(streams));
    }

    /// Runs `work` if a message is held. If it is under way, on this thread or another, it runs once more there instead.
    pub(super) fn one_at_a_time(&self, work: impl Fn()) {
        // Fast path: almost always nobody waits. A holder first counts its message, then looks for room; the caller of this first
        // gives room back, then looks for holders. With `SeqCst`, at least one of them sees the other.
        if self.held.load(Ordering::SeqCst) == 0 || self.asked.fetch_add(1, Ordering::SeqCst) > 0 {
            return;
        }
        let at_it = AtIt(&self.asked);
        loop {
            let asked = at_it.0.load(Ordering::SeqCst);
            work();
            let order = Ordering::SeqCst;
            if at_it.0.compare_exchange(asked, 0, order, order).is_ok() {
                return std::mem::forget(at_it);
            }
        }
    }

    /// The message that has waited longest, if there is room for it.
    pub(super) fn next(&self) -> Option<(Arc<CallStreams>, Box<ItemsMessage>)> {
        // Streams dropped here are dropped after the lock.
        let mut passed = Vec::new();
        // One lock for the whole search: a thread that gives room back later then finds the streams that got none.
        let mut waiting = lock(&self.waiting);
        loop {
            let streams = waiting.front()?.upgrade();
            let found = streams.as_ref().and_then(|streams| {
                // Cleared before the check: a message held from now on queues the stream anew.
                streams.waits.store(false, Ordering::Release);
                streams.inbox.as_ref().and_then(Inbox::unhold)
            });
            match (found, streams) {
                (Some(None), Some(streams)) => {
                    streams.waits.store(true, Ordering::Release);
                    passed.push(streams);
                    return None;
                }
                (Some(Some(message)), Some(streams)) => {
                    waiting.pop_front();
                    return Some((streams, message));
                }
                (_, streams) => {
                    waiting.pop_front();
                    passed.extend(streams);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::schema::Streams;

    #[test]
    fn work_that_asks_for_itself_runs_again_and_not_within_itself() {
        let unread = UnreadBudget::new(0, 8);
        let (runs, within) = (Cell::new(0), Cell::new(false));
        let work = || {
            assert!(!within.replace(true), "within itself");
            runs.set(runs.get() + 1);
            if runs.get() < 10_000 {
                unread.one_at_a_time(|| panic!("within itself"));
            }
            within.set(false);
        };
        unread.one_at_a_time(work);
        assert_eq!(runs.get(), 0, "nobody waits");
        assert!(unread.hold());
        unread.one_at_a_time(work);
        assert_eq!(runs.get(), 10_000);
        let panics = || unread.one_at_a_time(|| panic!("on purpose"));
        catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
        unread.one_at_a_time(work);
        assert_eq!(runs.get(), 10_001);
    }

    #[test]
    fn as_many_streams_are_open_at_once_as_have_room_and_some_in_any_case() {
        for (most, room) in [(100 * INITIAL_WINDOW.bytes, 100), (0, OPEN_AT_LEAST)] {
            let unread = UnreadBudget::new(most, 0);
            let mut open: Vec<_> = (0..room).map(|_| unread.open().unwrap()).collect();
            for _ in 0..2 {
                assert_eq!(unread.open().err(), Some(room));
                // An ended stream frees its place, and a refused one takes none.
                open.pop();
                open.push(unread.open().unwrap());
            }
        }
    }

    /// The first stream stays in the queue, so none behind it is tried.
    #[test]
    fn streams_that_are_gone_do_not_wait() {
        let unread = UnreadBudget::new(0, 0);
        let kinds = Streams {
            argument: false,
            reply: true,
        };
        let stream = |call| CallStreams::new(call, true, kinds, false, None, None, &unread);
        let stays = Arc::new(stream(0));
        unread.wait(&stays);
        for call in 1..100 {
            unread.wait(&Arc::new(stream(call)));
        }
        let waiting = lock(&unread.waiting);
        assert_eq!(waiting.len(), 2, "the first one, and the last one");
        assert_eq!(waiting.front().unwrap().upgrade().unwrap().call, 0);
    }
}
