//! Tensors on another device.

use super::Context;
use crate::device::Device;
use crate::error::{DeviceError, Misuse};
use crate::tensor::Tensor;

impl Tensor {
    /// It on `device`: itself if it lies there, else a copy in memory of the context's. On a device the copy is ready behind a fence, for
    /// which nobody waits; in main memory it is there when the future ends.
    ///
    /// Dropping the future leaves the copy to its end, and frees its memory behind that.
    ///
    /// # Errors
    /// The context has no allocator of a device that takes part, or one that [copies nothing](crate::Allocator::copy); there is no
    /// memory; or the device refuses.
    pub async fn to(&self, device: Device, context: &Context) -> Result<Self, DeviceError> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let allocators = &context.inner.allocators;
        let foreign = |error: Misuse| DeviceError::new(device, "to", error.to_string());
        let room = context
            .allocator(device)
            .map_err(foreign)?
            .take(self.byte_len())?;
        // Each knows the memory of its own devices.
        let whose = if device.is_cpu() {
            self.device()
        } else {
            device
        };
        let whose = allocators.of(whose).map_err(foreign)?;
        let copying = whose.copy(self.buffer().clone(), room);
        let copying = copying.ok_or_else(|| {
            DeviceError::new(
                device,
                "to",
                "its allocator copies nothing: see `Allocator::copy`",
            )
        })?;
        let filled = copying.await?;
        Self::from_buffer(filled, self.dtype(), self.shape()).map_err(foreign)
    }
}
