//! Counters of what a pipe did: they tell a wasted system call or copy, where clocks only tell a busy machine.

use super::driver::tuning::{PIPE_SLICE, WORK_OF_MESSAGE, WORK_OF_READ};
use crate::sync::{AtomicU64, Ordering};

/// What a pipe has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PipeStats {
    /// Writes accepted by the connection (for tcp: `sendmsg` calls that moved bytes).
    pub writes: u64,
    /// Reads answered by the connection (for tcp: `recv` calls that moved bytes).
    pub reads: u64,
    /// Bytes written to the connection.
    pub bytes_out: u64,
    /// Bytes read from the connection.
    pub bytes_in: u64,
    /// Extra system calls that woke a sleeping peer, where the transport makes them itself (shm).
    pub wakes: u64,
    /// Payload and tensor bytes copied:
    ///
    /// - from the receive buffer, or by a channel from memory of the peer's, into their place;
    /// - from pooled memory into that of a reader who brought some;
    /// - by channel `lease`, for the peer to read.
    ///
    /// The rest was read into its place directly, or not moved at all. What goes through a ring in shared memory is counted as written
    /// and read.
    pub bytes_copied: u64,
    /// Bytes of tensors that a channel has lent to the peer, which reads them where they are.
    pub bytes_lent: u64,
    /// Bytes of received tensors that were not moved at all: they are read where the peer has them.
    pub bytes_borrowed: u64,
    /// Bytes of tensors and payloads that a channel sent as another one would, since neither end could do better just then.
    /// [`ChannelRoute::diverted`](crate::route::ChannelRoute::diverted) lists them by that other channel, with the last reason. If it never
    /// gets better, [`ChannelRoute::degraded`](crate::route::ChannelRoute::degraded) says why, and other channels carry such parts.
    pub bytes_diverted: u64,
    /// Bytes of payloads and tensors that came on the pipe's connection for nothing. They had left before their reader skipped or refused
    /// them, or before it was found that there is no memory for them.
    pub bytes_dropped: u64,
}

/// How the payloads and tensors of one message came to their reader. Bytes that none of the three counts were copied by no CPU: they were
/// lent, or handed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MessageStats {
    /// Bytes that came through a connection, in the message's own frame or behind it: its writer's CPU copied them into the
    /// connection, its reader's out of it.
    pub streamed: u64,
    /// Bytes that the reader's CPU copied from where the writer has them.
    pub copied: u64,
    /// Bytes that the writer's CPU copied into memory that the reader has mapped. Where the reader brought memory of its own, its CPU
    /// copied them once more, which `copied` counts.
    pub copied_by_writer: u64,
    /// Which channels carried parts of it: bit `n` is [`Route::channels`](crate::Route::channels)`[n]`. None, where all of it
    /// came in the message's own frame.
    pub channels: u64,
}

impl MessageStats {
    pub(super) fn carried_by(&mut self, channel: u8) {
        self.channels |= 1u64.checked_shl(channel.into()).unwrap_or(0);
    }

    /// Adds what a lane did between these two readings.
    pub(super) fn add(&mut self, before: LaneStats, after: LaneStats) {
        self.streamed += after.streamed - before.streamed;
        self.copied += after.copied - before.copied;
        self.copied_by_writer += after.copied_by_writer - before.copied_by_writer;
    }
}

/// Of what came first and what came later.
impl std::ops::AddAssign for MessageStats {
    fn add_assign(&mut self, other: Self) {
        self.streamed += other.streamed;
        self.copied += other.copied;
        self.copied_by_writer += other.copied_by_writer;
        self.channels |= other.channels;
    }
}

/// Of several pipes together.
impl std::ops::AddAssign for PipeStats {
    fn add_assign(&mut self, other: Self) {
        *self = Self {
            writes: self.writes + other.writes,
            reads: self.reads + other.reads,
            bytes_out: self.bytes_out + other.bytes_out,
            bytes_in: self.bytes_in + other.bytes_in,
            wakes: self.wakes + other.wakes,
            bytes_copied: self.bytes_copied + other.bytes_copied,
            bytes_lent: self.bytes_lent + other.bytes_lent,
            bytes_borrowed: self.bytes_borrowed + other.bytes_borrowed,
            bytes_diverted: self.bytes_diverted + other.bytes_diverted,
            bytes_dropped: self.bytes_dropped + other.bytes_dropped,
        };
    }
}

/// What the lanes of a pipe did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LaneStats {
    pub(super) copied: u64,
    pub(super) lent: u64,
    pub(super) borrowed: u64,
    pub(super) diverted: u64,
    /// Bytes expected on a connection.
    pub(super) streamed: u64,
    /// Received bytes that the peer's lane had copied.
    pub(super) copied_by_writer: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    writes: AtomicU64,
    reads: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    wakes: AtomicU64,
    bytes_copied: AtomicU64,
    /// Messages that the handler was given.
    delivered: AtomicU64,
    /// What was done when the pipe last yielded.
    done: AtomicU64,
}

impl Counters {
    /// Whether so much was done since this was `true` last that it is time to yield.
    pub(super) fn is_slice_over(&self) -> bool {
        let done = count(&self.bytes_in)
            + count(&self.bytes_out)
            + count(&self.reads) * WORK_OF_READ
            + count(&self.delivered) * WORK_OF_MESSAGE;
        let is_over = done.saturating_sub(count(&self.done)) >= PIPE_SLICE;
        if is_over {
            self.done.store(done, Ordering::Relaxed);
        }
        is_over
    }

    /// The handler was given so many messages. Only the thread that calls the handler calls this.
    pub(super) fn count_deliveries(&self, messages: usize) {
        add(&self.delivered, messages);
    }

    pub(super) fn bytes_out(&self) -> u64 {
        count(&self.bytes_out)
    }

    pub(super) fn bytes_in(&self) -> u64 {
        count(&self.bytes_in)
    }

    /// Together with what its lanes did, and what the protocol dropped.
    pub(super) fn stats(&self, lanes: LaneStats, bytes_dropped: u64) -> PipeStats {
        PipeStats {
            writes: count(&self.writes),
            reads: count(&self.reads),
            bytes_out: self.bytes_out(),
            bytes_in: self.bytes_in(),
            wakes: count(&self.wakes),
            bytes_copied: count(&self.bytes_copied) + lanes.copied,
            bytes_lent: lanes.lent,
            bytes_borrowed: lanes.borrowed,
            bytes_diverted: lanes.diverted,
            bytes_dropped,
        }
    }

    pub(super) fn count_write(&self, bytes: usize) {
        add(&self.writes, 1);
        add(&self.bytes_out, bytes);
    }

    pub(super) fn count_read(&self, bytes: usize) {
        add(&self.reads, 1);
        add(&self.bytes_in, bytes);
    }

    pub(super) fn set_wakes(&self, in_all: u64) {
        self.wakes.store(in_all, Ordering::Relaxed);
    }

    pub(super) fn count_copied(&self, bytes: usize) {
        add(&self.bytes_copied, bytes);
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// One thread at a time counts: no exchange is needed.
fn add(counter: &AtomicU64, more: usize) {
    counter.store(count(counter) + more as u64, Ordering::Relaxed);
}
