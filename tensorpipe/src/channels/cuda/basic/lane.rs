//! One end of the channel on one pipe.

use std::collections::HashMap;

use super::receiving::Receiving;
use super::sending::{Ends, Sending};
use super::{
    Buffer, BufferMut, ChannelFault, Lane, LaneIo, OpId, PartKind, PieceEvent, Tools, Want,
};

pub(super) struct CudaBasicLane {
    tools: Tools,
    sending: HashMap<OpId, Sending>,
    receiving: HashMap<OpId, Receiving>,
}

impl CudaBasicLane {
    pub(super) fn new(tools: Tools) -> Self {
        Self {
            tools,
            sending: HashMap::new(),
            receiving: HashMap::new(),
        }
    }

    fn ended(&mut self, op: OpId, ends: Ends, io: &mut LaneIo<'_>) {
        match ends {
            Ends::GoesOn => {}
            Ends::Sent => {
                self.sending.remove(&op);
                io.sent(op);
            }
            Ends::Received(memory) => {
                self.receiving.remove(&op);
                io.received(op, memory);
            }
            Ends::Failed(error) => {
                self.cancel(op, io);
                io.failed(op, error);
            }
        }
    }
}

impl Lane for CudaBasicLane {
    fn carries(&self, source: &Buffer, kind: PartKind) -> bool {
        !source.device().is_cpu() || self.tools.inner.carries(source, kind)
    }

    fn send(&mut self, op: OpId, source: Buffer, _: &mut LaneIo<'_>) {
        self.sending.insert(op, Sending::new(source));
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        match Receiving::begin(op, want, &mut self.tools, io) {
            Ok(receiving) => drop(self.receiving.insert(op, receiving)),
            Err(error) => io.failed(op, error),
        }
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if !op.outgoing {
            return Err(ChannelFault("its writer has nothing to say".to_owned()));
        }
        match self.sending.get_mut(&op) {
            Some(sending) => sending.told(op, body, &mut self.tools, io),
            // It crossed the end of the operation.
            None => Ok(()),
        }
    }

    fn streamed(&mut self, _: OpId, _: Option<BufferMut>, _: &mut LaneIo<'_>) {}

    fn inner(
        &mut self,
        piece: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let op = piece.whole();
        let Some(number) = piece.number() else {
            return Ok(());
        };
        let tools = &mut self.tools;
        let ends = match (self.sending.get_mut(&op), self.receiving.get_mut(&op)) {
            (Some(sending), _) => sending.piece(op, number, event, tools, io)?,
            (None, Some(receiving)) => receiving.piece(op, number, event, tools, io)?,
            // It crossed the end of the operation.
            (None, None) => Ends::GoesOn,
        };
        self.ended(op, ends, io);
        Ok(())
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        if let Some(sending) = self.sending.remove(&op) {
            sending.cancel(op, &mut self.tools, io);
        }
        if let Some(receiving) = self.receiving.remove(&op) {
            receiving.cancel(op, &mut self.tools, io);
        }
    }
}
