//! Memory of one device, cut from physical memory: long blocks get their own, short ones share it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::{CudaContext, DriverError, sys};

use super::Kept;
use super::physical::{self, Physical};

/// The shortest block, in bytes: the devices' alignment.
const LEAST: usize = 512;

/// How long a full device may lack memory that was lent and is unmapped here: until its readers hear of it, and their driver unmaps it.
/// Chosen: that takes some milliseconds.
const LATE: Duration = Duration::from_millis(200);

/// How often the driver is asked again meanwhile. Chosen.
const PAUSE: Duration = Duration::from_millis(2);

/// Blocks of one device.
pub(super) struct Slabs {
    context: Kept<CudaContext>,
    /// Devices that reach this one's memory.
    peers: Vec<sys::CUdevice>,
    /// The size that physical memory is a multiple of.
    granularity: usize,
    /// Slabs of shared physical memory, by the length of their blocks.
    shared: Mutex<BTreeMap<usize, Vec<Slab>>>,
    /// Unused physical memory that is still mapped.
    unused: Mutex<Vec<Arc<Physical>>>,
    /// Held while some is unmapped.
    unmapping: Mutex<()>,
    /// How many were unmapped by now.
    unmapped: AtomicU64,
    /// Until then, other processes may still have memory that was unmapped here.
    late_until: Mutex<Option<Instant>>,
}

/// Physical memory that is cut into blocks of one length.
struct Slab {
    physical: Arc<Physical>,
    /// Offsets of the free blocks.
    free: Vec<usize>,
}

/// A block in use; [`Slabs::give_back`] takes it back.
pub(super) struct Block {
    pub(super) physical: Arc<Physical>,
    /// Its offset there.
    pub(super) offset: usize,
    len: usize,
}

impl Slabs {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        peers: Vec<sys::CUdevice>,
    ) -> Result<Self, DriverError> {
        Ok(Self {
            granularity: physical::granularity(context)?,
            context: Kept::new(context.clone()),
            peers,
            shared: Mutex::default(),
            unused: Mutex::default(),
            unmapping: Mutex::default(),
            unmapped: AtomicU64::new(0),
            late_until: Mutex::default(),
        })
    }

    pub(super) fn peers(&self) -> &[sys::CUdevice] {
        &self.peers
    }

    pub(super) fn granularity(&self) -> usize {
        self.granularity
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<Slab>>> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// New physical memory, in place of what is unused if there is no other.
    fn physical(&self, len: usize) -> Result<Arc<Physical>, DriverError> {
        let make = || Physical::new(&self.context, len, &self.peers).map(Arc::new);
        let before = self.unmapped.load(Ordering::Relaxed);
        let mut made = make().or_else(|error| {
            self.unmap();
            match self.unmapped.load(Ordering::Relaxed) == before {
                true => Err(error),
                false => make(),
            }
        });
        let until = self.late_until.lock();
        let until = *until.unwrap_or_else(PoisonError::into_inner);
        let full = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        while made.as_ref().is_err_and(|error| *error == full)
            && until.is_some_and(|until| Instant::now() < until)
        {
            std::thread::sleep(PAUSE);
            made = make();
        }
        made
    }

    /// Unmaps what is unused, for which the driver takes long.
    pub(super) fn unmap(&self) {
        let alone = self.unmapping.lock();
        let _alone = alone.unwrap_or_else(PoisonError::into_inner);
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        let now = std::mem::take(&mut *unused);
        drop(unused);
        let count = now.len() as u64;
        let were_shared = now.iter().any(|physical| physical.was_shared());
        drop(now);
        if were_shared {
            let until = self.late_until.lock();
            *until.unwrap_or_else(PoisonError::into_inner) = Some(Instant::now() + LATE);
        }
        self.unmapped.fetch_add(count, Ordering::Relaxed);
    }

    /// At least `len` bytes with arbitrary content.
    pub(super) fn take(&self, len: usize) -> Result<Block, DriverError> {
        let out = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let class = len.max(LEAST).checked_next_power_of_two().ok_or(out)?;
        if class > self.granularity / 2 {
            let len = len.checked_next_multiple_of(self.granularity).ok_or(out)?;
            let physical = self.physical(len)?;
            let offset = 0;
            return Ok(Block {
                physical,
                offset,
                len,
            });
        }
        if let Some(block) = self.take_free(class) {
            return Ok(block);
        }
        // Without the lock, which the thread that handles events needs: the driver takes a while.
        let physical = self.physical(self.granularity)?;
        // The first block is taken.
        let free = (1..self.granularity / class).map(|i| i * class);
        let slab = Slab {
            physical: physical.clone(),
            free: free.rev().collect(),
        };
        self.lock().entry(class).or_default().push(slab);
        Ok(Block {
            physical,
            offset: 0,
            len: class,
        })
    }

    /// Takes a block from an existing slab.
    fn take_free(&self, len: usize) -> Option<Block> {
        let mut shared = self.lock();
        let mut slabs = shared.get_mut(&len)?.iter_mut();
        let slab = slabs.find(|slab| !slab.free.is_empty())?;
        Some(Block {
            offset: slab.free.pop()?,
            physical: slab.physical.clone(),
            len,
        })
    }

    /// No work on the block is unfinished, and nobody else has it. Returns whether there is something to [unmap](Self::unmap) now.
    pub(super) fn give_back(&self, block: Block) -> bool {
        let unused = self.unused_by(block);
        let is_unused = unused.is_some();
        let mut all = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(unused);
        is_unused
    }

    /// The physical memory that nobody has a block of any more.
    fn unused_by(&self, block: Block) -> Option<Arc<Physical>> {
        let mut shared = self.lock();
        let slabs = shared.get_mut(&block.len);
        let found = slabs.and_then(|slabs| {
            let is_this = |slab: &Slab| Arc::ptr_eq(&slab.physical, &block.physical);
            let at = slabs.iter().position(is_this)?;
            Some((slabs, at))
        });
        let Some((slabs, at)) = found else {
            // It has physical memory of its own.
            return Some(block.physical);
        };
        slabs[at].free.push(block.offset);
        let is_unused = slabs[at].free.len() * block.len == block.physical.len;
        is_unused.then(|| slabs.swap_remove(at).physical)
    }
}
