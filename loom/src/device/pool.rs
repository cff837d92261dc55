//! A pool of lendable memory, and of no other.

use super::{Buffer, BufferMut};
use crate::sync::Arc;
use crate::sys::ledger::{Entry, Ledger, Open};

#[expect(dead_code, unreachable_pub, reason = "applications use it, too")]
#[path = "../../../tensorpipe/src/device/pool/lendable.rs"]
mod lendable;

use lendable::{LendableBlock, Lendables};

/// As long as the pool makes segments of small pieces.
const SEGMENT: u64 = 2 << 20;

/// Sizes of memory: one.
struct Class {
    size: usize,
}

impl Class {
    fn of(len: usize) -> Self {
        Self { size: len }
    }
}

/// The context's.
pub(crate) struct Pool {
    lendables: Arc<Lendables>,
    segments: u64,
}

impl Pool {
    /// Of so many segments, each of one piece.
    pub(crate) fn new(segments: u64) -> Self {
        let bytes = segments * SEGMENT;
        Self {
            lendables: Lendables::new(bytes, bytes),
            segments,
        }
    }

    /// Memory to fill, of one byte; `None` while all of it is in use.
    pub(crate) fn take(&self) -> Option<BufferMut> {
        self.lendables.take(1).map(|(buffer, _)| buffer)
    }

    /// Everything is back, and there once.
    pub(crate) fn assert_whole(&self) {
        let stats = self.lendables.stats();
        assert_eq!((stats.lent_bytes, stats.outstanding_bytes), (0, 0));
        let all: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        assert_eq!(all.len() as u64, self.segments, "some of it is lost");
    }
}

/// Offers what lies in lendable memory.
pub(crate) fn lend(buffer: &Buffer, ledger: &Arc<Ledger>) -> Option<(Entry, Open)> {
    let block = buffer.memory().as_any().downcast_ref::<LendableBlock>();
    block.expect("memory of the pool").lend(ledger, 0..1)
}

/// Where it lies.
pub(crate) fn segment(buffer: &Buffer) -> &Arc<crate::sys::segment::Segment> {
    let block = buffer.memory().as_any().downcast_ref::<LendableBlock>();
    block
        .and_then(LendableBlock::place)
        .expect("memory of the pool")
        .0
}
