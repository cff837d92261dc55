//! Ordinary memory, copied once, by its writer, into memory that the reader has mapped.
//!
//! | bytes | copied |
//! |---|---|
//! | up to [`AT_ONCE`] | in [`send`](super::Lane::send), where nobody but this process can have a say in how long that takes |
//! | up to [`UNASKED`] | by whoever drives the pipe, in pieces; the message leaves behind its last one |
//! | more | the same, when the reader has asked for it |

use super::{LaneHandle, OpId};
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
    /// What is copied, and the copy, once that is made.
    done: Mutex<Option<(Buffer, BufferMut)>>,
}

impl Job {
    pub(super) fn take(&self) -> Option<(Buffer, BufferMut)> {
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
    /// `None` once it is over.
    memory: Option<(Buffer, BufferMut)>,
    done: usize,
}

impl Copying {
    /// Both are main memory of the same length.
    pub(super) fn new(op: OpId, memory: (Buffer, BufferMut), handle: LaneHandle) -> (Self, Job) {
        let shared = Arc::<Shared>::default();
        let copying = Self {
            op,
            handle,
            shared: shared.clone(),
            memory: Some(memory),
            done: 0,
        };
        (copying, Job(shared))
    }
}

impl Work for Copying {
    fn step(&mut self) -> bool {
        let Some((source, dest)) = &mut self.memory else {
            return false;
        };
        if self.shared.cancelled.load(Ordering::Relaxed) {
            self.memory = None;
            return false;
        }
        let end = source.len().min(self.done + AT_ONCE);
        if let (Some(from), Some(to)) = (source.as_bytes(), dest.as_bytes_mut()) {
            copy::copy(&from[self.done..end], &mut to[self.done..end]);
        }
        self.done = end;
        if end < source.len() {
            return true;
        }
        *lock(&self.shared.done) = self.memory.take();
        false
    }

    fn elsewhere(mut self: Box<Self>) {
        let (op, handle) = (self.op, self.handle.clone());
        handle.resume_after(op, move || while self.step() {});
    }
}
