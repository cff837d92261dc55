//! Transfers between two devices if at least one is a GPU: through main memory, which another channel moves, in pieces.
//!
//! ```text
//!   GPU ──stream──▶ main memory ──inner lane──▶ main memory ──stream──▶ GPU
//!        piece 3            piece 2                    piece 1
//! ```
//!
//! The reader decides the length of a piece and how many the writer may send, and allows one more for each piece that has left its main
//! memory. Over `lease`, the staging memory is mapped by both processes and registered with both drivers: the CPU copies nothing.
//!
//! Main memory that the reader fills is cut likewise: pieces arrive in ranges of it, and it is counted as they arrive. If the inner lane
//! hands over the writer's main memory itself, there is one piece.
//!
//! Nobody blocks on a GPU: each transfer has streams of its own, which wait for the fences of its memory, and events notify the CPU. Driver
//! calls are made without the pipe's lock; slow ones on a thread for blocking work.
//!
//! Invariant: memory that was given to a stream is kept until the event after that work is reached.
//!
//! Staging memory is lendable memory from the context's pool; each segment is registered with the driver once. A reader registers what it
//! has borrowed, read-only. If the driver refuses, the CPU copies once more. Each context of a build with the feature `cuda` has this
//! channel, even without devices, so that main memory of any peer reaches GPUs. It stages over the channels that the context finally has.

mod frame;
mod lane;
mod receiving;
mod sending;

use std::sync::Arc;

pub(super) use self::lane::CudaBasicLane;
use super::job::JobHandle;
use super::{
    Channel, ChannelFault, CudaDevices, Lane, LaneHandle, LaneIo, Link, OpId, Outcome, PartKind,
    PieceEvent, Want,
};
use crate::device::{Buffer, BufferMut, Destination, Device, DeviceOffer, MemoryKind, Pool};
use crate::error::{DeviceError, Error};
use crate::pipe::Room;

/// Channel `cuda_basic`, or `cuda_basic+NAME` over another channel than `basic`.
///
/// A context has it by default, even without devices: such an end carries main memory to the GPUs of its peers and back, and loads no
/// driver.
pub struct CudaBasicChannel {
    name: &'static str,
    /// `None` at an end with only main memory.
    cuda: Option<CudaDevices>,
    inner: Arc<dyn Channel>,
}

impl std::fmt::Debug for CudaBasicChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CudaBasicChannel({}, {:?})", self.name, self.cuda)
    }
}

impl CudaBasicChannel {
    /// For `devices`, over a channel of main memory.
    pub fn over(inner: impl Channel, devices: &CudaDevices) -> Self {
        Self::over_this(Arc::new(inner), Some(devices))
    }

    /// Between main memory here and GPUs elsewhere.
    pub fn without_devices(inner: impl Channel) -> Self {
        Self::over_this(Arc::new(inner), None)
    }

    pub(super) fn over_this(inner: Arc<dyn Channel>, devices: Option<&CudaDevices>) -> Self {
        let name = match inner.name() {
            "basic" => "cuda_basic",
            "lease" => "cuda_basic+lease",
            "xth" => "cuda_basic+xth",
            "cma" => "cuda_basic+cma",
            "mpt" => "cuda_basic+mpt",
            // Channels are few, and made once.
            other => String::leak(format!("cuda_basic+{other}")),
        };
        Self {
            name,
            cuda: devices.cloned(),
            inner,
        }
    }

    /// The inner channel's descriptor for main memory.
    fn inner_descriptor(&self) -> Option<Vec<u8>> {
        let mut devices = self.inner.devices().into_iter();
        devices.find_map(|(device, descriptor)| device.is_cpu().then_some(descriptor))
    }
}

impl Channel for CudaBasicChannel {
    fn name(&self) -> &'static str {
        self.name
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let Some(inner) = self.inner_descriptor() else {
            return Vec::new();
        };
        let devices = self.cuda.iter().flat_map(CudaDevices::devices);
        let devices = devices.chain([Device::CPU]);
        devices.map(|device| (device, inner.clone())).collect()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.device.is_cpu() && theirs.device.is_cpu() {
            return Err(String::new());
        }
        (self.inner).reaches(
            DeviceOffer::new(Device::CPU, ours.descriptor),
            DeviceOffer::new(Device::CPU, theirs.descriptor),
        )
    }

    fn in_process(&self) -> bool {
        self.inner.in_process()
    }

    fn connections(&self) -> u8 {
        self.inner.connections()
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        // The peer's inner descriptor for main memory counts for all of its devices.
        let mut theirs = link.peer_devices.iter();
        let theirs = theirs.find(|(device, _)| device.is_cpu());
        let theirs = theirs.map_or(&[][..], |(_, descriptor)| descriptor);
        let ours = self.inner_descriptor().unwrap_or_default();
        let reached = (self.inner).reaches(
            DeviceOffer::new(Device::CPU, &ours),
            DeviceOffer::new(Device::CPU, theirs),
        );
        reached.map_err(|reason| Error::Channel {
            channel: self.name,
            reason: reason.into(),
        })?;
        Ok(Box::new(self.open_lane(link)?))
    }
}

impl CudaBasicChannel {
    pub(super) fn open_lane(&self, link: Link) -> Result<CudaBasicLane, Error> {
        let theirs = link.peer_devices.iter();
        let main = theirs.filter(|(device, _)| device.is_cpu()).cloned();
        let main = main.collect();
        let (handle, pool) = (link.handle.clone(), link.pool.clone());
        let inner = self.inner.open(link.inner(main))?;
        Ok(CudaBasicLane::new(LaneContext {
            channel: self.name,
            cuda: self.cuda.clone(),
            handle,
            pool,
            adopts: !self.inner.moves_bytes(STAGING),
            inner,
            staged: 0,
        }))
    }
}

/// The kind of memory that pieces are sent from.
const STAGING: MemoryKind = MemoryKind::Pool;

/// Shared by all transfers of a lane.
struct LaneContext {
    channel: &'static str,
    /// Set if anything is on a device here.
    cuda: Option<CudaDevices>,
    handle: LaneHandle,
    /// For main memory that may be lent.
    pool: Pool,
    inner: Box<dyn Lane>,
    /// Whether a reader without a place of its own gets the writer's staging memory itself.
    adopts: bool,
    /// Bytes of main memory that pieces on their way out take.
    staged: usize,
}

impl LaneContext {
    /// Passes an event about a piece to the inner lane. `place` is the main memory that the inner lane should use.
    fn call_inner(
        &mut self,
        piece: OpId,
        place: Option<Destination>,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let inner = &mut self.inner;
        io.with_place(piece, place, |io| match event {
            PieceEvent::Control(body) => inner.control(piece, body, io),
            PieceEvent::Resume => inner.resume(piece, io),
            PieceEvent::Streamed(dest) => {
                inner.streamed(piece, dest, io);
                Ok(())
            }
            PieceEvent::Ended(_) => Ok(()),
        })
    }

    fn cuda(&self, device: Device) -> Result<&CudaDevices, Error> {
        let missing = || DeviceError::new(device, "open", "this end has no devices");
        let found = self.cuda.as_ref().ok_or_else(missing);
        found.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &DeviceError) -> Error {
        Error::Channel {
            channel: self.channel,
            reason: error.to_string().into(),
        }
    }
}
