//! The connection of a pipe: gathers what the protocol wants to send into few writes, reads frames into one small buffer
//! and bulk bytes straight into their place.

mod common;
mod receive;
mod send;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Instant;

pub(crate) use self::common::Common;
use self::receive::Bulk;
use super::driver::tuning::{PASSES, RECEIVE_BUFFER_IDLE, SLOW_STEP, STEPS_IN_A_ROW};
use super::driver::{Readiness, Reads, Round, Sends, runtime, wake};
use super::lane::Work;
use super::shared::{Shared, ShutdownState};
use crate::ambient;
use crate::device::Buffer;
use crate::error::{Error, with_advice};
use crate::proto::{Mark, OpId, Segment};
use crate::sync::{MutexGuard, lock};
use crate::transports::Connection;

pub(super) struct Io {
    connection: Option<Box<dyn Connection>>,
    /// The connection of a pipe that has ended, until it has said goodbye.
    ending: Option<Box<dyn Connection>>,
    waker: Waker,
    /// Whether the connection was told last that somebody polls.
    polled: bool,
    /// How often the connection has woken the peer.
    peer_wakes: u64,
    /// Bytes have come since the peer was last woken: it has been awake.
    heard: bool,
    /// Bytes were written since the wake-ups were counted last.
    wrote: bool,
    /// Frame bytes to be sent, from `sent` on.
    frames: Vec<u8>,
    frames_sent: usize,
    /// Where the message begins that is being put into `frames`.
    frame_at: usize,
    pieces: VecDeque<Segment<Buffer>>,
    queued: u64,
    segments: Vec<Segment<Buffer>>,
    unflushed: bool,
    pub(super) sends: Sends,
    /// Work of lanes, a step of each in turn.
    work: VecDeque<(OpId, Box<dyn Work>)>,
    received: Vec<u8>,
    start: usize,
    end: usize,
    need: usize,
    bulk: Option<Bulk>,
    /// Bulk data flowed lately.
    bulky: bool,
    marks: Vec<Mark>,
    /// Messages have come that an operation may wait for.
    found: bool,
    /// The error of a write outside of a round, which the next round reports.
    failed: Option<Error>,
    /// The error of a read behind messages that were delivered first, which the next read reports.
    unread: Option<Error>,
    /// When bytes came in last: the clock is read once a read of the connection, not once a frame, and more rarely while polled.
    read_at: Instant,
    /// Reads of the connection since the clock was read.
    reads_since: u32,
    /// Since then one read brought as much as an idle pipe has room for.
    had_large_read: bool,
    /// When that happened last, or the pipe was made.
    large_read_at: Instant,
    /// Little has come in for long.
    is_quiet: bool,
    /// The last read has filled the buffer.
    is_filled: bool,
    reads: Reads,
    /// Who is to be woken when the round ends.
    pub(in crate::pipe) wakes: Vec<Waker>,
}

impl Io {
    pub(super) fn new(connection: Box<dyn Connection>, leftover: Vec<u8>, waker: Waker) -> Self {
        let end = leftover.len();
        let mut received = vec![0; RECEIVE_BUFFER_IDLE.max(end)];
        received[..end].copy_from_slice(&leftover);
        Self {
            connection: Some(connection),
            ending: None,
            waker,
            polled: false,
            peer_wakes: 0,
            heard: false,
            wrote: false,
            frames: Vec::new(),
            frames_sent: 0,
            frame_at: 0,
            pieces: VecDeque::new(),
            queued: 0,
            segments: Vec::new(),
            unflushed: false,
            sends: Sends::default(),
            work: VecDeque::new(),
            received,
            start: 0,
            end,
            need: 0,
            bulk: None,
            bulky: false,
            marks: Vec::new(),
            found: false,
            failed: None,
            unread: None,
            read_at: ambient::now(),
            reads_since: 0,
            large_read_at: ambient::now(),
            had_large_read: false,
            is_quiet: false,
            is_filled: false,
            reads: Reads::default(),
            wakes: Vec::new(),
        }
    }

    /// Sends and receives until the connection wants to wait, or messages are there to be delivered.
    pub(super) fn round(&mut self, common: &Common) -> Round {
        self.adopt_polling(common);
        self.sends.round_begins();
        let outcome = self.send_and_receive(common);
        self.count_wakes(common);
        let round = match outcome {
            Ok(round) => round,
            Err(error) => {
                let error = common.ending(error);
                lock(&common.shared).end(error, &mut self.wakes);
                // After the end, which retires the lanes: what they hold for the peer goes with the connection.
                self.let_go(common);
                Round::Idle
            }
        };
        self.wakes.drain(..).for_each(wake);
        round
    }

    /// Counts how often the connection woke the peer. If bytes were written without waking it, it was awake.
    fn count_wakes(&mut self, common: &Common) {
        let Some(connection) = &self.connection else {
            return;
        };
        let wakes = connection.wakes();
        common.counters.set_wakes(wakes);
        self.heard &= std::mem::replace(&mut self.peer_wakes, wakes) == wakes;
        if std::mem::take(&mut self.wrote) && self.heard && !self.polled {
            self.heard = false;
            common.driver.found_peer_awake();
        }
    }

    /// Tells the connection whether somebody polls.
    fn adopt_polling(&mut self, common: &Common) {
        let polled = common.driver.is_polling();
        if let (true, Some(connection)) = (polled != self.polled, &mut self.connection) {
            self.polled = polled;
            connection.set_polled(polled);
        }
    }

    /// Polls whether there is something to read or, if the poller `sends`, to be sent. If `many` operations wait, there has to be enough
    /// for a read.
    pub(super) fn poll(&mut self, many: bool, sends: bool) -> Readiness {
        self.reads.set(many);
        // Without a connection there is nothing to wait for: the poller should see why.
        let Some(connection) = &mut self.connection else {
            return Readiness::Ready;
        };
        let wanted = self.reads.wanted();
        if !self.work.is_empty()
            || (self.sends.is_owed() && sends)
            || connection.is_ready_for(wanted)
        {
            return Readiness::Ready;
        }
        match wanted > 1 && connection.is_ready() {
            false => Readiness::NotReady,
            true if self.reads.is_over() => Readiness::Ready,
            true => Readiness::Partial,
        }
    }

    /// Has the connection wake for what follows, so that no round has to follow these deliveries. Only where nothing can have come since the
    /// last read: it left the buffer some room, and this thread has not asked the system for news since.
    fn asks_to_be_woken(&mut self, common: &Common) -> bool {
        if !common.driver.io_is_syscall() || self.is_filled || !runtime::is_single_threaded() {
            return false;
        }
        match self.fill(common) {
            Ok(came) => !came,
            Err(error) => {
                self.unread = Some(error);
                false
            }
        }
    }

    /// Whether all that has come is acted on, and nothing waits to be sent.
    fn is_through(&self) -> bool {
        let (read, sent) = (self.start == self.end, self.pieces.is_empty());
        read && sent && self.bulk.is_none() && self.marks.is_empty() && self.work.is_empty()
    }

    /// Whether what has come is to be read now. If not, the poller sees to it that it is read later.
    fn is_time_to_read(&mut self) -> bool {
        if !self.polled || !self.reads.is_on() {
            return true;
        }
        let wanted = self.reads.wanted();
        (self.connection.as_mut()).is_none_or(|connection| connection.is_ready_for(wanted))
    }

    fn send_and_receive(&mut self, common: &Common) -> Result<Round, Error> {
        if self.connection.is_none() {
            self.say_goodbye(common);
            return Ok(Round::Idle);
        }
        if self.settle(lock(&common.shared)) {
            // Whatever was still to be said (FIN_ACK) leaves if it can. A connection that panics is let go all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| self.send(common)));
            self.let_go(common);
            return Ok(Round::Idle);
        }
        self.let_go_of_unwanted(common);
        if self.failed.is_some() {
            return self.read_the_rest(common);
        }
        for _ in 0..PASSES {
            if !self.work.is_empty() {
                // First, so that results of the work leave with what waits.
                self.work(common);
            }
            if let Err(error) = self.send(common) {
                self.failed = Some(error);
                return self.read_the_rest(common);
            }
            let received = self.receive(common)?;
            if common.deliveries_due() > 0 {
                let is_through = self.is_through();
                return Ok(
                    match is_through && (self.polled || self.asks_to_be_woken(common)) {
                        true => Round::Deliver,
                        false => Round::DeliverAndContinue,
                    },
                );
            }
            // What receiving made us say (grants, windows, answers) goes out before we wait.
            if !received {
                match self.send(common) {
                    Ok(false) if self.work.is_empty() => return Ok(Round::Idle),
                    Ok(_) => {}
                    Err(error) => {
                        self.failed = Some(error);
                        return self.read_the_rest(common);
                    }
                }
            }
            self.settle(lock(&common.shared));
        }
        Ok(Round::Yield)
    }

    /// A write has failed. What the peer said before is read first: it may be answers, a goodbye, or why it hung up.
    #[cold]
    fn read_the_rest(&mut self, common: &Common) -> Result<Round, Error> {
        // The reactor may not know yet what is there: it is read as a poller reads, but no poller judges when.
        (self.polled, self.found) = (false, false);
        if let Some(connection) = &mut self.connection {
            connection.set_polled(true);
        }
        let received = self.receive(common);
        if let Some(connection) = &mut self.connection {
            connection.set_polled(false);
        }
        let received = received?;
        if common.deliveries_due() > 0 {
            return Ok(Round::DeliverAndContinue);
        }
        match (received, self.failed.take()) {
            // Whoever calls the handler has the rest read later.
            (false, failed) if common.has_too_many_deliveries() => {
                self.failed = failed;
                Ok(Round::Idle)
            }
            (false, Some(failed)) => Err(self.closed(common).unwrap_or(failed)),
            (_, failed) => {
                self.failed = failed;
                Ok(Round::Yield)
            }
        }
    }

    /// Does some of the lanes' work.
    #[inline(never)]
    fn work(&mut self, common: &Common) {
        for _ in 0..STEPS_IN_A_ROW {
            let Some((op, mut work)) = self.work.pop_front() else {
                return;
            };
            let begun = ambient::now();
            if work.step() {
                match ambient::since(begun) < SLOW_STEP {
                    true => self.work.push_back((op, work)),
                    false => work.finish_on_thread(),
                }
                continue;
            }
            drop(work);
            let mut shared = lock(&common.shared);
            shared.resume(op, &mut self.wakes);
            shared.process(&mut self.wakes);
            self.gather(&mut shared);
        }
    }

    /// Drops the memory of a failed read at once, however slowly the rest of its chunk comes.
    fn let_go_of_unwanted(&mut self, common: &Common) {
        if let Some(bulk) = &mut self.bulk
            && let (Some(op), Some(_)) = (bulk.op, &bulk.dest)
            && !lock(&common.shared).state.is_wanted(op)
        {
            bulk.dest = None;
        }
    }

    /// Lets go of all memory held for the connection, which says goodbye.
    fn let_go(&mut self, common: &Common) {
        self.ending = self.connection.take();
        // Nobody polls for its goodbye: it asks to be woken for what it waits for, and the background task keeps the time.
        if let (true, Some(connection)) = (std::mem::take(&mut self.polled), &mut self.ending) {
            connection.set_polled(false);
        }
        self.say_goodbye(common);
        common.driver.wakers.wake_background();
        // Outside the lock: a lane may use its handle while it is dropped.
        let lanes = std::mem::take(&mut lock(&common.shared).retired_lanes);
        drop(lanes);
        self.pieces.clear();
        self.work.clear();
        self.frames = Vec::new();
        self.received = Vec::new();
        self.bulk = None;
    }

    /// Shuts the connection down, and drops it once that is done or its time is up. Bytes that the system has not taken by now were not
    /// delivered in good order anyway.
    fn say_goodbye(&mut self, common: &Common) {
        let Some(mut connection) = self.ending.take() else {
            return;
        };
        let mut cx = Context::from_waker(&self.waker);
        // A panic of the connection must not hit the driving task, which may be somebody else's code and may just drop the pipe's last
        // handle.
        let poll = || Pin::new(&mut *connection).poll_shutdown(&mut cx);
        let waits = match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(said) => said.is_pending(),
            Err(_) => {
                tracing::warn!(pipe = %common.name, "its connection panicked over its goodbye");
                false
            }
        };
        let mut shared = lock(&common.shared);
        if let (true, ShutdownState::Until(until)) = (waits, shared.shutdown)
            && ambient::now() < until
        {
            self.ending = Some(connection);
            return;
        }
        shared.shutdown_done(&mut self.wakes);
        drop(shared);
        drop(connection);
        common.driver.wakers.wake_background();
        tracing::debug!(pipe = %common.name, cut_off = waits, "connection closed");
    }

    /// Tells the protocol what is written, and gathers what it wants to send. Returns whether the pipe has ended.
    fn settle(&mut self, mut shared: MutexGuard<'_, Shared>) -> bool {
        for mark in self.marks.drain(..) {
            shared.state.written(mark);
        }
        // There may be results of a lane that was given a message outside of a round.
        if !shared.is_idle() {
            shared.process(&mut self.wakes);
        }
        self.gather(&mut shared);
        shared.is_over()
    }

    fn end_of_stream(&self, common: &Common) -> Error {
        self.closed(common).unwrap_or_else(|| {
            common.lost(
                "it ended without a goodbye: the peer's process is gone, or it broke the pipe off",
            )
        })
    }

    fn broken(&self, common: &Common, error: &std::io::Error) -> Error {
        // A peer that closed in good order may reset the connection for what we sent it since.
        self.closed(common).unwrap_or_else(|| {
            let own = error.get_ref().and_then(|own| own.downcast_ref());
            own.cloned()
                .unwrap_or_else(|| common.lost(with_advice(error)))
        })
    }

    /// The error for an end in good order, if there was one.
    fn closed(&self, common: &Common) -> Option<Error> {
        let shared = lock(&common.shared);
        // Where both close at once, the peer may be gone right after it said that it has everything.
        let by_peer = || (shared.state.is_fin_received()).then(|| shared.closed(true));
        shared.closed_in_full().or_else(by_peer)
    }
}
