//! Where tensors are made, and how those on devices are read.

use std::future::pending;
use std::sync::Arc;

use fastrand::Rng;
use tensorpipe::conformance::device::Fixture;
use tensorpipe::device::DevicePool;
use tensorpipe::{Buffer, Context, DType, Device, Pool, Tensor};
use tensorpipe_rpc::DeviceMap;

/// Of a context.
#[derive(Clone)]
pub(super) struct Memories {
    pub(super) pool: Pool,
    pub(super) devices: Vec<DevicePool>,
    fixture: Option<Arc<dyn Fixture>>,
}

impl Memories {
    pub(super) fn of(context: &Context, fixture: Option<Arc<dyn Fixture>>) -> Self {
        let devices = fixture.iter().flat_map(|fixture| {
            let devices = fixture.allocator().devices().into_iter();
            devices.map(|device| context.allocator(device).unwrap())
        });
        Self {
            pool: context.pool().clone(),
            devices: devices.collect(),
            fixture,
        }
    }

    /// Main memory alone.
    pub(super) fn plain() -> Self {
        Self {
            pool: Pool::default(),
            devices: Vec::new(),
            fixture: None,
        }
    }

    /// In memory of the pool.
    pub(super) fn pooled(&self, bytes: &[u8]) -> Tensor {
        let len = bytes.len() as u64;
        let mut tensor = self.pool.tensor(DType::U8, [len]).unwrap();
        tensor.make_mut::<u8>().unwrap().copy_from_slice(bytes);
        tensor
    }

    /// On one of the devices, if there are any.
    pub(super) fn on_device(&self, at: usize, bytes: &[u8]) -> Tensor {
        let Some(fixture) = &self.fixture else {
            return Tensor::from(bytes.to_vec());
        };
        let pool = &self.devices[at % self.devices.len()];
        let (len, device) = (bytes.len(), pool.device());
        let buffer = match len {
            0 => Buffer::empty(device),
            _ => fixture.write(bytes, pool.take(len).unwrap()),
        };
        Tensor::from_buffer(buffer, DType::U8, [len as u64]).unwrap()
    }

    /// Mostly: tensors on a device land on the other end's, on that of the same number or another.
    pub(super) fn map(&self, rng: &mut Rng) -> Option<DeviceMap> {
        if self.devices.is_empty() || rng.u8(..4) == 0 {
            return None;
        }
        let mut there: Vec<_> = self.devices.iter().map(DevicePool::device).collect();
        let here = there.clone();
        if rng.bool() {
            there.reverse();
        }
        Some(DeviceMap::new(here.into_iter().zip(there)).unwrap())
    }

    /// Where a tensor may be wanted.
    pub(super) fn target(&self, at: usize) -> Option<Device> {
        let devices = self.devices.iter().map(|pool| pool.device());
        let devices = devices.chain(self.fixture.as_ref().map(|_| Device::CPU));
        devices
            .map(Some)
            .chain([None])
            .cycle()
            .nth(at % 8)
            .flatten()
    }

    /// Its bytes, wherever it is. Without end if the runtime ends.
    pub(super) async fn bytes(&self, tensor: &Tensor) -> Vec<u8> {
        let buffer = tensor.buffer();
        if let Some(bytes) = buffer.as_bytes() {
            return bytes.to_vec();
        }
        let Some(fixture) = self.fixture.as_ref().filter(|_| !buffer.is_empty()) else {
            return Vec::new();
        };
        let read = fixture.read(buffer);
        match tokio::task::spawn_blocking(read).await {
            Err(error) if error.is_cancelled() => pending().await,
            read => read.unwrap(),
        }
    }
}
