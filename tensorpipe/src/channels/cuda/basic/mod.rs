//! Between any two devices of which one at least is a GPU: by way of main memory, which another channel moves, in pieces.
//!
//! ```text
//!   GPU ──stream──▶ main memory ──inner lane──▶ main memory ──stream──▶ GPU
//!        piece 3            piece 2                    piece 1
//! ```
//!
//! The reader says how long a piece is and how many the writer may send; one more for each that has left its main memory. Over
//! `lease` the main memory is one that both processes have mapped, and each has told its driver of: no CPU copies anything.
//!
//! Main memory that the reader fills is cut likewise: pieces come into ranges of it, and it counts as they come. It is one piece where the
//! inner lane hands over the writer's main memory itself.
//!
//! Nobody waits for a GPU: each transfer has streams of its own, which wait for what its memory is ready behind, and the CPU hears of
//! events. Calls of the driver are made without the pipe's lock; those that take long, on a thread for blocking work.
//!
//! Invariant: memory that a stream was given is kept until the event behind that work is reached.
//!
//! Staging memory is lendable memory of the context's pool, registered with the driver once for a segment. A reader registers what it has
//! borrowed, read-only. What the driver does not take, the CPU copies once more. Each context of a build with the feature `cuda` has this channel,
//! also without devices: so main memory of any peer reaches GPUs. It stands over the channels that the context has in the end.

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

/// Channel `cuda_basic`, or `cuda_basic+NAME` over another channel than `basic`.
///
/// A context has it by default, also without devices: such an end carries main memory to the GPUs of its peers and back, and opens no
/// driver.
pub struct CudaBasicChannel {
    name: &'static str,
    /// `None` at an end that has main memory alone.
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

    /// What the inner channel says of main memory.
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
        // What the peer says of its main memory goes for all of it, whatever it has said of its devices.
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

/// Memory of which pieces are sent.
const STAGING: MemoryKind = MemoryKind::Pool;

/// What every transfer of a lane works with.
struct LaneContext {
    channel: &'static str,
    /// There where anything is on a device here.
    cuda: Option<CudaDevices>,
    handle: LaneHandle,
    /// For main memory that may be lent.
    pool: Pool,
    inner: Box<dyn Lane>,
    /// Whether a reader that wants any memory gets the writer's staging memory itself.
    adopts: bool,
    /// Main memory of pieces that are sent, in bytes.
    staged: usize,
}

impl LaneContext {
    /// The lane inside hears what goes on about a piece that it has. Main memory that it takes for that is `place`.
    fn inside(
        &mut self,
        piece: OpId,
        place: Option<Destination>,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let inner = &mut self.inner;
        io.within(piece, place, |io| match event {
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
