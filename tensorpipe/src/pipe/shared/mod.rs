//! The state that all operations of a pipe share: the protocol, the lanes, and the operations that wait.
//!
//! All messages arrive by one path. The protocol reports a head and, for each part, whether its bytes are in the receive buffer, come
//! later, or are offered by their channel. The lane is asked for an offered part; if it has the memory, the message is complete. Each time
//! the lock is taken, the handler gets up to eight messages. A `Descriptor` is made only when somebody asks for one.

mod ahead;
mod arrival;
mod arriving;
mod deliveries;
mod events;
mod reading;
mod stamps;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;
use std::time::{Duration, Instant};

use rustc_hash::FxHashMap;

use self::ahead::Ahead;
pub(super) use self::arrival::{Answer, Arrival};
pub(super) use self::deliveries::{Deliveries, Delivery, Waiting};
pub(super) use self::reading::{Reading, Recipient};
pub(super) use self::stamps::Stamps;
use super::budget::{Announced, Announcements, Reservation};
use super::credit_ahead::Credit;
use super::driver::tuning::GOODBYE;
use super::driver::{self, DelayedAcks, Interest, Wakers, take_waiting};
use super::lane::{LaneResult, SendOptions, Work};
use super::stats::LaneStats;
use crate::ambient;
use crate::channels::{Channel, Lane};
use crate::device::{Allocators, Buffer, Destination, Device};
use crate::error::{Error, ResetCode};
use crate::message::Message;
use crate::proto::{AtOnce, OpId, PipeState};
use crate::route::{Carried, ChannelChoice, Diverted, Requirement};
use crate::sync::Arc;

/// A channel in use on this pipe.
pub(crate) struct LaneSlot {
    pub(crate) channel: Arc<dyn Channel>,
    /// (this side's device, the peer's).
    pub(crate) pairs: Vec<(Device, Device)>,
    pub(crate) lane: Box<dyn Lane>,
    /// What the context requires of what it carries.
    pub(crate) required: Vec<Requirement>,
    /// Counts the parts that the channel is given to carry.
    pub(crate) carried: Carried,
    /// And what of that it sends as other channels would.
    pub(crate) diverted: Diverted,
}

/// Whether the connection of a pipe has said goodbye.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShutdownState {
    /// The pipe has not ended.
    None,
    /// The connection may take until then to say goodbye, and `close` waits for it.
    Until(Instant),
    /// The connection is gone, or its time is up: a thread that still has it drops it.
    Done,
}

/// One of the pipes that a listener may have.
pub(crate) type PipePermit = Arc<tokio::sync::OwnedSemaphorePermit>;

pub(crate) struct Shared {
    /// The pipe's name, for errors.
    name: Arc<str>,
    wakers: Arc<Wakers>,
    pub(super) state: PipeState<Buffer, Destination>,
    pub(super) lanes: Vec<LaneSlot>,
    /// Which lane carries which part.
    pub(super) choice: ChannelChoice,
    /// Lanes of a pipe that has ended, to be dropped without the lock.
    pub(super) retired_lanes: Vec<LaneSlot>,
    pub(super) lane_results: Vec<LaneResult>,
    /// Work of lanes for the thread that drives next.
    pub(super) lane_work: Vec<(OpId, Box<dyn Work>)>,
    pub(super) lane_stats: LaneStats,
    allocators: Allocators,
    announcements: Announcements,
    pub(super) ahead: Ahead,
    /// Budget of memory that a lane has just allocated, until `announce` hands it to the message.
    announced: Vec<(OpId, Announced, Option<Reservation>)>,
    runtime: tokio::runtime::Handle,
    /// Messages that nobody has taken yet, while there is no handler.
    pub(super) arrived: VecDeque<Arrival>,
    /// The message whose own frame is coming in.
    arriving: Option<Arrival>,
    /// Operations being awaited, by their registration.
    pub(super) waiting: driver::Waiting,
    pub(super) reads: FxHashMap<u64, Reading>,
    /// Writes that somebody may still ask about, and how they ended.
    pub(super) writes: FxHashMap<u64, Option<Result<(), Error>>>,
    /// The peer's application has called read for every message before this one.
    pub(super) flushed_to: u64,
    /// Messages are pushed to a handler.
    pub(super) has_handler: bool,
    pub(super) deliveries: Deliveries,
    /// How the pipe ended.
    pub(super) ended: Option<Error>,
    /// How far the goodbye of its connection is.
    pub(super) shutdown: ShutdownState,
    /// When a closing pipe gives up.
    pub(super) linger_until: Option<Instant>,
    /// The time that it had for that, for the error.
    pub(super) linger: Duration,
    /// The pipe's permit from its listener, until its connection is gone.
    permit: Option<PipePermit>,
    /// The first outgoing message that the peer does not read, because it is going away.
    pub(super) ignored_from: Option<u64>,
    going_away_reason: Arc<str>,
    /// Who waits for an outgoing message to begin to leave, by its number.
    pub(super) on_sending: BTreeMap<u64, Vec<Waker>>,
    /// Acknowledgements of channels that wait for the next message.
    pub(super) delayed_acks: DelayedAcks,
    /// Messages that report how long they were queued.
    pub(super) stamps: Stamps,
    /// Send options of outgoing messages with parts on channels. Entries of finished messages are removed now and then.
    send_options: FxHashMap<u64, SendOptions>,
}

/// The fields that a pipe provides.
pub(super) struct SharedParts {
    pub(super) name: Arc<str>,
    pub(super) wakers: Arc<Wakers>,
    pub(super) state: PipeState<Buffer, Destination>,
    pub(super) allocators: Allocators,
    pub(super) announcements: Announcements,
    pub(super) credit: Credit,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) permit: Option<PipePermit>,
    pub(super) choice: ChannelChoice,
}

impl Shared {
    pub(super) fn new(parts: SharedParts) -> Self {
        Self {
            name: parts.name,
            wakers: parts.wakers,
            state: parts.state,
            choice: parts.choice,
            permit: parts.permit,
            lanes: Vec::new(),
            retired_lanes: Vec::new(),
            lane_results: Vec::new(),
            lane_work: Vec::new(),
            lane_stats: LaneStats::default(),
            allocators: parts.allocators,
            announcements: parts.announcements,
            ahead: Ahead::new(parts.credit),
            announced: Vec::new(),
            runtime: parts.runtime,
            arrived: VecDeque::new(),
            arriving: None,
            waiting: driver::Waiting::new(),
            reads: FxHashMap::default(),
            writes: FxHashMap::default(),
            flushed_to: 0,
            has_handler: false,
            deliveries: Deliveries::default(),
            ended: None,
            shutdown: ShutdownState::None,
            linger_until: None,
            linger: Duration::ZERO,
            ignored_from: None,
            going_away_reason: "".into(),
            on_sending: BTreeMap::new(),
            delayed_acks: DelayedAcks::default(),
            stamps: Stamps::new(),
            send_options: FxHashMap::default(),
        }
    }

    /// Set after construction: lanes need a handle on the core, and the core needs `Shared` first.
    pub(crate) fn set_lanes(&mut self, lanes: Vec<LaneSlot>) {
        let at_once = lanes.iter().map(|slot| slot.channel.sends_at_once());
        self.state.set_at_once(AtOnce::new(at_once));
        self.lanes = lanes;
    }

    pub(super) fn deliver(&mut self, delivery: Delivery) {
        if self.has_handler {
            self.deliveries.push(delivery);
        }
    }

    /// The error for an end in good order.
    pub(super) fn closed(&self, by_peer: bool) -> Error {
        let pipe = self.name.clone();
        Error::Closed { pipe, by_peer }
    }

    /// Why the peer takes no more messages.
    pub(super) fn going_away(&self) -> Error {
        let (pipe, reason) = (self.name.clone(), self.going_away_reason.clone());
        Error::GoingAway { pipe, reason }
    }

    /// Starts to push messages to the handler, queued ones first.
    pub(super) fn start_pushing(&mut self) {
        self.has_handler = true;
        for arrival in std::mem::take(&mut self.arrived) {
            self.deliver(Delivery::Incoming(arrival));
        }
        if let Some(error) = &self.ended {
            self.deliveries.push(Delivery::Closed(error.clone()));
        }
    }

    /// Completes a read whose last part is there.
    pub(super) fn check_read(&mut self, message: u64, wakes: &mut Vec<Waker>) {
        let reading = self.reads.get_mut(&message);
        // The code below walks all parts, so it runs once per message, not once per part.
        let Some(reading) = reading.filter(|reading| reading.has_all()) else {
            return;
        };
        let (copied, held) = (reading.bytes_to_place(), reading.to_hold());
        if let Some(complete) = reading.take_complete() {
            let held = reading.grow(OpId::incoming(message, 0), held);
            let complete = complete.and_then(|message| held.map(|()| message));
            self.lane_stats.copied += copied;
            self.state.finish(message);
            self.end_read(message, complete, wakes);
        }
    }

    pub(super) fn end_read(
        &mut self,
        message: u64,
        result: Result<Message, Error>,
        wakes: &mut Vec<Waker>,
    ) {
        let Entry::Occupied(mut reading) = self.reads.entry(message) else {
            return;
        };
        match reading.get().reader {
            Recipient::None | Recipient::Waits => {
                reading.get_mut().finish(result);
                self.wake(Interest::Read(message), wakes);
            }
            Recipient::Handler => {
                let reading = reading.remove();
                let (stats, held) = (reading.stats, reading.into_held());
                self.deliver(Delivery::Message(Box::new((message, result, stats, held))));
            }
            Recipient::Gone => drop(reading.remove()),
        }
    }

    /// The result of a read that has ended; the read is then forgotten.
    pub(super) fn take_read(&mut self, message: u64) -> Option<Result<Message, Error>> {
        let result = self.reads.get_mut(&message)?.take_result()?;
        self.reads.remove(&message);
        Some(result)
    }

    /// Remembers the send options of a message.
    #[cold]
    pub(super) fn want(&mut self, message: u64, send_options: SendOptions) {
        if self.send_options.len() == self.send_options.capacity() {
            self.send_options
                .retain(|known, _| self.state.is_writing(*known));
            // The next search for finished messages comes when the map has doubled.
            let room = 2 * self.send_options.len() + 16;
            self.send_options.shrink_to(room);
            self.send_options.reserve(room - self.send_options.len());
        }
        self.send_options.insert(message, send_options);
    }

    /// How many messages' options fit without a search or growth.
    #[cfg(test)]
    pub(super) fn room_for_required(&self) -> usize {
        self.send_options.capacity()
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

    /// The connection of a pipe that has ended is gone, or nobody waits for it any more.
    pub(super) fn shutdown_done(&mut self, wakes: &mut Vec<Waker>) {
        self.shutdown = ShutdownState::Done;
        self.permit = None;
        let unread = self.reads.values().map(Reading::bytes_come).sum();
        self.ahead.end(unread);
        self.wake(Interest::End, wakes);
    }

    fn wake(&mut self, interest: Interest, wakes: &mut Vec<Waker>) {
        wakes.extend(take_waiting(&mut self.waiting, interest));
    }

    /// Writes no more, and still reads.
    pub(super) fn finish(&mut self) {
        if self.ended.is_none() {
            self.state.close();
        }
    }

    /// Writes no more, reads no more.
    pub(super) fn start_closing(&mut self) {
        // Delayed acknowledgements leave before the frames that announce the end.
        self.state.send_delayed();
        self.state.go_away("closed");
        let unread = std::mem::take(&mut self.arrived);
        for arrival in unread.into_iter().chain(self.deliveries.take_incoming()) {
            self.state.refuse(arrival.id, ResetCode::Closing, "");
            self.reads.remove(&arrival.id);
        }
        self.state.close();
    }

    /// Takes the wakers of messages that have begun to leave.
    pub(super) fn wake_on_sending(&mut self, wakes: &mut Vec<Waker>) {
        while let Some(first) = self.on_sending.first_entry()
            && self.state.has_begun(*first.key())
        {
            wakes.append(&mut first.remove());
        }
    }

    /// Counts that `channel` carries a part of a message that is being read.
    pub(super) fn carried_by(&mut self, message: u64, channel: u8) {
        if let Some(reading) = self.reads.get_mut(&message) {
            reading.stats.carried_by(channel);
        }
    }

    /// Counts bytes of an incoming part that came over a connection of a channel's own.
    pub(super) fn streamed(&mut self, op: OpId, bytes: u64) {
        if let Some(reading) = self.reads.get_mut(&op.message).filter(|_| !op.outgoing) {
            reading.stats.streamed += bytes;
        }
    }

    /// How the pipe has ended, if it has.
    pub(super) fn check_ended(&self) -> Result<(), Error> {
        let ended = self.ended.as_ref();
        ended.map_or(Ok(()), |ended| Err(ended.clone()))
    }

    /// When the background task has to act next.
    pub(super) fn next_timeout(&self) -> Option<Instant> {
        let keep_alive = self.state.next_timeout();
        [keep_alive, self.linger_until, self.ahead.next_check()]
            .into_iter()
            .flatten()
            .min()
    }

    /// How a pipe that is closing ends, once the peer has everything.
    pub(super) fn closed_in_full(&self) -> Option<Error> {
        let done = self.linger_until.is_some() && self.state.is_fin_acked();
        done.then(|| self.closed(false))
    }

    /// How a pipe that is closing ends, once its time is up.
    pub(super) fn lingered(&self, now: Instant) -> Option<Error> {
        let is_up = self.linger_until.is_some_and(|until| now >= until);
        let (pipe, linger) = (self.name.clone(), self.linger);
        is_up.then_some(Error::Undelivered { pipe, linger })
    }

    /// Whether the connection is of no more use.
    pub(super) fn is_over(&self) -> bool {
        self.ended.is_some()
    }

    /// Whether the connection is gone, too.
    pub(super) fn is_gone(&self) -> bool {
        self.is_over() && self.shutdown == ShutdownState::Done
    }

    /// Ends the pipe, once: every pending operation gets `error`, every later one will.
    pub(super) fn end(&mut self, error: Error, wakes: &mut Vec<Waker>) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(error.clone());
        self.shutdown = ShutdownState::Until(ambient::now() + GOODBYE);
        wakes.extend(std::mem::take(&mut self.on_sending).into_values().flatten());
        self.stamps.clear();
        // Messages that are here whole can still be read; what was on its way cannot.
        let reads = &self.reads;
        let has_come = |message: &u64| reads.get(message).is_some_and(Reading::has_come);
        (self.arrived).retain(|arrival| arrival.is_whole() || has_come(&arrival.id));
        let reads: Vec<u64> = reads
            .keys()
            .copied()
            .filter(|message| !has_come(message))
            .collect();
        self.arriving = None;
        self.state.abandon();
        self.retired_lanes.append(&mut self.lanes);
        self.lane_results.clear();
        self.lane_work.clear();
        for message in reads {
            self.end_read(message, Err(error.clone()), wakes);
        }
        let writes: Vec<u64> = self.writes.keys().copied().collect();
        for message in writes {
            self.end_write(message, Err(error.clone()), wakes);
        }
        wakes.extend(std::mem::take(&mut self.waiting).into_values());
        self.deliver(Delivery::Closed(error));
    }
}
