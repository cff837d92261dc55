//! The steps of the table: a value is kept, is received, or is let in from the queue.

use std::collections::hash_map::Entry;

use super::{ReceiveMode, Slot, Stage, Table, slot, slot_mut};
use crate::rendezvous::error::{RecvError, SendError};
use crate::rendezvous::key::Key;
use crate::rendezvous::limits::{LENT, REMEMBERED};
use crate::rendezvous::value::Value;

impl<W> Table<W> {
    /// Keeps a value if there is room, or a receiver waits for it. Otherwise gives it back.
    pub(super) fn offer(&mut self, key: &Key, value: Value) -> Result<Option<Value>, SendError> {
        if !self.has_sent_to(key.consumer()) {
            self.consumers.insert(key.consumer().into(), 0);
        }
        match self.admits(key, &value) {
            Ok(true) => {
                self.put(key, value);
                Ok(None)
            }
            Ok(false) => Ok(Some(value)),
            Err(error) => {
                self.deferred.dropped.push(value);
                Err(error)
            }
        }
    }

    /// Whether a value of this key can be kept: there is room, or a receiver waits for it and the value may exceed the limits.
    fn admits(&self, key: &Key, value: &Value) -> Result<bool, SendError> {
        if let Some(aborted) = &self.aborted {
            return Err(aborted.clone().into());
        }
        let step = key.step();
        if self.finished.contains(step) {
            return Err(SendError::Finished { step });
        }
        match slot(&self.steps, key) {
            // Empty: a receiver has a place.
            Some(Slot {
                stage: Stage::Empty,
                waiter: Some(waiter),
            }) => Ok(self.accepts(key, value.byte_len(), waiter.give)),
            Some(_) => Err(SendError::AlreadySent(key.clone())),
            // A new send must not overtake those that wait for room.
            None => Ok(self.room.is_empty() && self.fits(value.byte_len())),
        }
    }

    /// Whether a value for which a receive waits can be kept.
    pub(super) fn accepts(&self, key: &Key, bytes: u64, give: ReceiveMode) -> bool {
        give == ReceiveMode::Take || self.fits(bytes) || self.may_exceed(key.consumer())
    }

    /// Whether a value may exceed the limits because a consumer in another process waits for it. That needs less than the limit to be
    /// lent already. Beyond that, each consumer is lent one at a time, so that one that does not confirm stops no other.
    fn may_exceed(&self, consumer: &str) -> bool {
        let has_none = || self.consumers.get(consumer) == Some(&0);
        self.lent < LENT && (self.lent_bytes < self.limits.bytes || has_none())
    }

    pub(super) fn fits(&self, bytes: u64) -> bool {
        self.values < self.limits.values
            && self
                .bytes
                .checked_add(bytes)
                .is_some_and(|sum| sum <= self.limits.bytes)
    }

    pub(in crate::rendezvous) fn full(&self, bytes: u64) -> SendError {
        SendError::Full {
            held: self.bytes,
            values: self.values,
            bytes,
        }
    }

    fn put(&mut self, key: &Key, value: Value) {
        let bytes = value.byte_len();
        self.bytes += bytes;
        self.values += 1;
        let slots = self.steps.entry(key.step()).or_default();
        let slot = slots.entry(key.clone()).or_insert(Slot::new(Stage::Empty));
        let mut lent = false;
        if let Some(waiter) = &mut slot.waiter {
            self.deferred.wakes.extend(waiter.wake.take());
            lent = waiter.give == ReceiveMode::Lend;
        }
        slot.stage = Stage::Here { value, lent };
        if lent {
            // Now, not when the receive is polled: many may be sent before.
            self.count_lent(key, bytes);
        }
    }

    pub(super) fn count_lent(&mut self, key: &Key, bytes: u64) {
        self.lent += 1;
        self.lent_bytes += bytes;
        if let Some(lent) = self.consumers.get_mut(key.consumer()) {
            *lent += 1;
        }
    }

    /// A value that was here, and perhaps lent, has left.
    fn uncount(&mut self, key: &Key, bytes: u64, lent: bool) {
        self.bytes -= bytes;
        self.values -= 1;
        if lent {
            self.lent -= 1;
            self.lent_bytes -= bytes;
            if let Some(lent) = self.consumers.get_mut(key.consumer()) {
                *lent -= 1;
            }
        }
    }

    /// The slot in which the receive of this number has a place.
    pub(super) fn reserved(&mut self, key: &Key, number: u64) -> Result<&mut Slot<W>, RecvError> {
        self.check_open(key.step())?;
        let has_place = |slot: &&mut Slot<W>| {
            let waiter = slot.waiter.as_ref();
            waiter.is_some_and(|waiter| waiter.number == number)
        };
        // While its step is open, a place is only lost to another receive.
        let slot = slot_mut(&mut self.steps, key).filter(has_place);
        slot.ok_or_else(|| RecvError::Awaited(key.clone()))
    }

    /// Whether another process may have the value by now.
    pub(super) fn is_lent(&self, key: &Key) -> bool {
        let slot = slot(&self.steps, key);
        slot.is_some_and(|slot| matches!(slot.stage, Stage::Here { lent: true, .. }))
    }

    /// Removes the receive that has a place at this key.
    pub(super) fn leave(&mut self, key: &Key) {
        let Some(slot) = slot_mut(&mut self.steps, key) else {
            return;
        };
        if let Some(waiter) = slot.waiter.take() {
            self.waiting -= 1;
            self.deferred.stale.extend(waiter.wake);
            if let Stage::Blocked(sender, _) = slot.stage {
                self.room.unask(sender);
            }
        }
    }

    /// Gives the value of this key to its receiver.
    pub(super) fn receive(&mut self, key: &Key) -> Option<Value> {
        let stage = &mut slot_mut(&mut self.steps, key)?.stage;
        if matches!(stage, Stage::Received(_)) {
            return None;
        }
        let value = match std::mem::replace(stage, Stage::Empty) {
            Stage::Here { value, lent } => {
                self.uncount(key, value.byte_len(), lent);
                Some(value)
            }
            _ => None,
        };
        self.remember(key.clone());
        if self.received.len() > REMEMBERED
            && let Some((_, earliest)) = self.received.pop_first()
        {
            match slot(&self.steps, &earliest) {
                // A receive is waiting there and has not polled since: remember the key for longer.
                Some(Slot {
                    waiter: Some(_), ..
                }) => self.remember(earliest),
                _ => drop(self.forget(&earliest)),
            }
        }
        self.admit();
        value
    }

    /// Remembers, as the latest, that the value of this key was received.
    fn remember(&mut self, key: Key) {
        let number = self.next_number();
        if let Some(slot) = slot_mut(&mut self.steps, &key) {
            slot.stage = Stage::Received(number);
            self.received.insert(number, key);
        }
    }

    /// Takes a key out of the table.
    pub(super) fn forget(&mut self, key: &Key) -> Option<Stage> {
        let Entry::Occupied(mut slots) = self.steps.entry(key.step()) else {
            return None;
        };
        let slot = slots.get_mut().remove(key);
        if slots.get().is_empty() {
            slots.remove();
        }
        Some(slot?.stage)
    }

    /// Lets blocked sends in: those whose values are waited for, if they may exceed the limits, and then, in their order, while there
    /// is room.
    pub(super) fn admit(&mut self) {
        for (number, key) in self.room.asked() {
            let bytes = self.blocked_bytes(&key);
            if self.accepts(&key, bytes, ReceiveMode::Lend) {
                self.unblock(number, &key);
            }
        }
        while let Some((number, key)) = self.room.first() {
            if !self.fits(self.blocked_bytes(key)) {
                return;
            }
            let key = key.clone();
            self.unblock(number, &key);
        }
    }

    fn blocked_bytes(&self, key: &Key) -> u64 {
        match slot(&self.steps, key).map(|slot| &slot.stage) {
            Some(Stage::Blocked(_, value)) => value.byte_len(),
            _ => 0,
        }
    }

    /// Lets one blocked send in.
    pub(super) fn unblock(&mut self, number: u64, key: &Key) {
        self.deferred.wakes.extend(self.room.end(number, Ok(())));
        let Some(slot) = slot_mut(&mut self.steps, key) else {
            return;
        };
        if let Stage::Blocked(_, value) = std::mem::replace(&mut slot.stage, Stage::Empty) {
            self.put(key, value);
        }
    }

    /// Ends a slot that was taken out of the table.
    pub(super) fn end(&mut self, key: &Key, slot: Slot<W>, why: &SendError) {
        match slot.stage {
            Stage::Here { value, lent } => {
                self.uncount(key, value.byte_len(), lent);
                self.deferred.dropped.push(value);
            }
            Stage::Blocked(number, value) => {
                self.deferred.dropped.push(value);
                self.deferred
                    .wakes
                    .extend(self.room.end(number, Err(why.clone())));
            }
            Stage::Received(number) => {
                self.received.remove(&number);
            }
            Stage::Empty => {}
        }
        if let Some(waiter) = slot.waiter {
            self.waiting -= 1;
            self.deferred.wakes.extend(waiter.wake);
        }
    }
}
