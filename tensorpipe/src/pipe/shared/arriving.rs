//! Messages that come in: memory for what comes with their frame or ahead of the reader, and who is told.

use std::task::Waker;

use bytes::Bytes;
use smallvec::SmallVec;

use super::Shared;
use crate::channels::Want;
use crate::descriptor::Descriptor;
use crate::device::{Destination, Device};
use crate::error::{Error, ResetCode, SystemError};
use crate::pipe::arrival::Arrival;
use crate::pipe::core::Core;
use crate::pipe::handler::Delivery;
use crate::pipe::lane::{allocate, out_of_memory};
use crate::pipe::reading::{Eager, Reading};
use crate::pipe::waiter::Interest;
use crate::proto::{Offered, OpId};
use crate::sys::copy;

impl Shared {
    /// Memory for the eager parts of an arriving message.
    pub(in crate::pipe) fn allocate_eager(&mut self, message: u64) {
        let parts: SmallVec<[_; 4]> = self.state.eager_parts(message).collect();
        for (part, len) in parts {
            let dest = Destination::pooled(len as usize);
            self.state.set_dest(OpId::incoming(message, part), dest);
        }
        self.state.start_eager(message);
    }

    /// The next `len` bytes are of `op`: where they go, and how many it has; `None` where nobody wants them. Where the budget does
    /// not allow what they make resident, or there is no such memory, their message is given up.
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
        let mut reading = self.reads.get_mut(&op.message);
        let refused = |error: SystemError| out_of_memory(len, error.to_string());
        let cost = dest.cost(range, self.allocators.main()).map_err(refused);
        let counted = cost.and_then(|cost| match &mut reading {
            Some(reading) => reading.grow(cost),
            // What comes in a message's frame is bounded by the window.
            None => Ok(()),
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

    /// Memory of `op` is about to be filled. Where the budget does not allow it, its message is given up.
    pub(in crate::pipe) fn count(&mut self, op: OpId, bytes: u64, wakes: &mut Vec<Waker>) {
        let reading = self.reads.get_mut(&op.message);
        if let Some(Err(error)) = reading.map(|reading| reading.grow(bytes)) {
            self.give_up(op.message, error, wakes);
        }
    }

    /// A message that is being read cannot be: there is no memory for it, or its channel does not get on.
    pub(in crate::pipe) fn give_up(&mut self, message: u64, error: Error, wakes: &mut Vec<Waker>) {
        let pushed = self.reads.get(&message).is_some_and(Reading::is_pushed);
        // A handler answers in its own way.
        let code = match pushed {
            true => ResetCode::Skipped,
            false => ResetCode::Failed,
        };
        self.state.refuse(message, code, &error.to_string());
        self.end_read(message, Err(error), wakes);
    }

    /// What is known of a message whose parts come.
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

    /// What lanes have announced and allocated counts until this message is complete.
    pub(in crate::pipe) fn announce(&mut self, message: u64) {
        let (announced, taken) = (self.announced.drain(..), self.taken.take());
        if let Some(reading) = self.reads.get_mut(&message) {
            reading.keep(announced, taken);
        }
    }

    pub(in crate::pipe) fn arrive(&mut self, message: u64, wakes: &mut Vec<Waker>) {
        let Some(descriptor) = self.state.take_descriptor(message) else {
            return;
        };
        let eager = self
            .state
            .take_parts(message)
            .into_iter()
            .filter_map(|(part, dest)| Some((part, dest.freeze()?)));
        let arrival = Arrival::new(message, descriptor, eager.collect());
        self.offer(Box::new(arrival), wakes);
    }

    /// A message is here whole; the bytes of its parts are the first ones of `bytes`. Returns how many they are.
    pub(in crate::pipe) fn arrive_whole(
        &mut self,
        core: &Core,
        message: u64,
        descriptor: Descriptor,
        bytes: &[u8],
        wakes: &mut Vec<Waker>,
    ) -> Result<usize, Error> {
        let (eager, used) = take_eager(core, &descriptor, None, bytes)?;
        self.offer(Box::new(Arrival::new(message, descriptor, eager)), wakes);
        Ok(used)
    }

    /// A message is here but for one part, which its channel may have; what follows of it are the first bytes of `rest`.
    /// Returns how many of them are used up.
    pub(in crate::pipe) fn arrive_offered(
        &mut self,
        core: &Core,
        offered: Offered,
        rest: &[u8],
        wakes: &mut Vec<Waker>,
    ) -> Result<usize, Error> {
        let Offered {
            message,
            head,
            part,
            channel,
            body,
            len,
        } = offered;
        let (op, word) = (OpId::incoming(message, part), &rest[body]);
        let part_len = head.part_len(usize::from(part));
        let mut adopted = None;
        self.with_lane(op, channel, |lane, io| {
            adopted = lane.adopt(op, word, part_len, io)
        });
        let Some(adopted) = adopted else {
            self.state.decline(message, head);
            self.allocate_eager(message);
            return Ok(0);
        };
        let descriptor = head.descriptor;
        let (eager, _) = take_eager(core, &descriptor, Some(part), rest)?;
        let place = (part, channel);
        let arrival = Arrival::with_adopted(message, descriptor, eager, place, adopted);
        self.offer(Box::new(arrival), wakes);
        Ok(len)
    }

    /// A message of metadata alone is here.
    pub(in crate::pipe) fn arrive_bare(
        &mut self,
        message: u64,
        metadata: Bytes,
        wakes: &mut Vec<Waker>,
    ) {
        if self.handler.is_some() {
            self.deliver(Delivery::Bare(message, metadata));
        } else {
            self.offer(Box::new(Arrival::bare(message, metadata)), wakes);
        }
    }

    pub(in crate::pipe) fn offer(&mut self, arrival: Box<Arrival>, wakes: &mut Vec<Waker>) {
        if self.handler.is_some() {
            self.deliver(Delivery::Incoming(arrival));
        } else {
            self.arrived.push_back(arrival);
            self.wake(Interest::Descriptor, wakes);
        }
    }

    /// Bulk parts come without a go-ahead: pooled memory takes them until the application says where it wants them.
    pub(in crate::pipe) fn start_ahead(&mut self, message: u64) {
        self.reading(message);
        for part in 0..u16::MAX {
            let op = OpId::incoming(message, part);
            match self.state.part_len(op) {
                None => break,
                Some(len) if len > 0 => {
                    if let Some((channel, true)) = self.state.bulk_channel(message, part) {
                        let device = self.state.target(op);
                        let want = Want::Adopt { len, device };
                        self.carried_by(message, channel);
                        self.with_lane(op, channel, |lane, io| lane.recv(op, want, io));
                    }
                }
                Some(_) => {}
            }
        }
        self.announce(message);
    }
}

/// Copies the parts that came with their frame, but for one that did not, out of `bytes`, which begin with them. Returns how many
/// that were.
fn take_eager(
    core: &Core,
    descriptor: &Descriptor,
    but: Option<u16>,
    bytes: &[u8],
) -> Result<(Eager, usize), Error> {
    let payloads = descriptor.payloads.iter().map(|payload| payload.len);
    let lens = payloads.chain(descriptor.tensors.iter().map(|tensor| tensor.byte_len()));
    let lens = (0u16..).zip(lens);
    let (mut used, mut eager) = (0, Eager::new());
    for (part, len) in lens.filter(|(part, len)| *len > 0 && Some(*part) != but) {
        let end = used + len as usize;
        let mut memory = allocate(&core.pool, len)?;
        if let Some(dest) = memory.as_bytes_mut() {
            copy::copy(&bytes[used..end], dest);
            core.counters.copied(dest.len());
        }
        eager.push((part, memory.freeze()));
        used = end;
    }
    Ok((eager, used))
}

/// Takes the next message, of which `take` is told; how the pipe ended, if none will come.
pub(in crate::pipe) fn take_arrival<T>(
    core: &Core,
    shared: &mut Shared,
    take: impl Fn(&Arrival, &mut Shared) -> T,
) -> Option<Result<(Box<Arrival>, T), Error>> {
    if let Some(arrival) = shared.arrived.pop_front() {
        let taken = take(&arrival, shared);
        return Some(Ok((arrival, taken)));
    }
    if let Some(error) = &shared.ended {
        return Some(Err(error.clone()));
    }
    // Nothing more will come, although the connection still stands.
    shared.state.is_closed_in().then(|| {
        Err(Error::Closed {
            pipe: core.name.clone(),
            by_peer: true,
        })
    })
}
