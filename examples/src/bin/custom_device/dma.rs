//! Channel `dma`: copies between cards, and between a card and main memory, within one process.
//!
//! ```text
//!   writer's lane                                reader's lane
//!     send: puts the source on offer
//!       └─────────── control: "offer 7" ──────────▶ takes it, queues the copy
//!     sent ◀───────── control: "taken" ──────────┘  received: at once on a card, at the fence in main memory
//! ```
//!
//! A lane has one queue, which works in order: a copy whose source is not ready holds up the copies behind it. A lane that must
//! avoid this queues the copy only when the source is ready (`LaneHandle::resume_at`).

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tensorpipe::channels::{
    Channel, ChannelFault, DeviceOffer, Lane, LaneHandle, LaneIo, Link, OpId, Want,
};
use tensorpipe::{Buffer, Device, Error, device::Allocator};

use super::card::{Cards, Landing, Queue};

const NAME: &str = "dma";

/// Sources that this process's writers offer its readers: the last number given out, and the open offers.
static OFFERS: Mutex<(u64, Vec<(u64, Buffer)>)> = Mutex::new((0, Vec::new()));

/// The number of an offer. Dropping this withdraws the offer.
struct Offer(u64);

impl Offer {
    fn new(source: Buffer) -> Self {
        let (last, offers) = &mut *OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        *last += 1;
        offers.push((*last, source));
        Self(*last)
    }

    fn take(number: u64) -> Option<Buffer> {
        let (_, offers) = &mut *OFFERS.lock().unwrap_or_else(PoisonError::into_inner);
        let at = offers.iter().position(|(offered, _)| *offered == number)?;
        Some(offers.swap_remove(at).1)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        Self::take(self.0);
    }
}

/// See the module's documentation.
pub(crate) struct DmaChannel;

impl Channel for DmaChannel {
    fn name(&self) -> &'static str {
        NAME
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        let devices = Cards.devices().into_iter().chain([Device::CPU]);
        devices.map(|device| (device, Vec::new())).collect()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        if ours.device.is_cpu() && theirs.device.is_cpu() {
            return Err("there is no card".to_owned());
        }
        Ok(())
    }

    /// The peer finds an offer in this process only.
    fn in_process(&self) -> bool {
        true
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(DmaLane {
            queue: Queue::new(),
            pipe: link.handle,
            offered: HashMap::new(),
            wanted: HashMap::new(),
            landing: HashMap::new(),
        }))
    }
}

/// One end of a pipe; it writes and reads.
struct DmaLane {
    queue: Queue,
    pipe: LaneHandle,
    /// At the writer: offers whose copy the reader has not queued yet.
    offered: HashMap<OpId, Offer>,
    /// At the reader: parts whose offer has not come yet.
    wanted: HashMap<OpId, Want>,
    /// At the reader: copies to main memory that are not finished.
    landing: HashMap<OpId, Landing>,
}

fn failed(error: impl ToString) -> Error {
    Error::Channel {
        channel: NAME,
        reason: error.to_string().into(),
    }
}

impl DmaLane {
    fn take(&mut self, op: OpId, number: u64, io: &mut LaneIo<'_>) -> Result<(), Error> {
        let (Some(source), Some(want)) = (Offer::take(number), self.wanted.remove(&op)) else {
            // One end gave up. The pipe reports that by `cancel`, or by ending.
            return Ok(());
        };
        let dest = match want {
            Want::Into(dest) => dest,
            Want::Adopt { len, device } => io.allocate(op, device, len)?,
        };
        if source.len() != dest.len() {
            return Err(failed("it has another length than was announced"));
        }
        if dest.device().is_cpu() {
            let landing = self.queue.to_main(&source, dest).map_err(failed)?;
            self.pipe.resume_at(op, &landing.fence);
            self.landing.insert(op, landing);
            io.control(op, []);
        } else {
            let buffer = self.queue.to_card(&source, dest).map_err(failed)?;
            io.control(op, []);
            io.received(op, buffer);
        }
        Ok(())
    }
}

impl Lane for DmaLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        let offer = Offer::new(source);
        io.control(op, offer.0.to_le_bytes());
        self.offered.insert(op, offer);
    }

    fn recv(&mut self, op: OpId, want: Want, _: &mut LaneIo<'_>) {
        self.wanted.insert(op, want);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if op.outgoing {
            // The reader has queued the copy. A card's source keeps the copy's fence; for main memory the queue keeps a handle.
            if self.offered.remove(&op).is_some() {
                io.sent(op);
            }
            return Ok(());
        }
        let number = body.try_into().map(u64::from_le_bytes);
        let number = number.map_err(|_| ChannelFault("that is no offer".to_owned()))?;
        if let Err(error) = self.take(op, number, io) {
            io.failed(op, error);
        }
        Ok(())
    }

    /// The fence of a copy to main memory is reached.
    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if let Some(landing) = self.landing.remove(&op) {
            match landing.take() {
                Ok(buffer) => io.received(op, buffer),
                Err(error) => io.failed(op, failed(error)),
            }
        }
        Ok(())
    }

    /// The queue finishes a copy that it has begun, and then drops its handles.
    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.offered.remove(&op);
        self.wanted.remove(&op);
        self.landing.remove(&op);
    }
}
