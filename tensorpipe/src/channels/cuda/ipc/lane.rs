//! One end of the channel on one pipe.

use super::frame::{FromReader, FromWriter};
use super::reading::Reader;
use super::writing::Writer;
use super::{Buffer, ChannelFault, Lane, LaneContext, LaneIo, OpId, PieceEvent, Want};

pub(super) struct CudaIpcLane {
    pub(super) tools: LaneContext,
    pub(super) writer: Writer,
    pub(super) reader: Reader,
}

impl Lane for CudaIpcLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.writer.send(op, source, &self.tools, io);
    }

    fn recv(&mut self, op: OpId, want: Want, _: &mut LaneIo<'_>) {
        self.reader.recv(op, want);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if !op.outgoing {
            let told = FromWriter::decode(body)?;
            return self.reader.told(op, told, &mut self.tools, io);
        }
        match FromReader::decode(body)? {
            Some(said) => self.writer.answered(op, said, &mut self.tools, io),
            None => self.tools.detour.control(op, body, io),
        }
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        match op.outgoing {
            true => self.writer.resume(op, &self.tools, io),
            false => self.reader.resume(op, &mut self.tools, io)?,
        }
        // The detour knows which operations are its own.
        self.tools.detour.resume(op, io)
    }

    fn inner(
        &mut self,
        piece: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        self.tools.detour.inner(piece, event, io)
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        match op.outgoing {
            true => self.writer.cancel(op, &self.tools, io),
            false => self.reader.cancel(op),
        }
        self.tools.detour.cancel(op, io);
    }
}
