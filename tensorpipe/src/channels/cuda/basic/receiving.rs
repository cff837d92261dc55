//! A part that is received.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::Want;
use super::frame::{Cut, Say, WINDOW};
use super::sending::{OwnStream, TransferStatus, piece};
use super::{
    Buffer, BufferMut, ChannelFault, Device, JobHandle, LaneContext, LaneIo, OpId, Outcome,
    PieceEvent, Room,
};
use crate::device::cuda::{CudaDevices, DeviceWrite, Windows};
use crate::device::{Destination, Fence};
use crate::error::{DeviceError, Error, Misuse};
use crate::sys::copy;

/// Up to this many bytes, the thread that drives the pipe copies a piece that no device reaches, to memory that the devices reach.
const COPIED_AT_ONCE: usize = 64 << 10;

/// Bytes that the CPU copies at once: some tens of microseconds.
const AT_ONCE: usize = 256 << 10;

/// See the module's documentation.
pub(super) struct Receiving {
    cut: Cut,
    /// How many pieces the writer may send.
    allowed: u16,
    pieces: BTreeMap<u16, Piece>,
    dest: Dest,
}

/// The memory to fill.
enum Dest {
    /// The inner lane provides the reader's memory.
    InInnerLane,
    /// A device's, which is being made.
    Making(CudaDevices, JobHandle<BufferMut, Error>),
    Device(Filling),
    /// Main memory, and how many pieces are missing.
    Main(Windows, u16),
}

impl Dest {
    /// The destination in main memory for a piece, if main memory is filled.
    fn place(&self, range: Range<usize>) -> Option<Destination> {
        match self {
            Self::Main(windows, _) => Some(windows.range(range)),
            Self::InInnerLane | Self::Making(..) | Self::Device(_) => None,
        }
    }
}

/// A piece on its way.
enum Piece {
    /// The inner lane has it.
    InInnerLane,
    /// The CPU copies it to its place in main memory.
    Placing(JobHandle<()>),
    /// Its copy to the device is being queued.
    Queueing(JobHandle<Queued>),
    /// Its copy is queued up to this fence.
    Copying(Arc<dyn Fence>),
}

/// A piece whose copy is queued.
struct Queued {
    fence: Arc<dyn Fence>,
    /// The finished part, if this was the last piece.
    whole: Option<Buffer>,
}

impl Receiving {
    /// Tells the writer's lane to begin, as soon as there is memory.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn begin(
        op: OpId,
        want: Want,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> Result<Self, Error> {
        let (len, device) = match &want {
            Want::Into(dest) => (dest.len() as u64, dest.device()),
            Want::Adopt { len, device } => (*len, *device),
        };
        let adopts = tools.adopts && matches!(want, Want::Adopt { .. });
        let cut = Cut::new(len);
        if device.is_cpu() && (adopts || cut.count() == 1) {
            let cut = Cut::whole(len);
            io.control(op, Say::begin(cut, 1).encode());
            tools.inner.recv(piece(op, 1), want, io);
            return Ok(Self {
                cut,
                allowed: 1,
                pieces: BTreeMap::from([(1, Piece::InInnerLane)]),
                dest: Dest::InInnerLane,
            });
        }
        let cuda = match device.is_cpu() {
            true => None,
            false => Some(tools.cuda(device)?.clone()),
        };
        let wrong = |reason| tools.failed(&DeviceError::new(device, "receive", reason));
        let dest = match (want, cuda) {
            (Want::Adopt { .. }, None) => {
                Dest::Main(Windows::over(io.reserve(op, len)?), cut.count())
            }
            (Want::Into(mut dest), None) => {
                if dest.as_bytes_mut().is_none() {
                    return Err(wrong("it is no main memory that can be written"));
                }
                Dest::Main(Windows::over(dest.into()), cut.count())
            }
            (want, Some(cuda)) => {
                let room = match want {
                    Want::Into(dest) => Room::Warm(dest),
                    Want::Adopt { .. } => io.room(op, device, len)?,
                };
                match room {
                    Room::Warm(dest) => Dest::Device(Filling::new(cuda, dest, cut.count())),
                    cold => {
                        let make = move || cold.take();
                        Dest::Making(cuda, JobHandle::of(op, false, &tools.handle, io, make))
                    }
                }
            }
        };
        let mut receiving = Self {
            cut,
            allowed: 0,
            pieces: BTreeMap::new(),
            dest,
        };
        if !matches!(receiving.dest, Dest::Making(..)) {
            receiving.start(op, tools, io);
        }
        Ok(receiving)
    }

    /// The memory is there: the writer may send the first pieces.
    fn start(&mut self, op: OpId, tools: &mut LaneContext, io: &mut LaneIo<'_>) {
        let allowed = self.cut.count().min(WINDOW);
        io.control(op, Say::begin(self.cut, allowed).encode());
        (0..allowed).for_each(|_| self.allow_one(op, tools, io));
    }

    /// The memory may have been made.
    pub(super) fn resume(
        &mut self,
        op: OpId,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> TransferStatus {
        let Dest::Making(cuda, making) = &self.dest else {
            return TransferStatus::Pending;
        };
        match making.take() {
            None => {}
            Some(Err(error)) => return TransferStatus::Failed(error),
            Some(Ok(dest)) => {
                self.dest = Dest::Device(Filling::new(cuda.clone(), dest, self.cut.count()));
                self.start(op, tools, io);
            }
        }
        TransferStatus::Pending
    }

    fn allow_one(&mut self, op: OpId, tools: &mut LaneContext, io: &mut LaneIo<'_>) {
        self.allowed += 1;
        let number = self.allowed;
        self.pieces.insert(number, Piece::InInnerLane);
        let range = self.cut.range(number);
        let want = Want::Adopt {
            len: range.len() as u64,
            device: Device::CPU,
        };
        let (inner, named) = (&mut tools.inner, piece(op, number));
        let recv = |io: &mut LaneIo<'_>| inner.recv(named, want, io);
        io.with_place(named, self.dest.place(range), recv);
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
        let place = || self.dest.place(self.cut.range(number));
        match (self.pieces.get_mut(&number), event) {
            _ if number > self.allowed => {
                return Err(ChannelFault(format!("piece {number} is not allowed yet")));
            }
            (Some(at @ Piece::InInnerLane), PieceEvent::Ended(outcome)) => {
                match (outcome, &mut self.dest) {
                    (Outcome::Failed(error), _) => {
                        self.pieces.remove(&number);
                        return Ok(TransferStatus::Failed(error));
                    }
                    (Outcome::Received(memory), Dest::InInnerLane) => {
                        return Ok(TransferStatus::Received(memory));
                    }
                    (Outcome::Received(memory), Dest::Main(windows, _)) => {
                        let range = self.cut.range(number);
                        if !windows.has(range.clone(), &memory) {
                            match put(named, memory, windows.range(range), tools, io) {
                                Ok(placing) => *at = Piece::Placing(placing),
                                Err(error) => return Ok(TransferStatus::Failed(error)),
                            }
                            return Ok(TransferStatus::Pending);
                        }
                        drop(memory);
                        return Ok(self.placed(op, number, tools, io));
                    }
                    (Outcome::Received(staged), Dest::Device(dest)) => {
                        let start = self.cut.range(number).start;
                        *at = Piece::Queueing(dest.fill(named, start, staged, tools, io));
                    }
                    (Outcome::Received(_), Dest::Making(..)) | (Outcome::Sent, _) => {}
                }
            }
            (Some(Piece::InInnerLane), event) => tools.call_inner(named, place(), event, io)?,
            (Some(_), PieceEvent::Resume) => return Ok(self.copied(op, named, number, tools, io)),
            // The event crossed the end of the piece.
            _ => {}
        }
        Ok(TransferStatus::Pending)
    }

    /// A piece is where it belongs in main memory.
    fn placed(
        &mut self,
        op: OpId,
        number: u16,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> TransferStatus {
        self.pieces.remove(&number);
        if let Dest::Main(_, missing) = &mut self.dest {
            *missing -= 1;
            if *missing == 0 {
                return self.whole(tools);
            }
        }
        if self.allowed < self.cut.count() {
            io.control(op, Say::Allow(self.allowed + 1).encode());
            self.allow_one(op, tools, io);
        }
        TransferStatus::Pending
    }

    /// All pieces are in their windows.
    fn whole(&mut self, tools: &LaneContext) -> TransferStatus {
        let whole = match std::mem::replace(&mut self.dest, Dest::InInnerLane) {
            Dest::Main(windows, _) => windows.into_whole(),
            _ => None,
        };
        match whole {
            Some(whole) => TransferStatus::Received(whole.freeze()),
            None => {
                let reason = "a channel keeps part of what it has filled";
                TransferStatus::Failed(tools.failed(&DeviceError::new(
                    Device::CPU,
                    "receive",
                    reason,
                )))
            }
        }
    }

    /// A piece's copy has got further.
    fn copied(
        &mut self,
        op: OpId,
        named: OpId,
        number: u16,
        tools: &mut LaneContext,
        io: &mut LaneIo<'_>,
    ) -> TransferStatus {
        let failed = |error: DeviceError| TransferStatus::Failed(tools.failed(&error));
        let Some(at) = self.pieces.get_mut(&number) else {
            return TransferStatus::Pending;
        };
        if let Piece::Placing(slot) = at {
            return match slot.take() {
                None => TransferStatus::Pending,
                Some(Err(error)) => failed(error),
                Some(Ok(())) => self.placed(op, number, tools, io),
            };
        }
        if let Piece::Queueing(slot) = at {
            match slot.take() {
                None => return TransferStatus::Pending,
                Some(Err(error)) => return failed(error),
                Some(Ok(Queued {
                    whole: Some(whole), ..
                })) => return TransferStatus::Received(whole),
                Some(Ok(Queued { fence, .. })) => *at = Piece::Copying(fence),
            }
        }
        let Piece::Copying(fence) = at else {
            return TransferStatus::Pending;
        };
        match fence.reached() {
            // The writer may already send all pieces, and waits for no more.
            _ if self.allowed == self.cut.count() => {}
            None => {
                tools.handle.resume_at(named, fence);
                return TransferStatus::Pending;
            }
            Some(Err(error)) => return failed(error),
            Some(Ok(())) => {
                io.control(op, Say::Allow(self.allowed + 1).encode());
                self.allow_one(op, tools, io);
            }
        }
        self.pieces.remove(&number);
        io.release(named);
        TransferStatus::Pending
    }

    /// Nobody waits for it any more.
    pub(super) fn cancel(self, op: OpId, tools: &mut LaneContext, io: &mut LaneIo<'_>) {
        for (number, state) in self.pieces {
            if let Piece::InInnerLane = state {
                tools.inner.cancel(piece(op, number), io);
            }
        }
    }
}

/// Has a piece copied into its place, without the pipe's lock: an inner channel may return other memory than it was given.
fn put(
    piece: OpId,
    memory: Buffer,
    place: Destination,
    tools: &LaneContext,
    io: &mut LaneIo<'_>,
) -> Result<JobHandle<()>, Error> {
    let len = memory.len();
    if place.len() != len {
        let text = format!("a piece of {len} bytes came for a place of {}", place.len());
        return Err(Misuse::Other(text).into());
    }
    let mut room = io.with_place(piece, Some(place), |io| {
        io.allocate(piece, Device::CPU, len as u64)
    })?;
    io.copied(len as u64);
    let mut done = 0;
    Ok(JobHandle::by_steps(piece, &tools.handle, io, move || {
        let end = len.min(done + AT_ONCE);
        let (Some(from), Some(to)) = (memory.as_bytes(), room.as_bytes_mut()) else {
            let reason = "a piece of main memory came in other memory";
            return Some(Err(DeviceError::new(memory.device(), "receive", reason)));
        };
        copy::copy(&from[done..end], &mut to[done..end]);
        done = end;
        (done == len).then_some(Ok(()))
    }))
}

/// Memory of a device that is filled in pieces.
struct Filling {
    device: Device,
    cuda: CudaDevices,
    /// Declared before the stream: a write that is given up is fenced there before the stream goes back.
    state: Arc<Mutex<State>>,
    stream: OwnStream,
}

struct State {
    /// Until the first piece has arrived.
    untouched: Option<BufferMut>,
    /// From then on, until the last one is queued.
    write: Option<DeviceWrite>,
    /// Why there is no write.
    failed: Option<DeviceError>,
    /// Pieces whose copy is not queued yet.
    left: u16,
}

impl Filling {
    fn new(cuda: CudaDevices, dest: BufferMut, pieces: u16) -> Self {
        Self {
            device: dest.device(),
            cuda,
            stream: OwnStream::default(),
            state: Arc::new(Mutex::new(State {
                untouched: Some(dest),
                write: None,
                failed: None,
                left: pieces,
            })),
        }
    }

    /// Queues the copy of the piece that begins at `start`.
    fn fill(
        &self,
        piece: OpId,
        start: usize,
        staged: Buffer,
        tools: &LaneContext,
        io: &mut LaneIo<'_>,
    ) -> JobHandle<Queued> {
        let is_reached = staged.len() <= COPIED_AT_ONCE || self.cuda.reach(&**staged.memory());
        let is_quick = is_reached && self.stream.is_warm(&self.cuda, self.device);
        let (cuda, device) = (self.cuda.clone(), self.device);
        let (stream, state) = (self.stream.clone(), self.state.clone());
        JobHandle::of(piece, is_quick, &tools.handle, io, move || {
            let staged = cuda.reached(&staged, device, true)?;
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(dest) = state.untouched.take() {
                match stream.with(&cuda, device, |stream| cuda.write(dest, stream)) {
                    Ok(write) => state.write = Some(write),
                    Err(error) => state.failed = Some(error),
                }
            }
            let Some(write) = &state.write else {
                // The first failed piece gives the reason.
                let gone = || DeviceError::new(device, "upload", "it is over");
                return Err(state.failed.clone().unwrap_or_else(gone));
            };
            let fence = write.fill(start, &staged)?;
            state.left -= 1;
            let whole = match state.left {
                0 => state.write.take().map(DeviceWrite::finish).transpose()?,
                _ => None,
            };
            Ok(Queued { fence, whole })
        })
    }
}
