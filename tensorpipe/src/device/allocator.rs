//! Memory of any device: an [`Allocator`] makes it, a [`DevicePool`] keeps it warm and uses it again.
//!
//! Invariant: memory is used again, or freed, when no work on it is [unfinished](super::QueuedWork::unfinished). What came back sooner
//! waits, in the free list or with the fence that it waits for.

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
/// Contract: memory is on the device asked for, at least as long, and freed by its drop, which comes when no work on it is
/// unfinished. No method waits for a device's queues.
pub trait Allocator: Send + Sync + 'static {
    /// The devices that it has memory of; always the same ones.
    fn devices(&self) -> Vec<Device>;

    /// Fresh memory of at least `len` bytes. A [`DevicePool`] asks for sizes that it can use again, which are larger than what is
    /// taken of it.
    ///
    /// # Errors
    /// When the device has no such memory, however long it would be: a length that cannot be had ends no process.
    fn allocate(&self, device: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError>;

    /// Copies these behind each other into `to`, which is as long as all of them. Each lies on one of its devices or in main
    /// memory, and so does `to`. Not all are in main memory. What is filled on a device is ready behind a fence; main memory is
    /// filled when the future ends. It is polled within a tokio runtime. A dropped future leaves what is queued to its end, and
    /// `to` goes back behind it.
    ///
    /// `None`, the default, whatever is asked for, where it copies nothing: then [`Tensor::to`](crate::Tensor::to) does not serve its
    /// devices.
    fn copy(&self, from: Vec<Buffer>, to: BufferMut) -> Option<Copying> {
        let _ = (from, to);
        None
    }

    /// How many bytes of a device are kept warm while nobody uses them; 0 for an allocator that does so itself. Each pool asks once, when
    /// it has its first memory. Default: 512 MiB.
    fn retain(&self, device: Device) -> u64 {
        let _ = device;
        512 << 20
    }
}

/// A copy under way, of [`Allocator::copy`].
pub type Copying = Pin<Box<dyn Future<Output = Result<Buffer, DeviceError>> + Send>>;

/// Warm memory of one device. Cloning clones a handle; the memory is shared by all of them.
///
/// What was taken comes back when its last handle is dropped, and is used again when the work that was queued on it has
/// finished. After the last `DevicePool` is gone it is freed instead.
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

    /// `len` bytes to fill: whatever was there before. No work on them is unfinished.
    ///
    /// # Errors
    /// When the device has no such memory, also after everything that is kept warm was freed.
    pub fn take(&self, len: usize) -> Result<BufferMut, DeviceError> {
        match &self.source {
            Source::Device(shared) => shared.take(len),
            Source::Main(pool) => pool.try_take(len).map_err(|error| {
                let reason = error.source.to_string();
                DeviceError::new(self.device, error.call, reason)
            }),
        }
    }

    /// Whether [`gather`](Self::gather) serves.
    pub fn gathers(&self) -> bool {
        match &self.source {
            Source::Main(_) => true,
            Source::Device(shared) => {
                let nothing = shared.allocator.copy(Vec::new(), BufferMut::zeroed(0));
                nothing.is_some()
            }
        }
    }

    /// Copies these, which lie on its device, behind each other into its memory: ready behind a fence, for which nobody waits. Within a
    /// tokio runtime.
    ///
    /// # Errors
    /// One lies elsewhere; the device has no such memory; its allocator [copies nothing](Allocator::copy), or the device refuses.
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

    /// Frees unused memory, what came back longest ago first, until at most `keep_bytes` are kept. What is still in use by
    /// queued work is freed when that has finished.
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
    /// Known when something was allocated: who asks about a device may open it for that.
    retain: OnceLock<u64>,
    free: Mutex<FreeList<Block>>,
}

/// Memory of the allocator's, which may be longer than the class that it was made for.
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
    /// Frees it behind all work that is queued on it.
    fn free_when_idle(self) {
        let unfinished = self.memory.work().map(QueuedWork::unfinished);
        if let Some(fence) = unfinished.unwrap_or_default().pop() {
            fence.when_reached(Box::new(move || self.free_when_idle()));
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, FreeList<Block>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(self: &Arc<Self>, len: usize) -> Result<BufferMut, DeviceError> {
        let class = Class::of(len);
        let warm = self.lock().take(class);
        let block = match warm {
            Some(block) => {
                if let Some(work) = block.memory.work() {
                    work.forget_ready();
                }
                block
            }
            None => {
                let memory = self.allocate(class.size).or_else(|_| {
                    // What is kept warm in other sizes may be what is missing.
                    self.trim(0);
                    self.allocate(class.size)
                })?;
                self.retain
                    .get_or_init(|| self.allocator.retain(self.device));
                self.lock().count_fresh(class);
                let size = class.size;
                Block { memory, size }
            }
        };
        let pooled = Pooled {
            block: Some(block),
            pool: Arc::downgrade(self),
        };
        // Just made: nobody else holds it.
        BufferMut::from_memory(Arc::new(pooled), len)
            .map_err(|_| DeviceError::new(self.device, "allocate", "it cannot be filled"))
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

    fn trim(&self, keep_bytes: u64) {
        let evicted = self.lock().evict(keep_bytes);
        // Neither freeing nor a device's callbacks under the lock.
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
        // Some of it may be in use by queued work still.
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
            // A forked child has no device, and touches no lock of its parent's.
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

/// What it holds, in every respect.
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

/// Where a context has memory from: its pool of main memory, and a pool for each other device, made when first asked for. Cloning clones
/// handles.
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
    /// Of several allocators for one device the last one is asked.
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
    /// [`Misuse::NoAllocator`] where the context has none of this device.
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

    /// Whose memory a device's is, other than main memory.
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
