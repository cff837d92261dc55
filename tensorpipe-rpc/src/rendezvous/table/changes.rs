//! The steps of the table: a value is kept, is received, or is let in from the queue.

use std::collections::hash_map::Entry;

use super::{Slot, Stage, Table, slot, slot_mut};
use crate::rendezvous::error::{RecvError, SendError};
use crate::rendezvous::key::Key;
use crate::rendezvous::limits::REMEMBERED;
use crate::rendezvous::value::Value;

impl<W> Table<W> {
    /// Keeps a value if there is room, or a receiver waits for it. Otherwise gives it back.
    pub(super) fn offer(&mut self, key: &Key, value: Value) -> Result<Option<Value>, SendError> {
        if !self.has_sent_to(key.consumer()) {
            self.consumers.insert(key.consumer().into());
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

    /// Whether a value of this key can be kept: there is room, or a receiver waits for it.
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
            Some(slot) if matches!(slot.stage, Stage::Empty) => Ok(true),
            Some(_) => Err(SendError::AlreadySent(key.clone())),
            // A new send must not overtake those that wait for room.
            None => Ok(self.room.is_empty() && self.fits(value.byte_len())),
        }
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
        self.bytes += value.byte_len();
        self.values += 1;
        let stage = Stage::Here { value, lent: false };
        let slots = self.steps.entry(key.step()).or_default();
        match slots.entry(key.clone()) {
            Entry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                slot.stage = stage;
                if let Some(waiter) = &mut slot.waiter {
                    self.deferred.wakes.extend(waiter.wake.take());
                }
            }
            Entry::Vacant(slot) => {
                slot.insert(Slot::new(stage));
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
        let slot = slot_mut(&mut self.steps, key);
        if let Some(waiter) = slot.and_then(|slot| slot.waiter.take()) {
            self.waiting -= 1;
            self.deferred.stale.extend(waiter.wake);
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
                self.bytes -= value.byte_len();
                self.values -= 1;
                self.lent -= usize::from(lent);
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

    /// Lets blocked sends in, in their order, while there is room.
    pub(super) fn admit(&mut self) {
        while let Some((number, key)) = self.room.first() {
            let bytes = match slot(&self.steps, key).map(|slot| &slot.stage) {
                Some(Stage::Blocked(_, value)) => value.byte_len(),
                _ => 0,
            };
            if !self.fits(bytes) {
                return;
            }
            let key = key.clone();
            self.unblock(number, &key);
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
    pub(super) fn end(&mut self, slot: Slot<W>, why: &SendError) {
        match slot.stage {
            Stage::Here { value, lent } => {
                self.bytes -= value.byte_len();
                self.values -= 1;
                self.lent -= usize::from(lent);
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
