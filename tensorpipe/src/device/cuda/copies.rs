//! Copies on streams: to a device, from it, and between two.

#![allow(
    unsafe_code,
    reason = "copies take addresses, on devices and in main memory, as they are"
)]

use std::collections::VecDeque;
use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, result};

use super::access::foreign;
use super::memory::CudaMemory;
use super::{CudaDevices, Current, failed};
use crate::device::{Buffer, BufferMut, Device, Fence, Memory, MemoryKind};
use crate::error::DeviceError;
use crate::sys::fork::Owner;

/// Up to this length main memory is rather copied than registered, in bytes.
const COPIED: usize = 64 << 10;

/// In which longer memory is copied where the devices do not reach it, in bytes.
const PIECE: usize = 4 << 20;

/// So many pieces are copied ahead of the device.
const AHEAD: usize = 3;

const LENGTHS: &str = "source and destination differ in length";

impl CudaDevices {
    /// Queues a copy of main memory into as much of a device's. The result is ready when it is made; until then `from` is kept. The CPU
    /// copies what is not [pinned](Self::pinned) to memory that is, within the call.
    ///
    /// # Errors
    /// For other memory, or of other lengths; where the destination is shared; and when the driver refuses.
    pub fn upload(
        &self,
        from: &Buffer,
        to: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<Buffer, DeviceError> {
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
        let pinned = self.reached(from, device, false)?;
        let bytes = pinned.as_bytes().unwrap_or_default();
        self.fill(to, &pinned, stream, |address| {
            // SAFETY: the source is kept until the fence behind the copy, and its bytes do not change; the destination is as long, and
            // nobody else's.
            unsafe { result::memcpy_htod_async(address, bytes, stream.cu_stream()) }
        })
    }

    /// Queues a copy of a device's memory into as much of a device's, which may be another one.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn copy(
        &self,
        from: &Buffer,
        to: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<Buffer, DeviceError> {
        let (source, at) = self.source(from, stream)?;
        let (there, len) = (to.device(), from.len());
        let target = self.opened(there)?;
        self.introduce(source.opened(), target);
        self.fill(to, from, stream, |address| {
            let (from, to) = (source.opened().context.cu_ctx(), target.context.cu_ctx());
            let stream = stream.cu_stream();
            match from == to {
                // SAFETY: `from` is not used again before the fence behind the copy; the destination is as long, and nobody else's.
                true => unsafe { result::memcpy_dtod_async(address, at, len, stream) },
                // SAFETY: as above.
                false => unsafe { result::memcpy_peer_async(to, address, from, at, len, stream) },
            }
        })
    }

    /// Queues a copy of a device's memory into [pinned](Self::pinned) main memory, which comes with the result.
    ///
    /// # Errors
    /// For memory of something else than these devices, where there is no main memory for it, and when the driver refuses.
    pub fn download(
        &self,
        from: &Buffer,
        stream: &Arc<CudaStream>,
    ) -> Result<Download, DeviceError> {
        let to = self.pinned(from.device(), from.len())?;
        self.download_into(from, to, stream)
    }

    /// The same into as much memory that the devices [reach](Self::reach).
    pub(crate) fn download_into(
        &self,
        from: &Buffer,
        mut to: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<Download, DeviceError> {
        let (_, at) = self.source(from, stream)?;
        let device = from.device();
        let is_reached = self.make_reach(device, to.memory())?;
        let room = to.as_bytes_mut().filter(|room| room.len() == from.len());
        let Some(bytes) = room.filter(|_| is_reached) else {
            let reason = "the destination is not as long, or no device reaches it";
            return Err(DeviceError::new(device, "download", reason));
        };
        let event = Self::event(stream)?;
        let bound = stream.context().bind_to_thread();
        bound.map_err(|error| failed(device, "cuCtxSetCurrent", error))?;
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

    /// See [`Allocator::copy`](crate::Allocator::copy).
    pub(super) async fn copied(self, from: Buffer, to: BufferMut) -> Result<Buffer, DeviceError> {
        let refused = |reason| Err(DeviceError::new(from.device(), "copy", reason));
        match (from.device().is_cpu(), to.device().is_cpu()) {
            _ if from.len() != to.len() => refused(LENGTHS),
            (true, true) => refused("both are in main memory"),
            (true, false) => self.uploaded(from, to).await,
            (false, true) => self.downloaded(from, to).await,
            (false, false) => {
                let (len, device) = (from.len(), to.device());
                let queue = move |cuda: &Self| {
                    let stream = cuda.stream(device)?;
                    cuda.copy(&from, to, &stream)
                };
                self.queue(len, device, queue).await
            }
        }
    }

    /// What is long and no device reaches, piece by piece: so no more than a few of them are pinned.
    async fn uploaded(&self, from: Buffer, to: BufferMut) -> Result<Buffer, DeviceError> {
        let (len, device) = (from.len(), to.device());
        let source = from.clone();
        let begin = move |cuda: &Self| {
            let memory = &**source.memory();
            // What is the program's own is most likely gone soon: to register it is not worth it.
            let stays = len > COPIED && memory.kind() != MemoryKind::Heap;
            let is_reached = stays && cuda.make_reach(device, memory)? || cuda.reach(memory);
            let stream = cuda.stream(device)?;
            match is_reached || len <= PIECE {
                true => cuda.upload(&source, to, &stream).map(Ok),
                // In this order: what is given up is fenced before the stream goes back.
                false => Ok(Err((cuda.write(to, &stream)?, stream))),
            }
        };
        let mut under_way = match self.queue(len, device, begin).await? {
            Ok(whole) => return Ok(whole),
            Err(under_way) => under_way,
        };
        let mut queued = VecDeque::new();
        for at in (0..len).step_by(PIECE) {
            let piece = from.slice(at..len.min(at + PIECE));
            let fill = move |_: &Self| Ok((under_way.0.fill(at, &piece)?, under_way));
            let fence;
            (fence, under_way) = self.queue(len, device, fill).await?;
            queued.push_back(fence);
            if queued.len() > AHEAD
                && let Some(oldest) = queued.pop_front()
            {
                oldest.when().await;
            }
        }
        let _mine = Current::keep();
        let (write, _stream) = under_way;
        write.finish()
    }

    async fn downloaded(&self, from: Buffer, to: BufferMut) -> Result<Buffer, DeviceError> {
        let (len, device) = (from.len(), from.device());
        let begin = move |cuda: &Self| {
            let is_reached = len > COPIED && cuda.make_reach(device, to.memory())?;
            let stream = cuda.stream(device)?;
            match is_reached {
                true => Ok((cuda.download_into(&from, to, &stream)?, None)),
                false => Ok((cuda.download(&from, &stream)?, Some(to))),
            }
        };
        let (mut copy, to) = self.queue(len, device, begin).await?;
        copy.fence().when().await;
        let gone = move || DeviceError::new(device, "download", "its bytes are not there");
        let filled = copy.take()?.ok_or_else(gone)?.freeze();
        let Some(mut to) = to else {
            return Ok(filled);
        };
        let copy = move |_: &Self| {
            let (room, bytes) = (to.as_bytes_mut(), filled.as_bytes());
            room.zip(bytes)
                .map(|(room, bytes)| room.copy_from_slice(bytes))
                .ok_or_else(gone)?;
            Ok(to.freeze())
        };
        self.queue(len, device, copy).await
    }

    /// Does something about so many bytes; what takes long, on a thread for blocking work.
    async fn queue<T: Send + 'static>(
        &self,
        len: usize,
        device: Device,
        act: impl FnOnce(&Self) -> Result<T, DeviceError> + Send + 'static,
    ) -> Result<T, DeviceError> {
        let is_quick = len <= COPIED && self.has_stream(device);
        let cuda = self.clone();
        let act = move || {
            let _mine = Current::keep();
            act(&cuda)
        };
        if is_quick {
            return act();
        }
        let done = tokio::task::spawn_blocking(act).await;
        done.unwrap_or_else(|error| Err(DeviceError::new(device, "copy", error.to_string())))
    }

    /// Main memory with the bytes of `from` that the devices reach: itself, or pinned memory to which the CPU has copied them. With
    /// `register` it is registered, if it is long.
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

    /// The memory of a source and its address, for which `stream` waits until it is ready.
    fn source<'a>(
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

    /// Queues a copy of `from` that fills `to`, behind all that uses that.
    fn fill(
        &self,
        mut to: BufferMut,
        from: &Buffer,
        stream: &Arc<CudaStream>,
        copy: impl FnOnce(u64) -> Result<(), DriverError>,
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
        let bound = stream.context().bind_to_thread();
        bound.map_err(|error| failed(device, "cuCtxSetCurrent", error))?;
        let event = Self::event(stream)?;
        let copied = copy(address).map_err(|error| failed(device, "cuMemcpyAsync", error));
        let fence = copied.and_then(|()| self.record(event, stream));
        match fence {
            Ok(fence) => {
                from.use_until(&fence);
                to.freeze_at(fence).map_err(|to| {
                    std::mem::forget(to);
                    refused("it keeps no fences")
                })
            }
            Err(error) => {
                // The copy may be queued all the same, and nobody knows when it ends.
                std::mem::forget((to, from.clone()));
                Err(error)
            }
        }
    }
}

/// A copy under way into main memory.
pub struct Download {
    fence: Arc<dyn Fence>,
    /// Nobody looks at it before the fence is reached.
    to: Option<BufferMut>,
    owner: Owner,
}

impl Download {
    /// Reached when it is made.
    pub fn fence(&self) -> &Arc<dyn Fence> {
        &self.fence
    }

    /// The memory, once it is filled; `None` before, and when it was taken.
    ///
    /// # Errors
    /// Why the work before it failed: nothing comes.
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
        // CUDA does not outlive a fork: what a child has inherited it must not call.
        if self.owner.is_elsewhere() {
            return std::mem::forget((to, self.fence.clone()));
        }
        let fence = self.fence.clone();
        self.fence
            .when_reached(Box::new(move || match fence.reached() {
                Some(Ok(())) => drop(to),
                // Nobody knows whether the device writes there.
                _ => std::mem::forget(to),
            }));
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Download({:?})", self.fence.reached())
    }
}
