//! What a device refused, or how its queued work failed.

use std::sync::Arc;

use crate::device::Device;

/// A device refused a call, or work that was queued on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{device}: {call}: {reason}")]
pub struct DeviceError {
    /// Which device.
    pub device: Device,
    /// The call, e.g. `cuMemAlloc`.
    pub call: &'static str,
    /// What the device's driver said, with its number.
    pub reason: Arc<str>,
}

impl DeviceError {
    /// What `call` on `device` returned, in words.
    pub fn new(device: Device, call: &'static str, reason: impl Into<Arc<str>>) -> Self {
        let reason = reason.into();
        Self {
            device,
            call,
            reason,
        }
    }
}
