//! Ordinary memory, copied once, by its writer, into memory that the reader has mapped.
//!
//! | bytes | copied |
//! |---|---|
//! | up to [`AT_ONCE`] | in [`send`](super::Lane::send), where there is memory for it and nobody but this process has a say in how long that takes |
//! | up to [`UNASKED`] | by whoever drives the pipe, in pieces; the message leaves behind its last one |
//! | more | the same, when the reader has asked for it |

use super::{Borrower, LaneHandle, OpId};
use crate::device::{Buffer, BufferMut};
use crate::pipe::Work;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use crate::sys::copy;

/// What is copied in one go, in bytes: some tens of microseconds.
pub(super) const AT_ONCE: usize = 256 << 10;

/// What is copied before the reader has said that it wants it, in bytes: some 100 µs, less than it takes to ask a reader that
/// sleeps. Chosen.
pub(super) const UNASKED: usize = 1 << 20;

/// A copy under way, as its lane holds it. Dropping it gives it up.
#[derive(Debug)]
pub(super) struct Job(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    cancelled: AtomicBool,
    /// What is copied, and the copy, once that is made; none where there was no memory for it.
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

/// The same, for whoever makes it.
pub(super) struct Copying {
    op: OpId,
    handle: LaneHandle,
    shared: Arc<Shared>,
    /// Whom it is for.
    borrower: Arc<Borrower>,
    /// `None` once it is over.
    source: Option<Buffer>,
    /// Taken in the first step: to make a segment takes long.
    dest: Option<BufferMut>,
    done: usize,
}

impl Copying {
    /// Of main memory.
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
