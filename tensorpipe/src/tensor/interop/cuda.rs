//! Slices of cudarc's.

use cudarc::driver::CudaSlice;

use crate::device::cuda::CudaDevices;
use crate::error::DeviceError;
use crate::tensor::{Element, IntoShape, Tensor};

impl Tensor {
    /// A tensor that owns a slice of cudarc's. Nothing is copied; the tensor is ready behind what the slice's stream has queued by
    /// now.
    ///
    /// # Errors
    /// If the shape has another number of elements, the slice is of another context than its device's primary one, or the driver
    /// refuses.
    pub fn from_cuda<T: Element>(
        cuda: &CudaDevices,
        slice: CudaSlice<T>,
        shape: impl IntoShape,
    ) -> Result<Self, DeviceError> {
        let buffer = cuda.buffer(slice)?;
        let device = buffer.device();
        Self::from_buffer(buffer, T::DTYPE, shape)
            .map_err(|error| DeviceError::new(device, "from_cuda", error.to_string()))
    }

    /// The slice that it was [made](Self::from_cuda) of, if it is all of it and nobody else holds it. Everything that the slice's stream
    /// queues from now on runs behind all work on it.
    ///
    /// # Errors
    /// The tensor itself in all other cases: [`CudaDevices::read`] gives the address of any tensor.
    pub fn into_cuda<T: Element>(self, cuda: &CudaDevices) -> Result<CudaSlice<T>, Self> {
        let Self {
            buffer,
            dtype,
            shape,
        } = self;
        let taken = cuda.into_slice(buffer);
        taken.map_err(|buffer| Self {
            buffer,
            dtype,
            shape,
        })
    }
}
