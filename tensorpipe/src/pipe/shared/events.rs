//! Handles the events of the protocol and the results of the lanes.

use std::task::Waker;

use super::{Delivery, Recipient, Shared};
use crate::ambient;
use crate::channels::{ChannelFault, Lane, PieceEvent};
use crate::device::{Buffer, Destination};
use crate::error::{Error, Misuse, PeerFault, ResetCode};
use crate::pipe::driver::Interest;
use crate::pipe::lane::{self, LaneIo, LaneResult, Outcome, PipeHost};
use crate::proto::{Event, OpId, Reason};

impl Shared {
    /// Whether lanes have work for the thread that drives.
    pub(in crate::pipe) fn has_work(&self) -> bool {
        !self.lane_work.is_empty()
    }

    /// Whether the protocol has no event, and no lane has a result or work.
    pub(in crate::pipe) fn is_idle(&self) -> bool {
        self.lane_results.is_empty() && !self.has_work() && !self.state.has_event()
    }

    /// Handles all events of the protocol and all results of lanes.
    pub(in crate::pipe) fn process(&mut self, wakes: &mut Vec<Waker>) {
        loop {
            self.process_events(wakes);
            if self.lane_results.is_empty() {
                return;
            }
            for result in std::mem::take(&mut self.lane_results) {
                self.lane_result(result, wakes);
            }
        }
    }

    /// Handles the events of the protocol, but no results of lanes.
    pub(in crate::pipe) fn process_events(&mut self, wakes: &mut Vec<Waker>) {
        while let Some(event) = self.state.poll_event() {
            self.event(event, wakes);
        }
    }

    /// The peer's lane broke its protocol, so the pipe ends.
    fn channel_fault(
        &mut self,
        channel: u8,
        ChannelFault(what): ChannelFault,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(slot) = self.lanes.get(usize::from(channel)) else {
            return;
        };
        let channel = slot.channel.name();
        let fault = PeerFault::Channel { channel, what };
        let pipe = self.name.clone();
        self.end(Error::Peer { pipe, fault }, wakes);
    }

    /// The channel that carries a part, if that is still under way.
    fn channel_of(&mut self, op: OpId) -> Option<u8> {
        if op.outgoing {
            self.state.outgoing_channel(op)
        } else {
            let carriage = self.state.bulk_channel(op.message, op.part);
            carriage.map(|(channel, _)| channel)
        }
    }

    /// The lane's wait in `op` is over.
    pub(in crate::pipe) fn resume(&mut self, op: OpId, wakes: &mut Vec<Waker>) {
        self.tell_lane(op, PieceEvent::Resume, wakes);
    }

    /// Passes `event` to the lane of `op`, if that is still under way.
    fn tell_lane(&mut self, op: OpId, event: PieceEvent<'_>, wakes: &mut Vec<Waker>) {
        if let Some(channel) = self.channel_of(op) {
            self.tell_lane_of(channel, op, event, wakes);
        }
    }

    fn tell_lane_of(
        &mut self,
        channel: u8,
        op: OpId,
        event: PieceEvent<'_>,
        wakes: &mut Vec<Waker>,
    ) {
        let mut result = Ok(());
        self.with_lane(op, channel, |lane, io| match event {
            event if op.number().is_some() => result = lane.inner(op, event, io),
            PieceEvent::Control(body) => result = lane.control(op, body, io),
            PieceEvent::Streamed(dest) => lane.streamed(op, dest, io),
            PieceEvent::Resume => result = lane.resume(op, io),
            // The lane itself reported this end.
            PieceEvent::Ended(_) => {}
        });
        self.announce();
        if let Err(fault) = result {
            self.channel_fault(channel, fault, wakes);
        }
    }

    fn event(&mut self, event: Event<Buffer, Destination>, wakes: &mut Vec<Waker>) {
        match event {
            // Abandoned right after the go-ahead.
            Event::Start { op, .. } if !self.state.is_writing(op.message) => {}
            Event::Start {
                op,
                channel,
                source,
            } => self.start(op, channel, source),
            Event::StreamSent { op } => self.tell_lane(op, PieceEvent::Streamed(None), wakes),
            Event::StreamReceived { op, dest } => {
                // It was filled: its memory is there.
                let dest = dest.and_then(Destination::into_memory);
                if dest.is_some() {
                    self.tell_lane(op, PieceEvent::Streamed(dest), wakes);
                }
            }
            Event::Cancel { op, channel } => {
                self.with_lane(op, channel, |lane, io| lane.cancel(op, io))
            }
            Event::Channel { op, channel, body } => {
                self.tell_lane_of(channel, op, PieceEvent::Control(&body), wakes);
            }
            Event::Written { message } => self.end_write(message, Ok(()), wakes),
            Event::Refused(reason) => {
                let (message, code) = (reason.message, reason.code);
                if code == ResetCode::Closing {
                    self.ignore_from(message, wakes);
                }
                let result = match code {
                    ResetCode::Skipped => Ok(()),
                    _ => Err(Error::Refused {
                        code,
                        reason: reason.text.as_str().into(),
                    }),
                };
                self.end_write(message, result, wakes);
                self.deliver(Delivery::Refused(reason));
            }
            Event::Reset(reason) => self.peer_reset(reason, wakes),
            Event::Flushed { message } => {
                self.flushed_to = self.flushed_to.max(message + 1);
                self.wake(Interest::Flush, wakes);
            }
            Event::GoAway { next, text } => self.handle_go_away(next, text, wakes),
            Event::Fin => {
                self.end_ahead(ambient::now());
                self.wake(Interest::Descriptor, wakes);
            }
            Event::FinAck => self.wakers.wake_background(),
            Event::Recalled => self.lower_credit(ambient::now()),
        }
    }

    /// Has a channel send a part.
    pub(in crate::pipe) fn start(&mut self, op: OpId, channel: u8, source: Buffer) {
        if let Some(slot) = self.lanes.get(usize::from(channel)) {
            slot.carried.count(source.len() as u64);
        }
        self.with_lane(op, channel, |lane, io| lane.send(op, source, io));
    }

    /// Calls a lane's method about an operation, with access to the pipe.
    pub(in crate::pipe) fn with_lane(
        &mut self,
        op: OpId,
        channel: u8,
        act: impl FnOnce(&mut dyn Lane, &mut LaneIo<'_>),
    ) {
        let mut act = Some(act);
        self.call_lane(op, channel, &mut |lane, io| {
            if let Some(act) = act.take() {
                act(lane, io);
            }
        });
    }

    /// Not inlined: a message with a part comes here several times, and finds one copy of this code in the cache.
    #[inline(never)]
    fn call_lane(
        &mut self,
        op: OpId,
        channel: u8,
        act: &mut dyn FnMut(&mut dyn Lane, &mut LaneIo<'_>),
    ) {
        // Outgoing parts are announced by nobody, and credit bounds the parts that come ahead.
        let counts = !op.outgoing && !self.has_credit(op);
        let Some(slot) = self.lanes.get_mut(usize::from(channel)) else {
            return;
        };
        let before = self.lane_stats;
        let mut host = PipeHost {
            state: &mut self.state,
            results: &mut self.lane_results,
            work: &mut self.lane_work,
            stats: &mut self.lane_stats,
            allocators: &self.allocators,
            announcements: counts.then_some(&self.announcements),
            announced: &mut self.announced,
            runtime: &self.runtime,
            required: &slot.required,
            diverted: &slot.diverted,
            by_message: &self.send_options,
            awaited: op.outgoing && self.writes.contains_key(&op.message),
            piece_place: None,
        };
        let mut io = LaneIo::new(&mut host);
        lane::call(&self.wakers, || act(&mut *slot.lane, &mut io));
        let after = self.lane_stats;
        if before != after
            && let Some(reading) = self.reads.get_mut(&op.message).filter(|_| !op.outgoing)
        {
            reading.stats.add(before, after);
        }
    }

    fn lane_result(&mut self, result: LaneResult, wakes: &mut Vec<Waker>) {
        match result {
            LaneResult::Ended(op, outcome) if op.number().is_some() => {
                self.tell_lane(op, PieceEvent::Ended(outcome), wakes);
            }
            LaneResult::Ended(op, Outcome::Sent) => self.state.part_sent(op),
            LaneResult::Ended(op, Outcome::Received(memory)) => {
                self.state.part_received(op);
                if let Some(reading) = self.reads.get_mut(&op.message) {
                    reading.received(op, memory);
                    self.check_read(op.message, wakes);
                }
            }
            LaneResult::Ended(op, Outcome::Failed(error)) if op.outgoing => {
                self.part_failed(op, error, wakes);
            }
            LaneResult::Ended(op, Outcome::Failed(error)) => {
                self.give_up(op.message, error, wakes);
            }
            LaneResult::Released(piece) => {
                if let Some(reading) = self.reads.get_mut(&piece.message) {
                    reading.release(piece);
                }
            }
            LaneResult::Fault(op, fault) => {
                if let Some(channel) = self.channel_of(op) {
                    self.channel_fault(channel, fault, wakes);
                }
            }
        }
    }

    /// A part of an outgoing message cannot be sent: the waiting write and the handler get the error. Only the first failure of a message
    /// counts.
    fn part_failed(&mut self, op: OpId, error: Error, wakes: &mut Vec<Waker>) {
        let Some(what) = self.state.name_outgoing(op) else {
            return;
        };
        let channel = self.state.outgoing_channel(op);
        let slot = channel.and_then(|channel| self.lanes.get(usize::from(channel)));
        let error = match (error, slot) {
            (Error::Misuse(mut misuse @ Misuse::NotAsRequired { .. }), _) => {
                if let Misuse::NotAsRequired { what: which, .. } = &mut misuse {
                    *which = what.into();
                }
                misuse.into()
            }
            (error @ Error::Misuse(_), _) | (error, None) => error,
            (error, Some(slot)) => Error::Unsent {
                what: what.into(),
                channel: slot.channel.name(),
                r#source: Box::new(error),
            },
        };
        self.state
            .reset(op.message, ResetCode::Failed, &error.to_string());
        self.end_write(op.message, Err(error.clone()), wakes);
        self.deliver(Delivery::Failed(Box::new((op.message, error))));
    }

    fn peer_reset(&mut self, why: Reason, wakes: &mut Vec<Waker>) {
        let message = why.message;
        // `arrived` is sorted by number. A linear search would let a peer that resets old messages keep this side busy.
        if let Ok(at) = (self.arrived).binary_search_by_key(&message, |arrival| arrival.id) {
            self.arrived.remove(at);
            self.state.take_reset(message);
        }
        let (code, reason) = (why.code, why.text.as_str().into());
        match self.reads.get(&message).map(|reading| reading.reader) {
            Some(Recipient::None) => drop(self.reads.remove(&message)),
            _ => self.end_read(message, Err(Error::Reset { code, reason }), wakes),
        }
        self.deliver(Delivery::Reset(why));
    }

    fn handle_go_away(&mut self, next: u64, text: String, wakes: &mut Vec<Waker>) {
        self.going_away_reason = text.as_str().into();
        let unseen = self.writes.keys().copied().filter(|id| *id >= next);
        for message in unseen.collect::<Vec<_>>() {
            self.end_write(message, Err(self.going_away()), wakes);
        }
        self.ignore_from(next, wakes);
        self.deliver(Delivery::GoingAway(next, text));
    }

    /// The peer does not read message `number`: a flush of it fails.
    fn ignore_from(&mut self, number: u64, wakes: &mut Vec<Waker>) {
        self.ignored_from = Some(self.ignored_from.unwrap_or(number).min(number));
        self.wake(Interest::Flush, wakes);
    }
}
