//! Channel `staged`: device memory is copied to main memory, which travels on the pipe's own connection.

use std::collections::HashMap;

use tensorpipe::channels::{Channel, ChannelFault, Lane, LaneIo, Link, OpId, Want};
use tensorpipe::{BufferMut, Device, Error};

use crate::fake_device::{FAKE, fill, reaches, room_on, source};

/// Has no state of its own: everything is in its lanes.
pub(crate) struct StagedChannel;

impl Channel for StagedChannel {
    fn name(&self) -> &'static str {
        "staged"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(FAKE, b"1".to_vec()), (Device::CPU, b"1".to_vec())]
    }

    fn reaches(&self, ours: (Device, &[u8]), theirs: (Device, &[u8])) -> Result<(), String> {
        reaches(ours.0, theirs.0)
    }

    fn open(&self, _: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::<StagedLane>::default())
    }
}

#[derive(Default)]
struct StagedLane {
    /// Where parts under way belong in the end.
    dests: HashMap<OpId, BufferMut>,
}

fn failed(reason: &'static str) -> Error {
    Error::Channel {
        channel: "staged",
        reason: reason.into(),
    }
}

impl Lane for StagedLane {
    fn send(&mut self, op: OpId, buffer: tensorpipe::Buffer, io: &mut LaneIo<'_>) {
        let staging = io.allocate(buffer.len() as u64);
        match (source(&buffer), staging) {
            (Some(bytes), Ok(mut staging)) => {
                fill(&mut staging, bytes);
                io.stream(op, staging.freeze());
            }
            (None, _) => io.failed(op, failed("memory of a device that it does not know")),
            (_, Err(error)) => io.failed(op, error),
        }
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        let dest = match want {
            Want::Into(dest) => dest,
            Want::Adopt { len, device } => room_on(device, len as usize),
        };
        let (len, device) = (dest.len() as u64, Device::CPU);
        if io.receive(op, Want::Adopt { len, device }) {
            self.dests.insert(op, dest);
        }
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Err(ChannelFault("it has no control frames".to_owned()))
    }

    fn streamed(&mut self, op: OpId, staging: Option<BufferMut>, io: &mut LaneIo<'_>) {
        let Some(mut staging) = staging else {
            io.sent(op);
            return;
        };
        let Some(mut dest) = self.dests.remove(&op) else {
            return;
        };
        let bytes = staging.as_bytes_mut();
        if bytes.is_some_and(|bytes| fill(&mut dest, bytes)) {
            io.received(op, dest.freeze());
        } else {
            io.failed(op, failed("memory of a device that it does not know"));
        }
    }

    fn cancel(&mut self, op: OpId, _: &mut LaneIo<'_>) {
        self.dests.remove(&op);
    }
}
