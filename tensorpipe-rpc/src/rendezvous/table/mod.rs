//! The table of values that were sent and not received, and of receives that wait: a state machine without locks, clocks and tasks.
//!
//! ```text
//!          send, with room or awaited              taken, or confirmed
//!   Empty ───────────────────────────▶ Here ───────────────────────────▶ Received
//!     │ send_or_block                   ▲ │ lent: stays, until confirmed
//!     └──────────────────▶ Blocked ─────┘ └─┐
//!                 room, or awaited       ▲──┘
//! ```
//!
//! A receiver has a *place* at a key, from [`Table::recv`] until it has the value or an error, or withdraws. Invariants:
//! - a value leaves only when it is taken, or by `confirm`, `finish` or `abort`; by the first two only once. A receiver that gives
//!   its place up, or is lent a value and dies, takes nothing away;
//! - `bytes` and `values` are the sums over all slots that are Here; a send exceeds the limits only if a receiver has a place;
//! - a blocked send is let in as soon as a receiver of this process asks for its value: bounds never delay a value that is waited for
//!   here. For a receiver of another process it is let in if [`Table::may_exceed`] says so, or once it does;
//! - `lent` counts lent values, and at [`LENT`] no more are lent: a consumer that never confirms cannot fill this process;
//! - `received` holds exactly the keys that are Received: a finished step leaves none behind;
//! - the waker of each task that can go on is in the list of [`Table::take_deferred`].
//!
//! `W` wakes a task. The table's owner wakes tasks only after it has released the lock.

mod changes;
mod finished;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::task::Poll;

use self::finished::Finished;
use self::room::BlockedSends;
use super::error::{Aborted, RecvError, SendError};
use super::key::Key;
use super::limits::{LENT, Limits, Stats};
use super::value::Value;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Table<W> {
    limits: Limits,
    steps: Steps<W>,
    room: BlockedSends<W>,
    /// The keys of received values, the earliest first.
    received: BTreeMap<u64, Key>,
    finished: Finished,
    aborted: Option<Aborted>,
    /// The consumers to which something was sent, and how many of their values are lent.
    consumers: HashMap<Box<str>, usize>,
    bytes: u64,
    values: usize,
    lent: usize,
    lent_bytes: u64,
    waiting: usize,
    /// The last number of a place or of a received value.
    numbers: u64,
    deferred: After<W>,
}

/// What is to be done after the table's lock is released, because it runs foreign code.
#[derive(Debug)]
pub(super) struct After<W> {
    /// Wakers of tasks that can go on.
    pub(super) wakes: Vec<W>,
    /// Values that are no longer kept.
    pub(super) dropped: Vec<Value>,
    /// Wakers that are no longer needed. Dropping one may drop its task, and all that the task holds.
    pub(super) stale: Vec<W>,
}

impl<W> Default for After<W> {
    fn default() -> Self {
        Self {
            wakes: Vec::new(),
            dropped: Vec::new(),
            stale: Vec::new(),
        }
    }
}

type Steps<W> = HashMap<u64, HashMap<Key, Slot<W>>>;

/// The state of a key.
#[derive(Debug)]
struct Slot<W> {
    stage: Stage,
    waiter: Option<Waiter<W>>,
}

impl<W> Slot<W> {
    fn new(stage: Stage) -> Self {
        let waiter = None;
        Self { stage, waiter }
    }
}

fn slot<'t, W>(steps: &'t Steps<W>, key: &Key) -> Option<&'t Slot<W>> {
    steps.get(&key.step())?.get(key)
}

fn slot_mut<'t, W>(steps: &'t mut Steps<W>, key: &Key) -> Option<&'t mut Slot<W>> {
    steps.get_mut(&key.step())?.get_mut(key)
}

#[derive(Debug)]
enum Stage {
    Empty,
    /// Its sender waits for room, under this number.
    Blocked(u64, Value),
    Here {
        value: Value,
        /// Another process may have the value by now, or is about to get it.
        lent: bool,
    },
    /// Its number in `received`.
    Received(u64),
}

/// The receive that has a place.
#[derive(Debug)]
struct Waiter<W> {
    number: u64,
    give: ReceiveMode,
    wake: Option<W>,
}

/// How a value is given to a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveMode {
    /// The value leaves the table.
    Take,
    /// The value stays until [`Table::confirm`].
    Lend,
}

impl<W> Table<W> {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            steps: HashMap::new(),
            room: BlockedSends::default(),
            received: BTreeMap::new(),
            finished: Finished::default(),
            aborted: None,
            consumers: HashMap::new(),
            bytes: 0,
            values: 0,
            lent: 0,
            lent_bytes: 0,
            waiting: 0,
            numbers: 0,
            deferred: After::default(),
        }
    }

    /// Takes the work that earlier calls have left.
    #[must_use = "whoever is not woken sleeps on"]
    pub(super) fn take_deferred(&mut self) -> After<W> {
        std::mem::take(&mut self.deferred)
    }

    pub(super) fn stats(&self) -> Stats {
        Stats {
            bytes: self.bytes,
            values: self.values,
            blocked: self.room.blocked(),
            waiting: self.waiting,
            refused: 0,
        }
    }

    /// Keeps a value for its receiver. An error if there is no room.
    pub(super) fn send(&mut self, key: &Key, value: Value) -> Result<(), SendError> {
        let Some(value) = self.offer(key, value)? else {
            return Ok(());
        };
        let full = self.full(value.byte_len());
        self.deferred.dropped.push(value);
        Err(full)
    }

    /// As `send`, but if there is no room, the sender gets a number to wait with. The value is kept once there is room.
    pub(super) fn send_or_block(
        &mut self,
        key: &Key,
        value: Value,
    ) -> Result<Option<u64>, SendError> {
        let Some(value) = self.offer(key, value)? else {
            return Ok(None);
        };
        // A value larger than the whole bound is not queued: only its receiver can let it in, so it must not block others.
        let queued = value.byte_len() <= self.limits.bytes;
        let number = self.room.enter(key.clone(), queued);
        let stage = Stage::Blocked(number, value);
        let slots = self.steps.entry(key.step()).or_default();
        let slot = slots.entry(key.clone()).or_insert(Slot::new(Stage::Empty));
        slot.stage = stage;
        if slot.waiter.is_some() {
            self.room.ask(number);
        }
        Ok(Some(number))
    }

    /// Whether the value of a blocked send has been kept. If not, takes `wake`.
    pub(super) fn poll_blocked(
        &mut self,
        number: u64,
        wake: &mut Option<W>,
    ) -> Poll<Result<(), SendError>> {
        self.room.poll(number, wake, &mut self.deferred.stale)
    }

    /// Gives a blocked send up, and drops its value. If the send had ended before, returns how.
    pub(super) fn cancel_blocked(&mut self, number: u64) -> Option<Result<(), SendError>> {
        let key = match self.room.leave(number, &mut self.deferred.stale) {
            Ok(key) => key,
            Err(how) => return Some(how),
        };
        let stage = match slot_mut(&mut self.steps, &key) {
            // Its receiver waits on.
            Some(slot) if slot.waiter.is_some() => {
                Some(std::mem::replace(&mut slot.stage, Stage::Empty))
            }
            _ => self.forget(&key),
        };
        if let Some(Stage::Blocked(_, value)) = stage {
            self.deferred.dropped.push(value);
        }
        // Sends behind it may fit now.
        self.admit();
        None
    }

    /// Takes a place at a key. Among receives that are lent the value, the last one gets it: a consumer asks once at a time, so an
    /// earlier one of its receives has given up or is dead, even if this process does not know yet.
    pub(super) fn recv(&mut self, key: &Key, give: ReceiveMode) -> Result<u64, RecvError> {
        self.check_open(key.step())?;
        if give == ReceiveMode::Lend && self.lent >= LENT && !self.is_lent(key) {
            return Err(RecvError::Unconfirmed { values: self.lent });
        }
        let number = self.next_number();
        let slots = self.steps.entry(key.step()).or_default();
        let slot = slots.entry(key.clone()).or_insert(Slot::new(Stage::Empty));
        match (&slot.stage, &slot.waiter) {
            (Stage::Received(_), _) => return Err(RecvError::Received(key.clone())),
            (_, Some(before)) if give == ReceiveMode::Take || before.give == ReceiveMode::Take => {
                return Err(RecvError::Awaited(key.clone()));
            }
            _ => {}
        }
        let wake = None;
        match slot.waiter.replace(Waiter { number, give, wake }) {
            Some(before) => self.deferred.wakes.extend(before.wake),
            None => self.waiting += 1,
        }
        if let Stage::Blocked(sender, value) = &slot.stage {
            let (sender, bytes) = (*sender, value.byte_len());
            match self.accepts(key, bytes, give) {
                true => self.unblock(sender, key),
                false => self.room.ask(sender),
            }
        }
        Ok(number)
    }

    /// Polls a receive by its place, which ends with the value or an error. Takes `wake` if it goes on.
    pub(super) fn poll(
        &mut self,
        key: &Key,
        number: u64,
        wake: &mut Option<W>,
    ) -> Poll<Result<Value, RecvError>> {
        let slot = match self.reserved(key, number) {
            Ok(slot) => slot,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let give = slot.waiter.as_ref().map(|waiter| waiter.give);
        let mut was_lent = true;
        let given = match &mut slot.stage {
            Stage::Here { value, lent } if give == Some(ReceiveMode::Lend) => {
                was_lent = std::mem::replace(lent, true);
                Some(value.clone())
            }
            Stage::Here { .. } | Stage::Received(_) => None,
            Stage::Empty | Stage::Blocked(..) => {
                let waiter = slot.waiter.as_mut();
                let before =
                    waiter.and_then(|waiter| std::mem::replace(&mut waiter.wake, wake.take()));
                self.deferred.stale.extend(before);
                return Poll::Pending;
            }
        };
        if !was_lent && let Some(value) = &given {
            self.count_lent(key, value.byte_len());
        }
        self.leave(key);
        let given = given.or_else(|| self.receive(key));
        // Another receive has the value.
        Poll::Ready(given.ok_or_else(|| RecvError::Received(key.clone())))
    }

    /// The receive in this place has got the value from elsewhere.
    pub(super) fn claim(&mut self, key: &Key, number: u64) -> Result<(), RecvError> {
        self.reserved(key, number)?;
        self.leave(key);
        let here = self.receive(key);
        self.deferred.dropped.extend(here);
        Ok(())
    }

    /// Gives a place up. A value that is here stays.
    pub(super) fn withdraw(&mut self, key: &Key, number: u64) {
        let Ok(slot) = self.reserved(key, number) else {
            return;
        };
        let empty = matches!(slot.stage, Stage::Empty);
        self.leave(key);
        if empty {
            self.forget(key);
        }
    }

    /// The consumer confirms a lent value. For a value that was not lent, this changes nothing.
    pub(super) fn confirm(&mut self, key: &Key) {
        if !self.is_lent(key) {
            return;
        }
        // A receive that has asked meanwhile is woken, and learns that it came too late.
        let slot = slot_mut(&mut self.steps, key);
        if let Some(waiter) = slot.and_then(|slot| slot.waiter.as_mut()) {
            self.deferred.wakes.extend(waiter.wake.take());
        }
        let here = self.receive(key);
        self.deferred.dropped.extend(here);
    }

    /// Finishes a step: drops its values, and fails its sends and receives, waiting or later.
    pub(super) fn finish(&mut self, step: u64) {
        self.finished.insert(step);
        if let Some(slots) = self.steps.remove(&step) {
            for (key, slot) in slots {
                self.end(&key, slot, &SendError::Finished { step });
            }
        }
        self.admit();
    }

    /// Whether something was sent to this consumer.
    pub(super) fn has_sent_to(&self, consumer: &str) -> bool {
        self.consumers.contains_key(consumer)
    }

    /// Aborts on behalf of a consumer, if something was sent to it.
    pub(super) fn abort_by(&mut self, consumer: &str, aborted: &Aborted) {
        if self.has_sent_to(consumer) {
            self.abort(aborted);
        }
    }

    /// Aborts everything. Only the first reason counts.
    pub(super) fn abort(&mut self, aborted: &Aborted) {
        if self.aborted.is_some() {
            return;
        }
        self.aborted = Some(aborted.clone());
        for (_, slots) in std::mem::take(&mut self.steps) {
            for (key, slot) in slots {
                self.end(&key, slot, &SendError::Aborted(aborted.clone()));
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn check_open(&self, step: u64) -> Result<(), RecvError> {
        if let Some(aborted) = &self.aborted {
            return Err(aborted.clone().into());
        }
        if self.finished.contains(step) {
            return Err(RecvError::Finished { step });
        }
        Ok(())
    }
}
