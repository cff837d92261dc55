//! Receiving: frames into one small buffer, bulk bytes straight into their place.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use tokio::io::ReadBuf;

use super::Common;
use super::Io;
use crate::ambient;
use crate::device::Destination;
use crate::error::Error;
use crate::pipe::driver::tuning::{
    COPIED_AT_ONCE, DIRECT_FROM, MESSAGES_IN_A_ROW, READ_BULK, READS_IN_A_ROW, READS_PER_CLOCK,
    RECEIVE_BUFFER, RECEIVE_BUFFER_BULK, RECEIVE_BUFFER_IDLE, RECEIVE_BUFFER_KEPT, SIGN_OF_LIFE,
};
use crate::pipe::shared::Shared;
use crate::proto::{Input, OpId};
use crate::stop;
use crate::sync::lock;
use crate::sys::copy;
use crate::transports::Connection;

/// Bulk bytes being received.
pub(super) struct Bulk {
    left: u64,
    pub(super) dest: Option<Destination>,
    /// The part that they belong to.
    pub(super) op: Option<OpId>,
    at: u64,
}

impl Io {
    /// Receives until the connection wants to wait, a message is there, or it is time to yield. Returns `false` if
    /// the connection, or the handler, is to be waited for.
    pub(super) fn receive(&mut self, common: &Common) -> Result<bool, Error> {
        if let Some(error) = self.unread.take() {
            return Err(error);
        }
        let mut reads = 0;
        loop {
            if common.has_too_many_deliveries() {
                return Ok(false);
            }
            let there = if self.bulk.is_some() {
                if reads == READS_IN_A_ROW {
                    return Ok(true);
                }
                reads += 1;
                if !self.receive_bulk(common)? {
                    return Ok(false);
                }
                common.deliveries_due()
            } else if self.end > self.start && self.end - self.start >= self.need {
                self.parse(common)?
            } else {
                if common.deliveries_due() > 0 {
                    return Ok(true);
                }
                if self.polled && std::mem::take(&mut self.found) {
                    // The poller polls again: what is there now is acted on first.
                    return Ok(false);
                }
                // A peer may send without end what gives nothing to deliver.
                if reads == READS_IN_A_ROW {
                    return Ok(true);
                }
                reads += 1;
                if !self.is_time_to_read() || !self.fill(common)? {
                    return Ok(false);
                }
                continue;
            };
            if there >= MESSAGES_IN_A_ROW || (there > 0 && self.start == self.end) {
                return Ok(true);
            }
        }
    }

    /// Gives the protocol what has come in. Returns how much is there to be delivered.
    fn parse(&mut self, common: &Common) -> Result<usize, Error> {
        let mut guard = lock(&common.shared);
        let shared = &mut *guard;
        // The pipe may have ended meanwhile, from here or from another thread: the bytes behind that are for nobody.
        shared.check_ended()?;
        let fault = |fault| Error::Peer {
            pipe: common.name.clone(),
            fault,
        };
        loop {
            let input = &self.received[self.start..self.end];
            let (used, input) = shared.state.handle(input, self.read_at).map_err(fault)?;
            self.start += used;
            self.need = 0;
            match input {
                Input::NeedMore(len) => {
                    self.need = len;
                    break;
                }
                Input::Message(arriving) => {
                    // First what came before this message.
                    shared.process(&mut self.wakes);
                    shared.check_ended()?;
                    let rest = &self.received[self.start..self.end];
                    self.start += shared.arrive(arriving, rest, &mut self.wakes)?;
                }
                Input::Bulk(len) => {
                    if !self.take_bulk(common, shared, len)? {
                        break;
                    }
                }
            }
        }
        shared.process(&mut self.wakes);
        shared.check_ended()?;
        self.gather(shared);
        self.found = !shared.arrived.is_empty();
        Ok(common.deliveries_due())
    }

    /// The next `len` bytes are of a part, or nobody's. Returns `false` if they are still to be read.
    #[inline(never)]
    fn take_bulk(&mut self, common: &Common, shared: &mut Shared, len: u64) -> Result<bool, Error> {
        let target = shared.state.bulk_target();
        let dest = match target {
            Some(op) => shared.place(op, len, &mut self.wakes)?,
            None => None,
        };
        let (mut dest, at) = dest.map_or((None, 0), |(dest, at)| (Some(dest), at));
        if len <= COPIED_AT_ONCE && len <= (self.end - self.start) as u64 {
            let bytes = &self.received[self.start..self.start + len as usize];
            copy(bytes, dest.as_mut(), at, common);
            self.start += len as usize;
            if let Some(message) = shared.state.bulk_received(dest) {
                shared.arrive_rest(message, &mut self.wakes);
            }
            return Ok(true);
        }
        self.bulk = Some(Bulk {
            left: len,
            dest,
            op: target,
            at,
        });
        self.bulky = len >= COPIED_AT_ONCE;
        Ok(false)
    }

    /// Returns `false` if the connection wants to wait.
    fn receive_bulk(&mut self, common: &Common) -> Result<bool, Error> {
        let Some(bulk) = &mut self.bulk else {
            return Ok(true);
        };
        let buffered = ((self.end - self.start) as u64).min(bulk.left) as usize;
        if buffered > 0 {
            let bytes = &self.received[self.start..self.start + buffered];
            copy(bytes, bulk.dest.as_mut(), bulk.at, common);
            self.start += buffered;
            bulk.advance(buffered as u64);
        }
        if bulk.left > 0 {
            let direct = bulk.dest.as_mut().filter(|_| bulk.left >= DIRECT_FROM);
            let Some(dest) = direct.and_then(Destination::as_bytes_mut) else {
                return self.fill(common);
            };
            let Some(connection) = &mut self.connection else {
                return Ok(false);
            };
            let at = bulk.at as usize;
            let piece = (bulk.left as usize).min(READ_BULK);
            let read = read(&mut **connection, &self.waker, &mut dest[at..at + piece]);
            let Some(len) = self.finish_read(read, common)? else {
                return Ok(false);
            };
            if let Some(bulk) = &mut self.bulk {
                bulk.advance(len as u64);
            }
            if stop::is_armed(stop::TENSOR_HALF_RECEIVED) && common.counters.bytes_in() > stop::SOME
            {
                stop::at(stop::TENSOR_HALF_RECEIVED);
            }
        }
        if let Some(bulk) = self.bulk.take_if(|bulk| bulk.left == 0) {
            let mut shared = lock(&common.shared);
            if let Some(message) = shared.state.bulk_received(bulk.dest) {
                shared.arrive_rest(message, &mut self.wakes);
            }
            // What a channel streams counts as a sign of life, too.
            shared.state.heard(self.read_at);
            shared.process(&mut self.wakes);
            shared.check_ended()?;
            self.gather(&mut shared);
        }
        Ok(true)
    }

    /// Reads frames. Returns `false` if the connection wants to wait.
    pub(super) fn fill(&mut self, common: &Common) -> Result<bool, Error> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.start > 0
            && self.received.len() - self.start < self.need.max(RECEIVE_BUFFER / 2)
        {
            self.received.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.fit_buffer();
        if self.end == self.received.len() {
            // For one large head: the buffer at most doubles, as bytes come in.
            let room = (self.received.len() * 2).min(self.need.max(RECEIVE_BUFFER));
            self.received.resize(room.max(self.received.len() + 1), 0);
        }
        let room = if self.bulky && self.need <= RECEIVE_BUFFER_BULK {
            (self.end + RECEIVE_BUFFER_BULK).min(self.received.len())
        } else {
            self.received.len()
        };
        let Some(connection) = &mut self.connection else {
            return Ok(false);
        };
        let into = &mut self.received[self.end..room];
        let read = read(&mut **connection, &self.waker, into);
        let Some(len) = self.finish_read(read, common)? else {
            return Ok(false);
        };
        self.end += len;
        if self.end == self.received.len() {
            self.is_filled = true;
            self.note_large_read();
        }
        self.bulky = false;
        Ok(true)
    }

    /// One read brought as much as an idle pipe has room for.
    fn note_large_read(&mut self) {
        (self.had_large_read, self.is_quiet) = (true, false);
    }

    /// The buffer grows where a read has filled it. While it is empty, it shrinks where little has come in for long.
    fn fit_buffer(&mut self) {
        let (len, is_empty) = (self.received.len(), self.end == 0);
        if std::mem::take(&mut self.is_filled) && len < RECEIVE_BUFFER {
            self.received.resize(RECEIVE_BUFFER, 0);
        } else if is_empty && len > RECEIVE_BUFFER {
            self.received.truncate(RECEIVE_BUFFER);
            self.received.shrink_to_fit();
        } else if is_empty && std::mem::take(&mut self.is_quiet) && len > RECEIVE_BUFFER_IDLE {
            self.received = vec![0; RECEIVE_BUFFER_IDLE];
        }
    }

    /// What follows from a read. Returns how many bytes have come in, or `None` if the connection wants to wait.
    fn finish_read(
        &mut self,
        read: Poll<io::Result<usize>>,
        common: &Common,
    ) -> Result<Option<usize>, Error> {
        let len = match read {
            Poll::Pending => return Ok(None),
            Poll::Ready(Err(error)) => return Err(self.broken(common, &error)),
            Poll::Ready(Ok(0)) => return Err(self.end_of_stream(common)),
            Poll::Ready(Ok(len)) => len,
        };
        common.counters.count_read(len);
        common.driver.record_arrival();
        self.heard = true;
        self.sends.batch_begins();
        self.reads.read(len);
        self.read_clock(common, len);
        Ok(Some(len))
    }

    /// `len` bytes have come in. The protocol hears of a chunk or a large head when it is whole; on a slow link that may take longer than a
    /// peer may be silent, so slow reads are reported, too. While polled, reads follow each other within microseconds, and the clock costs
    /// more than a frame: it is read only now and then.
    fn read_clock(&mut self, common: &Common, len: usize) {
        if len > RECEIVE_BUFFER_IDLE {
            self.note_large_read();
        }
        self.reads_since += 1;
        if self.reads_since < READS_PER_CLOCK && common.driver.is_polling() {
            return;
        }
        self.reads_since = 0;
        let now = ambient::now();
        if now.saturating_duration_since(self.read_at) > SIGN_OF_LIFE {
            lock(&common.shared).state.heard(now);
        }
        self.read_at = now;
        if std::mem::take(&mut self.had_large_read) {
            self.large_read_at = now;
        } else if now.saturating_duration_since(self.large_read_at) > RECEIVE_BUFFER_KEPT {
            self.is_quiet = true;
        }
    }
}

/// Reads into `bytes`, which are not empty: 0 is the end of the stream.
fn read(
    connection: &mut dyn Connection,
    waker: &Waker,
    bytes: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buf = ReadBuf::new(bytes);
    let read = Pin::new(connection).poll_read(&mut Context::from_waker(waker), &mut buf);
    read.map_ok(|()| buf.filled().len())
}

impl Bulk {
    fn advance(&mut self, len: u64) {
        self.left -= len;
        self.at += len;
    }
}

/// Puts what has come in into its place, if somebody wants it.
fn copy(bytes: &[u8], dest: Option<&mut Destination>, at: u64, common: &Common) {
    if let Some(dest) = dest.and_then(Destination::as_bytes_mut) {
        let at = at as usize;
        copy::copy(bytes, &mut dest[at..at + bytes.len()]);
        common.counters.count_copied(bytes.len());
    }
}
