//! How much may lie unread of all streams of one connection, in bytes.
//!
//! Each stream has [`INITIAL_WINDOW`](super::INITIAL_WINDOW) to itself. What its sender is allowed beyond, and by how much an item exceeds that, is taken
//! from here, and comes back as items are consumed. Only what is here already, and what a reader waits for, is taken whether there is room
//! or not. What streams have to themselves is bounded by how many of them the peer may have open.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use super::inbox::{Inbox, ItemsMessage};
use super::{CallStreams, INITIAL_WINDOW};
use crate::lock::{AtomicU64, AtomicUsize, Mutex, Ordering, lock};

/// So many streams may be open at once, however little they may let lie.
const OPEN_AT_LEAST: u64 = 64;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct UnreadBudget {
    most: u64,
    taken: AtomicU64,
    /// Messages that may be kept from being read: they use up what the pipe takes in all.
    most_held: usize,
    /// How many are.
    held: AtomicUsize,
    /// Streams that have one, or had, the longest first: each once.
    waiting: Mutex<VecDeque<Weak<CallStreams>>>,
    /// Streams that the peer has opened, each of which may send [`INITIAL_WINDOW`](super::INITIAL_WINDOW) before anybody reads.
    opened: AtomicUsize,
}

/// The place of a stream that the peer has opened, until it is dropped.
pub(crate) struct StreamPermit(Arc<UnreadBudget>);

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

    /// The peer opens one more stream. What all of them have to themselves is at most as much again as they share, or that of
    /// [`OPEN_AT_LEAST`]. Where so many are open, how many that are.
    pub(crate) fn open(self: &Arc<Self>) -> Result<StreamPermit, u64> {
        let most = (self.most / INITIAL_WINDOW.bytes).max(OPEN_AT_LEAST);
        let place = StreamPermit(self.clone());
        match self.opened.fetch_add(1, Ordering::AcqRel) as u64 {
            before if before < most => Ok(place),
            _ => Err(most),
        }
    }

    /// Takes so many bytes, or as many as there are.
    pub(super) fn take_some(&self, wanted: u64) -> u64 {
        let mut got = 0;
        let _ = self.update(|taken| {
            got = wanted.min(self.most.saturating_sub(taken));
            Some(taken + got)
        });
        got
    }

    /// Takes so many bytes, or none. What is more than there ever is gets through alone.
    pub(super) fn take_all(&self, wanted: u64) -> bool {
        let all = |taken: u64| {
            let sum = taken.saturating_add(wanted);
            (taken == 0 || sum <= self.most).then_some(sum)
        };
        self.update(all).is_ok()
    }

    /// Takes so many bytes, of which there may not be enough.
    pub(super) fn take_anyway(&self, wanted: u64) {
        let _ = self.update(|taken| Some(taken.saturating_add(wanted)));
    }

    pub(super) fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            let _ = self.update(|taken| Some(taken.saturating_sub(bytes)));
        }
    }

    fn update(&self, change: impl FnMut(u64) -> Option<u64>) -> Result<u64, u64> {
        let order = Ordering::SeqCst;
        self.taken.fetch_update(order, order, change)
    }

    /// One more message is kept from being read. Returns `false` if too many are.
    pub(super) fn hold(&self) -> bool {
        let has_room = self.held.fetch_add(1, Ordering::SeqCst) < self.most_held;
        if !has_room {
            self.let_go();
        }
        has_room
    }

    /// One is not kept any longer.
    pub(super) fn let_go(&self) {
        self.held.fetch_sub(1, Ordering::AcqRel);
    }

    /// This stream's waits for room.
    pub(super) fn wait(&self, streams: &Arc<CallStreams>) {
        if streams.waits.swap(true, Ordering::AcqRel) {
            return;
        }
        let mut waiting = lock(&self.waiting);
        // Those that are gone do not say so. There are no more others than streams that are open.
        waiting.retain(|streams| streams.strong_count() > 0);
        waiting.push_back(Arc::downgrade(streams));
    }

    /// The message that has waited longest, if there is room for it.
    pub(super) fn next(&self) -> Option<(Arc<CallStreams>, Box<ItemsMessage>)> {
        // In almost all cases nobody waits. Whoever keeps a message says so, then looks for room; who comes here has given room back
        // before: in one order of all four, one of them sees the other.
        if self.held.load(Ordering::SeqCst) == 0 {
            return None;
        }
        // Streams that end here do so behind the lock.
        let mut passed = Vec::new();
        // Under one lock: whoever gives room back and comes later finds those for whom there was none.
        let mut waiting = lock(&self.waiting);
        loop {
            let streams = waiting.front()?.upgrade();
            let found = streams.as_ref().and_then(|streams| {
                // Before the check: what is held from now on waits anew.
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
    use super::*;
    use crate::schema::Streams;

    #[test]
    fn as_many_streams_are_open_at_once_as_have_room_and_some_in_any_case() {
        for (most, room) in [(100 * INITIAL_WINDOW.bytes, 100), (0, OPEN_AT_LEAST)] {
            let unread = UnreadBudget::new(most, 0);
            let mut open: Vec<_> = (0..room).map(|_| unread.open().unwrap()).collect();
            for _ in 0..2 {
                assert_eq!(unread.open().err(), Some(room));
                // One that ends leaves its place, and one that is refused takes none.
                open.pop();
                open.push(unread.open().unwrap());
            }
        }
    }

    /// The first one stays, so nobody behind it is tried.
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
