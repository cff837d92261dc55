//! Memory for a program's own work on streams: slices of cudarc's, and addresses.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};

use super::memory::CudaMemory;
use super::{CudaDevices, wait_for};
use crate::device::{Buffer, BufferMut, Device, Memory};
use crate::error::DeviceError;

impl CudaDevices {
    /// A buffer over a slice, which it owns: nothing is copied, and it is ready behind what the slice's stream has queued by now.
    ///
    /// # Errors
    /// For a slice of another context than a device's primary one, and when the driver refuses.
    pub fn buffer<T: bytemuck::Pod + Send + Sync>(
        &self,
        mut slice: CudaSlice<T>,
    ) -> Result<Buffer, DeviceError> {
        let device = Self::device(slice.ordinal() as u32);
        let opened = self.opened(device)?;
        if slice.context() != &opened.context {
            let reason =
                "the slice is of a context of its own: make it in the device's primary one";
            return Err(DeviceError::new(device, "buffer", reason));
        }
        let stream = slice.stream().clone();
        // Behind what other streams have done with it, as far as cudarc has seen that.
        let address = slice.device_ptr_mut(&stream).0;
        let place = (address, slice.num_bytes());
        let fence = self.fence(&stream)?;
        let memory = CudaMemory::of_slice(opened, Box::new(slice), place);
        memory.set_ready(fence);
        Ok(Buffer::new(Arc::new(memory)))
    }

    /// The slice that a buffer was [made](Self::buffer) of, if it is all of it and nobody else holds it. What the slice's stream
    /// queues from now on runs behind all work on it.
    ///
    /// # Errors
    /// The buffer itself, where it is anything else: see [`read`](Self::read).
    pub fn into_slice<T: bytemuck::Pod>(&self, mut buffer: Buffer) -> Result<CudaSlice<T>, Buffer> {
        Self::take_slice(&mut buffer).ok_or(buffer)
    }

    fn take_slice<T: bytemuck::Pod>(buffer: &mut Buffer) -> Option<CudaSlice<T>> {
        let is_whole = buffer.len() == buffer.memory().len();
        let unfinished = buffer.memory().work()?.unfinished();
        let memory = buffer.memory_mut().filter(|_| is_whole)?;
        let memory = memory.as_any_mut().downcast_mut::<CudaMemory>()?;
        let stream = memory.stream()?.clone();
        let mut waits = unfinished.iter();
        waits
            .try_for_each(|fence| wait_for(&stream, &**fence))
            .ok()?;
        let mut slice = memory.take_slice::<T>()?;
        // For cudarc: other streams of its work on it behind that, too.
        drop(slice.device_ptr_mut(&stream).1);
        Some(slice)
    }

    /// The address of a buffer's bytes, for work on `stream` that reads them: it runs behind the work that they are ready
    /// behind. Their memory is not used again before what is queued there when the result is dropped.
    ///
    /// # Errors
    /// For memory of something else than these devices, where its bytes never came, and when the driver refuses.
    pub fn read<'a>(
        &'a self,
        buffer: &'a Buffer,
        stream: &'a Arc<CudaStream>,
    ) -> Result<DeviceRead<'a>, DeviceError> {
        let known = CudaMemory::of(&**buffer.memory());
        let known = known.filter(|known| buffer.offset() + buffer.len() <= known.len());
        let known = known.ok_or_else(|| foreign(buffer.device()))?;
        if let Some(ready) = known.ready() {
            wait_for(stream, &*ready)?;
        }
        Ok(DeviceRead {
            address: known.address() + buffer.offset() as u64,
            buffer,
            stream,
            cuda: self,
        })
    }

    /// The address of memory, for work on `stream` that fills it: it runs behind all that still uses it.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write<'a>(
        &'a self,
        mut memory: BufferMut,
        stream: &'a Arc<CudaStream>,
    ) -> Result<DeviceWrite<'a>, DeviceError> {
        for fence in memory.unfinished() {
            wait_for(stream, &*fence)?;
        }
        let device = memory.device();
        let known = memory
            .memory_mut()
            .and_then(|memory| CudaMemory::of(memory));
        let address = known.ok_or_else(|| foreign(device))?.address();
        Ok(DeviceWrite {
            address,
            memory: Some(memory),
            stream,
            cuda: self,
        })
    }
}

pub(super) fn foreign(device: Device) -> DeviceError {
    DeviceError::new(device, "access", "it is no memory of these devices")
}

/// Memory that a stream's work reads.
pub struct DeviceRead<'a> {
    address: CUdeviceptr,
    buffer: &'a Buffer,
    stream: &'a Arc<CudaStream>,
    cuda: &'a CudaDevices,
}

impl DeviceRead<'_> {
    /// Of the first byte, on the device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for DeviceRead<'_> {
    fn drop(&mut self) {
        match self.cuda.fence(self.stream) {
            Ok(fence) => self.buffer.use_until(&fence),
            // Nobody knows when the work ends: it is never used again.
            Err(error) => {
                tracing::warn!(%error, "memory of a device is lost");
                std::mem::forget(self.buffer.clone());
            }
        }
    }
}

impl std::fmt::Debug for DeviceRead<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceRead({:#x}, {:?})", self.address, self.buffer)
    }
}

/// Memory that a stream's work fills.
pub struct DeviceWrite<'a> {
    address: CUdeviceptr,
    /// There until it is finished.
    memory: Option<BufferMut>,
    stream: &'a Arc<CudaStream>,
    cuda: &'a CudaDevices,
}

impl DeviceWrite<'_> {
    /// Of the first byte, on the device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// The memory, ready behind what the stream has queued by now.
    ///
    /// # Errors
    /// When the driver refuses: the memory is lost then, since work may be queued on it.
    pub fn finish(mut self) -> Result<Buffer, DeviceError> {
        let device = CudaDevices::device(self.stream.context().ordinal() as u32);
        let memory = self.memory.take().ok_or_else(|| foreign(device))?;
        match self.cuda.fence(self.stream) {
            Ok(fence) => memory.freeze_at(fence).map_err(|_| foreign(device)),
            Err(error) => {
                std::mem::forget(memory);
                Err(error)
            }
        }
    }
}

impl Drop for DeviceWrite<'_> {
    fn drop(&mut self) {
        let Some(mut memory) = self.memory.take() else {
            return;
        };
        // Given up: work may be queued on it all the same.
        match (self.cuda.fence(self.stream), memory.memory_mut()) {
            (Ok(fence), Some(memory)) => {
                if let Some(work) = memory.work() {
                    work.use_until(fence);
                }
            }
            (Ok(_), None) => {}
            (Err(error), _) => {
                tracing::warn!(%error, "memory of a device is lost");
                std::mem::forget(memory);
            }
        }
    }
}

impl std::fmt::Debug for DeviceWrite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceWrite({:#x}, {:?})", self.address, self.memory)
    }
}
