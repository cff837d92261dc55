//! Streams for transfers. Each transfer has its own, since work that is queued behind a source that is not ready waits with it.

use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaStream;

use super::{ContextGuard, CudaDevices, Kept, Opened, failed, forget_error};
use crate::device::Device;
use crate::error::DeviceError;

/// Streams of each device that are kept for later. Chosen.
const KEPT: usize = 16;

/// A device's unused streams.
#[derive(Default)]
pub(super) struct Streams(Mutex<Vec<Kept<CudaStream>>>);

/// A stream in use. It returns for reuse once the work that is queued on it is done.
pub(crate) struct Borrowed {
    stream: Kept<CudaStream>,
    opened: Arc<Opened>,
    cuda: CudaDevices,
}

impl CudaDevices {
    /// Whether a stream is available without making one.
    pub(crate) fn has_stream(&self, device: Device) -> bool {
        let slot = self.shared.devices.get(device.index as usize);
        let opened = slot.and_then(|slot| slot.get());
        opened.is_some_and(|opened| opened.streams.has_some())
    }

    /// A stream without queued work. The first ones are made, which takes the driver a while.
    pub(crate) fn stream(&self, device: Device) -> Result<Borrowed, DeviceError> {
        let opened = self.opened(device)?;
        let warm = opened.streams.take();
        let stream = match warm {
            Some(stream) => stream,
            None => {
                forget_error(&opened.context);
                let made = opened.context.new_stream();
                Kept::new(made.map_err(|error| failed(device, "cuStreamCreate", error))?)
            }
        };
        Ok(Borrowed {
            stream,
            opened: opened.clone(),
            cuda: self.clone(),
        })
    }
}

impl Streams {
    fn take(&self) -> Option<Kept<CudaStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    fn has_some(&self) -> bool {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !kept.is_empty()
    }

    fn put(&self, stream: Kept<CudaStream>) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() < KEPT {
            kept.push(stream);
        }
    }
}

impl std::ops::Deref for Borrowed {
    type Target = Arc<CudaStream>;

    fn deref(&self) -> &Arc<CudaStream> {
        &self.stream
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.cuda.is_other_process() {
            let kept = (self.stream.clone(), self.opened.clone(), self.cuda.clone());
            return std::mem::forget(kept);
        }
        let _mine = ContextGuard::keep();
        // A stream that the driver cannot give an event for is not reused.
        if let Ok(fence) = self.cuda.fence(&self.stream) {
            let (opened, stream) = (self.opened.clone(), Kept::new(self.stream.clone()));
            fence.when_reached(Box::new(move || opened.streams.put(stream)));
        }
    }
}
