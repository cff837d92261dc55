//! Memory of a device: of a pool of this process's own, or a slice of cudarc's.

#![allow(
    unsafe_code,
    reason = "the driver's calls take addresses and handles as they are"
)]

use std::any::Any;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, result, sys};

use super::{Opened, enter, failed, wait_for};
use crate::device::{Device, Fence, Memory, QueuedWork, Registrable, Registrations};
use crate::error::DeviceError;
use crate::sys::fork::Owner;

/// The driver's pool of a device, of this process's own.
pub(super) struct MemoryPool {
    handle: sys::CUmemoryPool,
    context: Arc<CudaContext>,
}

// SAFETY: the driver's pools may be used by any thread; this one is destroyed once, in `drop`.
unsafe impl Send for MemoryPool {}
// SAFETY: as above.
unsafe impl Sync for MemoryPool {}

impl MemoryPool {
    pub(super) fn new(context: &Arc<CudaContext>) -> Result<Self, DriverError> {
        context.bind_to_thread()?;
        let properties = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            // Memory of an exportable pool never goes back to the system: not before a channel exports it.
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: sys::CUmemLocation {
                type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
                id: context.cu_device(),
            },
            win32SecurityAttributes: std::ptr::null_mut(),
            reserved: [0; 64],
        };
        // SAFETY: the properties are whole, and read during the call alone.
        let handle = unsafe { result::mem_pool::create(&raw const properties) }?;
        Ok(Self {
            handle,
            context: context.clone(),
        })
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        // What was allocated of it keeps it until that is freed.
        // SAFETY: made in `new`, and used by nobody from now on.
        let destroyed = unsafe { result::mem_pool::destroy(self.handle) };
        self.context.record_err(destroyed);
    }
}

/// Memory of a CUDA device, and the work on it.
pub(super) struct CudaMemory {
    /// Cleared before the memory is freed.
    registrations: Registrations,
    work: QueuedWork,
    address: sys::CUdeviceptr,
    len: usize,
    owner: Owner,
    /// What frees it; without it this does.
    slice: Option<Box<dyn Slice>>,
    opened: Arc<Opened>,
}

/// A slice of cudarc's, of any type.
pub(super) trait Slice: Any + Send + Sync {
    /// On which it is freed.
    fn stream(&self) -> &Arc<CudaStream>;
}

impl<T: 'static> Slice for CudaSlice<T> {
    fn stream(&self) -> &Arc<CudaStream> {
        self.stream()
    }
}

impl CudaMemory {
    pub(super) fn new(opened: &Arc<Opened>, len: usize) -> Result<Self, DeviceError> {
        let refused = |call| move |error| failed(opened.device, call, error);
        let bound = opened.context.bind_to_thread();
        bound.map_err(refused("cuCtxSetCurrent"))?;
        let stream = opened.allocations.cu_stream();
        // The driver refuses an allocation of no bytes.
        let (pool, room) = (opened.pool.handle, len.max(1));
        // SAFETY: pool and stream are there as long as `opened`.
        let address = unsafe { result::mem_pool::alloc_async(pool, room, stream) };
        let address = address.map_err(refused("cuMemAllocFromPoolAsync"))?;
        let memory = Self {
            registrations: Registrations::default(),
            work: QueuedWork::default(),
            address,
            len,
            owner: Owner::here(),
            slice: None,
            opened: opened.clone(),
        };
        // Nothing but allocations is queued there: other streams may use it when this returns.
        let there = opened.allocations.synchronize();
        there.map_err(refused("cuStreamSynchronize"))?;
        Ok(memory)
    }

    /// A slice that begins at `address`, all of it.
    pub(super) fn of_slice(
        opened: &Arc<Opened>,
        slice: Box<dyn Slice>,
        (address, len): (sys::CUdeviceptr, usize),
    ) -> Self {
        Self {
            registrations: Registrations::default(),
            work: QueuedWork::default(),
            address,
            len,
            owner: Owner::here(),
            slice: Some(slice),
            opened: opened.clone(),
        }
    }

    /// What its bytes are there behind.
    pub(super) fn ready(&self) -> Option<Arc<dyn Fence>> {
        self.work.ready()
    }

    /// Its bytes are there behind this.
    pub(super) fn set_ready(&self, fence: Arc<dyn Fence>) {
        self.work.set_ready(fence);
    }

    /// The stream of the slice that it is of.
    pub(super) fn stream(&self) -> Option<&Arc<CudaStream>> {
        self.slice.as_ref().map(|slice| Slice::stream(&**slice))
    }

    /// The slice that it is of, which the caller has from now on.
    pub(super) fn take_slice<T: 'static>(&mut self) -> Option<CudaSlice<T>> {
        let slice: Box<dyn Any> = self.slice.take_if(|slice| {
            let slice: &dyn Any = &**slice;
            slice.is::<CudaSlice<T>>()
        })?;
        self.registrations.clear();
        // Nothing is left to be freed here.
        self.address = 0;
        slice.downcast().ok().map(|slice| *slice)
    }

    /// This memory behind a handle of the pipe's; `None` if it is something else.
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
        // CUDA does not outlive a fork: what a child has inherited it must not call.
        if self.owner.is_elsewhere() {
            let work = std::mem::take(&mut self.work);
            std::mem::forget((self.slice.take(), work, self.opened.clone()));
            return;
        }
        self.registrations.clear();
        let lost = |error: DeviceError| tracing::warn!(%error, "memory of a device is lost");
        if let Some(slice) = self.slice.take() {
            // It is freed behind what its own stream has queued.
            let mut waits = self.work.unfinished().into_iter();
            match waits.try_for_each(|fence| wait_for(slice.stream(), &*fence)) {
                Ok(()) => {
                    enter(slice.stream().context());
                    drop(slice);
                }
                Err(error) => {
                    std::mem::forget(slice);
                    lost(error);
                }
            }
            return;
        }
        if self.address == 0 {
            return;
        }
        let block = Block {
            address: self.address,
            opened: self.opened.clone(),
        };
        block.free_behind(self.work.unfinished());
    }
}

/// An allocation of the pool's that nobody uses any more but work that is queued.
struct Block {
    address: sys::CUdeviceptr,
    opened: Arc<Opened>,
}

impl Block {
    /// Not by having the stream of allocations wait: whoever allocates waits for that one.
    fn free_behind(self, mut unfinished: Vec<Arc<dyn Fence>>) {
        if let Some(fence) = unfinished.pop() {
            return fence.when_reached(Box::new(move || self.free_behind(unfinished)));
        }
        let (context, stream) = (&self.opened.context, &self.opened.allocations);
        enter(context);
        // SAFETY: allocated in `CudaMemory::new`, and freed once, when no work on it is unfinished.
        let freed = unsafe { result::free_async(self.address, stream.cu_stream()) };
        if let Err(error) = freed {
            let error = failed(self.opened.device, "cuMemFreeAsync", error);
            tracing::warn!(%error, "memory of a device is lost");
        }
    }
}
