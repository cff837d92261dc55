//! The values that were sent and not received, and who waits for which: a state machine without locks, clocks and tasks.
//!
//! ```text
//!          send, with room or awaited              taken, or confirmed
//!   Empty ───────────────────────────▶ Here ───────────────────────────▶ Received
//!     │ park                            ▲ │ lent: stays, until confirmed
//!     └──────────────────▶ Blocked ─────┘ └─┐
//!                 room, or awaited       ▲──┘
//! ```
//!
//! A receiver has a *place* at a key from [`Table::recv`] on until it has the value, an error, or withdraws. Invariants:
//! - a value leaves when it is taken, by `confirm`, `finish` or `abort` alone, and for the first two once. Whoever gives its place up, or
//!   is lent a value and goes, takes nothing away;
//! - `bytes` and `values` are the sums over what is Here; a send makes them exceed the limits only where a receiver has a place;
//! - a blocked send that a receiver asks for is let in at once: a bound delays nothing that somebody waits for;
//! - `lent` counts what is lent, and at [`LENT`] nothing further is: who confirms nothing does not fill this process;
//! - `received` has the keys that are Received and no others: a step that is over leaves none behind;
//! - whoever can go on is in the list of [`Table::after`].
//!
//! `W` wakes a task; whoever drives the table does so after it has let go of its lock.

mod changes;
mod finished;
mod room;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::task::Poll;

use self::finished::Finished;
use self::room::BlockedSends;
use super::error::{Aborted, RecvError, SendError};
use super::key::Key;
use super::limits::{LENT, Limits, Stats};
use super::value::Value;

/// How many aborts are kept of who is no consumer yet.
const EARLY: usize = 64;

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Table<W> {
    limits: Limits,
    steps: Steps<W>,
    room: BlockedSends<W>,
    /// Received, the earliest first.
    received: BTreeMap<u64, Key>,
    finished: Finished,
    aborted: Option<Aborted>,
    /// To whom something was sent.
    consumers: HashSet<Box<str>>,
    /// Aborts of who may become one of them.
    early: HashMap<Box<str>, Aborted>,
    bytes: u64,
    values: usize,
    lent: usize,
    waiting: usize,
    /// Of places, and of what was received.
    numbers: u64,
    after: After<W>,
}

/// What is left to do once the table's lock is free: both run code of others.
#[derive(Debug)]
pub(super) struct After<W> {
    /// Who can go on by now.
    pub(super) wakes: Vec<W>,
    /// What is not kept any more.
    pub(super) dropped: Vec<Value>,
    /// What wakes nobody any more: with it a task may go, and what that has.
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

/// What is known of a key.
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
    /// Its sender waits for room, with this number.
    Blocked(u64, Value),
    Here {
        value: Value,
        /// Somebody in another process may have it by now.
        lent: bool,
    },
    /// Its number among those.
    Received(u64),
}

/// Who has a place.
#[derive(Debug)]
struct Waiter<W> {
    number: u64,
    give: ReceiveMode,
    wake: Option<W>,
}

/// How a value is given to who has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveMode {
    /// It leaves.
    Take,
    /// It stays until [`Table::confirm`].
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
            consumers: HashSet::new(),
            early: HashMap::new(),
            bytes: 0,
            values: 0,
            lent: 0,
            waiting: 0,
            numbers: 0,
            after: After::default(),
        }
    }

    /// What the calls before have left to do.
    #[must_use = "whoever is not woken sleeps on"]
    pub(super) fn after(&mut self) -> After<W> {
        std::mem::take(&mut self.after)
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

    /// Keeps a value for its receiver, or says that there is no room.
    pub(super) fn send(&mut self, key: &Key, value: Value) -> Result<(), SendError> {
        let Some(value) = self.offer(key, value)? else {
            return Ok(());
        };
        let full = self.full(value.byte_len());
        self.after.dropped.push(value);
        Err(full)
    }

    /// The same; where there is no room the sender gets a number to wait with, and the value is here once there is some.
    pub(super) fn park(&mut self, key: &Key, value: Value) -> Result<Option<u64>, SendError> {
        let Some(value) = self.offer(key, value)? else {
            return Ok(None);
        };
        // Larger than all the room: only its receiver lets it in, and nobody stands behind it.
        let queued = value.byte_len() <= self.limits.bytes;
        let number = self.room.enter(key.clone(), queued);
        let stage = Stage::Blocked(number, value);
        let slots = self.steps.entry(key.step()).or_default();
        slots.insert(key.clone(), Slot::new(stage));
        Ok(Some(number))
    }

    /// Whether the value of a blocked send is here.
    pub(super) fn poll_parked(
        &mut self,
        number: u64,
        wake: impl FnOnce() -> W,
    ) -> Poll<Result<(), SendError>> {
        self.room.poll(number, wake, &mut self.after.stale)
    }

    /// A blocked send waits no more: its value is gone. `None` then; else how it had ended before.
    pub(super) fn unpark(&mut self, number: u64) -> Option<Result<(), SendError>> {
        let key = match self.room.leave(number, &mut self.after.stale) {
            Ok(key) => key,
            Err(how) => return Some(how),
        };
        if let Some(Stage::Blocked(_, value)) = self.forget(&key) {
            self.after.dropped.push(value);
        }
        // Those behind it may fit.
        self.admit();
        None
    }

    /// Takes a place at a key. Among those to whom a value is lent the last one has it. A consumer asks once at a time, so whoever
    /// asked before has given up, or is dead, though that is not known here yet.
    pub(super) fn recv(&mut self, key: &Key, give: ReceiveMode) -> Result<u64, RecvError> {
        self.is_open(key.step())?;
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
            Some(before) => self.after.wakes.extend(before.wake),
            None => self.waiting += 1,
        }
        if let Stage::Blocked(sender, _) = slot.stage {
            self.let_in(sender, key);
        }
        Ok(number)
    }

    /// Gives the value to whoever has this place, which ends with it, or with an error.
    pub(super) fn poll(
        &mut self,
        key: &Key,
        number: u64,
        wake: impl FnOnce() -> W,
    ) -> Poll<Result<Value, RecvError>> {
        let slot = match self.reserved(key, number) {
            Ok(slot) => slot,
            Err(error) => return Poll::Ready(Err(error)),
        };
        let give = slot.waiter.as_ref().map(|waiter| waiter.give);
        let given = match &mut slot.stage {
            Stage::Here { value, lent } if give == Some(ReceiveMode::Lend) => {
                let value = value.clone();
                let before = std::mem::replace(lent, true);
                self.lent += usize::from(!before);
                Some(value)
            }
            Stage::Here { .. } | Stage::Received(_) => None,
            Stage::Empty | Stage::Blocked(..) => {
                let waiter = slot.waiter.as_mut();
                let before = waiter.and_then(|waiter| waiter.wake.replace(wake()));
                self.after.stale.extend(before);
                return Poll::Pending;
            }
        };
        self.leave(key);
        let given = given.or_else(|| self.receive(key));
        // Somebody else has it.
        Poll::Ready(given.ok_or_else(|| RecvError::Received(key.clone())))
    }

    /// Whoever has this place has got the value elsewhere.
    pub(super) fn claim(&mut self, key: &Key, number: u64) -> Result<(), RecvError> {
        self.reserved(key, number)?;
        self.leave(key);
        let here = self.receive(key);
        self.after.dropped.extend(here);
        Ok(())
    }

    /// Gives a place up. What is here stays.
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

    /// Whoever was lent the value has it. A confirmation of what was not lent changes nothing.
    pub(super) fn confirm(&mut self, key: &Key) {
        if !self.is_lent(key) {
            return;
        }
        // Whoever has asked meanwhile hears that it came too late.
        let slot = slot_mut(&mut self.steps, key);
        if let Some(waiter) = slot.and_then(|slot| slot.waiter.as_mut()) {
            self.after.wakes.extend(waiter.wake.take());
        }
        let here = self.receive(key);
        self.after.dropped.extend(here);
    }

    /// A step is over: its values are dropped, whoever waits in it is told, and so is whoever comes later.
    pub(super) fn finish(&mut self, step: u64) {
        self.finished.insert(step);
        if let Some(slots) = self.steps.remove(&step) {
            for (_, slot) in slots {
                self.end(slot, &SendError::Finished { step });
            }
        }
        self.admit();
    }

    /// The same, as this consumer wants it: once something is sent to it, now or later. `false` where there are too many of whom
    /// nobody has heard.
    pub(super) fn abort_by(&mut self, consumer: &str, aborted: &Aborted) -> bool {
        if self.consumers.contains(consumer) {
            self.abort(aborted);
        } else if self.early.len() < EARLY {
            self.early.insert(consumer.into(), aborted.clone());
        } else {
            return false;
        }
        true
    }

    /// Everything is over. Only the first reason counts.
    pub(super) fn abort(&mut self, aborted: &Aborted) {
        if self.aborted.is_some() {
            return;
        }
        self.aborted = Some(aborted.clone());
        for (_, slots) in std::mem::take(&mut self.steps) {
            for (_, slot) in slots {
                self.end(slot, &SendError::Aborted(aborted.clone()));
            }
        }
    }

    fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    fn is_open(&self, step: u64) -> Result<(), RecvError> {
        if let Some(aborted) = &self.aborted {
            return Err(aborted.clone().into());
        }
        if self.finished.contains(step) {
            return Err(RecvError::Finished { step });
        }
        Ok(())
    }
}
