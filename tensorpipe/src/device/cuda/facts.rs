//! What the driver tells about itself and the devices, for reports on a machine.

use std::fmt;

use super::{ContextGuard, CudaDevices, failed, probe};
use crate::device::Device;
use crate::error::DeviceError;

/// What the driver says of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceProperties {
    /// The device, by its number in this process.
    pub device: Device,
    /// Its name.
    pub name: String,
    /// Its UUID, the same in all processes.
    pub uuid: [u8; 16],
    /// The granularity of physical memory, in bytes.
    pub granularity: usize,
    /// Devices that reach its memory.
    pub peers: Vec<Device>,
}

impl CudaDevices {
    /// The newest CUDA that the driver serves: its major and its minor version.
    ///
    /// # Errors
    /// When the driver refuses.
    pub fn version(&self) -> Result<(u32, u32), DeviceError> {
        let version = probe::version();
        let version =
            version.map_err(|error| failed(Self::device(0), "cuDriverGetVersion", error))?;
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }

    /// What the driver tells about a device. This begins to use the device.
    ///
    /// # Errors
    /// There is no such device, or it cannot be used.
    pub fn properties(&self, device: Device) -> Result<DeviceProperties, DeviceError> {
        let _mine = ContextGuard::keep();
        let opened = self.opened(device)?;
        let name = opened.context.name();
        let peers = opened.slabs.peers().iter();
        Ok(DeviceProperties {
            device,
            name: name.map_err(|error| failed(device, "cuDeviceGetName", error))?,
            uuid: self.uuid(device).unwrap_or_default(),
            granularity: opened.slabs.granularity(),
            peers: peers
                .map(|peer| Self::device(peer.unsigned_abs()))
                .collect(),
        })
    }
}

/// One line, the UUID as nvidia-smi has it.
impl fmt::Display for DeviceProperties {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}, GPU-", self.device, self.name)?;
        for (at, byte) in self.uuid.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        let peers: Vec<_> = self.peers.iter().map(Device::to_string).collect();
        let peers = match peers.is_empty() {
            true => "none".to_owned(),
            false => peers.join(" "),
        };
        let granularity = self.granularity;
        write!(f, ", granularity {granularity} bytes, peers {peers}")
    }
}
