//! Memory of a device in several processes: lent by the one that made it, mapped by others.

use std::any::Any;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use cudarc::driver::DriverError;

use super::memory::CudaMemory;
use super::physical::{self, Handle, Physical, Uuid};
use super::{CudaDevices, failed};
use crate::device::{Buffer, Device};
use crate::error::DeviceError;
use crate::sys::segment::Segment;

/// Physical memory, and where in it something lies: the allocations stand side by side.
pub(crate) struct Shared {
    pub(crate) first: Arc<Segment>,
    pub(crate) rest: Vec<Arc<Segment>>,
    pub(crate) range: Range<usize>,
}

impl CudaDevices {
    /// Who a device is, also in other processes.
    pub(crate) fn uuid(&self, device: Device) -> Option<Uuid> {
        self.shared.uuids.get(device.index as usize).copied()
    }

    /// The device that is this one, if this process sees it.
    pub(crate) fn seen_as(&self, uuid: Uuid) -> Option<Device> {
        let at = self.shared.uuids.iter().position(|known| *known == uuid)?;
        Some(Self::device(at as u32))
    }

    /// Whether each passes its memory on to drivers of other hardware, as a dma-buf.
    pub(crate) fn export_dma_bufs(&self) -> bool {
        let mut ordinals = 0..self.shared.devices.len();
        ordinals.all(|ordinal| physical::exports_dma_bufs(ordinal as i32).unwrap_or(false))
    }

    /// Runs `act` some time after `is_reached` says so, for what no event tells.
    pub(crate) fn watch(
        &self,
        is_reached: impl Fn() -> bool + Send + 'static,
        act: Box<dyn FnOnce() + Send>,
    ) {
        self.shared.watcher.watch(is_reached, act);
    }

    /// Whether [`share`](Self::share) asks the driver nothing: what is passed on already is known.
    pub(crate) fn shares_at_once(&self, buffer: &Buffer) -> bool {
        let Some(memory) = CudaMemory::of(&**buffer.memory()) else {
            return true;
        };
        match memory.block() {
            Some((physical, _)) => physical.is_shared(),
            None => !memory.is_foreign(),
        }
    }

    /// What other processes may map to read a buffer, and where it lies there; `None` for memory that they cannot map.
    ///
    /// # Errors
    /// In words why the driver does not let them map memory of this process's own, and whether it stays so.
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
        Some(physical.shared().map(|first| Shared {
            first,
            rest: Vec::new(),
            range,
        }))
    }

    /// Takes what another process has passed, as one of this process's devices sees it.
    ///
    /// # Errors
    /// There is no such device, or the descriptor is of something else; and whether it stays so.
    pub(crate) fn import(
        &self,
        device: Device,
        fd: &impl AsFd,
    ) -> Result<Handle, (DeviceError, bool)> {
        let opened = self.opened(device).map_err(|error| (error, false))?;
        let imported = Handle::import(&opened.context, fd.as_fd());
        imported.map_err(|error| refused(device, "cuMemImportFromShareableHandle", error))
    }

    /// Maps the first bytes of each, so many, side by side.
    ///
    /// # Errors
    /// There is no such device, one of them is another's, or has less; and whether it stays so.
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

    /// Whether such memory is one of this device's.
    pub(crate) fn is_on(&self, device: Device, physical: &Physical) -> bool {
        let opened = self.opened(device);
        opened.is_ok_and(|opened| physical.is_of(&opened.context))
    }

    /// A range of it that is lent to this process. `debt` gives it back: it is dropped when no work on it is unfinished.
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

/// What the driver said, and whether it stays so.
fn refused(device: Device, call: &'static str, error: DriverError) -> (DeviceError, bool) {
    (failed(device, call, error), physical::is_refusal(error))
}
