//! Sending: what the protocol wants to send is gathered into few writes.

use std::io::IoSlice;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};

use smallvec::SmallVec;

use super::Common;
use super::Io;
use crate::device::Buffer;
use crate::error::Error;
use crate::pipe::driver::tuning::{
    COPIED_INTO_FRAME, RECEIVE_BUFFER, SEND_BACKLOG, WRITE_BYTES, WRITE_PIECES, WRITES_IN_A_ROW,
};
use crate::pipe::driver::wake;
use crate::pipe::shared::Shared;
use crate::proto::{Mark, Room, Segment};
use crate::stop;
use crate::sync::lock;

impl Io {
    /// Writes what was gathered, and what the protocol wants to send after it. Returns whether the connection would take more
    /// of it at once.
    pub(super) fn send(&mut self, common: &Common) -> Result<bool, Error> {
        // Also if there is nothing to write: what the protocol has queued may wait for the peer.
        self.sends.tried();
        for _ in 0..WRITES_IN_A_ROW {
            if self.pieces.is_empty() {
                break;
            }
            let wrote = self.write(common)?;
            self.stop_at_marks();
            self.settle(lock(&common.shared));
            if !wrote {
                return Ok(false);
            }
        }
        self.flush(common)?;
        Ok(!self.pieces.is_empty())
    }

    pub(super) fn gather(&mut self, shared: &mut Shared) {
        if shared.has_work() {
            self.work.extend(shared.lane_work.drain(..));
        }
        let mut before = self.queued;
        if before >= WRITE_BYTES / 2 {
            return;
        }
        loop {
            self.take_frames(shared);
            if self.queued == before {
                return;
            }
            before = self.queued;
            // Parts that leave without a go-ahead go to their channels, whose frames leave together with them.
            shared.process(&mut self.wakes);
            if !shared.state.has_control() {
                return;
            }
        }
    }

    pub(in crate::pipe) fn take_frames(&mut self, shared: &mut Shared) {
        let mut frame = self.frames.len();
        while self.queued < WRITE_BYTES
            && self.pieces.len() < WRITE_PIECES
            && shared
                .state
                .poll_transmit(&mut self.frames, &mut self.segments)
        {
            if let Some(&Segment::Mark(Mark::Message(message))) = self.segments.last()
                && !shared.stamps.is_empty()
            {
                shared.put_stamp(message, &mut self.frames[frame..]);
            }
            self.take_segments();
            frame = self.frames.len();
        }
        if !shared.on_sending.is_empty() {
            shared.wake_on_sending(&mut self.wakes);
        }
    }

    /// Queues what the protocol has put together.
    fn take_segments(&mut self) {
        if let [Segment::Control(len)] = self.segments[..] {
            self.segments.clear();
            return self.push_bytes(len);
        }
        let mut segments = std::mem::take(&mut self.segments);
        for segment in segments.drain(..) {
            match segment {
                Segment::Control(len) => self.push_bytes(len),
                Segment::Data { source, range } => self.push_data(source, range),
                mark @ Segment::Mark(_) => self.pieces.push_back(mark),
            }
        }
        self.segments = segments;
    }

    /// Queues the next `len` bytes of the frames.
    fn push_bytes(&mut self, len: usize) {
        self.queued += len as u64;
        match self.pieces.back_mut() {
            Some(Segment::Control(bytes)) => *bytes += len,
            _ => self.pieces.push_back(Segment::Control(len)),
        }
    }

    fn push_data(&mut self, source: Buffer, range: Range<u64>) {
        let len = range.end - range.start;
        self.queued += len;
        let (at, end) = (range.start as usize, range.end as usize);
        match (source.as_bytes(), self.pieces.back_mut()) {
            (Some(bytes), Some(Segment::Control(piece))) if len <= COPIED_INTO_FRAME => {
                self.frames.extend_from_slice(&bytes[at..end]);
                *piece += len as usize;
            }
            _ => self.pieces.push_back(Segment::Data { source, range }),
        }
    }

    /// Sends what the protocol has to say, outside of a round. Returns whether that was all there is to be done.
    pub(in crate::pipe) fn send_out(&mut self, common: &Common) -> bool {
        if !self.is_all_written() {
            return false;
        }
        {
            let mut shared = lock(&common.shared);
            self.take_frames(&mut shared);
            let more = shared.state.has_control() || !shared.is_idle();
            if shared.is_over() || more {
                // The caller drives, which also wakes.
                return false;
            }
        }
        self.wakes.drain(..).for_each(wake);
        if self.pieces.is_empty() {
            return true;
        }
        self.write_now(common)
    }

    /// Whether nothing waits to be written, and the protocol knows of everything that was.
    pub(in crate::pipe) fn is_all_written(&self) -> bool {
        let clear = self.pieces.is_empty() && self.marks.is_empty() && self.failed.is_none();
        clear && self.connection.is_some() && !stop::is_any_armed()
    }

    /// Room for a message behind what waits here, which is then [pushed](Self::push_message); `None` if much waits already.
    pub(in crate::pipe) fn room(&mut self) -> Option<Room<'_, Buffer>> {
        let open = self.failed.is_none() && self.connection.is_some() && !stop::is_any_armed();
        self.frame_at = self.frames.len();
        (open && self.queued < SEND_BACKLOG).then_some(Room {
            out: &mut self.frames,
            segments: &mut self.segments,
        })
    }

    /// Queues the message that was put into the [room](Self::room).
    pub(in crate::pipe) fn push_message(&mut self) {
        self.push_bytes(self.frames.len() - self.frame_at);
        if !self.segments.is_empty() {
            self.take_segments();
        }
        self.sends.pushed();
    }

    /// Marks the end of message `number`, which was pushed last and is not all with the connection: `Written` tells when it is.
    pub(in crate::pipe) fn push_mark(&mut self, number: u64) {
        self.pieces.push_back(Segment::Mark(Mark::Message(number)));
    }

    /// Sends what waits, outside of a round. Returns whether all of it is with the connection, and no mark is left to report.
    pub(in crate::pipe) fn send_gathered(&mut self, common: &Common) -> bool {
        self.sends.leave();
        self.write_now(common)
    }

    /// Writes what waits. Returns whether all of it is with the connection.
    fn write_now(&mut self, common: &Common) -> bool {
        self.adopt_polling(common);
        self.sends.tried();
        let written = self.write(common).and_then(|_| self.flush(common));
        self.count_wakes(common);
        match written {
            Ok(()) => self.pieces.is_empty() && self.marks.is_empty(),
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    /// One write. Returns `false` if the connection wants to wait.
    fn write(&mut self, common: &Common) -> Result<bool, Error> {
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        let mut cx = Context::from_waker(&self.waker);
        let mut slices = SmallVec::<[IoSlice<'_>; 4]>::new();
        let mut frames = &self.frames[self.frames_sent..];
        let has_message = stop::is_armed(stop::MESSAGE_HALF_SENT)
            && self
                .pieces
                .iter()
                .any(|piece| matches!(piece, Segment::Mark(Mark::Message(_))));
        let halved = has_message && stop::is_next(stop::MESSAGE_HALF_SENT);
        let mut half = self.queued.div_ceil(2) as usize;
        for piece in &self.pieces {
            let bytes = match piece {
                Segment::Control(len) => {
                    let (bytes, rest) = frames.split_at(*len);
                    frames = rest;
                    bytes
                }
                Segment::Data { source, range } => {
                    &source.as_bytes().unwrap_or_default()[range.start as usize..range.end as usize]
                }
                Segment::Mark(_) => continue,
            };
            let mut bytes = bytes;
            if halved {
                bytes = &bytes[..bytes.len().min(half)];
                half -= bytes.len();
            }
            slices.push(IoSlice::new(bytes));
            if slices.len() == WRITE_PIECES {
                break;
            }
        }
        if slices.is_empty() {
            drop(slices);
            self.advance(0);
            return Ok(true);
        }
        let connection = Pin::new(&mut **connection);
        let written = match &*slices {
            // A plain write is the cheaper call.
            [one] => connection.poll_write(&mut cx, one),
            many => connection.poll_write_vectored(&mut cx, many),
        };
        drop(slices);
        match written {
            Poll::Pending => Ok(false),
            Poll::Ready(Ok(0)) => Err(common.lost("it takes no more bytes")),
            Poll::Ready(Ok(len)) => {
                common.counters.count_write(len);
                self.wrote = true;
                self.advance(len);
                self.unflushed = true;
                if has_message {
                    stop::at(stop::MESSAGE_HALF_SENT);
                }
                if stop::is_armed(stop::TENSOR_HALF_SENT)
                    && common.counters.bytes_out() > stop::SOME
                {
                    stop::at(stop::TENSOR_HALF_SENT);
                }
                Ok(true)
            }
            Poll::Ready(Err(error)) => Err(self.broken(common, &error)),
        }
    }

    /// Takes `len` written bytes off the queue, and the marks that are now at its front.
    pub(super) fn advance(&mut self, mut len: usize) {
        self.queued -= len as u64;
        while let Some(piece) = self.pieces.front_mut() {
            let left = match piece {
                Segment::Control(bytes) => {
                    let taken = len.min(*bytes);
                    *bytes -= taken;
                    self.frames_sent += taken;
                    len -= taken;
                    *bytes
                }
                Segment::Data { range, .. } => {
                    let taken = len.min((range.end - range.start) as usize);
                    range.start += taken as u64;
                    len -= taken;
                    (range.end - range.start) as usize
                }
                Segment::Mark(mark) => {
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
            // The memory of one large head is not kept.
            self.frames.shrink_to(RECEIVE_BUFFER);
        } else if self.frames_sent >= RECEIVE_BUFFER && self.frames_sent * 2 >= self.frames.len() {
            // Nor are sent bytes, if there is always more behind them.
            self.frames.drain(..self.frames_sent);
            self.frames_sent = 0;
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

    fn flush(&mut self, common: &Common) -> Result<(), Error> {
        if let (true, Some(connection)) = (self.unflushed, &mut self.connection) {
            match Pin::new(&mut **connection).poll_flush(&mut Context::from_waker(&self.waker)) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(self.broken(common, &error)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }
}
