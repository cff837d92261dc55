//! Messages that come in: memory for the parts in their frame or ahead of the reader, and who is told.

use std::collections::hash_map::Entry;
use std::task::Waker;

use smallvec::SmallVec;

use super::reading::{Eager, Reading};
use super::{Arrival, Delivery, Recipient, Shared};
use crate::channels::{Adopted, Want};
use crate::device::{Destination, Device};
use crate::error::{Error, ResetCode, SystemError};
use crate::pipe::budget::out_of_memory;
use crate::pipe::driver::Interest;
use crate::pipe::lane::allocate;
use crate::proto::{Arriving, Carriage, Head, Offer, OpId};
use crate::sys::copy;

impl Shared {
    /// The destination of the next `len` bytes, which belong to `op`, and how many bytes it has already. `None` if nobody wants them. If
    /// the budget or the allocator refuses the memory, the message is given up.
    pub(in crate::pipe) fn place(
        &mut self,
        op: OpId,
        len: u64,
        wakes: &mut Vec<Waker>,
    ) -> Result<Option<(Destination, u64)>, Error> {
        let Some((mut dest, at)) = self.state.take_dest(op) else {
            return Ok(None);
        };
        let range = at as usize..(at + len) as usize;
        let has_credit = self.has_credit(op);
        let mut reading = self.reads.get_mut(&op.message);
        let refused = |error: SystemError| out_of_memory(len, error.to_string());
        let cost = dest.cost(range, self.allocators.main()).map_err(refused);
        let counted = cost.and_then(|cost| match &mut reading {
            Some(reading) if !has_credit => reading.grow(op, cost),
            // The window bounds parts in a message's frame, their credit bounds parts that come ahead.
            _ => Ok(()),
        });
        match (
            counted.and_then(|()| dest.open(self.allocators.main()).map_err(refused)),
            reading,
        ) {
            (Ok(()), _) => Ok(Some((dest, at))),
            (Err(error), None) => Err(error),
            (Err(error), Some(_)) => {
                self.give_up(op.message, error, wakes);
                Ok(None)
            }
        }
    }

    /// Whether a part comes ahead, so that its credit bounds its memory.
    pub(in crate::pipe) fn has_credit(&self, op: OpId) -> bool {
        let ahead = self.reads.get(&op.message).is_some_and(Reading::is_ahead);
        ahead
            && matches!(
                self.state.bulk_channel(op.message, op.part),
                Some((_, true))
            )
    }

    /// Takes back what `count` has counted.
    pub(in crate::pipe) fn uncount(&mut self, op: OpId, bytes: u64) {
        if self.has_credit(op) {
            return;
        }
        if let Some(reading) = self.reads.get_mut(&op.message) {
            reading.shrink(op, bytes);
        }
    }

    /// Counts memory that `op` is about to fill. If the budget does not allow it, the message is given up; then it returns `false`.
    pub(in crate::pipe) fn count(&mut self, op: OpId, bytes: u64, wakes: &mut Vec<Waker>) -> bool {
        if self.has_credit(op) {
            return true;
        }
        let reading = self.reads.get_mut(&op.message);
        match reading.map(|reading| reading.grow(op, bytes)) {
            None | Some(Ok(())) => true,
            Some(Err(error)) => {
                self.give_up(op.message, error, wakes);
                self.process(wakes);
                false
            }
        }
    }

    /// Gives up an incoming message: there is no memory for it, or its channel has failed.
    pub(in crate::pipe) fn give_up(&mut self, message: u64, error: Error, wakes: &mut Vec<Waker>) {
        match self.reads.get_mut(&message) {
            // The later reader gets the error, and may still refuse the message for a reason of its own.
            Some(reading) if reading.reader == Recipient::None => {
                reading.finish(Err(error));
                self.state.discard_parts(message);
            }
            reading => {
                let code = refusal(reading.map(|reading| reading.reader));
                self.state.refuse(message, code, &error.to_string());
                self.end_read(message, Err(error), wakes);
            }
        }
    }

    /// Called for a message that is about to be read: if it failed while it came ahead, takes the error and tells the writer.
    pub(in crate::pipe) fn take_failed(
        &mut self,
        message: u64,
        reader: Recipient,
    ) -> Option<Error> {
        let error = self.reads.get(&message)?.failed()?.clone();
        self.reads.remove(&message);
        let code = refusal(Some(reader));
        self.state.refuse(message, code, &error.to_string());
        Some(error)
    }

    /// Makes a message whole if all of its parts have come ahead by now.
    pub(in crate::pipe) fn complete(&mut self, arrival: &mut Arrival) {
        if !arrival.is_whole()
            && let Entry::Occupied(reading) = self.reads.entry(arrival.id)
            && reading.get().has_come()
        {
            let reading = reading.remove();
            let (parts, came) = reading.into_come();
            arrival.take_ahead(parts, came);
        }
    }

    /// The read of a message whose parts are coming.
    pub(in crate::pipe) fn reading(&mut self, message: u64) -> &mut Reading {
        let announcements = &self.announcements;
        let new = || Reading::new(announcements.reservation());
        self.reads.entry(message).or_insert_with(new)
    }

    /// Whether a part of an incoming message that is on `from` at its writer can be received on `to` here, or why not.
    pub(in crate::pipe) fn reaches(
        &self,
        message: u64,
        part: u16,
        from: Device,
        to: Device,
    ) -> Result<(), String> {
        match self.state.bulk_channel(message, part) {
            None | Some((_, true)) => Err(
                "it is here already; the writer can name the device with `MessageTensor::to_device`"
                    .to_owned(),
            ),
            Some((channel, false)) => match self.lanes.get(usize::from(channel)) {
                Some(slot) if slot.pairs.contains(&(to, from)) => Ok(()),
                Some(slot) => Err(format!(
                    "channel {}, which its writer chose, does not reach it from {from}; `Pipe::route` says what it reaches",
                    slot.channel.name()
                )),
                None => Err("the pipe has ended".to_owned()),
            },
        }
    }

    /// Hands what lanes have just announced and allocated to the message. A part's share counts until the message is complete, a piece's
    /// until the piece has come.
    pub(in crate::pipe) fn announce(&mut self) {
        for (op, announced, taken) in self.announced.drain(..) {
            if let Some(reading) = self.reads.get_mut(&op.message) {
                reading.keep(op, announced, taken);
            }
        }
    }

    /// Takes in a message whose head is here; `rest` is the bytes behind it. Returns how many of them it used.
    pub(in crate::pipe) fn arrive(
        &mut self,
        arriving: Arriving,
        rest: &[u8],
        wakes: &mut Vec<Waker>,
    ) -> Result<usize, Error> {
        // Measured: `benches/RESULTS.md`, "Messages without parts".
        if arriving.head.carriages().is_empty() {
            let arrival = Arrival::new(arriving.message, arriving.head, true);
            self.offer(arrival, wakes);
            return Ok(0);
        }
        self.arrive_with_parts(arriving, rest, wakes)
    }

    #[inline(never)]
    fn arrive_with_parts(
        &mut self,
        arriving: Arriving,
        rest: &[u8],
        wakes: &mut Vec<Waker>,
    ) -> Result<usize, Error> {
        let offer = self.state.offered(&arriving, rest);
        let Arriving {
            message,
            head,
            here,
        } = arriving;
        let adopted = offer.and_then(|offer| self.adopt(message, &head, rest, offer));
        let rides = |carriage: &Carriage| *carriage == Carriage::Eager;
        let whole = adopted.is_some() || head.carriages().iter().all(rides);
        if here.is_none() || !whole {
            self.state.expect_parts(message, &head);
            self.earn_ahead(&head);
        }
        let Some(here) = here else {
            let memory = |len| Destination::pooled(len as usize);
            self.state.start_eager(message, memory);
            self.arriving = Some(Arrival::new(message, head, whole));
            return Ok(0);
        };
        let mut arrival = Arrival::new(message, head, whole);
        if here > 0 {
            let parts = self.take_eager(&arrival.head, rest)?;
            arrival.take_eager(parts);
        }
        let mut used = here;
        if let Some((offer, adopted)) = adopted {
            arrival.take_adopted(offer.part, offer.channel, adopted);
            used = offer.word.end;
        } else if !whole {
            self.state.mark_eager_received(message);
            self.start_ahead(&arrival);
        }
        self.offer(arrival, wakes);
        Ok(used)
    }

    /// Asks the channel of the only missing part whether it has the part's memory.
    fn adopt(
        &mut self,
        message: u64,
        head: &Head,
        rest: &[u8],
        offer: Offer,
    ) -> Option<(Offer, Adopted)> {
        let (op, word) = (
            OpId::incoming(message, offer.part),
            &rest[offer.word.clone()],
        );
        let len = head.part_len(usize::from(offer.part));
        let mut adopted = None;
        self.with_lane(op, offer.channel, |lane, io| {
            adopted = lane.adopt(op, word, len, io)
        });
        Some((offer, adopted?))
    }

    /// The rest of the parts in the message's frame has come, too.
    pub(in crate::pipe) fn arrive_rest(&mut self, message: u64, wakes: &mut Vec<Waker>) {
        let Some(mut arrival) = self.arriving.take() else {
            return;
        };
        let parts = self.state.take_parts(message).into_iter();
        let parts = parts.filter_map(|(part, dest)| Some((part, dest.freeze()?)));
        arrival.take_eager(parts.collect());
        self.start_ahead(&arrival);
        self.offer(arrival, wakes);
    }

    fn offer(&mut self, arrival: Arrival, wakes: &mut Vec<Waker>) {
        if self.has_handler {
            self.deliver(Delivery::Incoming(arrival));
        } else {
            self.arrived.push_back(arrival);
            self.wake(Interest::Descriptor, wakes);
        }
    }

    /// Bulk parts that come without a go-ahead go into pooled memory until the application says where it wants them.
    fn start_ahead(&mut self, arrival: &Arrival) {
        let message = arrival.id;
        if !self.state.comes_ahead(message) {
            return;
        }
        let mut ahead = SmallVec::<[(OpId, u8); 4]>::new();
        let mut bulk = 0;
        for part in 0..arrival.head.carriages().len() as u16 {
            if let Some((channel, comes)) = self.state.bulk_channel(message, part) {
                bulk += 1;
                if comes {
                    ahead.push((OpId::incoming(message, part), channel));
                }
            }
        }
        let parts = ahead.iter().map(|(op, _)| op.part).collect();
        self.reading(message)
            .comes_ahead(parts, ahead.len() == bulk);
        for (op, channel) in ahead {
            let part = usize::from(op.part);
            let (len, device) = (arrival.head.part_len(part), arrival.head.device(part));
            let want = Want::Adopt { len, device };
            self.carried_by(message, channel);
            self.with_lane(op, channel, |lane, io| lane.recv(op, want, io));
        }
        self.announce();
    }

    /// Copies the eager parts out of `bytes`, which begin with them.
    fn take_eager(&mut self, head: &Head, bytes: &[u8]) -> Result<Eager, Error> {
        let (mut used, mut parts) = (0, Eager::new());
        for (i, carriage) in head.carriages().iter().enumerate() {
            let len = head.part_len(i);
            if *carriage != Carriage::Eager || len == 0 {
                continue;
            }
            let end = used + len as usize;
            let mut memory = allocate(self.allocators.main(), len)?;
            if let Some(dest) = memory.as_bytes_mut() {
                copy::copy(&bytes[used..end], dest);
                self.lane_stats.copied += len;
            }
            parts.push((i as u16, memory.freeze()));
            used = end;
        }
        Ok(parts)
    }

    /// Takes the next message and calls `take` on it. If no more will come: how the pipe ended.
    pub(in crate::pipe) fn take_arrival<T>(
        &mut self,
        take: impl Fn(&Arrival, &mut Self) -> T,
    ) -> Option<Result<(Arrival, T), Error>> {
        if let Some(arrival) = self.arrived.pop_front() {
            let taken = take(&arrival, self);
            return Some(Ok((arrival, taken)));
        }
        if let Some(error) = &self.ended {
            return Some(Err(error.clone()));
        }
        // Nothing more will come, although the connection still stands.
        (self.state.is_fin_received()).then(|| Err(self.closed(true)))
    }
}

/// A message given up for a handler counts as skipped, since the handler answers in its own way.
fn refusal(reader: Option<Recipient>) -> ResetCode {
    match reader {
        Some(Recipient::Handler) => ResetCode::Skipped,
        _ => ResetCode::Failed,
    }
}
