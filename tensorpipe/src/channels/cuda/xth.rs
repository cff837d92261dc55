//! Memory of GPUs within one process: the handle is [handed over](super::handover), together with the fence that the bytes are ready
//! behind. If the reader wants the bytes on another device, or in memory of its own, a stream copies them there.

use std::collections::HashMap;

use super::handover::{self, HandOver, Take};
use super::job::JobHandle;
use super::{Channel, CudaDevices, Lane, LaneHandle, LaneIo, Link, OpId, Threshold, Want, costs};
use crate::device::{Buffer, Device, DeviceOffer, MemoryKind};
use crate::error::{DeviceError, Error};
use crate::pipe::Room;

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

fn failed(error: &DeviceError) -> Error {
    Error::Channel {
        channel: NAME,
        reason: error.to_string().into(),
    }
}

/// Copies the tensor if it is wanted on another device or in memory of the reader's own.
struct Copied {
    cuda: CudaDevices,
    handle: LaneHandle,
    copying: HashMap<OpId, JobHandle<Buffer, Error>>,
}

impl Copied {
    fn copy(&mut self, op: OpId, source: Buffer, room: Room, io: &mut LaneIo<'_>) {
        let cuda = self.cuda.clone();
        let is_quick = room.is_warm() && cuda.has_stream(room.device());
        let copying = JobHandle::of(op, is_quick, &self.handle, io, move || {
            let dest = room.take()?;
            let stream = cuda.stream(dest.device());
            let copied = stream.and_then(|stream| cuda.copy(&source, dest, &stream));
            copied.map_err(|error| failed(&error))
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
            Want::Adopt { len, device } => match io.room(op, device, len) {
                Ok(room) => self.copy(op, source, room, io),
                Err(error) => io.failed(op, error),
            },
            Want::Into(dest) => self.copy(op, source, Room::Warm(dest), io),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        let Some(copied) = self.copying.get(&op).and_then(JobHandle::take) else {
            return;
        };
        self.copying.remove(&op);
        match copied {
            Ok(buffer) => {
                io.copied(buffer.len() as u64);
                io.control(op, Vec::new());
                io.received(op, buffer);
            }
            Err(error) => io.failed(op, error),
        }
    }

    fn cancel(&mut self, op: OpId) {
        self.copying.remove(&op);
    }
}
