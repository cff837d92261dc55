//! Memory of any device: an [`Allocator`] makes it, a [`DevicePool`] keeps it warm and reuses it.
//!
//! Invariant: memory is reused or freed only when no work on it is [unfinished](super::QueuedWork::unfinished). Memory that is returned
//! earlier waits: in the free list, or with the fence that has to be reached. Behind a [lost](super::Fence::is_lost) fence, it is leaked.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::pool::{Class, FreeList, Kept};
use super::{Buffer, BufferMut, Device, Memory, MemoryKind, Pool, PoolStats, QueuedWork};
use crate::error::{DeviceError, Misuse};
use crate::sys::fork::Owner;
use crate::sys::registrations::Registrable;

/// Makes memory of devices, and is given to a context by
/// [`ContextBuilder::allocator`](crate::ContextBuilder::allocator).
///
/// Contract: memory is on the requested device, is at least as long as requested, and is freed by its drop. The drop comes when no work on
/// the memory is unfinished. No method waits for a device's queues.
pub trait Allocator: Send + Sync + 'static {
    /// The devices that it allocates on; always the same ones.
    fn devices(&self) -> Vec<Device>;

    /// Fresh memory of at least `len` bytes. A [`DevicePool`] rounds sizes up so that it can reuse the memory.
    ///
    /// # Errors
    /// If the device cannot provide the memory, however large `len` is: a length from a peer must not end the process.
    fn allocate(&self, device: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError>;

    /// Concatenates `from` into `to`, which is as long as all parts together. Each part, and `to`, lies in main memory or on one of
    /// the allocator's devices; they are not all in main memory. Memory on a device is ready behind a fence; main memory is filled
    /// when the future ends. The future is polled within a tokio runtime. If it is dropped, queued work still finishes, and `to` is
    /// freed after that.
    ///
    /// Returns `None`, the default, for every request if the allocator copies nothing: [`Tensor::to`](crate::Tensor::to) then does
    /// not serve its devices.
    fn copy(&self, from: Vec<Buffer>, to: BufferMut) -> Option<Copying> {
        let _ = (from, to);
        None
    }

    /// How many bytes must be freed before `len` more can be allocated. If a [`DevicePool`] has fewer, it frees none. Default: 0, not known,
    /// so that a pool whose allocation fails frees all that it keeps.
    fn missing(&self, device: Device, len: usize) -> u64 {
        let _ = (device, len);
        0
    }

    /// How many unused bytes of a device the pool keeps warm; 0 for an allocator that does so itself. Each pool asks once, at its first
    /// allocation. Default: 512 MiB.
    fn retain(&self, device: Device) -> u64 {
        let _ = device;
        512 << 20
    }
}

/// A copy under way, of [`Allocator::copy`].
pub type Copying = Pin<Box<dyn Future<Output = Result<Buffer, DeviceError>> + Send>>;

/// Warm memory of one device. Cloning clones a handle; the memory is shared by all of them.
///
/// Memory comes back when its last handle is dropped, and is reused when the work queued on it has finished. After the last `DevicePool` is
/// gone, it is freed instead.
#[derive(Clone)]
pub struct DevicePool {
    device: Device,
    source: Source,
}

#[derive(Clone)]
enum Source {
    Main(Pool),
    Device(Arc<Shared>),
}

impl DevicePool {
    /// Memory of `device`, made by `allocator`.
    pub fn new(device: Device, allocator: Arc<dyn Allocator>) -> Self {
        let shared = Shared {
            owner: Owner::here(),
            device,
            allocator,
            retain: OnceLock::new(),
            free: Mutex::default(),
        };
        Self {
            device,
            source: Source::Device(Arc::new(shared)),
        }
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// `len` bytes to fill, with arbitrary old content. No work on them is unfinished.
    ///
    /// # Errors
    /// If the device has no such memory, even without what is kept warm.
    pub fn take(&self, len: usize) -> Result<BufferMut, DeviceError> {
        match &self.source {
            Source::Device(shared) => shared.take(len),
            Source::Main(pool) => pool.try_take(len).map_err(|error| {
                let reason = error.source.to_string();
                DeviceError::new(self.device, error.call, reason)
            }),
        }
    }

    /// As [`take`](Self::take), but only from warm memory, without a call of the allocator.
    pub(crate) fn take_warm(&self, len: usize) -> Option<BufferMut> {
        match &self.source {
            Source::Device(shared) => shared.take_warm(len),
            Source::Main(_) => None,
        }
    }

    /// Whether [`gather`](Self::gather) works.
    pub fn gathers(&self) -> bool {
        match &self.source {
            Source::Main(_) => true,
            Source::Device(shared) => {
                let nothing = shared.allocator.copy(Vec::new(), BufferMut::zeroed(0));
                nothing.is_some()
            }
        }
    }

    /// Concatenates buffers of this device into memory of this pool. The result is ready behind a fence; nobody waits for it. Call it
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If a part lies elsewhere, the device has no such memory, its allocator [copies nothing](Allocator::copy), or the device
    /// refuses.
    pub async fn gather(&self, parts: Vec<Buffer>) -> Result<Buffer, DeviceError> {
        let refused = |reason| DeviceError::new(self.device, "gather", reason);
        if parts.iter().any(|part| part.device() != self.device) {
            return Err(refused("some of it lies elsewhere"));
        }
        let lens = parts.iter().map(Buffer::len);
        let len = lens.reduce(usize::saturating_add).unwrap_or(0);
        if len == 0 {
            return Ok(Buffer::empty(self.device));
        }
        let mut to = self.take(len)?;
        if let Source::Device(shared) = &self.source {
            let copying = shared.allocator.copy(parts, to);
            return copying
                .ok_or_else(|| refused("its allocator copies nothing"))?
                .await;
        }
        let mut rest = to.as_bytes_mut().unwrap_or_default();
        for part in parts {
            let bytes = part.as_bytes().unwrap_or_default();
            let (here, behind) = rest.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = behind;
        }
        Ok(to.freeze())
    }

    /// What it did and holds.
    pub fn stats(&self) -> PoolStats {
        match &self.source {
            Source::Main(pool) => pool.stats(),
            Source::Device(shared) => shared.lock().stats(),
        }
    }

    /// Frees unused memory, the least recently returned first, until at most `keep_bytes` are kept. Memory that queued work still
    /// uses is freed once that work has finished. A driver that is slow gets it back on another thread.
    pub fn trim(&self, keep_bytes: u64) {
        match &self.source {
            Source::Main(pool) => pool.trim(keep_bytes),
            Source::Device(shared) => shared.trim(keep_bytes),
        }
    }
}

impl fmt::Debug for DevicePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        write!(
            f,
            "DevicePool({}: {} bytes out, {} kept)",
            self.device, stats.outstanding_bytes, stats.retained_bytes
        )
    }
}

struct Shared {
    owner: Owner,
    device: Device,
    allocator: Arc<dyn Allocator>,
    /// Asked at the first allocation, since asking the allocator may open the device.
    retain: OnceLock<u64>,
    free: Mutex<FreeList<Block>>,
}

/// Memory from the allocator, possibly longer than the size class that was requested.
struct Block {
    memory: Box<dyn Memory>,
    size: usize,
}

impl Kept for Block {
    fn len(&self) -> usize {
        self.size
    }

    fn is_idle(&self) -> bool {
        let work = self.memory.work();
        work.is_none_or(|work| work.unfinished().is_empty())
    }
}

impl Block {
    /// Frees it behind all work that is queued on it; leaks it if nobody knows when that ends.
    fn free_when_idle(self) {
        let unfinished = self.memory.work().map(QueuedWork::unfinished);
        let unfinished = unfinished.unwrap_or_default();
        if unfinished.iter().any(|fence| fence.is_lost()) {
            return std::mem::forget(self);
        }
        if let Some(fence) = unfinished.into_iter().next_back() {
            fence.when_reached(Box::new(move || self.free_when_idle()));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, FreeList<Block>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, len: usize) -> Result<BufferMut, DeviceError> {
        if let Some(warm) = self.take_warm(len) {
            return Ok(warm);
        }
        let class = Class::of(len);
        let memory = self.allocate(class.size);
        let memory = memory.or_else(|error| self.allocate_again(class.size, error))?;
        self.retain
            .get_or_init(|| self.allocator.retain(self.device));
        self.lock().count_fresh(class);
        let size = class.size;
        self.hand_out(Block { memory, size }, len)
            .ok_or_else(|| DeviceError::new(self.device, "allocate", "it cannot be filled"))
    }

    fn take_warm(self: &Arc<Self>, len: usize) -> Option<BufferMut> {
        let block = self.lock().take(Class::of(len))?;
        if let Some(work) = block.memory.work() {
            work.forget_ready();
        }
        self.hand_out(block, len)
    }

    fn hand_out(self: &Arc<Self>, block: Block, len: usize) -> Option<BufferMut> {
        let pooled = Pooled {
            block: Some(block),
            pool: Arc::downgrade(self),
        };
        // Just made: nobody else holds it.
        BufferMut::from_memory(Arc::new(pooled), len).ok()
    }

    fn allocate(&self, len: usize) -> Result<Box<dyn Memory>, DeviceError> {
        let memory = self.allocator.allocate(self.device, len)?;
        if memory.device() == self.device && memory.len() >= len {
            return Ok(memory);
        }
        let (found, device) = (memory.len(), memory.device());
        let reason = format!("its allocator gave {found} bytes of {device} instead of {len}");
        Err(DeviceError::new(self.device, "allocate", reason))
    }

    /// Frees what is missing of memory that is kept warm in other sizes, unless that cannot help: a peer may have named the length.
    fn allocate_again(
        &self,
        len: usize,
        error: DeviceError,
    ) -> Result<Box<dyn Memory>, DeviceError> {
        let missing = self.allocator.missing(self.device, len);
        let kept = self.lock().stats().retained_bytes;
        let Some(rest) = kept.checked_sub(missing) else {
            return Err(error);
        };
        self.trim(rest);
        self.allocate(len).or_else(|_| {
            // Some of it may lie where it helps nobody, or is still in use.
            self.trim(0);
            self.allocate(len)
        })
    }

    fn trim(&self, keep_bytes: u64) {
        let evicted = self.lock().evict(keep_bytes);
        // Frees, and runs device callbacks, without holding the lock.
        evicted.into_iter().for_each(Block::free_when_idle);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let free = self.free.get_mut();
        let kept = free.unwrap_or_else(PoisonError::into_inner).evict(0);
        if self.owner.is_other_process() {
            return std::mem::forget(kept);
        }
        // Queued work may still use some of it.
        kept.into_iter().for_each(Block::free_when_idle);
    }
}

/// Memory of the pool in somebody's hands.
struct Pooled {
    /// `None` only while dropping.
    block: Option<Block>,
    pool: Weak<Shared>,
}

impl Pooled {
    fn memory(&self) -> Option<&dyn Memory> {
        self.block.as_ref().map(|block| &*block.memory)
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        let Some(block) = self.block.take() else {
            return;
        };
        let evicted = match self.pool.upgrade() {
            // In a forked child, the device does not exist, and the parent's locks must not be touched.
            Some(pool) if pool.owner.is_other_process() => return std::mem::forget(block),
            Some(pool) => {
                let retain = pool.retain.get().copied().unwrap_or_default();
                pool.lock().keep(block, retain)
            }
            None => vec![block],
        };
        evicted.into_iter().for_each(Block::free_when_idle);
    }
}

/// Forwards everything to the memory that it holds.
#[deny(clippy::missing_trait_methods, reason = "a default would hide it")]
impl Memory for Pooled {
    fn device(&self) -> Device {
        self.memory().map_or(Device::CPU, |memory| memory.device())
    }
    fn kind(&self) -> MemoryKind {
        (self.memory()).map_or(MemoryKind::Heap, |memory| memory.kind())
    }
    fn is_private(&self) -> bool {
        self.memory().is_some_and(|memory| memory.is_private())
    }
    fn len(&self) -> usize {
        self.memory().map_or(0, |memory| memory.len())
    }
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        self.memory()?.as_bytes()
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        self.block.as_mut()?.memory.as_bytes_mut()
    }
    fn allocate_like(&self, len: usize) -> Option<BufferMut> {
        self.pool.upgrade()?.take(len).ok()
    }
    fn work(&self) -> Option<&QueuedWork> {
        self.memory()?.work()
    }
    fn registrable(&self) -> Option<Registrable<'_>> {
        self.memory()?.registrable()
    }
    fn as_any(&self) -> &dyn Any {
        self.memory().map_or(self, |memory| memory.as_any())
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        match &mut self.block {
            Some(block) => block.memory.as_any_mut(),
            None => &mut self.pool,
        }
    }
}

/// Where a context allocates: its pool of main memory, and one pool for each other device, made at its first use. Cloning clones handles.
#[derive(Clone)]
pub struct Allocators {
    main: Pool,
    others: Arc<Others>,
}

#[derive(Default)]
struct Others {
    allocators: Vec<Arc<dyn Allocator>>,
    pools: Mutex<Vec<DevicePool>>,
}

impl fmt::Debug for Allocators {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.others.allocators.iter().flat_map(|all| all.devices());
        f.debug_tuple("Allocators")
            .field(&devices.collect::<Vec<_>>())
            .finish()
    }
}

impl Allocators {
    /// If several allocators serve one device, the last one is used.
    pub(crate) fn new(main: Pool, allocators: Vec<Arc<dyn Allocator>>) -> Self {
        let others = Others {
            allocators,
            pools: Mutex::default(),
        };
        Self {
            main,
            others: Arc::new(others),
        }
    }

    /// Main memory.
    pub fn main(&self) -> &Pool {
        &self.main
    }

    /// Memory of a device, see [`Context::allocator`](crate::Context::allocator).
    ///
    /// # Errors
    /// [`Misuse::NoAllocator`] if the context has none for this device.
    pub fn on(&self, device: Device) -> Result<DevicePool, Misuse> {
        if device.is_cpu() {
            let source = Source::Main(self.main.clone());
            return Ok(DevicePool { device, source });
        }
        let pools = self.others.pools.lock();
        let mut pools = pools.unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.iter().find(|pool| pool.device == device) {
            return Ok(pool.clone());
        }
        let pool = DevicePool::new(device, self.of(device)?.clone());
        pools.push(pool.clone());
        Ok(pool)
    }

    /// The allocator for a device's memory, other than main memory.
    pub(crate) fn of(&self, device: Device) -> Result<&Arc<dyn Allocator>, Misuse> {
        let all = &self.others.allocators;
        let mut known = all.iter().rev();
        let found = known.find(|known| known.devices().contains(&device));
        found.ok_or_else(|| {
            let devices = all.iter().flat_map(|all| all.devices());
            let names: Vec<_> = devices.map(|device| device.to_string()).collect();
            let reason = format!("it has cpu:0 {}", names.join(" "));
            let reason = reason.trim_end().to_owned();
            Misuse::NoAllocator { device, reason }
        })
    }
}
