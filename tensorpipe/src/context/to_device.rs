//! Tensors on another device.

use tokio::runtime::Handle;

use super::Context;
use crate::device::{Buffer, Device};
use crate::error::{DeviceError, Misuse};
use crate::tensor::Tensor;

impl Tensor {
    /// The tensor on `device`: itself if it lies there, else a copy in memory of the context's. On a device the copy may still be under way
    /// when the future ends: a fence tells when it is ready. In main memory it is complete then.
    ///
    /// Dropping the future does not stop queued work; its memory is freed behind that work.
    ///
    /// # Errors
    /// Where the context has no allocator of a device that takes part, or one that [copies
    /// nothing](crate::device::Allocator::copy). Where the two devices have different allocators, there is no memory, no tokio
    /// runtime on this thread, or the device refuses.
    pub async fn to(&self, device: Device, context: &Context) -> Result<Self, DeviceError> {
        if self.device() == device {
            return Ok(self.clone());
        }
        let allocators = &context.inner.allocators;
        let misuse = |error: Misuse| DeviceError::new(device, "to", error.to_string());
        Handle::try_current().map_err(|_| misuse(Misuse::NoRuntime))?;
        // An allocator knows the memory of its own devices, and main memory.
        let (from, to) = (self.device(), device);
        let whose = if to.is_cpu() { from } else { to };
        let whose = allocators.of(whose).map_err(misuse)?;
        let refused = |reason: &str| Err(DeviceError::new(device, "to", reason));
        if !from.is_cpu() && !whose.devices().contains(&from) {
            return refused(
                "its allocator knows no memory of the other device: go by way of main memory",
            );
        }
        let filled = if self.byte_len() == 0 {
            Buffer::empty(to)
        } else {
            // Main memory that devices reach, and that may be lent.
            let room = match to.is_cpu() {
                true => (context.pool().try_take_lendable(self.byte_len())).map_err(|error| {
                    DeviceError::new(device, error.call, error.source.to_string())
                }),
                false => (context.allocator(to).map_err(misuse)?).take(self.byte_len()),
            };
            match whose.copy(vec![self.buffer().clone()], room?) {
                Some(copying) => copying.await?,
                None => return refused("its allocator copies nothing: see `Allocator::copy`"),
            }
        };
        Self::from_buffer(filled, self.dtype(), self.shape()).map_err(misuse)
    }
}
