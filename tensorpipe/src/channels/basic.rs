//! Main memory as DATA frames on the pipe's own connection: works everywhere, the reference for what a channel does.

use super::{Channel, ChannelFault, Lane, LaneIo, Link, OpId, Want};
use crate::device::{Buffer, Device};
use crate::error::Error;

/// Channel `basic`.
#[derive(Debug, Default)]
pub struct BasicChannel(());

impl BasicChannel {
    /// Works everywhere.
    pub fn new() -> Self {
        Self(())
    }
}

impl Channel for BasicChannel {
    fn name(&self) -> &'static str {
        "basic"
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        vec![(Device::CPU, b"any".to_vec())]
    }

    fn open(&self, _: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(BasicLane))
    }
}

struct BasicLane;

impl Lane for BasicLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        io.stream(op, source);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        io.receive(op, want);
    }

    fn control(&mut self, _: OpId, _: &[u8], _: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        Err(ChannelFault("it has no control frames".to_owned()))
    }

    fn cancel(&mut self, _: OpId, _: &mut LaneIo<'_>) {}
}
