//! One end of the channel on one pipe.

use std::collections::{HashMap, VecDeque};

use super::receiving::Receiving;
use super::sending::{Sending, TransferStatus};
use super::{Buffer, ChannelFault, Lane, LaneContext, LaneIo, OpId, PartKind, PieceEvent, Want};

pub(in crate::channels::cuda) struct CudaBasicLane {
    tools: LaneContext,
    sending: HashMap<OpId, Sending>,
    receiving: HashMap<OpId, Receiving>,
    /// Parts that wait for staging memory that others hold.
    waiting: VecDeque<OpId>,
}

impl CudaBasicLane {
    pub(super) fn new(tools: LaneContext) -> Self {
        Self {
            tools,
            sending: HashMap::new(),
            receiving: HashMap::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Parts that waited go on, as far as there is staging memory.
    fn others_go_on(&mut self, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        for _ in 0..self.waiting.len() {
            let Some(op) = self.waiting.pop_front() else {
                break;
            };
            if let Some(sending) = self.sending.get_mut(&op) {
                sending.go_on(op, &mut self.tools, io)?;
                if sending.waits() {
                    self.waiting.push_front(op);
                    break;
                }
            }
        }
        Ok(())
    }

    /// Queues the part, which may have to wait for others.
    fn queue(&mut self, op: OpId) {
        let waits = self.sending.get(&op).is_some_and(Sending::waits);
        if waits && !self.waiting.contains(&op) {
            self.waiting.push_back(op);
        }
    }

    fn ended(&mut self, op: OpId, ends: TransferStatus, io: &mut LaneIo<'_>) {
        match ends {
            TransferStatus::Pending => {}
            TransferStatus::Sent => {
                self.sending.remove(&op);
                io.sent(op);
            }
            TransferStatus::Received(memory) => {
                self.receiving.remove(&op);
                io.received(op, memory);
            }
            TransferStatus::Failed(error) => {
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
        // If there is none, the frame crossed the end of the operation.
        if let Some(sending) = self.sending.get_mut(&op) {
            sending.told(op, body, &mut self.tools, io)?;
        }
        self.queue(op);
        Ok(())
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if let Some(sending) = self.sending.get_mut(&op) {
            sending.go_on(op, &mut self.tools, io)?;
        }
        if let Some(receiving) = self.receiving.get_mut(&op) {
            let status = receiving.resume(op, &mut self.tools, io);
            self.ended(op, status, io);
        }
        self.queue(op);
        Ok(())
    }

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
            // The event crossed the end of the operation.
            (None, None) => TransferStatus::Pending,
        };
        self.ended(op, ends, io);
        self.queue(op);
        self.others_go_on(io)
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        if let Some(sending) = self.sending.remove(&op) {
            sending.cancel(op, &mut self.tools, io);
        }
        if let Some(receiving) = self.receiving.remove(&op) {
            receiving.cancel(op, &mut self.tools, io);
        }
        if let Err(fault) = self.others_go_on(io) {
            io.fault(op, fault);
        }
    }
}
