//! Memory of somebody else's, of the same process or another, read into memory of the application's: the one copy that
//! this takes.

use tokio::runtime::Handle;

use super::core::Core;
use super::lane::LaneHandle;
use super::reading::Reading;
use crate::device::{Buffer, BufferMut};
use crate::proto::OpId;
use crate::sync::Arc;
use crate::sys::copy;

/// Up to this size the copy is made on the spot, in bytes.
const AT_ONCE: usize = 256 << 10;

/// A part, and where it goes.
pub(super) struct Copy {
    op: OpId,
    source: Buffer,
    dest: BufferMut,
    /// What the part's channel is told at the other end once it is made.
    pub(super) answer: Option<&'static [u8]>,
}

impl Copy {
    pub(super) fn new(op: OpId, source: Buffer, dest: BufferMut) -> Self {
        let answer = None;
        Self {
            op,
            source,
            dest,
            answer,
        }
    }

    /// Whether it is made on a thread for blocking work.
    pub(super) fn takes_a_while(&self) -> bool {
        self.source.len() > AT_ONCE
    }

    /// Makes it, now or on such a thread: `reading` has started, and waits for it. `over`: the pipe has ended, maybe with its runtime,
    /// and nobody else waits for the pipe.
    pub(super) fn begin(self, core: &Arc<Core>, reading: &mut Reading, over: bool) {
        if over || !self.takes_a_while() {
            reading.received(self.op.part, self.make());
        } else {
            self.begin_on_thread(&core.runtime, LaneHandle::new(core));
        }
    }

    /// Makes it on such a thread, which tells the pipe, and its peer.
    pub(super) fn begin_on_thread(self, runtime: &Handle, handle: LaneHandle) {
        let (op, answer) = (self.op, self.answer);
        runtime.spawn_blocking(move || match answer {
            Some(answer) => handle.received_and_tell(op, self.make(), answer.to_vec()),
            None => handle.received(op, self.make()),
        });
    }

    /// Makes it now, and lets go of the source.
    pub(super) fn make(mut self) -> Buffer {
        // Both are main memory of the same length: the plan, or the channel, has checked it.
        if let (Some(source), Some(dest)) = (self.source.as_bytes(), self.dest.as_bytes_mut()) {
            copy::copy(source, dest);
        }
        self.dest.freeze()
    }
}
