//! The table of calls that wait for an answer. Several threads find a call in it, and one of them ends the call: whoever takes it out.
//!
//! Nothing here speaks to the peer: what a change asks of the pipe is returned. The loom models check this file together with
//! `slot.rs` and `oneshot.rs`.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use super::{CallSlot, CallStreams, Outcome};
use crate::caught::ignore_panic;
use crate::error::CallError;
use crate::header::Header;
use crate::lock::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Notify, Ordering, lock};

pub(crate) struct Calls {
    next_id: AtomicU64,
    /// The peer handles no further calls.
    draining: AtomicBool,
    /// The peer has answered a call that is sent once on replicas: one with a stream or references.
    pub(crate) has_served: AtomicBool,
    /// Calls without streams in a row that had no answer in time.
    missed: AtomicU32,
    table: Mutex<Table>,
    /// Wakes the watcher of deadlines: an earlier one was added.
    pub(super) earlier: Notify,
    /// Wakes the task that waits for the pipe to end, or for the peer to stop taking calls.
    pub(crate) closing: Notify,
}

/// What a message of the peer's belongs to while it is being read. The peer's own calls are not among these.
pub(super) enum Reading {
    Reply(Arc<CallSlot>),
    /// Items of a stream.
    Items(Arc<CallStreams>),
    /// Credit to send items of a stream.
    Credit(Arc<CallStreams>),
}

#[derive(Default)]
pub(super) struct Table {
    pub(super) slots: FxHashMap<u64, Arc<CallSlot>>,
    /// Calls by the numbers of their messages, as of the last search that found no other way: a peer that refuses one refuses many.
    pub(super) by_message: FxHashMap<u64, u64>,
    /// Whether a call may be missing there. A peer may also refuse what is no call, again and again.
    misses_some: bool,
    /// Messages whose tensors are on their way, by their number.
    pub(super) reading: FxHashMap<u64, (Header, Reading)>,
    /// How many calls have ended without the reply, which may still come. Each of those replies is answered by at most a release.
    unanswered: u64,
    /// When the watcher of deadlines checks them next.
    pub(super) check_at: Option<Instant>,
}

/// Whose answer a message is.
pub(super) enum Answers {
    /// `is_whole`: nothing of the reply is still on its way, and it need not move to another device.
    Call { slot: Arc<CallSlot>, is_whole: bool },
    /// The call was given up meanwhile.
    Nobody,
    /// No call can be meant: more such replies have come than calls were given up.
    Unasked,
    /// Another message answers the call already.
    Answered,
}

/// What of a call that nobody waits for is still on its way, for the pipe to stop.
#[derive(Default)]
pub(super) struct OnItsWay {
    /// The number of the request.
    pub(super) request: Option<u64>,
    /// The number of the reply, and its header. Whoever is given it ends the reading of it.
    pub(super) reply: Option<(u64, Header)>,
}

impl Table {
    /// Takes a call out, if it is there.
    fn remove(&mut self, call: u64) -> Option<Arc<CallSlot>> {
        let slot = self.slots.remove(&call)?;
        self.unanswered += u64::from(slot.reply().is_none());
        Some(slot)
    }

    /// The call whose message has this number.
    fn find_by_message(&mut self, message: u64) -> Option<Arc<CallSlot>> {
        let find = |table: &mut Self| {
            let call = table.by_message.remove(&message)?;
            let slot = table.slots.get(&call)?;
            (slot.message() == Some(message)).then(|| slot.clone())
        };
        find(self).or_else(|| {
            if !self.misses_some {
                return None;
            }
            let slots = self.slots.values();
            let numbered = slots.filter_map(|slot| Some((slot.message()?, slot.id)));
            self.by_message = numbered.collect();
            self.misses_some = self.by_message.len() < self.slots.len();
            find(self)
        })
    }

    /// Takes out the calls for which `which` returns something. Returns them with it.
    fn extract<T>(
        &mut self,
        mut which: impl FnMut(&CallSlot) -> Option<T>,
    ) -> Vec<(Arc<CallSlot>, T)> {
        let mut extracted = Vec::new();
        self.slots.retain(|_, slot| match which(slot) {
            Some(why) => {
                self.unanswered += u64::from(slot.reply().is_none());
                extracted.push((slot.clone(), why));
                false
            }
            None => true,
        });
        extracted
    }

    /// Returns whether `at` is earlier than the time for which the watcher is set.
    pub(super) fn check_by(&mut self, at: Instant) -> bool {
        let earlier = self.check_at.is_none_or(|check_at| at < check_at);
        if earlier {
            self.check_at = Some(at);
        }
        earlier
    }
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            next_id: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            has_served: AtomicBool::new(false),
            missed: AtomicU32::new(0),
            table: Mutex::new(Table::default()),
            earlier: Notify::new(),
            closing: Notify::new(),
        }
    }
}

impl Calls {
    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        lock(&self.table)
    }

    /// A number for a new call.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Calls that wait for their answer.
    pub(crate) fn under_way(&self) -> usize {
        self.table().slots.len()
    }

    /// Adds a call, before its message is sent. Returns how many others are under way.
    pub(super) fn insert(&self, slot: &Arc<CallSlot>) -> usize {
        let mut table = self.table();
        let under_way = table.slots.len();
        table.slots.insert(slot.id, slot.clone());
        table.misses_some = true;
        let earlier = slot.deadline.is_some_and(|(at, _)| table.check_by(at));
        drop(table);
        if earlier {
            self.earlier.notify_one();
        }
        under_way
    }

    /// A message is complete, or will never be.
    pub(super) fn take_reading(&self, message: u64) -> Option<(Header, Reading)> {
        self.table().reading.remove(&message)
    }

    pub(super) fn is_reading(&self, message: u64) -> bool {
        self.table().reading.contains_key(&message)
    }

    /// The peer handles what it has been asked for, and nothing further.
    pub(super) fn set_draining(&self) {
        self.draining.store(true, Ordering::Release);
        self.closing.notify_one();
    }

    /// Whether the peer has said that it handles no further calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
    }

    /// How many calls had no answer within their deadlines since the last one that had.
    pub(crate) fn missed_in_a_row(&self) -> u32 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Counts one more, unless it has streams. A stream takes as long as its items do, and its server may have answered all the
    /// while.
    pub(super) fn missed_deadline(&self, slot: &CallSlot) {
        if slot.streams.is_none() {
            self.missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The peer has answered a call in time.
    pub(super) fn reset_missed(&self) {
        // A load is cheaper than a store, which other cores have to see.
        if self.missed_in_a_row() > 0 {
            self.missed.store(0, Ordering::Relaxed);
        }
    }

    /// A call that waits for its answer.
    pub(super) fn find(&self, call: u64) -> Option<Arc<CallSlot>> {
        self.table().slots.get(&call).cloned()
    }

    /// The call whose message has this number, if it waits for its answer.
    pub(super) fn find_by_message(&self, message: u64) -> Option<Arc<CallSlot>> {
        self.table().find_by_message(message)
    }

    /// Message number `reply`, of which all is here if `is_whole`, answers the call that its header names. Until it is complete, it
    /// is found by its number.
    pub(super) fn answer(&self, reply: u64, header: Header, mut is_whole: bool) -> Answers {
        let mut table = self.table();
        let table = &mut *table;
        let Entry::Occupied(found) = table.slots.entry(header.call) else {
            return match table.unanswered.checked_sub(1) {
                Some(left) => {
                    table.unanswered = left;
                    Answers::Nobody
                }
                None => Answers::Unasked,
            };
        };
        if !found.get().try_set_reply(reply) {
            return Answers::Answered;
        }
        // Even a message that is here whole may have to move to another device.
        is_whole &= found.get().receive_placement.is_none();
        if is_whole && found.get().streams.is_none() {
            // The caller of this completes it: nobody needs to find it any more.
            found.get().mark_removed();
            let slot = found.remove();
            return Answers::Call { slot, is_whole };
        }
        let slot = found.get().clone();
        if !is_whole {
            let reading = Reading::Reply(slot.clone());
            table.reading.insert(reply, (header, reading));
        }
        Answers::Call { slot, is_whole }
    }

    /// Nobody waits for the call any more. Returns whether it had not ended.
    pub(super) fn give_up(&self, slot: &CallSlot) -> bool {
        self.table().remove(slot.id).is_some()
    }

    /// Takes out the calls whose deadline has passed. Returns each with the time that it had, and when the next one passes.
    pub(super) fn take_due(
        &self,
        now: Instant,
    ) -> (Vec<(Arc<CallSlot>, Duration)>, Option<Instant>) {
        let mut table = self.table();
        let due = table.extract(|slot| {
            let (deadline, after) = slot.deadline?;
            (deadline <= now).then_some(after)
        });
        let made = table.slots.values();
        table.check_at = made.filter_map(|slot| Some(slot.deadline?.0)).min();
        (due, table.check_at)
    }

    /// Has whoever waits for a call look for its answer.
    pub(super) fn nudge(&self) {
        let slots: Vec<_> = self.table().slots.values().cloned().collect();
        for slot in slots {
            // It may be the last of a call by now: what that lets go of may panic.
            ignore_panic(move || slot.outcome.nudge());
        }
    }

    /// What of a call that is no longer in the table is on its way. A message that is not queued yet is taken back by its sender.
    pub(super) fn on_its_way(&self, slot: &CallSlot) -> OnItsWay {
        if slot.cancel_unsent() {
            return OnItsWay::default();
        }
        let reading = |reply| Some((reply, self.take_reading(reply)?.0));
        OnItsWay {
            request: slot.message(),
            reply: slot.reply().and_then(reading),
        }
    }

    /// Gives the outcome back if nobody waits for it.
    pub(super) fn complete(&self, slot: &CallSlot, outcome: Outcome) -> Option<Outcome> {
        if !slot.is_removed() {
            let removed = self.table().remove(slot.id);
            drop(removed);
        }
        slot.complete(outcome)
    }

    /// Fails the calls for which `which` has an error.
    pub(super) fn fail_where(&self, which: impl FnMut(&CallSlot) -> Option<CallError>) {
        let failed = self.table().extract(which);
        for (slot, error) in failed {
            ignore_panic(move || slot.fail(error));
        }
    }
}
