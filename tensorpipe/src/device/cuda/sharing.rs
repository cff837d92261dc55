//! Memory of a device in several processes: lent by the one that made it, mapped by others.

use std::any::Any;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use cudarc::driver::DriverError;

use super::memory::CudaMemory;
use super::physical::{self, Handle, Physical, Uuid};
use super::{CudaDevices, failed};
use crate::device::{Buffer, Device, Fence};
use crate::error::DeviceError;
use crate::sys::drop_thread::DropThread;
use crate::sys::segment::Segment;

/// Physical memory, and the place of something in it. Several allocations lie side by side.
pub(crate) struct Shared {
    pub(crate) first: Arc<Segment>,
    pub(crate) rest: Vec<Arc<Segment>>,
    pub(crate) range: Range<usize>,
}

impl CudaDevices {
    /// The UUID of a device, the same in all processes.
    pub(crate) fn uuid(&self, device: Device) -> Option<Uuid> {
        self.shared.uuids.get(device.index as usize).copied()
    }

    /// The local device with this UUID, if this process sees it.
    pub(crate) fn seen_as(&self, uuid: Uuid) -> Option<Device> {
        let at = self.shared.uuids.iter().position(|known| *known == uuid)?;
        Some(Self::device(at as u32))
    }

    /// Whether every device exports its memory as a dma-buf, for drivers of other hardware.
    pub(crate) fn export_dma_bufs(&self) -> bool {
        let mut ordinals = 0..self.shared.devices.len();
        ordinals.all(|ordinal| physical::exports_dma_bufs(ordinal as i32).unwrap_or(false))
    }

    /// Runs `act` some time after `is_reached` returns true, for conditions without an event.
    pub(crate) fn watch(
        &self,
        is_reached: impl Fn() -> bool + Send + 'static,
        act: Box<dyn FnOnce() + Send>,
    ) {
        self.shared.watcher.watch(is_reached, act);
    }

    /// Whether [`share`](Self::share) answers without asking the driver, because the memory was exported before.
    pub(crate) fn shares_at_once(&self, buffer: &Buffer) -> bool {
        let Some(memory) = CudaMemory::of(&**buffer.memory()) else {
            return true;
        };
        match memory.block() {
            Some((physical, _)) => physical.is_shared(),
            None => !memory.is_foreign(),
        }
    }

    /// What other processes map to read a buffer, and where the buffer lies in that; `None` for memory that they cannot map.
    ///
    /// # Errors
    /// In words, why the driver does not let them map this process's own memory, and whether that is lasting.
    pub(crate) fn share(&self, buffer: &Buffer) -> Option<Result<Shared, (String, bool)>> {
        let memory = CudaMemory::of(&**buffer.memory())?;
        if memory.is_foreign() && !buffer.is_empty() {
            let address = memory.address() + buffer.offset() as u64;
            let foreign = &memory.opened().foreign;
            let shared = foreign.share(address, buffer.len(), &self.shared.watcher);
            return shared.map(Ok);
        }
        let (physical, offset) = memory.block()?;
        let start = offset + buffer.offset();
        let range = start..start + buffer.len();
        let exports = &memory.opened().exports;
        let shared = physical.shared(exports);
        Some(shared.map(|first| Shared {
            first,
            rest: Vec::new(),
            range,
        }))
    }

    /// A [shared](Self::share) buffer is lent, and in use, until this fence.
    pub(crate) fn lent_until(&self, buffer: &Buffer, loan: &Arc<dyn Fence>) {
        if let Some((physical, _)) = CudaMemory::of(&**buffer.memory()).and_then(CudaMemory::block)
        {
            physical.lent_until(loan);
        }
        buffer.use_until(loan);
    }

    /// Imports a descriptor from another process, for one of this process's devices.
    ///
    /// # Errors
    /// If there is no such device, or the descriptor is of something else; and whether that is lasting.
    pub(crate) fn import(
        &self,
        device: Device,
        fd: &impl AsFd,
    ) -> Result<Handle, (DeviceError, bool)> {
        let opened = self.opened(device).map_err(|error| (error, false))?;
        let imported = Handle::import(&opened.context, fd.as_fd());
        imported.map_err(|error| refused(device, "cuMemImportFromShareableHandle", error))
    }

    /// Maps the first bytes of each allocation, side by side.
    ///
    /// # Errors
    /// If there is no such device, or an allocation belongs to another device or is shorter; and whether that is lasting.
    pub(crate) fn map(
        &self,
        device: Device,
        parts: Vec<(Arc<Handle>, usize)>,
    ) -> Result<Arc<Physical>, (DeviceError, bool)> {
        let opened = self.opened(device).map_err(|error| (error, false))?;
        if !parts.iter().all(|(part, _)| part.is_of(&opened.context)) {
            let error = DeviceError::new(device, "map", "it was taken for another device");
            return Err((error, false));
        }
        let mapped = Physical::map(&opened.context, parts, opened.slabs.peers());
        let mapped = mapped.map(Arc::new);
        mapped.map_err(|error| refused(device, "cuMemMap", error))
    }

    /// The thread that frees a device's memory.
    pub(crate) fn frees(&self, device: Device) -> Option<Arc<DropThread>> {
        Some(self.opened(device).ok()?.frees.clone())
    }

    /// Whether this memory is on this device.
    pub(crate) fn is_on(&self, device: Device, physical: &Physical) -> bool {
        let opened = self.opened(device);
        opened.is_ok_and(|opened| physical.is_of(&opened.context))
    }

    /// A range of it that is lent to this process. Dropping `debt` gives it back; that happens when no work on the range is
    /// unfinished.
    ///
    /// # Errors
    /// The range lies outside, or there is no such device.
    pub(crate) fn lent(
        &self,
        device: Device,
        physical: &Arc<Physical>,
        range: Range<usize>,
        debt: Box<dyn Any + Send + Sync>,
    ) -> Result<Buffer, DeviceError> {
        let is_there = range.start <= range.end && range.end <= physical.len;
        if !is_there || !self.is_on(device, physical) {
            let reason = format!(
                "{range:?} of {} bytes, maybe of another device",
                physical.len
            );
            return Err(DeviceError::new(device, "map", reason));
        }
        let opened = self.opened(device)?;
        let memory = CudaMemory::lent(opened, physical.clone(), range, debt);
        Ok(Buffer::new(Arc::new(memory)))
    }
}

/// The driver's error, and whether it is lasting.
fn refused(device: Device, call: &'static str, error: DriverError) -> (DeviceError, bool) {
    (failed(device, call, error), physical::is_refusal(error))
}
