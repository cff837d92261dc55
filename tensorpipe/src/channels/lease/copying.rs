//! Copies of ordinary memory: the writer copies once, into memory that the reader has mapped.
//!
//! | bytes | copied |
//! |---|---|
//! | up to [`AT_ONCE`] | in [`send`](super::Lane::send), if memory is free and no other process can slow the read down |
//! | up to [`UNASKED`] | in pieces, by the thread that drives the pipe; the message leaves after the last one |
//! | more | the same, once the reader has asked for it |

use super::{Borrower, LaneHandle, OpId};
use crate::device::{Buffer, BufferMut};
use crate::pipe::Work;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use crate::sys::copy;

/// Bytes that are copied in one go: some tens of microseconds.
pub(super) const AT_ONCE: usize = 256 << 10;

/// The most bytes that are copied before the reader asks for them: some 100 µs, less than it takes to ask a reader that sleeps. Chosen.
pub(super) const UNASKED: usize = 1 << 20;

/// A copy under way, as its lane holds it. Dropping it cancels the copy.
#[derive(Debug)]
pub(super) struct Job(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cancelled: AtomicBool,
    /// The source and, unless memory was lacking, the copy; set when the copy is finished.
    done: Mutex<Option<(Buffer, Option<BufferMut>)>>,
}

impl Job {
    pub(super) fn take(&self) -> Option<(Buffer, Option<BufferMut>)> {
        lock(&self.0.done).take()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.cancelled.store(true, Ordering::Relaxed);
    }
}

/// A copy under way, for the thread that makes it.
pub(super) struct Copying {
    op: OpId,
    handle: LaneHandle,
    shared: Arc<Shared>,
    /// The process that the copy is for.
    borrower: Arc<Borrower>,
    /// `None` once it is over.
    source: Option<Buffer>,
    /// Allocated in the first step: making a segment takes long.
    dest: Option<BufferMut>,
    done: usize,
}

impl Copying {
    /// `source` is main memory.
    pub(super) fn new(
        op: OpId,
        source: Buffer,
        borrower: Arc<Borrower>,
        handle: LaneHandle,
    ) -> (Self, Job) {
        let shared = Arc::<Shared>::default();
        let copying = Self {
            op,
            handle,
            shared: shared.clone(),
            borrower,
            source: Some(source),
            dest: None,
            done: 0,
        };
        (copying, Job(shared))
    }
}

impl Work for Copying {
    fn step(&mut self) -> bool {
        if self.shared.cancelled.load(Ordering::Relaxed) {
            (self.source, self.dest) = (None, None);
        }
        let Some(source) = &self.source else {
            return false;
        };
        let len = source.len();
        if self.dest.is_none() {
            self.dest = self.borrower.take(len);
        }
        let end = len.min(self.done + AT_ONCE);
        let dest = self.dest.as_mut().and_then(BufferMut::as_bytes_mut);
        if let (Some(from), Some(to)) = (source.as_bytes(), dest) {
            copy::copy(&from[self.done..end], &mut to[self.done..end]);
        }
        self.done = end;
        if end < len && self.dest.is_some() {
            return true;
        }
        let copied = self.source.take().map(|source| (source, self.dest.take()));
        *lock(&self.shared.done) = copied;
        false
    }

    fn finish_on_thread(mut self: Box<Self>) {
        let (op, handle) = (self.op, self.handle.clone());
        handle.resume_after(op, move || while self.step() {});
    }
}
