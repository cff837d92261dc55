//! DLPack for GPUs: ordered by streams, without waiting for them.

use std::sync::Arc;

use cudarc::driver::CudaStream;
use dlpark::ffi::{DLDevice, DLDeviceType};
use dlpark::versioned::Dlpack;

use super::{Known, packed, refused};
use crate::device::cuda::CudaDevices;
use crate::error::{DeviceError, Misuse};
use crate::tensor::Tensor;

impl Tensor {
    /// Converts to a DLPack tensor on a GPU that owns this one. It is ready for work that is queued on `stream` from now on (the
    /// meaning of Python's `__dlpack__(stream=...)`). After its release, the memory is not reused before the work then queued on
    /// `stream` is done. It is marked as read-only. Truth values are not checked: those of a peer may be others than 0 and 1.
    ///
    /// # Errors
    /// If the memory is not of these devices, `stream` is each thread's own (`CU_STREAM_PER_THREAD`), or the driver refuses.
    pub fn into_dlpack_on(
        self,
        cuda: &CudaDevices,
        stream: &Arc<CudaStream>,
    ) -> Result<Dlpack, DeviceError> {
        let device = self.device();
        let misuse = |error: Misuse| DeviceError::new(device, "into_dlpack_on", error.to_string());
        let index =
            i32::try_from(device.index).map_err(|error| misuse(refused(error.to_string())))?;
        let read = cuda.read(&self.buffer, stream)?;
        let data = std::ptr::without_provenance_mut(read.address() as usize);
        let (dtype, shape) = (self.dtype, self.shape);
        // SAFETY: the address is the tensor's, whose memory the result keeps, and is not written while it is read.
        unsafe { packed(read, dtype, &shape, DLDevice::cuda(index), data, true) }.map_err(misuse)
    }

    /// A tensor over another library's memory on a GPU. Its bytes are ready behind what `stream` has queued by now. The other library
    /// is notified when all work of this process on them has finished, on a thread of this crate's.
    ///
    /// # Safety
    /// The DLPack tensor describes its memory correctly. Until its release, nobody writes there, nor has queued work that writes
    /// there behind what `stream` has queued. The memory belongs to the device's primary context.
    ///
    /// # Errors
    /// As [`from_dlpack`](Self::from_dlpack), and when the driver refuses.
    pub unsafe fn from_dlpack_on(
        tensor: Dlpack,
        cuda: &CudaDevices,
        stream: &Arc<CudaStream>,
    ) -> Result<Self, DeviceError> {
        let here = CudaDevices::device(stream.context().ordinal() as u32);
        let misuse = |error: Misuse| DeviceError::new(here, "from_dlpack_on", error.to_string());
        let known = Known::of(&tensor).map_err(misuse)?;
        let is_here = known.device.device_type == DLDeviceType::CUDA
            && u32::try_from(known.device.device_id) == Ok(here.index);
        if !is_here {
            let reason = format!("it is on device {:?}, not on the stream's", known.device);
            return Err(misuse(refused(reason)));
        }
        let (address, len) = (known.data.addr() as u64, known.len);
        // SAFETY: the caller's promise.
        let buffer = unsafe { cuda.borrow(tensor, address, len, stream) }?;
        Self::from_buffer(buffer, known.dtype, known.shape).map_err(misuse)
    }
}
