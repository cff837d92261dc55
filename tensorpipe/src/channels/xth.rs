//! Main memory within one process: the handle is [handed over](super::handover), nothing is copied.
//!
//! If the writer kept no handle of its own, the reader then owns the memory alone and may write to it. A reader that
//! brought memory of its own gets one copy, on a thread for blocking work.

use super::handover::{self, HandOver, Take};
use super::{Channel, Lane, LaneHandle, LaneIo, Link, OpId, Threshold, Want, costs};
use crate::device::{Buffer, Device, DeviceOffer, MemoryKind};
use crate::error::Error;

/// Channel `xth` ("cross-thread").
#[derive(Debug, Default)]
pub struct XthChannel(());

impl XthChannel {
    /// Works everywhere.
    pub fn new() -> Self {
        Self(())
    }
}

impl Channel for XthChannel {
    fn name(&self) -> &'static str {
        "xth"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        handover::devices([Device::CPU])
    }

    fn in_process(&self) -> bool {
        true
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        handover::reaches(ours.descriptor, theirs.descriptor)
    }

    fn thresholds(&self, _: &[(Device, Vec<u8>)]) -> Vec<Threshold> {
        costs::XTH.to_vec()
    }

    fn moves_bytes(&self, _: MemoryKind) -> bool {
        false
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(HandOver::new(Copied(link.handle))))
    }
}

/// Copies the tensor if the reader brought memory of its own.
struct Copied(LaneHandle);

impl Take for Copied {
    fn take(&mut self, op: OpId, source: Buffer, want: Want, io: &mut LaneIo<'_>) {
        match want {
            Want::Adopt { .. } => {
                io.control(op, Vec::new());
                io.received(op, source);
            }
            Want::Into(dest) => self.0.copy(op, source, dest, &[], io),
        }
    }
}
