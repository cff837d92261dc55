//! Channel `staged`: copies device memory to main memory, lets another channel move it, and copies it to the peer's device.
//!
//! ```text
//!   device ──queue──▶ main memory ──inner lane──▶ main memory ──queue──▶ device
//!     send     resume_at(fence)                inner(Received)   received, ready behind the fence
//! ```
//!
//! No thread blocks on a queue. The writer's lane continues when its copy is done. The reader's lane reports the part as received as soon
//! as its copy is queued, since the buffer's fence tells when it is ready.

use std::collections::HashMap;
use std::num::NonZeroU16;
use std::sync::Arc;

use tensorpipe::channels::{
    Channel, ChannelFault, DeviceOffer, Lane, LaneHandle, LaneIo, Link, OpId, Outcome, PieceEvent,
    Want,
};
use tensorpipe::conformance::{Copied, TestDevices, TestQueue};
use tensorpipe::{Buffer, Device, DeviceError, Error, device::Allocator};

const NAME: &str = "staged";

/// The inner channel moves each part as one piece.
const ALL: NonZeroU16 = NonZeroU16::MIN;

/// Stages memory of `devices` in main memory, which `inner` moves.
pub(crate) struct StagedChannel {
    pub(crate) devices: TestDevices,
    pub(crate) inner: Arc<dyn Channel>,
}

impl StagedChannel {
    /// The inner channel's descriptor for main memory.
    fn inner_descriptor(&self) -> Option<Vec<u8>> {
        let mut devices = self.inner.devices().into_iter();
        devices.find_map(|(device, descriptor)| (device == Device::CPU).then_some(descriptor))
    }
}

impl Channel for StagedChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let Some(inner) = self.inner_descriptor() else {
            return Vec::new();
        };
        let devices = self.devices.devices().into_iter().chain([Device::CPU]);
        devices.map(|device| (device, inner.clone())).collect()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.device.is_cpu() && theirs.device.is_cpu() {
            return Err("nothing is to be staged".to_owned());
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
        let handle = link.handle.clone();
        let theirs = link.peer_devices.iter();
        let main = theirs.filter(|(device, _)| device.is_cpu()).cloned();
        let main = main.collect();
        Ok(Box::new(StagedLane {
            handle,
            queue: self.devices.queue(),
            inner: self.inner.open(link.inner(main))?,
            stages: HashMap::new(),
        }))
    }
}

struct StagedLane {
    handle: LaneHandle,
    queue: TestQueue,
    inner: Box<dyn Lane>,
    stages: HashMap<OpId, Stage>,
}

/// Where a part is.
enum Stage {
    /// The writer's queue copies the part to main memory. Control frames from the peer's inner lane wait here meanwhile.
    CopiedOut(Copied, Vec<Vec<u8>>),
    /// The inner lane moves the part. On the reader's side, holds the final destination if that is on a device.
    Inside(Option<Want>),
}

impl StagedLane {
    fn copy_out(&self, op: OpId, source: &Buffer, io: &mut LaneIo<'_>) -> Result<Copied, Error> {
        let staging = io.allocate(op, Device::CPU, source.len() as u64)?;
        self.queue.read(source, staging).map_err(failed)
    }

    /// Queues the copy to the device. The buffer can be received at once.
    fn copy_in(
        &self,
        op: OpId,
        staged: Buffer,
        want: Want,
        io: &mut LaneIo<'_>,
    ) -> Result<Buffer, Error> {
        let dest = match want {
            Want::Into(dest) => dest,
            Want::Adopt { len, device } => io.allocate(op, device, len)?,
        };
        self.queue.write(staged, dest).map_err(failed)
    }
}

fn failed(error: DeviceError) -> Error {
    Error::Channel {
        channel: NAME,
        reason: error.to_string().into(),
    }
}

impl Lane for StagedLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        if source.device().is_cpu() {
            self.stages.insert(op, Stage::Inside(None));
            return self.inner.send(op.piece(ALL), source, io);
        }
        match self.copy_out(op, &source, io) {
            Ok(copied) => {
                self.handle.resume_at(op, copied.fence());
                self.stages.insert(op, Stage::CopiedOut(copied, Vec::new()));
            }
            Err(error) => io.failed(op, error),
        }
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let (len, device) = match &want {
            Want::Into(dest) => (dest.len() as u64, dest.device()),
            Want::Adopt { len, device } => (*len, *device),
        };
        let (inner, then) = if device.is_cpu() {
            (want, None)
        } else {
            let device = Device::CPU;
            (Want::Adopt { len, device }, Some(want))
        };
        self.stages.insert(op, Stage::Inside(then));
        self.inner.recv(op.piece(ALL), inner, io);
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Err(ChannelFault("it has no control frames".to_owned()))
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let Some(Stage::CopiedOut(copied, early)) = self.stages.get_mut(&op) else {
            return Ok(());
        };
        let (Some(staged), early) = (copied.take(), std::mem::take(early)) else {
            return Ok(());
        };
        self.stages.insert(op, Stage::Inside(None));
        let piece = op.piece(ALL);
        self.inner.send(piece, staged.freeze(), io);
        let mut early = early.iter();
        early.try_for_each(|body| self.inner.control(piece, body, io))
    }

    fn inner(
        &mut self,
        piece: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let op = piece.whole();
        match (self.stages.get_mut(&op), event) {
            _ if piece != op.piece(ALL) => {
                return Err(ChannelFault(format!("{piece:?}, which there is not")));
            }
            // The operation ended while the event was on its way.
            (None, _) => {}
            (Some(Stage::CopiedOut(_, early)), PieceEvent::Control(body)) if early.len() < 16 => {
                early.push(body.to_vec());
            }
            (Some(Stage::CopiedOut(..)), _) => {
                return Err(ChannelFault("it says too much".to_owned()));
            }
            (Some(Stage::Inside(_)), PieceEvent::Control(body)) => {
                return self.inner.control(piece, body, io);
            }
            (Some(Stage::Inside(_)), PieceEvent::Streamed(dest)) => {
                self.inner.streamed(piece, dest, io);
            }
            (Some(Stage::Inside(_)), PieceEvent::Resume) => return self.inner.resume(piece, io),
            (Some(Stage::Inside(want)), PieceEvent::Ended(outcome)) => {
                let want = want.take();
                self.stages.remove(&op);
                self.ended(op, outcome, want, io);
            }
        }
        Ok(())
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        if let Some(Stage::Inside(_)) = self.stages.remove(&op) {
            self.inner.cancel(op.piece(ALL), io);
        }
    }
}

impl StagedLane {
    fn ended(&self, op: OpId, outcome: Outcome, want: Option<Want>, io: &mut LaneIo<'_>) {
        match (outcome, want) {
            (Outcome::Sent, _) => io.sent(op),
            (Outcome::Failed(error), _) => io.failed(op, error),
            (Outcome::Received(buffer), None) => io.received(op, buffer),
            (Outcome::Received(staged), Some(want)) => match self.copy_in(op, staged, want, io) {
                Ok(buffer) => io.received(op, buffer),
                Err(error) => io.failed(op, error),
            },
        }
    }
}
