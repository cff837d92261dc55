//! A part that is sent.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::sync::{Arc, Mutex, PoisonError};

use super::frame::{self, Cut, Say, WINDOW};
use super::{
    Buffer, BufferMut, ChannelFault, JobHandle, LaneContext, LaneIo, OpId, Outcome, PieceEvent,
};
use crate::device::cuda::{BorrowedStream, CudaDevices, Download};
use crate::device::{Device, Fence, Pool};
use crate::error::{DeviceError, Error};

/// The most staging memory of all pieces that a lane sends at once, in bytes; a single longer piece may exceed it. Chosen.
const STAGED: usize = 256 << 20;

/// For one part, the most bytes of control frames from the peer's inner lane about pieces that this side's inner lane does not have yet.
const EARLY: usize = 16 << 10;

/// The stream of one transfer, made by the first that needs it.
#[derive(Clone, Default)]
pub(super) struct OwnStream(Arc<Mutex<Option<BorrowedStream>>>);

impl OwnStream {
    /// Whether the driver need not create one.
    pub(super) fn is_warm(&self, cuda: &CudaDevices, device: Device) -> bool {
        // If the lock is taken, its holder is about to have made one.
        let known = self.0.try_lock().is_ok_and(|stream| stream.is_some());
        known || cuda.has_stream(device)
    }

    pub(super) fn with<R>(
        &self,
        cuda: &CudaDevices,
        device: Device,
        act: impl FnOnce(&BorrowedStream) -> Result<R, DeviceError>,
    ) -> Result<R, DeviceError> {
        let mut stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = match &mut *stream {
            Some(stream) => stream,
            none => none.insert(cuda.stream(device)?),
        };
        act(stream)
    }
}

/// See the module's documentation.
pub(super) struct Sending {
    source: Buffer,
    /// Once the reader has said so: how the part is cut, and how many pieces may be sent.
    told: Option<(Cut, u16)>,
    /// How many pieces were begun, and how many are sent.
    begun: u16,
    sent: u16,
    pieces: BTreeMap<u16, Piece>,
    /// Control frames about pieces that the inner lane does not have yet.
    early: Vec<(u16, Vec<u8>)>,
    stream: OwnStream,
    /// Waits for staging memory that other transfers hold.
    waits: bool,
    /// It is to be resumed when its source is ready. Once is enough, however often the reader allows more meanwhile.
    awaits_ready: bool,
}

/// A piece on its way.
enum Piece {
    /// Its copy to main memory is being queued.
    Queueing(JobHandle<Download>),
    /// It is queued.
    Copying(Download),
    /// The inner lane has it.
    InInnerLane,
}

/// How a transfer goes on.
#[derive(Debug)]
pub(super) enum TransferStatus {
    Pending,
    Sent,
    Received(Buffer),
    Failed(Error),
}

impl Sending {
    pub(super) fn new(source: Buffer) -> Self {
        Self {
            source,
            told: None,
            begun: 0,
            sent: 0,
            pieces: BTreeMap::new(),
            early: Vec::new(),
            stream: OwnStream::default(),
            waits: false,
            awaits_ready: false,
        }
    }

    /// Handles a frame of the reader's lane.
    pub(super) fn told(
        &mut self,
        op: OpId,
        body: &[u8],
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let (said, len) = (Say::decode(body)?, self.source.len() as u64);
        // Main memory is not copied, and a reader that gets this side's memory itself wants it in one piece.
        let most = match self.source.device().is_cpu() || tools.adopts {
            true => u64::MAX,
            false => Cut::most(len),
        };
        self.told = Some(frame::told(self.told, said, len, most)?);
        self.go_on(op, tools, io)
    }

    /// Whether it waits for staging memory that other transfers hold.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Begins the pieces that may be begun.
    pub(super) fn go_on(
        &mut self,
        op: OpId,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let Some((cut, allowed)) = self.told else {
            return Ok(());
        };
        let is_main = self.source.device().is_cpu();
        // A stream waits by itself for CUDA's fences. But a source that is not ready must not take the last staging memory, which
        // others need.
        self.waits = false;
        let must_wait = |ready: &Arc<dyn Fence>| {
            let waits = |cuda: &CudaDevices| cuda.can_wait_for(&**ready);
            !tools.cuda.as_ref().is_some_and(waits) || !is_main && tools.staged >= STAGED / 2
        };
        let ready = self.source.ready().filter(must_wait);
        if let Some(ready) = ready.filter(|ready| ready.reached().is_none()) {
            if !std::mem::replace(&mut self.awaits_ready, true) {
                tools.handle.resume_at(op, &ready);
            }
            return Ok(());
        }
        self.awaits_ready = false;
        while self.begun < allowed && self.pieces.len() < usize::from(WINDOW) {
            let len = cut.range(self.begun + 1).len();
            if !is_main && tools.staged > 0 && tools.staged + len > STAGED {
                self.waits = true;
                return Ok(());
            }
            self.begun += 1;
            let source = self.source.slice(cut.range(self.begun));
            if is_main {
                self.hand_in(op, self.begun, source, tools, io)?;
            } else {
                let Some(cuda) = tools.cuda.clone() else {
                    let device = self.source.device();
                    return Err(ChannelFault(format!("this end has no {device}")));
                };
                tools.staged += len;
                let copy = self.copy(piece(op, self.begun), source, cuda, tools, io);
                self.pieces.insert(self.begun, Piece::Queueing(copy));
            }
        }
        Ok(())
    }

    /// Gives the inner lane a piece, and the control frames that came for it earlier.
    fn hand_in(
        &mut self,
        op: OpId,
        number: u16,
        source: Buffer,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        let named = piece(op, number);
        self.pieces.insert(number, Piece::InInnerLane);
        tools.inner.send(named, source, io);
        let early = self.early.extract_if(.., |(of, _)| *of == number);
        for (_, body) in early.collect::<Vec<_>>() {
            tools.inner.control(named, &body, io)?;
        }
        Ok(())
    }

    /// Has a piece copied to main memory.
    fn copy(
        &self,
        piece: OpId,
        source: Buffer,
        cuda: CudaDevices,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) -> JobHandle<Download> {
        let (pool, stream) = (tools.pool.clone(), self.stream.clone());
        let warm = pool.take_free_lendable(source.len());
        let warm = warm.filter(|warm| cuda.reach(warm.memory()));
        let is_quick = warm.is_some() && stream.is_warm(&cuda, source.device());
        JobHandle::of(piece, is_quick, &tools.handle, io, move || {
            let device = source.device();
            let room = match warm {
                Some(warm) => warm,
                None => staging(&cuda, &pool, device, source.len())?,
            };
            stream.with(&cuda, device, |stream| {
                cuda.download_into(&source, room, stream)
            })
        })
    }

    /// Handles an event about one of its pieces.
    pub(super) fn piece(
        &mut self,
        op: OpId,
        number: NonZeroU16,
        event: PieceEvent<'_>,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<TransferStatus, ChannelFault> {
        let named = op.piece(number);
        let number = number.get();
        let allowed = self.told.map_or(0, |(_, allowed)| allowed);
        match (self.pieces.get_mut(&number), event) {
            (Some(Piece::InInnerLane), PieceEvent::Ended(outcome)) => {
                self.end(number, tools);
                match outcome {
                    Outcome::Failed(error) => return Ok(TransferStatus::Failed(error)),
                    Outcome::Sent | Outcome::Received(_) => self.sent += 1,
                }
                if self.told.is_some_and(|(cut, _)| self.sent == cut.count()) {
                    return Ok(TransferStatus::Sent);
                }
                self.go_on(op, tools, io)?;
            }
            (Some(Piece::InInnerLane), event) => tools.call_inner(named, None, event, io)?,
            (Some(Piece::Queueing(_) | Piece::Copying(_)), PieceEvent::Resume) => {
                return self.copied(op, number, tools, io);
            }
            // The inner lane does not have the piece yet, and gets this together with it.
            (found, PieceEvent::Control(body)) if found.is_some() || number > self.begun => {
                let before: usize = self.early.iter().map(|(_, body)| body.len() + 32).sum();
                if number > allowed || before + body.len() > EARLY {
                    return Err(ChannelFault(format!("too much about piece {number}")));
                }
                self.early.push((number, body.to_vec()));
            }
            // The event crossed the end of the piece.
            _ => {}
        }
        Ok(TransferStatus::Pending)
    }

    /// A piece's copy to main memory has got further.
    fn copied(
        &mut self,
        op: OpId,
        number: u16,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<TransferStatus, ChannelFault> {
        let Some(at) = self.pieces.get_mut(&number) else {
            return Ok(TransferStatus::Pending);
        };
        if let Piece::Queueing(slot) = at {
            match slot.take() {
                None => return Ok(TransferStatus::Pending),
                Some(Err(error)) => return Ok(TransferStatus::Failed(tools.failed(&error))),
                Some(Ok(copy)) => *at = Piece::Copying(copy),
            }
        }
        let Piece::Copying(copy) = at else {
            return Ok(TransferStatus::Pending);
        };
        match copy.take() {
            Err(error) => return Ok(TransferStatus::Failed(tools.failed(&error))),
            Ok(None) => {
                tools.handle.resume_at(piece(op, number), copy.fence());
            }
            Ok(Some(staged)) => self.hand_in(op, number, staged.freeze(), tools, io)?,
        }
        Ok(TransferStatus::Pending)
    }

    /// A piece does not need this side's staging memory any more.
    fn end(&mut self, number: u16, tools: &mut LaneContext) {
        self.pieces.remove(&number);
        tools.staged -= self.staged_by(number);
    }

    /// The staging memory of a piece, in bytes.
    fn staged_by(&self, number: u16) -> usize {
        match self.told {
            Some((cut, _)) if !self.source.device().is_cpu() => cut.range(number).len(),
            _ => 0,
        }
    }

    /// Nobody waits for it any more.
    pub(super) fn cancel(self, op: OpId, tools: &mut LaneContext, io: &mut LaneIo<'_>) {
        let staged = self.pieces.keys().map(|number| self.staged_by(*number));
        tools.staged -= staged.sum::<usize>();
        for (number, state) in self.pieces {
            if let Piece::InInnerLane = state {
                tools.inner.cancel(piece(op, number), io);
            }
        }
    }
}

/// Piece `number` of a part, from 1 on.
pub(super) fn piece(op: OpId, number: u16) -> OpId {
    NonZeroU16::new(number).map_or(op, |number| op.piece(number))
}

/// Lendable main memory that the devices reach; if there is none, memory that the devices reach.
fn staging(
    cuda: &CudaDevices,
    pool: &Pool,
    device: Device,
    len: usize,
) -> Result<BufferMut, DeviceError> {
    if let Ok(room) = pool.try_take_lendable(len)
        && cuda.make_reach(device, room.memory())?
    {
        return Ok(room);
    }
    cuda.pinned(device, len)
}
