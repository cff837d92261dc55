//! Memory that waits to be reused, in size classes, with its counters.
//!
//! There are four classes per power of two, so that at most a fifth of a block is unused. In each class, the block that came back last goes
//! out first: its lines are still in the caches.
//!
//! Invariant: outside of a method call, no more is retained than the configured bound.

use std::collections::VecDeque;

use super::PoolStats;
use crate::sys::block::Block;

/// The smallest class, in bytes.
pub(super) const SMALLEST: usize = 4096;

/// What a [`FreeList`] keeps.
pub(in crate::device) trait Kept {
    /// Its length in bytes, that of a class.
    fn len(&self) -> usize;

    /// Whether it may be used again now.
    fn is_idle(&self) -> bool {
        true
    }
}

impl Kept for Block {
    fn len(&self) -> usize {
        self.len()
    }
}

/// See the module's documentation.
pub(in crate::device) struct FreeList<B> {
    /// By class; the most recently returned block is at the back.
    free: Vec<VecDeque<Idle<B>>>,
    /// Counts returns, to order blocks of all classes.
    returns: u64,
    stats: PoolStats,
}

struct Idle<B> {
    returned: u64,
    block: B,
}

impl<B> Default for FreeList<B> {
    fn default() -> Self {
        Self {
            free: Vec::new(),
            returns: 0,
            stats: PoolStats::default(),
        }
    }
}

impl<B: Kept> FreeList<B> {
    pub(in crate::device) fn stats(&self) -> PoolStats {
        self.stats
    }

    /// A block of this class, to be used again.
    pub(in crate::device) fn take(&mut self, class: Class) -> Option<B> {
        let list = self.free.get_mut(class.index)?;
        let Idle { block, .. } = match list.back()?.block.is_idle() {
            true => list.pop_back()?,
            false => list.remove(list.iter().rposition(|idle| idle.block.is_idle())?)?,
        };
        self.stats.taken += 1;
        self.stats.recycled += 1;
        self.stats.retained_bytes -= class.size as u64;
        self.stats.outstanding_bytes += class.size as u64;
        Some(block)
    }

    /// Counts a newly made block of this class.
    pub(in crate::device) fn count_fresh(&mut self, class: Class) {
        self.stats.taken += 1;
        self.stats.fresh += 1;
        self.stats.outstanding_bytes += class.size as u64;
    }

    /// Takes a block back. Returns the blocks to free, possibly including this one.
    pub(in crate::device) fn keep(&mut self, block: B, retain: u64) -> Vec<B> {
        let size = block.len() as u64;
        self.stats.outstanding_bytes -= size;
        if size > retain {
            return vec![block];
        }
        let class = Class::of(block.len()).index;
        if self.free.len() <= class {
            self.free.resize_with(class + 1, VecDeque::new);
        }
        self.returns += 1;
        self.free[class].push_back(Idle {
            returned: self.returns,
            block,
        });
        self.stats.retained_bytes += size;
        self.evict(retain)
    }

    /// Removes the least recently returned blocks until at most `keep_bytes` are left.
    pub(in crate::device) fn evict(&mut self, keep_bytes: u64) -> Vec<B> {
        let mut evicted = Vec::new();
        while self.stats.retained_bytes > keep_bytes {
            // The front of each list is its oldest, so one of the fronts is the oldest of all. At most a hundred
            // lists, and the system call that follows costs more.
            let oldest = self
                .free
                .iter_mut()
                .filter(|list| !list.is_empty())
                .min_by_key(|list| list.front().map(|idle| idle.returned));
            let Some(idle) = oldest.and_then(VecDeque::pop_front) else {
                break;
            };
            self.stats.retained_bytes -= idle.block.len() as u64;
            evicted.push(idle.block);
        }
        evicted
    }
}

/// A size that blocks have: 4 KiB, then four steps per power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::device) struct Class {
    pub(super) index: usize,
    pub(in crate::device) size: usize,
}

impl Class {
    /// The smallest class for `len` bytes.
    pub(in crate::device) fn of(len: usize) -> Self {
        let last = len.max(SMALLEST) - 1;
        let power = last.ilog2();
        let step = power - 2;
        // The upper three bits of `last`, 4 to 7: its power's quarter.
        let quarter = last >> step;
        Self {
            index: (power - (SMALLEST - 1).ilog2()) as usize * 4 + quarter - 7,
            // Saturates for lengths that no allocation can have, which the system then refuses.
            size: (quarter + 1)
                .checked_shl(step)
                .filter(|size| *size >= len)
                .unwrap_or(usize::MAX),
        }
    }
}
