//! A pool that has only lendable memory.

use super::{Buffer, BufferMut};
use crate::sync::Arc;
use crate::sys::ledger::{Entry, Ledger, Open};

#[expect(dead_code, unreachable_pub, reason = "applications use it, too")]
#[path = "../../../tensorpipe/src/device/pool/lendable.rs"]
mod lendable;

use lendable::{LendableBlock, Lendables};

/// The length of segments for small pieces, as in the real pool.
const SEGMENT: u64 = 2 << 20;

/// The only size class.
struct Class {
    size: usize,
}

impl Class {
    fn of(len: usize) -> Self {
        Self { size: len }
    }
}

/// Stand-in for the context's pool.
pub(crate) struct Pool {
    lendables: Arc<Lendables>,
    segments: u64,
}

impl Pool {
    /// A pool of `segments` segments, each of one piece.
    pub(crate) fn new(segments: u64) -> Self {
        let bytes = segments * SEGMENT;
        Self {
            lendables: Lendables::new(bytes, bytes),
            segments,
        }
    }

    /// Takes one byte of memory to fill; `None` while all memory is in use.
    pub(crate) fn take(&self) -> Option<BufferMut> {
        self.lendables.take(1).map(|(buffer, _)| buffer)
    }

    /// Asserts that all memory is back, each piece exactly once.
    pub(crate) fn assert_whole(&self) {
        let stats = self.lendables.stats();
        assert_eq!((stats.lent_bytes, stats.outstanding_bytes), (0, 0));
        let all: Vec<_> = std::iter::from_fn(|| self.take()).collect();
        assert_eq!(all.len() as u64, self.segments, "some of it is lost");
    }
}

/// Offers a buffer that lies in lendable memory.
pub(crate) fn lend(buffer: &Buffer, ledger: &Arc<Ledger>) -> Option<(Entry, Open)> {
    let block = buffer.memory().as_any().downcast_ref::<LendableBlock>();
    block.expect("memory of the pool").lend(ledger, 0..1)
}

/// The segment that holds the buffer.
pub(crate) fn segment(buffer: &Buffer) -> &Arc<crate::sys::segment::Segment> {
    let block = buffer.memory().as_any().downcast_ref::<LendableBlock>();
    block
        .and_then(LendableBlock::place)
        .expect("memory of the pool")
        .0
}
