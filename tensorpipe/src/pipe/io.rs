//! The connection of a pipe: gathers what the protocol wants to send into few writes, reads frames into one small buffer
//! and bulk bytes straight into their place.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::io::ReadBuf;

use super::core::Core;
use super::hand_over::Round;
use super::shared::Shared;
use super::waiter::wake_all;
use crate::device::{Buffer, BufferMut};
use crate::error::Error;
use crate::proto::{Input, Mark, OpId, Segment};
use crate::stop;
use crate::sync::{Arc, lock};
use crate::transports::Connection;

/// Bytes gathered for one write. What is gathered cannot be overtaken by a control frame.
const GATHER: u64 = 512 << 10;

/// Pieces in one write.
const SLICES: usize = 64;

/// Parts up to this size are copied next to their frame's header: cheaper than one more piece.
const COPY_UP_TO: u64 = 512;

/// Room for frames, in bytes. Grows for one large head up to the limit on metadata, with the bytes that have come in.
const RECEIVE_BUFFER: usize = 64 << 10;

/// Room for frames while bulk data flows: little, so that bulk bytes are not copied through it.
const RECEIVE_BUFFER_BULK: usize = 2 << 10;

/// What a part must have left to be read directly into its place, in bytes.
const DIRECT_FROM: u64 = 4 << 10;

/// Bulk bytes of one read, as for hand-written tokio, which was fastest so where nothing else runs (`benches/`). Where
/// other work keeps the cores busy longer reads are as good.
const READ_PIECE: usize = 64 << 10;

/// Pieces that come in further apart than this are told to the protocol one by one.
const SIGN_OF_LIFE: Duration = Duration::from_millis(100);

/// Messages taken out of one read before they are delivered: what they provoke leaves together.
const DELIVERIES: usize = 32;

/// Reads for one look at the clock, while hot.
const READS: u32 = 16;

enum Piece {
    Bytes(usize),
    Data {
        source: Buffer,
        at: usize,
        end: usize,
    },
    Mark(Mark),
}

/// Bulk bytes being received.
struct Bulk {
    left: u64,
    /// Received since the protocol was last told.
    got: u64,
    dest: Option<BufferMut>,
    /// Whose it is.
    op: Option<OpId>,
    at: u64,
}

pub(super) struct Io {
    connection: Option<Box<dyn Connection>>,
    waker: Waker,
    /// What the connection was told last.
    hot: bool,
    /// Frame bytes to be sent, from `sent` on.
    frames: Vec<u8>,
    frames_sent: usize,
    pieces: VecDeque<Piece>,
    queued: u64,
    segments: Vec<Segment<Buffer>>,
    unflushed: bool,
    received: Vec<u8>,
    start: usize,
    end: usize,
    need: usize,
    bulk: Option<Bulk>,
    /// Bulk data flowed lately.
    bulky: bool,
    marks: Vec<Mark>,
    /// The peer has shut down its direction.
    eof: bool,
    /// When bytes came in last: the clock is looked at once a read, not once a frame, and more rarely while hot.
    read_at: Instant,
    reads: u32,
}

impl Io {
    pub(super) fn new(connection: Box<dyn Connection>, leftover: Vec<u8>, waker: Waker) -> Self {
        let end = leftover.len();
        let mut received = leftover;
        received.resize(RECEIVE_BUFFER.max(end), 0);
        Self {
            connection: Some(connection),
            waker,
            hot: false,
            frames: Vec::new(),
            frames_sent: 0,
            pieces: VecDeque::new(),
            queued: 0,
            segments: Vec::new(),
            unflushed: false,
            received,
            start: 0,
            end,
            need: 0,
            bulk: None,
            bulky: false,
            marks: Vec::new(),
            eof: false,
            read_at: Instant::now(),
            reads: 0,
        }
    }

    /// Sends and receives until the connection wants to wait, or messages are there to be delivered.
    pub(super) fn round(&mut self, core: &Arc<Core>) -> Round {
        let mut wakes = Vec::new();
        let hot = core.hot.is_on();
        if let (true, Some(connection)) = (hot != self.hot, &mut self.connection) {
            self.hot = hot;
            connection.set_hot(hot);
        }
        let outcome = self.send_and_receive(core, &mut wakes);
        if let Some(connection) = &self.connection {
            core.counters.woke(connection.wakes());
        }
        let round = match outcome {
            Ok(round) => round,
            Err(error) => {
                let error = core.ending(error);
                lock(&core.shared).end(error, &mut wakes);
                // After the end, which retires the lanes: what they hold for the peer goes with the connection.
                self.let_go(core);
                core.poller.wake_background();
                Round::Idle
            }
        };
        wake_all(wakes);
        round
    }

    /// Looks whether there is something to read.
    pub(super) fn look(&mut self) -> bool {
        // Without a connection there is nothing to wait for: whoever looks should see why.
        self.connection
            .as_mut()
            .is_none_or(|connection| connection.look())
    }

    fn send_and_receive(
        &mut self,
        core: &Arc<Core>,
        wakes: &mut Vec<Waker>,
    ) -> Result<Round, Error> {
        if self.connection.is_none() {
            return Ok(Round::Idle);
        }
        if self.settle(core, wakes) {
            // Whatever was still to be said (FIN_ACK) leaves if it can.
            let _ = self.send(core, wakes);
            self.let_go(core);
            return Ok(Round::Idle);
        }
        self.let_go_of_unwanted(core);
        loop {
            self.send(core, wakes)?;
            let received = self.receive(core, wakes)?;
            if core.pauses_for() > 0 {
                self.settle(core, wakes);
                return Ok(Round::More);
            }
            if !received {
                // What receiving made us say (grants, windows, answers) goes out before we wait.
                return self.send(core, wakes).map(|_| Round::Idle);
            }
            self.settle(core, wakes);
        }
    }

    /// The memory of a read that has failed goes home, however slowly the rest of its chunk comes.
    fn let_go_of_unwanted(&mut self, core: &Arc<Core>) {
        if let Some(bulk) = &mut self.bulk
            && let (Some(op), Some(_)) = (bulk.op, &bulk.dest)
            && !lock(&core.shared).state.is_wanted(op)
        {
            bulk.dest = None;
        }
    }

    /// Drops the connection and all memory held for it.
    fn let_go(&mut self, core: &Arc<Core>) {
        if let Some(mut connection) = self.connection.take() {
            let mut cx = Context::from_waker(Waker::noop());
            // Never waits: what the system has not taken by now was not delivered in good order anyway.
            let _ = Pin::new(&mut *connection).poll_shutdown(&mut cx);
            tracing::debug!(pipe = %core.name, "connection closed");
        }
        // Outside the lock: a lane may use its handle while it is dropped.
        let lanes = lock(&core.shared).take_retired_lanes();
        drop(lanes);
        self.pieces.clear();
        self.frames = Vec::new();
        self.received = Vec::new();
        self.bulk = None;
    }

    /// Writes what was gathered, and what the protocol wants to send after it. Returns whether all of it is with the
    /// connection.
    fn send(&mut self, core: &Arc<Core>, wakes: &mut Vec<Waker>) -> Result<bool, Error> {
        while !self.pieces.is_empty() {
            let wrote = self.write(core)?;
            self.stop_at_marks();
            self.settle(core, wakes);
            if !wrote {
                return Ok(false);
            }
        }
        self.flush(core).map(|()| true)
    }

    /// Tells the protocol what is written, and gathers what it wants to send. Returns whether the pipe has ended.
    fn settle(&mut self, core: &Arc<Core>, wakes: &mut Vec<Waker>) -> bool {
        let mut shared = lock(&core.shared);
        if !self.marks.is_empty() {
            for mark in self.marks.drain(..) {
                shared.state.written(mark);
            }
            shared.process(core, wakes);
        }
        self.gather(core, &mut shared, wakes);
        shared.is_over()
    }

    fn gather(&mut self, core: &Core, shared: &mut Shared, wakes: &mut Vec<Waker>) {
        let mut before = self.queued;
        if before >= GATHER / 2 {
            return;
        }
        loop {
            self.take_frames(shared);
            if self.queued == before {
                return;
            }
            before = self.queued;
            // Parts that leave without a go-ahead go to their channels, whose frames leave together with them.
            shared.process(core, wakes);
            if !shared.state.has_control() {
                return;
            }
        }
    }

    fn take_frames(&mut self, shared: &mut Shared) {
        while self.queued < GATHER
            && self.pieces.len() < SLICES
            && shared
                .state
                .poll_transmit(&mut self.frames, &mut self.segments)
        {
            for segment in self.segments.drain(..) {
                match segment {
                    Segment::Control(len) => {
                        self.queued += len as u64;
                        match self.pieces.back_mut() {
                            Some(Piece::Bytes(bytes)) => *bytes += len,
                            _ => self.pieces.push_back(Piece::Bytes(len)),
                        }
                    }
                    Segment::Data { source, range } => {
                        let len = range.end - range.start;
                        self.queued += len;
                        match (source.as_bytes(), self.pieces.back_mut()) {
                            (Some(bytes), Some(Piece::Bytes(piece))) if len <= COPY_UP_TO => {
                                self.frames.extend_from_slice(
                                    &bytes[range.start as usize..range.end as usize],
                                );
                                *piece += len as usize;
                            }
                            _ => {
                                let (at, end) = (range.start as usize, range.end as usize);
                                self.pieces.push_back(Piece::Data { source, at, end });
                            }
                        }
                    }
                    Segment::Mark(mark) => self.pieces.push_back(Piece::Mark(mark)),
                }
            }
        }
    }

    /// One write. Returns `false` if the connection wants to wait.
    fn write(&mut self, core: &Arc<Core>) -> Result<bool, Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        let mut cx = Context::from_waker(&self.waker);
        let mut slices = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        let mut frames = &self.frames[self.frames_sent..];
        let has_message = stop::is_armed(stop::MESSAGE_HALF_SENT)
            && self
                .pieces
                .iter()
                .any(|piece| matches!(piece, Piece::Mark(Mark::Message(_))));
        let halved = has_message && stop::is_next(stop::MESSAGE_HALF_SENT);
        let mut half = self.queued.div_ceil(2) as usize;
        for piece in &self.pieces {
            let bytes = match piece {
                Piece::Bytes(len) => {
                    let (bytes, rest) = frames.split_at(*len);
                    frames = rest;
                    bytes
                }
                Piece::Data { source, at, end } => {
                    &source.as_bytes().unwrap_or_default()[*at..*end]
                }
                Piece::Mark(_) => continue,
            };
            slices[count] = IoSlice::new(bytes);
            if halved {
                let bytes = &bytes[..bytes.len().min(half)];
                slices[count] = IoSlice::new(bytes);
                half -= bytes.len();
            }
            count += 1;
            if count == SLICES {
                break;
            }
        }
        if count == 0 {
            self.advance(0);
            return Ok(true);
        }
        let connection = Pin::new(&mut **connection);
        let written = match &slices[..count] {
            // A plain write is the cheaper call.
            [one] => connection.poll_write(&mut cx, one),
            many => connection.poll_write_vectored(&mut cx, many),
        };
        match written {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(core.lost("it takes no more bytes")),
            Poll::Ready(Ok(len)) => {
                core.counters.wrote(len);
                self.advance(len);
                self.unflushed = true;
                if has_message {
                    stop::at(stop::MESSAGE_HALF_SENT);
                }
                if stop::is_armed(stop::TENSOR_HALF_SENT)
                    && core.counters.snapshot().bytes_out > stop::SOME
                {
                    stop::at(stop::TENSOR_HALF_SENT);
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(self.broken(core, &error)),
        }
    }

    /// Takes `len` written bytes off the queue, and the marks that are now at its front.
    fn advance(&mut self, mut len: usize) {
        self.queued -= len as u64;
        while let Some(piece) = self.pieces.front_mut() {
            let left = match piece {
                Piece::Bytes(bytes) => {
                    let taken = len.min(*bytes);
                    *bytes -= taken;
                    self.frames_sent += taken;
                    len -= taken;
                    *bytes
                }
                Piece::Data { at, end, .. } => {
                    let taken = len.min(*end - *at);
                    *at += taken;
                    len -= taken;
                    *end - *at
                }
                Piece::Mark(mark) => {
                    self.marks.push(*mark);
                    0
                }
            };
            if left > 0 {
                break;
            }
            self.pieces.pop_front();
        }
        if self.frames_sent == self.frames.len() {
            self.frames.clear();
            self.frames_sent = 0;
            // One large head does not stay.
            self.frames.shrink_to(RECEIVE_BUFFER);
        }
    }

    fn stop_at_marks(&self) {
        for mark in &self.marks {
            match mark {
                Mark::Message(_) => stop::at(stop::MESSAGE_SENT),
                Mark::Fin => stop::at(stop::FIN_SENT),
                Mark::Stream(_) => {}
            }
        }
    }

    fn flush(&mut self, core: &Arc<Core>) -> Result<(), Error> {
        if let (true, Some(connection)) = (self.unflushed, &mut self.connection) {
            match Pin::new(&mut **connection).poll_flush(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(self.broken(core, &error)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Receives until the connection wants to wait, or a message is there. Returns `false` if it wants to wait.
    fn receive(&mut self, core: &Arc<Core>, wakes: &mut Vec<Waker>) -> Result<bool, Error> {
        loop {
            if self.bulk.is_some() {
                if !self.receive_bulk(core, wakes)? {
                    return Ok(false);
                }
                let there = core.pauses_for();
                if there >= DELIVERIES || (there > 0 && self.start == self.end) {
                    return Ok(true);
                }
                continue;
            }
            if self.end > self.start && self.end - self.start >= self.need {
                let there = self.parse(core, wakes)?;
                if there >= DELIVERIES || (there > 0 && self.start == self.end) {
                    return Ok(true);
                }
                continue;
            }
            if core.pauses_for() > 0 {
                return Ok(true);
            }
            if !self.fill(core)? {
                return Ok(false);
            }
        }
    }

    /// Lets the protocol look at what has come in. Returns how much is there to be delivered.
    fn parse(&mut self, core: &Arc<Core>, wakes: &mut Vec<Waker>) -> Result<usize, Error> {
        let mut guard = lock(&core.shared);
        let shared = &mut *guard;
        // It may have ended meanwhile, from here or from another thread: what comes behind finds nobody.
        if let Some(ended) = &shared.ended {
            return Err(ended.clone());
        }
        let input = &self.received[self.start..self.end];
        let fault = |fault| Error::Peer {
            pipe: core.name.clone(),
            fault,
        };
        let (used, input) = shared.state.handle(input, self.read_at).map_err(fault)?;
        self.start += used;
        match input {
            Input::NeedMore(len) => self.need = len,
            Input::Head { message } => {
                shared.allocate_eager(core, message)?;
                self.need = 0;
            }
            Input::Bulk { target, len } => {
                if let Some(op) = target {
                    shared.account(op, len, wakes);
                }
                let dest = target.and_then(|op| shared.state.take_dest(op));
                let (dest, at) = dest.map_or((None, 0), |(dest, at)| (Some(dest), at));
                self.bulk = Some(Bulk {
                    left: len,
                    got: 0,
                    dest,
                    op: target,
                    at,
                });
                self.bulky = len >= DIRECT_FROM;
                self.need = 0;
            }
        }
        shared.process(core, wakes);
        self.gather(core, shared, wakes);
        Ok(core.pauses_for())
    }

    /// Returns `false` if the connection wants to wait.
    fn receive_bulk(&mut self, core: &Arc<Core>, wakes: &mut Vec<Waker>) -> Result<bool, Error> {
        let Some(bulk) = &mut self.bulk else {
            return Ok(true);
        };
        let buffered = ((self.end - self.start) as u64).min(bulk.left) as usize;
        if buffered > 0 {
            if let Some(dest) = bulk.dest.as_mut().and_then(BufferMut::as_bytes_mut) {
                let at = bulk.at as usize;
                dest[at..at + buffered]
                    .copy_from_slice(&self.received[self.start..self.start + buffered]);
                core.counters.copied(buffered);
            }
            self.start += buffered;
            bulk.advance(buffered as u64);
        }
        if bulk.left > 0 {
            let direct = bulk.dest.as_mut().filter(|_| bulk.left >= DIRECT_FROM);
            let Some(dest) = direct.and_then(BufferMut::as_bytes_mut) else {
                return self.fill(core);
            };
            let Some(connection) = &mut self.connection else {
                return Ok(false);
            };
            let at = bulk.at as usize;
            let piece = (bulk.left as usize).min(READ_PIECE);
            let mut buf = ReadBuf::new(&mut dest[at..at + piece]);
            let mut cx = Context::from_waker(&self.waker);
            match Pin::new(&mut **connection).poll_read(&mut cx, &mut buf) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(error)) => return Err(self.broken(core, &error)),
                Poll::Ready(Ok(())) => {
                    let len = buf.filled().len();
                    if len == 0 {
                        self.eof = true;
                        return Err(self.end_of_stream(core));
                    }
                    core.counters.read(len);
                    core.hot.found();
                    bulk.advance(len as u64);
                    // `bulk` is borrowed: this is `Io::came_in`, field by field.
                    came_in(&mut self.read_at, &mut self.reads, core);
                    if stop::is_armed(stop::TENSOR_HALF_RECEIVED)
                        && core.counters.snapshot().bytes_in > stop::SOME
                    {
                        stop::at(stop::TENSOR_HALF_RECEIVED);
                    }
                }
            }
        }
        if bulk.left == 0
            && let Some(bulk) = self.bulk.take()
        {
            let mut shared = lock(&core.shared);
            shared.state.bulk_received(bulk.got, bulk.dest);
            // What a channel streams counts as a sign of life, too.
            shared.state.heard(self.read_at);
            shared.process(core, wakes);
        }
        Ok(true)
    }

    /// Reads frames. Returns `false` if the connection wants to wait.
    fn fill(&mut self, core: &Arc<Core>) -> Result<bool, Error> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0
            && self.received.len() - self.start < self.need.max(RECEIVE_BUFFER / 2)
        {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.received.len() {
            // One large head: at most doubles with what has come in.
            let room = (self.received.len() * 2).min(self.need.max(RECEIVE_BUFFER));
            self.received.resize(room.max(self.received.len() + 1), 0);
        } else if self.received.len() > RECEIVE_BUFFER && self.end == 0 {
            self.received.truncate(RECEIVE_BUFFER);
            self.received.shrink_to_fit();
        }
        let room = if self.bulky && self.need <= RECEIVE_BUFFER_BULK {
            (self.end + RECEIVE_BUFFER_BULK).min(self.received.len())
        } else {
            self.received.len()
        };
        self.bulky = false;
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        let mut buf = ReadBuf::new(&mut self.received[self.end..room]);
        let mut cx = Context::from_waker(&self.waker);
        match Pin::new(&mut **connection).poll_read(&mut cx, &mut buf) {
            Poll::Pending => Ok(false),
            Poll::Ready(Err(error)) => Err(self.broken(core, &error)),
            Poll::Ready(Ok(())) => {
                let len = buf.filled().len();
                if len == 0 {
                    self.eof = true;
                    return Err(self.end_of_stream(core));
                }
                core.counters.read(len);
                core.hot.found();
                self.came_in(core);
                self.end += len;
                Ok(true)
            }
        }
    }

    fn came_in(&mut self, core: &Core) {
        came_in(&mut self.read_at, &mut self.reads, core);
    }

    fn end_of_stream(&self, core: &Arc<Core>) -> Error {
        self.closed(core).unwrap_or_else(|| {
            core.lost(
                "it ended without a goodbye: the peer's process is gone, or it broke the pipe off",
            )
        })
    }

    fn broken(&self, core: &Arc<Core>, error: &std::io::Error) -> Error {
        // A peer that closed in good order may reset the connection for what we sent it since.
        self.closed(core).unwrap_or_else(|| {
            let own = error.get_ref().and_then(|own| own.downcast_ref());
            own.cloned().unwrap_or_else(|| core.lost(error.to_string()))
        })
    }

    /// The good order in which the pipe ended, if it did.
    fn closed(&self, core: &Arc<Core>) -> Option<Error> {
        let shared = lock(&core.shared);
        // Where both close at once, the peer may be gone right after it said that it has everything.
        let by_us = shared.linger_until.is_some() && shared.state.is_closed_out();
        (by_us || shared.state.is_closed_in()).then(|| Error::Closed {
            pipe: core.name.clone(),
            by_peer: !by_us,
        })
    }
}

impl Bulk {
    fn advance(&mut self, len: u64) {
        self.left -= len;
        self.got += len;
        self.at += len;
    }
}

/// Bytes have come in. On a slow link a chunk, wanted or not, and a large head take longer than a peer may be silent, and
/// the protocol hears of them when they are whole. While hot, reads follow each other within microseconds: the clock
/// costs more than a frame, and is looked at now and then.
fn came_in(read_at: &mut Instant, reads: &mut u32, core: &Core) {
    *reads += 1;
    if *reads < READS && core.hot.is_on() {
        return;
    }
    *reads = 0;
    let now = Instant::now();
    if now.saturating_duration_since(*read_at) > SIGN_OF_LIFE {
        lock(&core.shared).state.heard(now);
    }
    *read_at = now;
}
