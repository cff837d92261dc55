//! Memory of somebody else's, of the same process or another, read into memory of the application's: the one copy that
//! this takes.

use crate::device::{Buffer, BufferMut};
use crate::pipe::driver::tuning::COPIED_ON_THE_SPOT;
use crate::proto::OpId;
use crate::sys::copy;

/// A part, and where it goes.
pub(in crate::pipe) struct Copy {
    pub(in crate::pipe) op: OpId,
    source: Buffer,
    dest: BufferMut,
    /// What the part's channel is told at the other end once it is made.
    pub(in crate::pipe) answer: Option<&'static [u8]>,
}

impl Copy {
    pub(in crate::pipe) fn new(op: OpId, source: Buffer, dest: BufferMut) -> Self {
        let answer = None;
        Self {
            op,
            source,
            dest,
            answer,
        }
    }

    /// Whether it is made on a thread for blocking work.
    pub(in crate::pipe) fn takes_a_while(&self) -> bool {
        self.source.len() > COPIED_ON_THE_SPOT
    }

    /// Makes it now, and lets go of the source.
    pub(in crate::pipe) fn make(mut self) -> Buffer {
        // Both are main memory of the same length: the plan, or the channel, has checked it.
        if let (Some(source), Some(dest)) = (self.source.as_bytes(), self.dest.as_bytes_mut()) {
            copy::copy(source, dest);
        }
        self.dest.freeze()
    }
}
