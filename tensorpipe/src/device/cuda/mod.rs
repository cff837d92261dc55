//! NVIDIA GPUs: their memory, and copies on their streams (feature `cuda`).
//!
//! Nothing here touches CUDA before a program calls [`CudaDevices::open`], which finds the driver at run time. A device's
//! primary context is retained when the device is first used.
//!
//! ```no_run
//! use tensorpipe::device::cuda::CudaDevices;
//! use tensorpipe::{Context, Message, MessageTensor};
//!
//! # async fn story(url: &str) -> Result<(), Box<dyn std::error::Error>> {
//! let cuda = CudaDevices::open()?;
//! let context = Context::builder().cuda(&cuda).build()?;
//! let pipe = context.connect(url).await?;
//! // What tensors of each device go over, and why not over something better.
//! println!("{}", pipe.route());
//!
//! let gpu = CudaDevices::device(0);
//! let stream = cuda.context(gpu)?.new_stream()?;
//! let slice = stream.alloc_zeros::<f32>(1000)?;
//! let tensor = tensorpipe::Tensor::from_cuda(&cuda, slice, [10, 100])?;
//! // On the reader's second GPU. Nobody waits for the stream.
//! let tensor = MessageTensor::from(tensor).to_device(CudaDevices::device(1));
//! pipe.write(Message::new("weights").tensor(tensor)).await?;
//! # Ok(()) }
//! ```
//!
//! The devices order the work. A copy goes to a stream of the caller's. The stream waits for the work that the source is ready behind, and
//! for the work that still uses the destination. The next copy waits for an event behind this one. No call here waits for a device, or leaves
//! another context current. The driver takes a while only at first: for the first use of a device, for memory that no pool has, and for
//! pinned memory; on a full device up to 200 ms more, until readers let go of what was lent to them. Do not use these calls on a stream of
//! which a graph is being captured; what is dropped meanwhile goes when the capture has ended. Captures of other streams go on meanwhile, but
//! open each device before them.
//!
//! A driver that unpins main memory may first wait for all work of its devices, and let other threads' calls wait for that. Work that itself
//! waits for such a call (kernels that wait for kernels of other devices, as NCCL's do) then never ends. So little is unpinned: what a pool
//! of main memory keeps stays pinned, as do up to 256 MiB beside it, and memory of a program's own is never pinned. While such work runs,
//! neither drop nor [trim](crate::Pool::trim) a pool, nor let more of it be unused than it keeps
//! ([`PoolOptions::retain`](crate::PoolOptions::retain), `lendable`), nor drop the last handle on the devices. What a peer lends is unpinned
//! when the peer frees it: where such work may run then, leave channel `lease` out.
//!
//! Three tiers: `cudarc`'s raw calls, its checked results, and owners that free what they have. Contexts, streams and events are
//! cudarc's own types, so that a program's streams serve as they are.

mod access;
mod captures;
mod copies;
mod exports;
mod facts;
mod fence;
mod foreign;
mod memory;
mod peers;
mod physical;
mod pinned;
mod probe;
mod registered;
mod sharing;
mod slabs;
mod streams;
mod windows;

pub use access::{DeviceRead, DeviceWrite};
pub use copies::Download;
pub use facts::DeviceProperties;
pub(crate) use foreign::MOST as MOST_SPANNED;
pub(crate) use physical::{Handle, Physical};
pub use probe::Unavailable;
pub(crate) use sharing::Shared as SharedMemory;
pub(crate) use streams::Borrowed as BorrowedStream;
pub(crate) use windows::{Place, Windows};

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use self::captures::Relaxed;
use self::exports::Exports;
use self::fence::{CudaFence, Watcher};
use self::foreign::Foreign;
use self::memory::CudaMemory;
use self::peers::Peers;
use self::physical::Uuid;
use self::pinned::PinnedPool;
use self::slabs::Slabs;
use self::streams::Streams;
use super::{Allocator, Buffer, BufferMut, Copying, Device, DeviceKind, Fence, Memory};
use crate::error::DeviceError;
use crate::sys::drop_thread::DropThread;
use crate::sys::fork::Owner;

/// The CUDA devices that this process sees, and their allocator. Cloning clones a handle.
#[derive(Clone)]
pub struct CudaDevices {
    shared: Arc<Shared>,
}

struct Shared {
    owner: Owner,
    /// The devices' UUIDs, the same in all processes.
    uuids: Vec<Uuid>,
    /// Opened devices. Failures are not kept, since they may pass.
    devices: Vec<OnceLock<Arc<Opened>>>,
    peers: Peers,
    pinned: PinnedPool,
    watcher: Watcher,
}

impl Drop for Shared {
    fn drop(&mut self) {
        let devices = std::mem::take(&mut self.devices);
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        match self.owner.is_other_process() {
            true => std::mem::forget(devices),
            false => drop(devices),
        }
    }
}

/// A device in use.
pub(super) struct Opened {
    device: Device,
    /// Its memory is cut from these.
    slabs: Slabs,
    /// What other processes map of it, and of other libraries' memory.
    exports: Exports,
    foreign: Arc<Foreign>,
    frees: Arc<DropThread>,
    watcher: Watcher,
    /// Streams for transfers.
    streams: Streams,
    /// Nothing is queued on this stream. Without it, cudarc would wait for all work of the device when it makes the first stream.
    _first: Kept<CudaStream>,
    context: Kept<CudaContext>,
}

impl CudaDevices {
    /// Finds the driver and its devices. `CUDA_VISIBLE_DEVICES` selects the visible ones.
    ///
    /// # Errors
    /// Why there are none for this process, and what to do about it.
    pub fn open() -> Result<Self, Unavailable> {
        let uuids = (0..probe::devices()?).map(|ordinal| physical::uuid(ordinal as i32));
        let uuids: Result<Vec<_>, _> = uuids.collect();
        let uuids = uuids.map_err(|error| Unavailable::Failed {
            call: "cuDeviceGetUuid",
            reason: probe::words(error),
        })?;
        let devices = uuids.iter().map(|_| OnceLock::new());
        Ok(Self {
            shared: Arc::new(Shared {
                owner: Owner::here(),
                devices: devices.collect(),
                uuids,
                peers: Peers::default(),
                pinned: PinnedPool::default(),
                watcher: Watcher::start().map_err(|error| Unavailable::Failed {
                    call: "a thread for callbacks",
                    reason: error.to_string(),
                })?,
            }),
        })
    }

    /// All of them.
    pub fn devices(&self) -> Vec<Device> {
        let count = self.shared.devices.len() as u32;
        (0..count).map(Self::device).collect()
    }

    /// Device number `index`, whether or not it exists.
    pub const fn device(index: u32) -> Device {
        Device::new(DeviceKind::CUDA, index)
    }

    /// The primary context of a device, which its memory and streams belong to.
    ///
    /// # Errors
    /// There is no such device, or it cannot be used.
    pub fn context(&self, device: Device) -> Result<Arc<CudaContext>, DeviceError> {
        Ok(self.opened(device)?.context.clone())
    }

    /// `len` bytes of main memory, with arbitrary content, that the devices copy from and to while the CPU goes on.
    ///
    /// # Errors
    /// There is no such device, or the system has no such memory.
    pub fn pinned(&self, device: Device, len: usize) -> Result<BufferMut, DeviceError> {
        let context = &self.opened(device)?.context;
        let taken = self.shared.pinned.take(context, len);
        taken.map_err(|error| failed(device, "cuMemHostAlloc", error))
    }

    /// A position behind all that is queued on `stream` now, for [`BufferMut::freeze_at`](super::BufferMut::freeze_at) and
    /// [`Buffer::use_until`](super::Buffer::use_until).
    ///
    /// # Errors
    /// When a graph is being captured on the stream, since that work is queued only when the graph is launched; and when the driver
    /// refuses.
    pub fn fence(&self, stream: &CudaStream) -> Result<Arc<dyn Fence>, DeviceError> {
        let _mine = ContextGuard::keep();
        let event = Self::event(stream)?;
        self.record(event, stream)
    }

    /// For [`record`](Self::record): made before the work is queued, since without it the end of that work could not be observed.
    fn event(stream: &CudaStream) -> Result<CudaEvent, DeviceError> {
        let device = Self::device(stream.context().ordinal() as u32);
        forget_error(stream.context());
        let captures = stream.capture_status();
        let captures = captures.map_err(|error| failed(device, "cuStreamIsCapturing", error))?;
        if captures != sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE {
            let reason = "a graph is being captured on the stream; end the capture, launch the graph, and pass its results on then";
            return Err(DeviceError::new(device, "cuStreamIsCapturing", reason));
        }
        let event = stream.context().new_event(None);
        event.map_err(|error| failed(device, "cuEventCreate", error))
    }

    fn record(&self, event: CudaEvent, stream: &CudaStream) -> Result<Arc<dyn Fence>, DeviceError> {
        let device = Self::device(stream.context().ordinal() as u32);
        let recorded = event.record(stream);
        recorded.map_err(|error| failed(device, "cuEventRecord", error))?;
        Ok(Arc::new(CudaFence::new(
            device,
            event,
            &self.shared.watcher,
        )))
    }

    /// Orders everything that is queued on `stream` from now on behind `fence`.
    ///
    /// # Errors
    /// If the fence is another kind of device's, which no stream can wait for; if the work before it failed; and if the driver
    /// refuses.
    pub fn wait_for(&self, stream: &CudaStream, fence: &dyn Fence) -> Result<(), DeviceError> {
        let _mine = ContextGuard::keep();
        wait_for(stream, fence)
    }

    /// Whether a stream can wait for this fence: not for one of another kind of device.
    pub(crate) fn can_wait_for(&self, fence: &dyn Fence) -> bool {
        fence.as_any().is::<CudaFence>() || fence.reached().is_some()
    }

    /// Whether this is a forked child that has inherited the devices.
    fn is_other_process(&self) -> bool {
        self.shared.owner.is_other_process()
    }

    fn opened(&self, device: Device) -> Result<&Arc<Opened>, DeviceError> {
        let known = device.kind == DeviceKind::CUDA;
        let slot = self.shared.devices.get(device.index as usize);
        let Some(slot) = slot.filter(|_| known) else {
            let reason = format!("there are {} devices here", self.shared.devices.len());
            return Err(DeviceError::new(device, "cuDeviceGet", reason));
        };
        if self.shared.owner.is_other_process() {
            let reason = "CUDA does not outlive a fork: start a new process instead";
            return Err(DeviceError::new(device, "cuCtxSetCurrent", reason));
        }
        if let Some(opened) = slot.get() {
            return Ok(opened);
        }
        let opened = Arc::new(Opened::new(device, &self.shared.watcher)?);
        Ok(slot.get_or_init(|| opened))
    }
}

impl fmt::Debug for CudaDevices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaDevices({})", self.shared.devices.len())
    }
}

impl Allocator for CudaDevices {
    fn devices(&self) -> Vec<Device> {
        self.devices()
    }

    fn allocate(&self, device: Device, len: usize) -> Result<Box<dyn Memory>, DeviceError> {
        Ok(Box::new(CudaMemory::new(self.opened(device)?, len)?))
    }

    fn copy(&self, from: Vec<Buffer>, to: BufferMut) -> Option<Copying> {
        Some(Box::pin(self.clone().copied(from, to)))
    }

    fn missing(&self, device: Device, len: usize) -> u64 {
        let Ok(opened) = self.opened(device) else {
            return 0;
        };
        let _here = enter(&opened.context);
        let len = len.checked_next_multiple_of(opened.slabs.granularity());
        match (result::mem_get_info(), len) {
            (Ok((free, total)), Some(len)) if len <= total => len.saturating_sub(free) as u64,
            (Ok(_), _) => u64::MAX,
            (Err(_), _) => 0,
        }
    }

    /// An eighth of the device, 512 MiB at least: borrowers have to map newly made memory anew for each tensor.
    fn retain(&self, device: Device) -> u64 {
        let total = self.opened(device).ok().and_then(|opened| {
            forget_error(&opened.context);
            opened.context.total_mem().ok()
        });
        (total.unwrap_or_default() as u64 / 8).max(512 << 20)
    }
}

impl Opened {
    fn new(device: Device, watcher: &Watcher) -> Result<Self, DeviceError> {
        let _mine = ContextGuard::keep();
        let refused = |call| move |error| failed(device, call, error);
        let context = CudaContext::new(device.index as usize);
        let context = context.map_err(refused("cuDevicePrimaryCtxRetain"))?;
        let peers = peers::of(&context).map_err(refused("cuDeviceCanAccessPeer"))?;
        let slabs = Slabs::new(&context, peers);
        let first = context.default_stream().fork();
        let frees = Arc::<DropThread>::default();
        Ok(Self {
            device,
            _first: first.map(Kept::new).map_err(refused("cuStreamCreate"))?,
            slabs: slabs.map_err(refused("cuMemGetAllocationGranularity"))?,
            exports: Exports::new(&frees),
            foreign: Foreign::new(&context, &frees),
            frees,
            watcher: watcher.clone(),
            streams: Streams::default(),
            context: Kept::new(context),
        })
    }
}

/// Orders everything that is queued on `stream` from now on behind `fence`. Fails for a fence of another kind of device, which no stream
/// can wait for, and if the work before it failed.
fn wait_for(stream: &CudaStream, fence: &dyn Fence) -> Result<(), DeviceError> {
    let device = CudaDevices::device(stream.context().ordinal() as u32);
    match (fence.as_any().downcast_ref::<CudaFence>(), fence.reached()) {
        (_, Some(reached)) => reached,
        (Some(fence), None) => {
            forget_error(stream.context());
            let waits = stream.wait(fence.event());
            waits.map_err(|error| failed(device, "cuStreamWaitEvent", error))
        }
        (None, None) => {
            let reason =
                "a stream cannot wait for another kind of device: wait until its fence is reached";
            Err(DeviceError::new(device, "cuStreamWaitEvent", reason))
        }
    }
}

/// This thread's current context, restored on drop: the thread that drives a pipe may be the application's. Until then, its calls end no
/// capture of a graph.
pub(crate) struct ContextGuard {
    context: sys::CUcontext,
    _relaxed: Relaxed,
}

impl ContextGuard {
    pub(crate) fn keep() -> Self {
        // If there is none, none is restored.
        let current = result::ctx::get_current().ok().flatten();
        Self {
            context: current.unwrap_or(std::ptr::null_mut()),
            _relaxed: Relaxed::here(),
        }
    }

    /// For code of others, which may call a driver or not. If this process has opened none, none is opened here.
    #[cfg(feature = "dlpack")]
    pub(crate) fn keep_if_open() -> Option<Self> {
        probe::is_open().then(Self::keep)
    }
}

#[allow(unsafe_code, reason = "a context is a handle")]
impl Drop for ContextGuard {
    fn drop(&mut self) {
        // SAFETY: it was this thread's, or is none.
        let _ = unsafe { result::ctx::set_current(self.context) };
    }
}

/// A handle on something of cudarc's, whose drop makes its context current. The last handle leaves this thread the context that it had.
pub(super) struct Kept<T>(ManuallyDrop<Arc<T>>);

impl<T> Kept<T> {
    pub(super) fn new(handle: Arc<T>) -> Self {
        Self(ManuallyDrop::new(handle))
    }
}

impl<T> Deref for Kept<T> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        &self.0
    }
}

#[allow(unsafe_code, reason = "the handle is taken out to be dropped")]
impl<T> Drop for Kept<T> {
    fn drop(&mut self) {
        // SAFETY: nobody uses it from now on.
        let handle = unsafe { ManuallyDrop::take(&mut self.0) };
        // In a forked child, which leaks another handle, this one is not the last.
        if let Some(last) = Arc::into_inner(handle) {
            let _mine = ContextGuard::keep();
            drop(last);
        }
    }
}

/// Makes a context current until the result is dropped, before its memory is freed, whatever error state cudarc has for it. If that fails,
/// the driver refuses the calls that follow.
#[allow(unsafe_code, reason = "a context is a handle")]
fn enter(context: &CudaContext) -> ContextGuard {
    let before = ContextGuard::keep();
    // SAFETY: the context is there.
    let _ = unsafe { result::ctx::set_current(context.cu_ctx()) };
    before
}

/// An error that a drop inside cudarc has left in its context must not be reported by the next call.
fn forget_error(context: &CudaContext) {
    if let Err(error) = context.check_err() {
        let reason = probe::words(error);
        tracing::warn!(reason, "something of a device was lost");
    }
}

/// Makes the context of a stream current for this thread.
fn bind(stream: &CudaStream) -> Result<(), DeviceError> {
    let context = stream.context();
    forget_error(context);
    let device = CudaDevices::device(context.ordinal() as u32);
    let bound = context.bind_to_thread();
    bound.map_err(|error| failed(device, "cuCtxSetCurrent", error))
}

/// Logs a failed release. It must not become an error of the context's next call.
fn report(context: &CudaContext, call: &'static str, done: Result<(), DriverError>) {
    if let Err(error) = done {
        let device = CudaDevices::device(context.ordinal() as u32);
        let error = failed(device, call, error);
        tracing::warn!(%error, "something of a device was lost");
    }
}

/// A failed driver call, with the error's name and number.
fn failed(device: Device, call: &'static str, error: DriverError) -> DeviceError {
    DeviceError::new(device, call, probe::words(error))
}
