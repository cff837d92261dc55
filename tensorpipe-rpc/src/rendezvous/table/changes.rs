//! The table's steps: a value comes, leaves, is let in.

use std::collections::hash_map::Entry;

use super::{Slot, Stage, Table};
use crate::rendezvous::error::{RecvError, SendError};
use crate::rendezvous::key::Key;
use crate::rendezvous::limits::REMEMBERED;

/// So few are not tidied up.
const SHORT: usize = 64;
use crate::rendezvous::value::Value;

impl<W> Table<W> {
    /// Something is sent to this consumer.
    pub(super) fn names(&mut self, consumer: &str) {
        if self.consumers.contains(consumer) {
            return;
        }
        self.consumers.insert(consumer.into());
        if let Some(aborted) = self.early.remove(consumer) {
            self.abort(&aborted);
        }
    }

    /// Whether there is room for a value of this key, or somebody who waits for it.
    pub(super) fn admits(&self, key: &Key, value: &Value) -> Result<bool, SendError> {
        if let Some(aborted) = &self.aborted {
            return Err(aborted.clone().into());
        }
        let step = key.step();
        if self.finished.contains(step) {
            return Err(SendError::Finished { step });
        }
        let slots = self.steps.get(&step);
        match slots.and_then(|slots| slots.get(key)) {
            // Empty: somebody has a place.
            Some(slot) if matches!(slot.stage, Stage::Empty) => Ok(true),
            Some(_) => Err(SendError::Twice(key.clone())),
            // Nobody overtakes those who wait for room.
            None => Ok(self.room.is_free() && self.fits(value.byte_len())),
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

    pub(super) fn put(&mut self, key: &Key, value: Value) {
        self.bytes += value.byte_len();
        self.values += 1;
        let stage = Stage::Here { value, lent: false };
        let slots = self.steps.entry(key.step()).or_default();
        match slots.entry(key.clone()) {
            Entry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                slot.stage = stage;
                if let Some(place) = &mut slot.place {
                    self.after.wakes.extend(place.wake.take());
                }
            }
            Entry::Vacant(slot) => {
                slot.insert(Slot { stage, place: None });
            }
        }
    }

    /// The slot at which this number has a place.
    pub(super) fn place(&mut self, key: &Key, number: u64) -> Result<&mut Slot<W>, RecvError> {
        self.is_open(key.step())?;
        let slots = self.steps.get_mut(&key.step());
        let slot = slots.and_then(|slots| slots.get_mut(key));
        let has_place = |slot: &&mut Slot<W>| {
            let place = slot.place.as_ref();
            place.is_some_and(|place| place.number == number)
        };
        // While its step is open, only another one takes a place away.
        let slot = slot.filter(has_place);
        slot.ok_or_else(|| RecvError::Awaited(key.clone()))
    }

    /// Whether somebody in another process may have it by now.
    pub(super) fn is_lent(&self, key: &Key) -> bool {
        let slots = self.steps.get(&key.step());
        let slot = slots.and_then(|slots| slots.get(key));
        slot.is_some_and(|slot| matches!(slot.stage, Stage::Here { lent: true, .. }))
    }

    /// Nobody has a place at this key any more.
    pub(super) fn leave(&mut self, key: &Key) {
        let slots = self.steps.get_mut(&key.step());
        let slot = slots.and_then(|slots| slots.get_mut(key));
        if let Some(place) = slot.and_then(|slot| slot.place.take()) {
            self.waiting -= 1;
            self.after.stale.extend(place.wake);
        }
    }

    /// The value of this key is its receiver's.
    pub(super) fn receive(&mut self, key: &Key) -> Option<Value> {
        let slots = self.steps.get_mut(&key.step());
        let slot = slots.and_then(|slots| slots.get_mut(key))?;
        if matches!(slot.stage, Stage::Received) {
            return None;
        }
        let value = match std::mem::replace(&mut slot.stage, Stage::Received) {
            Stage::Here { value, lent } => {
                self.bytes -= value.byte_len();
                self.values -= 1;
                self.lent -= usize::from(lent);
                Some(value)
            }
            _ => None,
        };
        self.received.push_back(key.clone());
        if self.received.len() > REMEMBERED
            && let Some(earliest) = self.received.pop_front()
        {
            let slots = self.steps.get(&earliest.step());
            let slot = slots.and_then(|slots| slots.get(&earliest));
            let received = |slot: &&Slot<W>| matches!(slot.stage, Stage::Received);
            match slot.filter(received) {
                None => self.stale = self.stale.saturating_sub(1),
                Some(slot) if slot.place.is_none() => drop(self.forget(&earliest)),
                // Somebody has asked, and not looked since: later.
                Some(_) => self.received.push_back(earliest),
            }
        }
        self.admit();
        value
    }

    /// Forgets the received keys of finished steps once they are most of them: so each is looked at twice at the most.
    pub(super) fn tidy(&mut self) {
        if self.stale <= (self.received.len() / 2).max(SHORT) {
            return;
        }
        let steps = &self.steps;
        let is_known = |key: &Key| {
            steps
                .get(&key.step())
                .is_some_and(|slots| slots.contains_key(key))
        };
        self.received.retain(is_known);
        self.received.shrink_to(2 * self.received.len());
        self.stale = 0;
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
            let slots = self.steps.get(&key.step());
            let slot = slots.and_then(|slots| slots.get(&key));
            let bytes = match slot.map(|slot| &slot.stage) {
                Some(Stage::Blocked(_, value)) => value.byte_len(),
                _ => 0,
            };
            if !self.fits(bytes) {
                return;
            }
            self.let_in(number, &key);
        }
    }

    /// Lets one blocked send in.
    pub(super) fn let_in(&mut self, number: u64, key: &Key) {
        self.after.wakes.extend(self.room.end(number, Ok(())));
        let slots = self.steps.get_mut(&key.step());
        let slot = slots.and_then(|slots| slots.get_mut(key));
        let Some(slot) = slot else { return };
        if let Stage::Blocked(_, value) = std::mem::replace(&mut slot.stage, Stage::Empty) {
            self.put(key, value);
        }
    }

    /// A slot that was taken out of the table.
    pub(super) fn end(&mut self, slot: Slot<W>, why: &SendError) {
        match slot.stage {
            Stage::Here { value, lent } => {
                self.bytes -= value.byte_len();
                self.values -= 1;
                self.lent -= usize::from(lent);
                self.after.dropped.push(value);
            }
            Stage::Blocked(number, value) => {
                self.after.dropped.push(value);
                self.after
                    .wakes
                    .extend(self.room.end(number, Err(why.clone())));
            }
            Stage::Empty | Stage::Received => {}
        }
        if let Some(place) = slot.place {
            self.waiting -= 1;
            self.after.wakes.extend(place.wake);
        }
    }
}
