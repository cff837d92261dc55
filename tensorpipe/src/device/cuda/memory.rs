//! Memory of a device: a block of this process's, a slice of cudarc's, or memory of another process or library.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, sys};

use super::captures::after_capture;
use super::physical::Physical;
use super::slabs::Block;
use super::{ContextGuard, Opened, enter, failed, wait_for};
use crate::device::{Device, Fence, Memory, QueuedWork, Registrable, Registrations};
use crate::error::DeviceError;
use crate::sys::fork::Owner;

/// Memory of a CUDA device, and the work on it.
pub(super) struct CudaMemory {
    /// Cleared before the memory is freed.
    registrations: Registrations,
    work: QueuedWork,
    address: sys::CUdeviceptr,
    len: usize,
    owner: Owner,
    source: Source,
    opened: Arc<Opened>,
}

/// The owner of the memory, which frees it.
enum Source {
    Own(Block),
    Slice(Box<dyn Slice>),
    /// Another library's.
    Foreign {
        owner: ForeignOwner,
    },
    /// Physical memory of another process, and the debt that gives it back there.
    Lent {
        debt: Box<dyn Any + Send + Sync>,
        physical: Arc<Physical>,
    },
    /// The slice was taken out.
    Gone,
}

/// The owner of another library's memory. Its drop may call the driver, and must end no capture either.
struct ForeignOwner(Option<Box<dyn Any + Send + Sync>>);

impl Drop for ForeignOwner {
    fn drop(&mut self) {
        let _mine = ContextGuard::keep();
        self.0 = None;
    }
}

/// A slice that is dropped with its context current, on any thread.
struct Unused(Option<Box<dyn Slice>>);

impl Drop for Unused {
    fn drop(&mut self) {
        if let Some(slice) = self.0.take() {
            let _here = enter(slice.stream().context());
            drop(slice);
        }
    }
}

/// A slice of cudarc's, of any type.
pub(super) trait Slice: Any + Send + Sync {
    /// The stream that it is freed on.
    fn stream(&self) -> &Arc<CudaStream>;
}

impl<T: 'static> Slice for CudaSlice<T> {
    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl CudaMemory {
    pub(super) fn new(opened: &Arc<Opened>, len: usize) -> Result<Self, DeviceError> {
        let block = opened.slabs.take(len);
        let block = block.map_err(|error| failed(opened.device, "cuMemCreate", error))?;
        let address = block.physical.address + block.offset as u64;
        Ok(Self::with(opened, Source::Own(block), address, len))
    }

    fn with(opened: &Arc<Opened>, source: Source, address: sys::CUdeviceptr, len: usize) -> Self {
        Self {
            registrations: Registrations::default(),
            work: QueuedWork::default(),
            address,
            len,
            owner: Owner::here(),
            source,
            opened: opened.clone(),
        }
    }

    /// All of a slice, which begins at this address.
    pub(super) fn of_slice(
        opened: &Arc<Opened>,
        slice: Box<dyn Slice>,
        address: sys::CUdeviceptr,
        len: usize,
    ) -> Self {
        Self::with(opened, Source::Slice(slice), address, len)
    }

    /// Memory at an address, which somebody else owns.
    pub(super) fn foreign(
        opened: &Arc<Opened>,
        owner: Box<dyn Any + Send + Sync>,
        address: sys::CUdeviceptr,
        len: usize,
    ) -> Self {
        let owner = ForeignOwner(Some(owner));
        Self::with(opened, Source::Foreign { owner }, address, len)
    }

    /// A range of another process's memory; `debt` gives it back when no work on it is unfinished.
    pub(super) fn lent(
        opened: &Arc<Opened>,
        physical: Arc<Physical>,
        range: Range<usize>,
        debt: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let address = physical.address + range.start as u64;
        let source = Source::Lent { debt, physical };
        Self::with(opened, source, address, range.len())
    }

    /// The physical memory of this process that it lies in, and the offset there.
    pub(super) fn block(&self) -> Option<(&Physical, usize)> {
        match &self.source {
            Source::Own(block) => Some((&block.physical, block.offset)),
            _ => None,
        }
    }

    /// Whether it is another library's.
    pub(super) fn is_foreign(&self) -> bool {
        matches!(self.source, Source::Foreign { .. })
    }

    /// Whether somebody else relies on its content, so that it must not be written here.
    pub(super) fn is_read_only(&self) -> bool {
        matches!(self.source, Source::Lent { .. } | Source::Foreign { .. })
    }

    /// Whether work on a stream reaches it. What other devices reach of a slice, or of another library's memory, nobody says.
    pub(super) fn is_reached_by(&self, stream: &CudaStream) -> bool {
        let device = stream.context().cu_device();
        match &self.source {
            Source::Own(block) => block.physical.is_reached_by(device),
            Source::Lent { physical, .. } => physical.is_reached_by(device),
            _ => device == self.opened.context.cu_device(),
        }
    }

    /// The fence that its bytes are ready behind.
    pub(super) fn ready(&self) -> Option<Arc<dyn Fence>> {
        self.work.ready()
    }

    /// Its bytes are there behind this.
    pub(super) fn set_ready(&self, fence: Arc<dyn Fence>) {
        self.work.set_ready(fence);
    }

    /// The stream of its slice, if it is a slice.
    pub(super) fn stream(&self) -> Option<&Arc<CudaStream>> {
        match &self.source {
            Source::Slice(slice) => Some(Slice::stream(&**slice)),
            _ => None,
        }
    }

    /// Its slice, if it is one of this type.
    pub(super) fn slice_mut<T: 'static>(&mut self) -> Option<&mut CudaSlice<T>> {
        match &mut self.source {
            Source::Slice(slice) => {
                let slice: &mut dyn Any = &mut **slice;
                slice.downcast_mut()
            }
            _ => None,
        }
    }

    /// Takes the slice out; from now on the caller owns it.
    pub(super) fn take_slice<T: 'static>(&mut self) -> Option<CudaSlice<T>> {
        let slice: &dyn Any = match &self.source {
            Source::Slice(slice) => &**slice,
            _ => return None,
        };
        if !slice.is::<CudaSlice<T>>() {
            return None;
        }
        self.registrations.clear();
        let Source::Slice(slice) = std::mem::replace(&mut self.source, Source::Gone) else {
            return None;
        };
        let slice: Box<dyn Any> = slice;
        slice.downcast().ok().map(|slice| *slice)
    }

    /// The `CudaMemory` behind a pool's handle; `None` if this is other memory.
    pub(super) fn of(memory: &dyn Memory) -> Option<&Self> {
        memory.as_any().downcast_ref()
    }

    /// The address of its first byte on the device.
    pub(super) fn address(&self) -> sys::CUdeviceptr {
        self.address
    }

    pub(super) fn opened(&self) -> &Arc<Opened> {
        &self.opened
    }
}

impl Memory for CudaMemory {
    fn device(&self) -> Device {
        self.opened.device
    }
    fn len(&self) -> usize {
        self.len
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }
    fn work(&self) -> Option<&QueuedWork> {
        Some(&self.work)
    }
    fn registrable(&self) -> Option<Registrable<'_>> {
        Some(Registrable::whole(&self.registrations, self.len))
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl Drop for CudaMemory {
    fn drop(&mut self) {
        let source = std::mem::replace(&mut self.source, Source::Gone);
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.owner.is_other_process() {
            let work = std::mem::take(&mut self.work);
            std::mem::forget((source, work, self.opened.clone()));
            return;
        }
        let _mine = ContextGuard::keep();
        self.registrations.clear();
        let Source::Slice(slice) = source else {
            return free_behind(source, self.opened.clone(), self.work.unfinished());
        };
        let (unfinished, opened) = (self.work.unfinished(), self.opened.clone());
        let stream = slice.stream().clone();
        after_capture(&stream, &self.opened.watcher, move || {
            free_slice(slice, &unfinished, opened)
        });
    }
}

/// Frees a slice behind the work that its own stream has queued, and other work on it.
fn free_slice(slice: Box<dyn Slice>, unfinished: &[Arc<dyn Fence>], opened: Arc<Opened>) {
    let _mine = ContextGuard::keep();
    let mut waits = unfinished.iter();
    match waits.try_for_each(|fence| wait_for(slice.stream(), &**fence)) {
        // Without memory pools, cudarc waits for all work of its stream.
        Ok(()) if !slice.stream().context().has_async_alloc() => {
            let frees = opened.frees.clone();
            frees.drop_later((Unused(Some(slice)), opened));
        }
        Ok(()) => drop(Unused(Some(slice))),
        Err(error) => {
            std::mem::forget(slice);
            tracing::warn!(%error, "memory of a device is lost");
        }
    }
}

/// Frees memory that nobody uses any more. The thread that frees memory does the rest: the driver takes long to unmap, and other libraries'
/// code may wait for a lock. This one may be the thread that waits for events, and for everybody's callbacks.
fn free(source: Source, opened: Arc<Opened>) {
    let frees = opened.frees.clone();
    match source {
        Source::Own(block) => {
            if opened.slabs.give_back(block) {
                frees.drop_later(Unmaps(opened));
            }
        }
        Source::Lent { debt, physical } => {
            drop(debt);
            if let Some(unused) = Arc::into_inner(physical) {
                frees.drop_later((unused, opened));
            }
        }
        Source::Foreign { owner } => frees.drop_later((owner, opened)),
        // Freed in its stream's order, or by its owner.
        Source::Slice(_) | Source::Gone => {}
    }
}

/// Unmaps what is unused when it is dropped.
struct Unmaps(Arc<Opened>);

impl Drop for Unmaps {
    fn drop(&mut self) {
        self.0.slabs.unmap();
    }
}

/// As [`free`], once the queued work has finished; if nobody knows when it does, the memory is leaked.
fn free_behind(source: Source, opened: Arc<Opened>, mut unfinished: Vec<Arc<dyn Fence>>) {
    let Some(fence) = unfinished.pop() else {
        return free(source, opened);
    };
    let asked = fence.clone();
    let then = move || match asked.is_lost() {
        true => {
            let device = opened.device;
            tracing::warn!(%device, "memory of a device is lost");
            std::mem::forget((source, opened));
        }
        false => free_behind(source, opened, unfinished),
    };
    fence.when_reached(Box::new(then));
}
