//! Memory of GPUs within one process: the handle is [handed over](super::handover), together with the fence that the bytes are ready
//! behind. If the reader wants the bytes on another device, or in memory of its own, a stream copies them there.

use std::collections::HashMap;

use super::handover::{self, HandOver, Take};
use super::job::JobHandle;
use super::{Channel, CudaDevices, Lane, LaneHandle, LaneIo, Link, OpId, Threshold, Want, costs};
use crate::device::{Buffer, BufferMut, Device, DeviceOffer, MemoryKind};
use crate::error::Error;

const NAME: &str = "cuda_xth";

/// Channel `cuda_xth`. Two devices that reach each other's memory copy without main memory in between.
#[derive(Debug)]
pub struct CudaXthChannel {
    cuda: CudaDevices,
}

impl CudaXthChannel {
    /// Between `devices`.
    pub fn new(devices: &CudaDevices) -> Self {
        let cuda = devices.clone();
        Self { cuda }
    }
}

impl Channel for CudaXthChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        handover::devices(self.cuda.devices())
    }

    fn in_process(&self) -> bool {
        true
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        handover::reaches(ours.descriptor, theirs.descriptor)
    }

    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        costs::CUDA_XTH.to_vec()
    }

    fn moves_bytes(&self, _: MemoryKind) -> bool {
        false
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(HandOver::new(Copied {
            cuda: self.cuda.clone(),
            handle: link.handle,
            copying: HashMap::new(),
        })))
    }
}

/// Copies the tensor if it is wanted on another device or in memory of the reader's own.
struct Copied {
    cuda: CudaDevices,
    handle: LaneHandle,
    copying: HashMap<OpId, JobHandle<Buffer>>,
}

impl Copied {
    fn copy(&mut self, op: OpId, source: Buffer, dest: BufferMut, io: &mut LaneIo<'_>) {
        let cuda = self.cuda.clone();
        io.copied(source.len() as u64);
        let is_quick = cuda.has_stream(dest.device());
        let copying = JobHandle::of(op, is_quick, &self.handle, io, move || {
            let stream = cuda.stream(dest.device())?;
            cuda.copy(&source, dest, &stream)
        });
        self.copying.insert(op, copying);
    }
}

impl Take for Copied {
    fn take(&mut self, op: OpId, source: Buffer, want: Want, io: &mut LaneIo<'_>) {
        match want {
            Want::Adopt { device, .. } if device == source.device() => {
                io.control(op, Vec::new());
                io.received(op, source);
            }
            Want::Adopt { len, device } => match io.allocate(op, device, len) {
                Ok(dest) => self.copy(op, source, dest, io),
                Err(error) => io.failed(op, error),
            },
            Want::Into(dest) => self.copy(op, source, dest, io),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        let Some(copied) = self.copying.get(&op).and_then(JobHandle::take) else {
            return;
        };
        self.copying.remove(&op);
        match copied {
            Ok(buffer) => {
                io.control(op, Vec::new());
                io.received(op, buffer);
            }
            Err(error) => io.failed(
                op,
                Error::Channel {
                    channel: NAME,
                    reason: error.to_string().into(),
                },
            ),
        }
    }

    fn cancel(&mut self, op: OpId) {
        self.copying.remove(&op);
    }
}
