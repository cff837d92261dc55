//! Copies on streams: to a device, from it, and between two.

#![allow(
    unsafe_code,
    reason = "copies take addresses, on devices and in main memory, as they are"
)]

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaStream, result};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::access::{foreign, reaches};
use super::fence::{lose, lost};
use super::memory::CudaMemory;
use super::{ContextGuard, CudaDevices, bind, failed};
use crate::device::{Buffer, BufferMut, Device, Fence, Memory, MemoryKind};
use crate::error::DeviceError;
use crate::sys::fork::Owner;
use crate::sys::workers;

/// Main memory of up to so many bytes is copied rather than registered.
const COPIED: usize = 64 << 10;

/// Longer memory that the devices do not reach is copied in pieces of so many bytes.
const PIECE: usize = 4 << 20;

/// How many pieces the CPU copies ahead of the device.
const AHEAD: usize = 3;

const LENGTHS: &str = "source and destination differ in length";

impl CudaDevices {
    /// Queues a copy of main memory into device memory of the same length. The result is ready when the copy is done; until then,
    /// `from` is kept. Memory that is not [pinned](Self::pinned) is first copied by the CPU, within the call, to memory that is.
    ///
    /// # Errors
    /// If the memory is of another kind, the lengths differ, the destination is shared, `stream` is of another device that does not reach
    /// it, or the driver refuses.
    pub fn upload(
        &self,
        from: &Buffer,
        to: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<Buffer, DeviceError> {
        let _mine = ContextGuard::keep();
        let device = to.device();
        let refused = |reason: &str| DeviceError::new(device, "upload", reason);
        let bytes = from
            .as_bytes()
            .ok_or_else(|| refused("the source is not in main memory"))?;
        if bytes.len() != to.len() {
            return Err(refused(LENGTHS));
        }
        if from.ready().is_some() {
            return Err(refused("the source is not ready yet: wait for its fence"));
        }
        if let Some(to) = CudaMemory::of(to.memory()) {
            reaches(stream, to)?;
        }
        let pinned = self.reached(from, device, false)?;
        let bytes = pinned.as_bytes().unwrap_or_default();
        self.fill(to, &pinned, stream, |address| {
            // SAFETY: the source is kept until the fence behind the copy, and its bytes do not change; the destination is as long, and
            // nobody else's.
            let copied = unsafe { result::memcpy_htod_async(address, bytes, stream.cu_stream()) };
            copied.map_err(|error| failed(device, "cuMemcpyHtoDAsync", error))
        })
    }

    /// Queues a copy between device memory of the same length, possibly on different devices.
    ///
    /// # Errors
    /// As [`upload`](Self::upload), but the devices need not reach each other.
    pub fn copy(
        &self,
        from: &Buffer,
        to: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<Buffer, DeviceError> {
        let _mine = ContextGuard::keep();
        let there = to.device();
        self.source(from, stream)?;
        self.fill(to, from, stream, |address| {
            self.queue_copy(from, there, address, stream)
        })
    }

    /// Queues a copy of device memory to an address on a device, behind the source's ready fence.
    pub(super) fn queue_copy(
        &self,
        from: &Buffer,
        there: Device,
        to: u64,
        stream: &Arc<CudaStream>,
    ) -> Result<(), DeviceError> {
        let (source, at) = self.source(from, stream)?;
        let target = self.opened(there)?;
        self.enable_peer_access(source.opened(), target);
        bind(stream)?;
        let (here, there_too) = (source.opened().context.cu_ctx(), target.context.cu_ctx());
        let (len, stream) = (from.len(), stream.cu_stream());
        if here == there_too {
            // SAFETY: the caller keeps both from being used again before the fence behind the copy, and the destination is as long.
            let copied = unsafe { result::memcpy_dtod_async(to, at, len, stream) };
            return copied.map_err(|error| failed(there, "cuMemcpyDtoDAsync", error));
        }
        // SAFETY: as above.
        let copied = unsafe { result::memcpy_peer_async(there_too, to, here, at, len, stream) };
        copied.map_err(|error| failed(there, "cuMemcpyPeerAsync", error))
    }

    /// Queues a copy of a device's memory into [pinned](Self::pinned) main memory, which comes with the result.
    ///
    /// # Errors
    /// If the memory is not of these devices, `stream` is of another device that does not reach it, there is no main memory for the copy,
    /// or the driver refuses.
    pub fn download(
        &self,
        from: &Buffer,
        stream: &Arc<CudaStream>,
    ) -> Result<Download, DeviceError> {
        let _mine = ContextGuard::keep();
        let to = self.pinned(from.device(), from.len())?;
        self.download_into(from, to, stream)
    }

    /// As [`download`](Self::download), into memory of the same length that the devices [reach](Self::reach).
    pub(crate) fn download_into(
        &self,
        from: &Buffer,
        mut to: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<Download, DeviceError> {
        let (source, at) = self.source(from, stream)?;
        reaches(stream, source)?;
        let device = from.device();
        let is_reached = self.make_reach(device, to.memory())?;
        let room = to.as_bytes_mut().filter(|room| room.len() == from.len());
        let Some(bytes) = room.filter(|_| is_reached) else {
            let reason = "the destination is not as long, or no device reaches it";
            return Err(DeviceError::new(device, "download", reason));
        };
        let event = Self::event(stream)?;
        bind(stream)?;
        // SAFETY: source and destination are kept until the fence behind the copy, and are as long.
        let copied = unsafe { result::memcpy_dtoh_async(bytes, at, stream.cu_stream()) };
        let queued = copied.map_err(|error| failed(device, "cuMemcpyDtoHAsync", error));
        let fence = queued.and_then(|()| self.record(event, stream));
        let fence = match fence {
            Ok(fence) => fence,
            Err(error) => {
                // The copy may be queued all the same, and nobody knows when it ends.
                std::mem::forget((to, from.clone()));
                return Err(error);
            }
        };
        from.use_until(&fence);
        Ok(Download {
            fence,
            to: Some(to),
            owner: Owner::here(),
        })
    }

    /// See [`Allocator::copy`](crate::device::Allocator::copy).
    pub(super) async fn copied(
        self,
        from: Vec<Buffer>,
        to: BufferMut,
    ) -> Result<Buffer, DeviceError> {
        let len = from.iter().map(Buffer::len).fold(0, usize::saturating_add);
        if len != to.len() {
            return Err(DeviceError::new(to.device(), "copy", LENGTHS));
        }
        match to.device().is_cpu() {
            true => self.downloaded(from, to).await,
            false => self.filled(from, to).await,
        }
    }

    /// Uses one stream. Long parts that no device reaches are copied piece by piece, so that only a few pieces are pinned.
    async fn filled(&self, from: Vec<Buffer>, to: BufferMut) -> Result<Buffer, DeviceError> {
        let (mut at, device) = (0, to.device());
        let begin = move |cuda: &Self| {
            let stream = cuda.stream(device)?;
            // Declared in this order: a write that is given up is fenced there before the stream goes back.
            Ok((cuda.write(to, &stream)?, stream))
        };
        let mut under_way = self.queue(0, device, begin).await?;
        let mut queued = VecDeque::new();
        for part in from {
            let step = match self.reaches(&part, device).await? {
                true => part.len().max(1),
                false => PIECE,
            };
            for start in (0..part.len()).step_by(step) {
                let piece = part.slice(start..part.len().min(start + step));
                let len = piece.len();
                let fill = move |_: &Self| Ok((under_way.0.fill(at, &piece)?, under_way));
                let fence;
                (fence, under_way) = self.queue(len, device, fill).await?;
                at += len;
                if step == PIECE {
                    queued.push_back(fence);
                }
                if queued.len() > AHEAD
                    && let Some(oldest) = queued.pop_front()
                {
                    oldest.when().await;
                }
            }
        }
        let _mine = ContextGuard::keep();
        let (write, _stream) = under_way;
        write.finish()
    }

    /// Whether a device can copy this part directly: other devices' memory, and main memory that is registered. Registers it if
    /// useful.
    async fn reaches(&self, part: &Buffer, device: Device) -> Result<bool, DeviceError> {
        let memory = part.memory();
        if !part.device().is_cpu() || self.reach(&**memory) {
            return Ok(true);
        }
        // Of a program's own, or for one copy only.
        if part.len() <= COPIED || memory.kind() == MemoryKind::Heap {
            return Ok(false);
        }
        let memory = memory.clone();
        let register = move |cuda: &Self| cuda.make_reach(device, &*memory);
        self.queue(part.len(), device, register).await
    }

    /// Straight into the destination, if a device reaches it; else piece by piece, so that little is pinned.
    async fn downloaded(&self, from: Vec<Buffer>, to: BufferMut) -> Result<Buffer, DeviceError> {
        if let Some(part) = from.iter().find(|part| part.device().is_cpu()) {
            let reason = "one of them is in main memory, as is where they go";
            return Err(DeviceError::new(part.device(), "copy", reason));
        }
        let mut to = to;
        if let [part] = &from[..]
            && part.len() > COPIED
        {
            let (part, len, device) = (part.clone(), part.len(), part.device());
            let begin = move |cuda: &Self| match cuda.make_reach(device, to.memory())? {
                true => cuda
                    .download_into(&part, to, &*cuda.stream(device)?)
                    .map(Ok),
                false => Ok(Err(to)),
            };
            match self.queue(len, device, begin).await? {
                Ok(copy) => return Ok(copied_to(copy).await?.freeze()),
                Err(unreached) => to = unreached,
            }
        }
        let pieces = from.iter().flat_map(|part| {
            let starts = (0..part.len()).step_by(PIECE);
            starts.map(|start| part.slice(start..part.len().min(start + PIECE)))
        });
        let mut at = 0;
        for piece in pieces {
            let (len, device) = (piece.len(), piece.device());
            let begin = move |cuda: &Self| cuda.download(&piece, &*cuda.stream(device)?);
            let copy = self.queue(len, device, begin).await?;
            let filled = copied_to(copy).await?.freeze();
            let fill = move |_: &Self| {
                let room = to.as_bytes_mut();
                let here = room.and_then(|room| room.get_mut(at..at + len));
                let here = here.zip(filled.as_bytes());
                let (here, bytes) = here.ok_or_else(|| DeviceError::new(device, "copy", GONE))?;
                here.copy_from_slice(bytes);
                Ok(to)
            };
            to = self.queue(len, device, fill).await?;
            at += len;
        }
        Ok(to.freeze())
    }

    /// Runs `act` for so many bytes; slow work runs on a thread for blocking work.
    async fn queue<T: Send + 'static>(
        &self,
        len: usize,
        device: Device,
        act: impl FnOnce(&Self) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let is_quick = len <= COPIED && self.has_stream(device);
        let cuda = self.clone();
        let act = move || {
            let _mine = ContextGuard::keep();
            act(&cuda)
        };
        if is_quick {
            return act();
        }
        let (tell, told) = oneshot::channel();
        workers::run(&Handle::current(), move || drop(tell.send(act())));
        let done = told.await;
        done.unwrap_or_else(|_| Err(DeviceError::new(device, "copy", "it panicked".to_owned())))
    }

    /// Main memory with the bytes of `from` that the devices reach: `from` itself, or pinned memory that the CPU has copied them to.
    /// With `register`, long memory is registered.
    pub(crate) fn reached(
        &self,
        from: &Buffer,
        device: Device,
        register: bool,
    ) -> Result<Buffer, DeviceError> {
        let register = register && from.len() > COPIED;
        if self.reach(&**from.memory()) || register && self.make_reach(device, &**from.memory())? {
            return Ok(from.clone());
        }
        let bytes = from.as_bytes().unwrap_or_default();
        let mut pinned = self.pinned(device, bytes.len())?;
        if let Some(room) = pinned.as_bytes_mut() {
            room.copy_from_slice(bytes);
        }
        Ok(pinned.freeze())
    }

    /// The memory of a source and its address; `stream` waits until the source is ready.
    pub(super) fn source<'a>(
        &self,
        from: &'a Buffer,
        stream: &Arc<CudaStream>,
    ) -> Result<(&'a CudaMemory, u64), DeviceError> {
        let known = CudaMemory::of(&**from.memory());
        let known = known.filter(|known| from.offset() + from.len() <= known.len());
        let known = known.ok_or_else(|| foreign(from.device()))?;
        if let Some(ready) = known.ready() {
            self.wait_for(stream, &*ready)?;
        }
        Ok((known, known.address() + from.offset() as u64))
    }

    /// Queues a copy of `from` into `to`, behind everything that uses `to`.
    fn fill(
        &self,
        mut to: BufferMut,
        from: &Buffer,
        stream: &Arc<CudaStream>,
        copy: impl FnOnce(u64) -> Result<(), DeviceError>,
    ) -> Result<Buffer, DeviceError> {
        let device = to.device();
        let refused = |reason: &str| DeviceError::new(device, "copy", reason);
        if to.len() != from.len() {
            return Err(refused(LENGTHS));
        }
        for fence in to.unfinished() {
            self.wait_for(stream, &*fence)?;
        }
        let memory = to
            .memory_mut()
            .ok_or_else(|| refused("the destination is shared"))?;
        let known = CudaMemory::of(memory).filter(|known| from.len() <= known.len());
        let known = known.filter(|known| !known.is_read_only());
        let address = known.ok_or_else(|| foreign(device))?.address();
        bind(stream)?;
        let event = Self::event(stream)?;
        match copy(address).and_then(|()| self.record(event, stream)) {
            Ok(fence) => {
                from.use_until(&fence);
                to.freeze_at(fence).map_err(|to| {
                    std::mem::forget(to);
                    refused("it keeps no fences")
                })
            }
            Err(error) => {
                // The copy may be queued all the same.
                from.use_until(&lost(&error));
                lose(to, &error);
                Err(error)
            }
        }
    }
}

/// Why a copy has brought nothing.
const GONE: &str = "its bytes are not there";

/// What a copy has filled, once it is done.
async fn copied_to(mut copy: Download) -> Result<BufferMut, DeviceError> {
    copy.fence().when().await;
    let gone = || DeviceError::new(Device::CPU, "download", GONE);
    copy.take()?.ok_or_else(gone)
}

/// A copy under way into main memory.
pub struct Download {
    fence: Arc<dyn Fence>,
    /// Nobody reads it before the fence is reached.
    to: Option<BufferMut>,
    owner: Owner,
}

impl Download {
    /// Reached when the copy is done.
    pub fn fence(&self) -> &Arc<dyn Fence> {
        &self.fence
    }

    /// The memory, once it is filled; `None` before that, and after it was taken.
    ///
    /// # Errors
    /// If the work before it failed: then the bytes never come.
    pub fn take(&mut self) -> Result<Option<BufferMut>, DeviceError> {
        match self.fence.reached() {
            None => Ok(None),
            Some(Ok(())) => Ok(self.to.take()),
            Some(Err(error)) => Err(error),
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        let Some(to) = self.to.take() else { return };
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.owner.is_other_process() {
            return std::mem::forget((to, self.fence.clone()));
        }
        let fence = self.fence.clone();
        self.fence
            .when_reached(Box::new(move || match fence.reached() {
                Some(Ok(())) => drop(to),
                // The device may still write there, and nobody knows until when.
                _ => std::mem::forget(to),
            }));
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Download({:?})", self.fence.reached())
    }
}
