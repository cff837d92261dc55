//! What the holders of a pipe share: the protocol's state, the lanes, and the operations that wait.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::budget::{Announced, Announcements};
use super::core::Core;
use super::handler::{Delivery, Handler};
use super::incoming::Arrival;
use super::lane::{LaneIo, LaneResult, allocate};
use super::reading::Reading;
use super::stats::LaneStats;
use super::waiter::Interest;
use crate::channels::{Channel, ChannelFault, Lane, Want};
use crate::device::{Buffer, BufferMut, Device, Pool};
use crate::error::{Error, PeerFault, ResetCode};
use crate::proto::{AtOnce, Event, OpId, PipeState};
use crate::route::{Carried, ChannelChoice};
use crate::sync::{Arc, AtomicUsize, Ordering};

/// A channel in use on this pipe.
pub(crate) struct LaneSlot {
    pub(crate) channel: Arc<dyn Channel>,
    /// (this side's device, the peer's).
    pub(crate) pairs: Vec<(Device, Device)>,
    pub(crate) lane: Box<dyn Lane>,
    /// Counts what it is given to carry.
    pub(crate) carried: Carried,
}

pub(crate) struct Shared {
    pub(super) state: PipeState<Buffer, BufferMut>,
    pub(super) lanes: Vec<LaneSlot>,
    /// Which of them carries what.
    pub(super) choice: ChannelChoice,
    /// Lanes of a pipe that has ended, to be dropped without the lock.
    retired_lanes: Vec<LaneSlot>,
    pub(super) lane_results: Vec<LaneResult>,
    pub(super) lane_stats: LaneStats,
    pool: Pool,
    announcements: Announcements,
    /// For what a lane has just allocated.
    announced: Vec<Announced>,
    runtime: tokio::runtime::Handle,
    /// Messages that nobody has taken yet, while there is no handler.
    pub(super) arrived: VecDeque<Arrival>,
    /// Operations being awaited, by their registration.
    pub(super) waiting: Vec<(u64, Interest, Waker)>,
    pub(super) reads: HashMap<u64, Reading>,
    /// Writes that somebody may still ask about, and how they ended.
    pub(super) writes: HashMap<u64, Option<Result<(), Error>>>,
    /// The peer's application has called read for every message before this one.
    pub(super) flushed_to: u64,
    pub(super) handler: Option<Arc<dyn Handler>>,
    deliveries: VecDeque<Delivery>,
    /// How many those are, for whoever does not hold the lock.
    delivery_count: Arc<AtomicUsize>,
    /// How the pipe ended.
    pub(super) ended: Option<Error>,
    /// Closing: until when at most.
    pub(super) linger_until: Option<Instant>,
    /// And how long that is.
    pub(super) linger: Duration,
    /// Its place among the pipes of its listener.
    permit: Option<tokio::sync::OwnedSemaphorePermit>,
    /// First of this side's messages that the peer has not looked at, because it goes.
    pub(super) ignored_from: Option<u64>,
    /// Why the peer takes no more messages.
    pub(super) peer_goes_because: Arc<str>,
}

impl Shared {
    pub(crate) fn new(
        state: PipeState<Buffer, BufferMut>,
        pool: Pool,
        announcements: Announcements,
        runtime: tokio::runtime::Handle,
        permit: Option<tokio::sync::OwnedSemaphorePermit>,
        choice: ChannelChoice,
    ) -> Self {
        Self {
            state,
            choice,
            permit,
            lanes: Vec::new(),
            retired_lanes: Vec::new(),
            lane_results: Vec::new(),
            lane_stats: LaneStats::default(),
            pool,
            announcements,
            announced: Vec::new(),
            runtime,
            arrived: VecDeque::new(),
            waiting: Vec::new(),
            reads: HashMap::new(),
            writes: HashMap::new(),
            flushed_to: 0,
            handler: None,
            deliveries: VecDeque::new(),
            delivery_count: Arc::default(),
            ended: None,
            linger_until: None,
            linger: Duration::ZERO,
            ignored_from: None,
            peer_goes_because: "".into(),
        }
    }

    /// Lanes need a handle on the core, which needs this first.
    pub(crate) fn set_lanes(&mut self, lanes: Vec<LaneSlot>) {
        let at_once = lanes.iter().map(|slot| slot.channel.sends_at_once());
        self.state.set_at_once(AtOnce::new(at_once));
        self.lanes = lanes;
    }

    pub(super) fn take_retired_lanes(&mut self) -> Vec<LaneSlot> {
        std::mem::take(&mut self.retired_lanes)
    }

    pub(super) fn delivery_count(&self) -> &Arc<AtomicUsize> {
        &self.delivery_count
    }

    fn count_deliveries(&self) {
        self.delivery_count
            .store(self.deliveries.len(), Ordering::SeqCst);
    }

    pub(super) fn next_delivery(&mut self) -> Option<(Arc<dyn Handler>, Delivery)> {
        let handler = self.handler.clone()?;
        let delivery = self.deliveries.pop_front()?;
        self.count_deliveries();
        Some((handler, delivery))
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) {
        if self.handler.is_some() {
            self.deliveries.push_back(delivery);
            self.count_deliveries();
        }
    }

    /// From now on messages are pushed to `handler`, those that wait first.
    pub(super) fn set_handler(&mut self, handler: Arc<dyn Handler>) {
        self.handler = Some(handler);
        self.deliveries
            .extend(self.arrived.drain(..).map(Delivery::Incoming));
        if let Some(error) = &self.ended {
            self.deliveries.push_back(Delivery::Closed(error.clone()));
        }
        self.count_deliveries();
    }

    /// Memory for the eager parts of an arriving message.
    pub(super) fn allocate_eager(&mut self, core: &Core, message: u64) -> Result<(), Error> {
        let parts: Vec<_> = self.state.eager_parts(message).collect();
        for (part, len) in parts {
            let dest = allocate(&core.pool, len)?;
            self.state.set_dest(
                OpId {
                    message,
                    part,
                    outgoing: false,
                },
                dest,
            );
        }
        self.state.start_eager(message);
        Ok(())
    }

    /// `bytes` of `op` are about to come. Where the budget does not allow it, its message is given up.
    pub(super) fn account(&mut self, op: OpId, bytes: u64, wakes: &mut Vec<Waker>) {
        let Some(reading) = self.reads.get_mut(&op.message) else {
            return;
        };
        let Err(error) = reading.account(op.part, bytes) else {
            return;
        };
        // A handler answers in its own way.
        let code = if reading.is_pushed() {
            ResetCode::Skipped
        } else {
            ResetCode::Failed
        };
        self.state.refuse(op.message, code, &error.to_string());
        self.end_read(op.message, Err(error), wakes);
    }

    /// Acts on everything that the protocol and the lanes have to say.
    pub(super) fn process(&mut self, core: &Core, wakes: &mut Vec<Waker>) {
        loop {
            if let Some(event) = self.state.poll_event() {
                if let Err((channel, fault)) = self.event(event, core, wakes) {
                    self.channel_fault(channel, fault, core, wakes);
                }
            } else if !self.lane_results.is_empty() {
                for result in std::mem::take(&mut self.lane_results) {
                    self.lane_result(result, core, wakes);
                }
            } else {
                return;
            }
        }
    }

    fn channel_fault(
        &mut self,
        channel: &'static str,
        ChannelFault(what): ChannelFault,
        core: &Core,
        wakes: &mut Vec<Waker>,
    ) {
        let fault = PeerFault::Channel { channel, what };
        let pipe = core.name.clone();
        self.end(Error::Peer { pipe, fault }, wakes);
    }

    /// Number and name of the channel that carries a part.
    fn channel_of(&mut self, op: OpId) -> Option<(u8, &'static str)> {
        let channel = if op.outgoing {
            self.state.outgoing_channel(op)
        } else {
            let carriage = self.state.bulk_channel(op.message, op.part);
            carriage.map(|(channel, _)| channel)
        }?;
        let slot = self.lanes.get(usize::from(channel))?;
        Some((channel, slot.channel.name()))
    }

    /// A lane has what it waited for.
    pub(super) fn resume(&mut self, op: OpId, core: &Core, wakes: &mut Vec<Waker>) {
        let Some((channel, name)) = self.channel_of(op) else {
            return;
        };
        let mut result = Ok(());
        self.with_lane(op, channel, |lane, io| result = lane.resume(op, io));
        self.announce(op.message);
        if let Err(fault) = result {
            self.channel_fault(name, fault, core, wakes);
        }
    }

    fn event(
        &mut self,
        event: Event<Buffer, BufferMut>,
        core: &Core,
        wakes: &mut Vec<Waker>,
    ) -> Result<(), (&'static str, ChannelFault)> {
        match event {
            Event::Ready { message } => self.arrive(message, wakes),
            Event::Ahead { message } => self.start_ahead(message),
            // Abandoned right after the go-ahead.
            Event::Start { op, .. } if !self.state.is_writing(op.message) => {}
            Event::Start {
                op,
                channel,
                source,
            } => {
                if let Some(slot) = self.lanes.get(usize::from(channel)) {
                    slot.carried.count(source.len() as u64);
                }
                self.with_lane(op, channel, |lane, io| lane.send(op, source, io));
            }
            Event::StreamSent { op } => {
                if let Some(channel) = self.state.outgoing_channel(op) {
                    self.with_lane(op, channel, |lane, io| lane.streamed(op, None, io));
                }
            }
            Event::StreamReceived { op, dest } => {
                if let (Some((channel, _)), Some(dest)) =
                    (self.state.bulk_channel(op.message, op.part), dest)
                {
                    self.with_lane(op, channel, |lane, io| lane.streamed(op, Some(dest), io));
                }
            }
            Event::Cancel { op, channel } => {
                self.with_lane(op, channel, |lane, io| lane.cancel(op, io))
            }
            Event::Channel { op, channel, body } => {
                let Some(slot) = self.lanes.get(usize::from(channel)) else {
                    return Ok(());
                };
                let name = slot.channel.name();
                let mut result = Ok(());
                self.with_lane(op, channel, |lane, io| result = lane.control(op, &body, io));
                self.announce(op.message);
                result.map_err(|fault| (name, fault))?;
            }
            Event::Written { message } => self.end_write(message, Ok(()), wakes),
            Event::Refused {
                message,
                code,
                text,
            } => {
                let result = if code == ResetCode::Skipped {
                    Ok(())
                } else {
                    Err(Error::Refused {
                        code,
                        reason: text.as_str().into(),
                    })
                };
                if code == ResetCode::Closing {
                    self.ignore_from(message, wakes);
                }
                self.end_write(message, result, wakes);
                self.deliver(Delivery::Refused(message, code, text));
            }
            Event::Reset {
                message,
                code,
                text,
            } => self.peer_reset(message, code, text, wakes),
            Event::Flushed { message } => {
                self.flushed_to = self.flushed_to.max(message + 1);
                self.wake(Interest::Flush, wakes);
            }
            Event::GoAway { next, text } => self.peer_goes(next, text, core, wakes),
            Event::Fin => self.wake(Interest::Descriptor, wakes),
            Event::FinAck => core.poller.wake_background(),
        }
        Ok(())
    }

    /// Whether a part of an incoming message that is on `from` at its writer can be received on `to` here, or why not.
    pub(super) fn reaches(
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

    /// What lanes have allocated counts until this message is complete.
    pub(super) fn announce(&mut self, message: u64) {
        let announced = self.announced.drain(..);
        if let Some(reading) = self.reads.get_mut(&message) {
            reading.announce(announced);
        }
    }

    pub(super) fn with_lane(
        &mut self,
        op: OpId,
        channel: u8,
        act: impl FnOnce(&mut dyn Lane, &mut LaneIo<'_>),
    ) {
        let Some(slot) = self.lanes.get_mut(usize::from(channel)) else {
            return;
        };
        let mut io = LaneIo {
            state: &mut self.state,
            results: &mut self.lane_results,
            stats: &mut self.lane_stats,
            pool: &self.pool,
            // What this side sends was announced by nobody.
            announcements: (!op.outgoing).then_some(&self.announcements),
            announced: &mut self.announced,
            runtime: &self.runtime,
        };
        act(&mut *slot.lane, &mut io);
    }

    fn arrive(&mut self, message: u64, wakes: &mut Vec<Waker>) {
        let Some(descriptor) = self.state.take_descriptor(message) else {
            return;
        };
        let eager = self
            .state
            .take_parts(message)
            .into_iter()
            .map(|(part, dest)| (part, dest.freeze()));
        let arrival = Arrival::new(message, descriptor, eager.collect());
        if self.handler.is_some() {
            self.deliver(Delivery::Incoming(arrival));
        } else {
            self.arrived.push_back(arrival);
            self.wake(Interest::Descriptor, wakes);
        }
    }

    /// Bulk parts come without a go-ahead: pooled memory takes them until the application says where it wants them.
    fn start_ahead(&mut self, message: u64) {
        for part in 0..u16::MAX {
            let op = OpId {
                message,
                part,
                outgoing: false,
            };
            match self.state.part_len(op) {
                None => break,
                Some(len) if len > 0 => {
                    if let Some((channel, true)) = self.state.bulk_channel(message, part) {
                        let device = self.state.target(op);
                        let want = Want::Adopt { len, device };
                        self.with_lane(op, channel, |lane, io| lane.recv(op, want, io));
                    }
                }
                Some(_) => {}
            }
        }
        self.reads.insert(message, Reading::ahead());
        self.announce(message);
    }

    fn lane_result(&mut self, result: LaneResult, core: &Core, wakes: &mut Vec<Waker>) {
        match result {
            LaneResult::Sent(op) => self.state.part_sent(op),
            LaneResult::Received(op, memory) => {
                self.state.part_received(op);
                if let Some(reading) = self.reads.get_mut(&op.message) {
                    reading.received(op.part, memory);
                    self.check_read(op.message, wakes);
                }
            }
            LaneResult::Fault(op, fault) => {
                if let Some(name) = self.channel_of(op).map(|(_, name)| name) {
                    self.channel_fault(name, fault, core, wakes);
                }
            }
            LaneResult::Failed(op, error) if op.outgoing => {
                self.state
                    .reset(op.message, ResetCode::Failed, &error.to_string());
                self.end_write(op.message, Err(error), wakes);
            }
            LaneResult::Failed(op, error) => {
                self.state
                    .refuse(op.message, ResetCode::Failed, &error.to_string());
                self.end_read(op.message, Err(error), wakes);
            }
        }
    }

    /// Completes a read whose last part is there.
    pub(super) fn check_read(&mut self, message: u64, wakes: &mut Vec<Waker>) {
        let Some(reading) = self.reads.get_mut(&message) else {
            return;
        };
        if let Some(complete) = reading.take_complete() {
            self.state.finish(message);
            self.end_read(message, complete, wakes);
        }
    }

    pub(super) fn end_read(
        &mut self,
        message: u64,
        result: Result<crate::message::Message, Error>,
        wakes: &mut Vec<Waker>,
    ) {
        let Some(reading) = self.reads.get_mut(&message) else {
            return;
        };
        if reading.is_discarded() {
            self.reads.remove(&message);
        } else if reading.is_pushed() {
            self.reads.remove(&message);
            self.deliver(Delivery::Message(message, result));
        } else {
            reading.finish(result);
            self.wake(Interest::Read(message), wakes);
        }
    }

    pub(super) fn end_write(
        &mut self,
        message: u64,
        result: Result<(), Error>,
        wakes: &mut Vec<Waker>,
    ) {
        if let Some(watched @ None) = self.writes.get_mut(&message) {
            *watched = Some(result);
            self.wake(Interest::Write(message), wakes);
        }
    }

    fn wake(&mut self, interest: Interest, wakes: &mut Vec<Waker>) {
        let woken = self
            .waiting
            .extract_if(.., |(_, what, _)| *what == interest)
            .map(|(_, _, waker)| waker);
        wakes.extend(woken);
    }

    fn peer_reset(&mut self, message: u64, code: ResetCode, text: String, wakes: &mut Vec<Waker>) {
        // They arrive in order. Looking at each would let a peer that names old messages keep this side busy.
        if let Ok(at) = (self.arrived).binary_search_by_key(&message, |arrival| arrival.id) {
            self.arrived.remove(at);
        }
        let error = Error::Reset {
            code,
            reason: text.as_str().into(),
        };
        if self.reads.get(&message).is_some_and(Reading::is_waited_for) {
            self.end_read(message, Err(error), wakes);
        } else {
            self.reads.remove(&message);
        }
        self.deliver(Delivery::Reset(message, code, text));
    }

    fn peer_goes(&mut self, next: u64, text: String, core: &Core, wakes: &mut Vec<Waker>) {
        let reason: Arc<str> = text.as_str().into();
        self.peer_goes_because = reason.clone();
        let unseen: Vec<u64> = self
            .writes
            .keys()
            .copied()
            .filter(|id| *id >= next)
            .collect();
        for message in unseen {
            let error = Error::GoingAway {
                pipe: core.name.clone(),
                reason: reason.clone(),
            };
            self.end_write(message, Err(error), wakes);
        }
        self.ignore_from(next, wakes);
        self.deliver(Delivery::GoingAway(next, text));
    }

    /// Message `number` was not looked at: a flush of it fails.
    fn ignore_from(&mut self, number: u64, wakes: &mut Vec<Waker>) {
        self.ignored_from = Some(self.ignored_from.unwrap_or(number).min(number));
        self.wake(Interest::Flush, wakes);
    }

    /// Writes no more; looks at nothing more.
    pub(super) fn start_closing(&mut self) {
        self.state.go_away("closed");
        for arrival in std::mem::take(&mut self.arrived) {
            self.state.refuse(arrival.id, ResetCode::Closing, "");
        }
        self.state.close();
    }

    /// Whether the connection is of no more use.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Ends the pipe, once: every pending operation gets `error`, every later one will.
    pub(super) fn end(&mut self, error: Error, wakes: &mut Vec<Waker>) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        self.permit = None;
        // Messages that are here whole can still be read; what was on its way cannot.
        self.arrived.retain(Arrival::is_whole);
        self.state.abandon();
        self.retired_lanes.append(&mut self.lanes);
        self.lane_results.clear();
        let reads: Vec<u64> = self.reads.keys().copied().collect();
        for message in reads {
            self.end_read(message, Err(error.clone()), wakes);
        }
        let writes: Vec<u64> = self.writes.keys().copied().collect();
        for message in writes {
            self.end_write(message, Err(error.clone()), wakes);
        }
        wakes.extend(self.waiting.drain(..).map(|(_, _, waker)| waker));
        self.deliver(Delivery::Closed(error));
    }
}
