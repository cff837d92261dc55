//! Warm main memory that is used again: a [`Pool`] of blocks for received tensors, and of memory that can be lent to
//! other processes ([`lendable`]).
//!
//! Fresh memory costs a page fault per page when it is first touched (104 ms for 256 MiB), warm memory costs nothing.
//!
//! Invariant: a block is in the hands of one `PooledBlock` or in the [`FreeList`], never both.

mod free_list;
mod lendable;

pub(super) use free_list::{Class, FreeList, Kept};
pub(crate) use lendable::LendableBlock;
pub use lendable::LendableStats;

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use self::lendable::Lendables;
use super::{BufferMut, Memory};
use crate::error::SystemError;
use crate::sys::block::Block;
use crate::sys::fork::Owner;
use crate::sys::memory;
use crate::sys::registrations::Registrable;

/// Shorter memory comes from the allocator, which keeps it warm itself and wastes less.
const SMALLEST: usize = free_list::SMALLEST;

/// Warm main memory for tensors. Cloning clones a handle; the memory is shared by all of them.
///
/// Memory returns to the pool when its last handle is dropped, on any thread. After the last `Pool` is gone, it is freed instead.
///
/// ```
/// # use tensorpipe::{Pool, PoolOptions};
/// let pool = Pool::new(PoolOptions::default());
/// drop(pool.take(1 << 20));
/// drop(pool.take(1 << 20));
/// assert_eq!((pool.stats().fresh, pool.stats().recycled), (1, 1));
/// ```
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
    lendables: Arc<Lendables>,
}

/// How a [`Pool`] behaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolOptions {
    /// Bytes of unused memory that are kept warm; beyond that, the least recently returned block is freed. 0 keeps none. Default: 512
    /// MiB, or an eighth of the memory that this process may use (the machine's or its control group's), whichever is less. Lendable
    /// memory has a second budget of the same size.
    pub retain: u64,
    /// Bytes of memory that can be lent to other processes of this machine ([`Pool::tensor`]), used and unused together. Beyond that,
    /// the pool hands out ordinary memory, which is copied when it is sent: [`LendableStats::fallbacks`] counts that. 0 makes all
    /// memory ordinary. Default: 4 GiB, or half of the memory that this process may use if that is less.
    pub lendable: u64,
}

impl Default for PoolOptions {
    fn default() -> Self {
        Self::within(memory::available())
    }
}

impl PoolOptions {
    /// The default for a process that may use so many bytes.
    fn within(memory: Option<u64>) -> Self {
        let memory = memory.unwrap_or(u64::MAX);
        Self {
            retain: (512 << 20).min(memory / 8),
            lendable: (4 << 30).min(memory / 2),
        }
    }
}

/// What a [`Pool`] did so far and holds now. Memory shorter than 4 KiB is not pooled and not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolStats {
    /// Blocks handed out: `recycled + fresh`.
    pub taken: u64,
    /// Of these, how many were warm.
    pub recycled: u64,
    /// Of these, how many came from the system.
    pub fresh: u64,
    /// Bytes kept for later, in whole blocks.
    pub retained_bytes: u64,
    /// Bytes in use, in whole blocks.
    pub outstanding_bytes: u64,
    /// Memory that can be lent, which the counters above do not count.
    pub lendable: LendableStats,
}

impl Pool {
    /// An empty pool: memory comes from the system when first asked for.
    pub fn new(options: PoolOptions) -> Self {
        Self {
            shared: Arc::new(Shared {
                owner: Owner::here(),
                retain: options.retain,
                state: Mutex::default(),
            }),
            lendables: Lendables::new(options.lendable, options.retain),
        }
    }

    /// `len` bytes to fill, aligned to 64 bytes, to 2 MiB from 2 MiB on.
    ///
    /// They hold whatever was there before, like `torch.empty`: zeros or earlier content of this pool.
    ///
    /// # Panics
    /// When the system has no such memory. For a length that a peer named use [`Pool::try_take`].
    pub fn take(&self, len: usize) -> BufferMut {
        self.try_take(len).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Pool::take`].
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn try_take(&self, len: usize) -> Result<BufferMut, SystemError> {
        Ok(self.acquire(len)?.0)
    }

    /// `len` zero bytes. Warm memory is overwritten with them.
    ///
    /// # Panics
    /// As [`Pool::take`].
    pub fn zeroed(&self, len: usize) -> BufferMut {
        self.try_zeroed(len)
            .unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Pool::zeroed`].
    ///
    /// # Errors
    /// When the system has no such memory.
    pub fn try_zeroed(&self, len: usize) -> Result<BufferMut, SystemError> {
        let (mut buffer, warm) = self.acquire(len)?;
        if let Some(bytes) = buffer.as_bytes_mut().filter(|_| warm) {
            bytes.fill(0);
        }
        Ok(buffer)
    }

    /// `len` bytes to fill, which channel `lease` can lend to another process of this machine without a copy, like the memory of
    /// [`Pool::tensor`]. If there is none, ordinary memory ([`LendableStats::fallbacks`]).
    ///
    /// It is shared memory. A peer that borrows any of it can read the 2 MiB around it, or the whole block if that is longer, as long
    /// as the pool keeps the memory. A forked child cannot touch it.
    ///
    /// # Errors
    /// When the system has not even ordinary memory.
    pub fn try_take_lendable(&self, len: usize) -> Result<BufferMut, SystemError> {
        match self.lendables.take(len) {
            Some((buffer, _)) => Ok(buffer),
            None => self.try_take(len),
        }
    }

    /// Lendable memory only; `None` if there is none.
    pub(crate) fn take_lendable(&self, len: usize) -> Option<BufferMut> {
        Some(self.lendables.take(len)?.0)
    }

    /// As [`take_lendable`](Self::take_lendable), but only from free memory, without a system call.
    pub(crate) fn take_free_lendable(&self, len: usize) -> Option<BufferMut> {
        self.lendables.take_free(len)
    }

    /// Whether lendable memory of this length is likely to be available.
    pub(crate) fn has_lendable(&self, len: usize) -> bool {
        self.lendables.has_room(len)
    }

    /// As [`Pool::try_take_lendable`], all zeros.
    ///
    /// # Errors
    /// As there.
    pub fn try_zeroed_lendable(&self, len: usize) -> Result<BufferMut, SystemError> {
        let Some((mut buffer, warm)) = self.lendables.take(len) else {
            return self.try_zeroed(len);
        };
        if let Some(bytes) = buffer.as_bytes_mut().filter(|_| warm) {
            bytes.fill(0);
        }
        Ok(buffer)
    }

    /// What it did and holds.
    pub fn stats(&self) -> PoolStats {
        let lendable = self.lendables.stats();
        PoolStats {
            lendable,
            ..self.shared.lock().stats()
        }
    }

    /// Frees unused blocks, the least recently returned first, until at most `keep_bytes` are kept. Applies the same bound to
    /// lendable memory, in whole segments.
    pub fn trim(&self, keep_bytes: u64) {
        self.lendables.trim(keep_bytes);
        let evicted = self.shared.lock().evict(keep_bytes);
        // Unmapping takes milliseconds: not under the lock.
        drop(evicted);
    }

    /// Frees lendable memory that was unused since the last call, in whole segments.
    pub(crate) fn trim_stale(&self) {
        self.lendables.trim_stale();
    }

    /// The length of the block that `len` bytes lie in.
    pub(crate) fn block_len(len: usize) -> usize {
        match len {
            ..SMALLEST => len,
            _ => Class::of(len).size,
        }
    }

    /// The memory, and whether it is warm: then all of it is resident, and it may hold old content.
    pub(crate) fn acquire(&self, len: usize) -> Result<(BufferMut, bool), SystemError> {
        if len < SMALLEST {
            return Ok((of_memory(Arc::new(Block::try_zeroed(len)?), len), false));
        }
        let class = Class::of(len);
        let warm = self.shared.lock().take(class);
        let recycled = warm.is_some();
        let block = match warm {
            Some(block) => block,
            None => {
                let block = Block::try_zeroed(class.size)?;
                self.shared.lock().count_fresh(class);
                block
            }
        };
        let memory = PooledBlock {
            block: Some(block),
            pool: Arc::downgrade(&self.shared),
        };
        Ok((of_memory(Arc::new(memory), len), recycled))
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new(PoolOptions::default())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        write!(
            f,
            "Pool({} bytes out, {} of {} kept)",
            stats.outstanding_bytes, stats.retained_bytes, self.shared.retain
        )
    }
}

fn of_memory(memory: Arc<dyn Memory>, len: usize) -> BufferMut {
    // Just made: nobody else holds it, and its class is at least as long.
    BufferMut::from_memory(memory, len).unwrap_or_else(|_| BufferMut::zeroed(len))
}

struct Shared {
    owner: Owner,
    retain: u64,
    state: Mutex<FreeList<Block>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, FreeList<Block>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn give_back(&self, block: Block) {
        if self.owner.is_other_process() {
            return;
        }
        let evicted = self.lock().keep(block, self.retain);
        drop(evicted);
    }
}

/// A block on loan.
struct PooledBlock {
    /// `None` only while dropping.
    block: Option<Block>,
    pool: Weak<Shared>,
}

impl Memory for PooledBlock {
    fn is_private(&self) -> bool {
        true
    }
    fn len(&self) -> usize {
        self.block.as_ref().map_or(0, Block::len)
    }
    fn registrable(&self) -> Option<Registrable<'_>> {
        let block = self.block.as_ref()?;
        Some(Registrable::whole(block.registrations(), block.len()))
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        self.block.as_ref().map(Block::bytes)
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.block.as_mut().map(Block::bytes_mut)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for PooledBlock {
    fn drop(&mut self) {
        if let (Some(block), Some(pool)) = (self.block.take(), self.pool.upgrade()) {
            pool.give_back(block);
        }
    }
}

#[cfg(test)]
mod tests;
