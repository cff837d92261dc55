//! Memory of a device in several processes: lent by the one that made it, mapped by others.

use std::any::Any;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::memory::CudaMemory;
use super::physical::{self, Physical, Uuid};
use super::{CudaDevices, failed};
use crate::device::{Buffer, Device};
use crate::error::DeviceError;
use crate::sys::segment::Segment;

/// Physical memory, and where in it something lies.
pub(crate) type Shared = (Arc<Segment>, Range<usize>);

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

    /// What other processes may map to read a buffer of this process's memory, and where it lies there; `None` for other memory.
    ///
    /// # Errors
    /// In words why the driver does not let them, and whether it stays so.
    pub(crate) fn share(&self, buffer: &Buffer) -> Option<Result<Shared, (String, bool)>> {
        let (physical, offset) = CudaMemory::of(&**buffer.memory())?.block()?;
        let start = offset + buffer.offset();
        let range = start..start + buffer.len();
        Some(physical.shared().map(|segment| (segment, range)))
    }

    /// Maps memory of another process's, as one of this process's devices sees it.
    ///
    /// # Errors
    /// There is no such device, the descriptor is of something else, or it has less than `len` bytes; and whether it stays so.
    pub(crate) fn import(
        &self,
        device: Device,
        fd: &impl AsFd,
        len: usize,
    ) -> Result<Arc<Physical>, (DeviceError, bool)> {
        let opened = self.opened(device).map_err(|error| (error, false))?;
        let peers = opened.slabs.peers();
        let imported = Physical::import(&opened.context, fd.as_fd(), len, peers);
        imported.map(Arc::new).map_err(|error| {
            let words = failed(device, "cuMemImportFromShareableHandle", error);
            (words, physical::is_refusal(error))
        })
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
