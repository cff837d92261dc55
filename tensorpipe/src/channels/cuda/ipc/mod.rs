//! Memory of GPUs between processes of one machine: lent instead of sent, as channel `lease` lends main memory.
//!
//! The writer's lane offers a range of this process's physical memory. The reader maps the memory once, by a descriptor that the two
//! exchanges pass; the kernel tells each exchange who the other is. The reader gets a tensor over its own mapping, or one copy if it wants
//! the tensor elsewhere. Memory of other libraries is lent as it is if its maker lets other processes map it, one allocation or several
//! side by side. Otherwise it is first copied on the device, to memory that can be lent.
//!
//! A loan is a fence of the lent memory: nothing writes to the memory, and no pool reuses it, before the loan is back. The loan is back
//! when all work that the reader has queued on it has finished, its offer is withdrawn, or the reader's process has ended. Lent memory
//! stays mapped if its lender's process ends.
//!
//! The writer makes the offer when the work that produces the bytes is done, which an event tells the CPU. A reader's stream that waited
//! for another process's event could wait for ever (`docs/decisions/0035-no-interprocess-events.md`). If something is missing, the part
//! travels through main memory ([`CudaBasicChannel`]). If the cause is lasting, both ends' routes report it.
//!
//! Before the first offer of a device's memory, the reader [proves](proof) that it maps the writer's memory. All parts for that device wait
//! for this one proof, for seven seconds at most; without a proof by then, they travel through main memory. A reader that cannot give a
//! proof is asked again five seconds later at the earliest. If the mapped memory is other memory, or three proofs about a device fail, the
//! channel is not used from then on. The route of the end that found it reports the reason.
//!
//! No stream can wait for a loan, so a read into lent memory begins only when the loan is back (`Fence::is_queued`). If a context requires
//! this channel, a part that would travel through main memory is an error.

mod frame;
mod lane;
mod loan;
mod mapping;
mod proof;
mod proving;
mod reading;
mod writing;

use super::super::exchange::{
    Access, Borrower, Exchange, Invitation, LendError, Lender, OFFER_LEN, Offer, Passed, Span,
    Wanted,
};
use super::job::JobHandle;
use super::{
    Arc, Channel, ChannelFault, CudaBasicChannel, CudaDevices, Degraded, Lane, LaneHandle, LaneIo,
    Link, OpId, PieceEvent, Want,
};
use crate::channels::BasicChannel;
use crate::device::{Buffer, BufferMut, Device, DeviceOffer, MemoryKind};
use crate::error::{DeviceError, Error, Misuse};
use crate::pipe::Room;

const NAME: &str = "cuda_ipc";

/// Identifies a device in all processes.
type Uuid = [u8; 16];

/// Channel `cuda_ipc`.
///
/// # Trust
///
/// As with [`LeaseChannel`](crate::channels::LeaseChannel): memory is lent between processes of one user, who may read each other's memory
/// anyway. A reader maps the 2 MiB around a tensor, or its block if that is longer, and is trusted not to write there. Of another library's
/// memory, it maps the allocations that the tensor lies in.
#[derive(Debug)]
pub struct CudaIpcChannel {
    cuda: CudaDevices,
    within_process: bool,
    borrows: bool,
}

impl CudaIpcChannel {
    /// For `devices`, between processes.
    pub fn new(devices: &CudaDevices) -> Self {
        Self {
            cuda: devices.clone(),
            within_process: false,
            borrows: true,
        }
    }

    /// With `false`, received tensors are copied to this process's own memory. By default it borrows.
    pub fn borrowing(self, borrows: bool) -> Self {
        Self { borrows, ..self }
    }

    /// Also works where both ends are in one process, although `cuda_xth` is better there: for tests.
    #[doc(hidden)]
    pub fn also_within_process(devices: &CudaDevices) -> Self {
        Self {
            within_process: true,
            ..Self::new(devices)
        }
    }
}

impl Channel for CudaIpcChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    /// Each descriptor identifies the device, and says where its process is.
    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let place = Access::Lend.devices(&Exchange::here(), true);
        let Some((_, place)) = place.into_iter().next() else {
            return Vec::new();
        };
        let described = self.cuda.devices().into_iter().filter_map(|device| {
            let uuid = self.cuda.uuid(device)?;
            Some((device, [&uuid[..], &place].concat()))
        });
        described.collect()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        let nonsense = "its description makes no sense here";
        let (_, here) = ours.descriptor.split_first_chunk::<16>().ok_or(nonsense)?;
        let (uuid, there) = theirs
            .descriptor
            .split_first_chunk::<16>()
            .ok_or(nonsense)?;
        Access::Lend.reaches(here, there, self.within_process)?;
        match self.cuda.seen_as(*uuid) {
            Some(_) => Ok(()),
            None => Err(format!(
                "the peer's {} is not visible here: see CUDA_VISIBLE_DEVICES",
                theirs.device
            )),
        }
    }

    fn borrows(&self) -> bool {
        self.borrows
    }

    fn moves_bytes(&self, _: MemoryKind) -> bool {
        false
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        let described = link.peer_devices.first();
        let place = described.and_then(|(_, described)| described.get(16..));
        let place = place.map(|place| vec![(Device::CPU, place.to_vec())]);
        let place = Access::Lend.place(&place.unwrap_or_default());
        let place =
            place.map_err(|reason| Misuse::Other(format!("channel {NAME}: the peer: {reason}")))?;
        let exchange = Exchange::here();
        let lender = exchange.lender(&place.exchange);
        let (handle, degraded) = (link.handle.clone(), link.degraded.clone());
        let key = link.key.clone();
        let detour = CudaBasicChannel::over(BasicChannel::new(), &self.cuda).open_lane(link)?;
        Ok(Box::new(lane::CudaIpcLane {
            tools: LaneContext {
                cuda: self.cuda.clone(),
                handle,
                degraded,
                detour,
            },
            writer: writing::Writer::new(exchange, key.clone()),
            reader: reading::Reader::new(lender, key, self.borrows),
        }))
    }
}

/// Shared by both directions of a lane.
struct LaneContext {
    cuda: CudaDevices,
    handle: LaneHandle,
    degraded: Degraded,
    /// For parts that cannot be lent.
    detour: super::basic::CudaBasicLane,
}

/// Has a part copied, to memory of this process's own.
fn copy(
    op: OpId,
    source: Buffer,
    room: Room,
    tools: &LaneContext,
    io: &mut LaneIo<'_>,
) -> JobHandle<Buffer, Error> {
    let cuda = tools.cuda.clone();
    let is_quick = room.is_warm() && cuda.has_stream(room.device());
    JobHandle::of(op, is_quick, &tools.handle, io, move || {
        let dest = room.take()?;
        let stream = cuda.stream(dest.device());
        let copied = stream.and_then(|stream| cuda.copy(&source, dest, &stream));
        copied.map_err(|error| failed(&error))
    })
}

fn failed(error: &DeviceError) -> Error {
    Error::Channel {
        channel: NAME,
        reason: error.to_string().into(),
    }
}
