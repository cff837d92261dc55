//! Memory for a program's own work on streams: slices of cudarc's, and raw addresses.

#![allow(unsafe_code, reason = "a copy takes addresses as they are")]

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, result};

use super::captures::after_capture;
use super::fence::{lose, lost};
use super::memory::CudaMemory;
use super::{ContextGuard, CudaDevices, Kept, Opened, bind, enter, failed, forget_error, wait_for};
use crate::device::{Buffer, BufferMut, Device, Fence, Memory};
use crate::error::DeviceError;

impl CudaDevices {
    /// Makes a buffer that owns a slice. Nothing is copied; the buffer is ready behind what the slice's stream has queued by now.
    ///
    /// # Errors
    /// If the slice is of another context than a device's primary one, or of each thread's own stream (`CU_STREAM_PER_THREAD`), and if
    /// the driver refuses.
    pub fn buffer<T: bytemuck::Pod + Send + Sync>(
        &self,
        mut slice: CudaSlice<T>,
    ) -> Result<Buffer, DeviceError> {
        let _mine = ContextGuard::keep();
        let device = Self::device(slice.ordinal() as u32);
        let opened = self.opened(device)?;
        if slice.context() != &*opened.context {
            let reason =
                "the slice is of a context of its own: make it in the device's primary one";
            return Err(DeviceError::new(device, "buffer", reason));
        }
        let stream = slice.stream().clone();
        check(&stream, "buffer")?;
        // Behind other streams' work on it, as far as cudarc knows of that. It keeps its errors in the context: the stream's, which may be
        // another object than ours.
        forget_error(stream.context());
        let address = slice.device_ptr_mut(&stream).0;
        let waits = stream.context().check_err();
        waits.map_err(|error| failed(device, "cuStreamWaitEvent", error))?;
        let len = slice.num_bytes();
        let fence = self.fence(&stream)?;
        let memory = CudaMemory::of_slice(opened, Box::new(slice), address, len);
        memory.set_ready(fence);
        Ok(Buffer::new(Arc::new(memory)))
    }

    /// A buffer over memory of the stream's device that somebody else owns, by address and length in bytes. It is ready behind what
    /// `stream` has queued by now. The owner is dropped when nobody has a handle on the buffer and no work on it is unfinished, on
    /// a thread of this crate's: it may wait, but other memory is freed after it. Memory that other processes may map can be lent to
    /// them (`cuMemCreate` with a descriptor, as for PyTorch's expandable segments): a loan counts as such work.
    ///
    /// # Safety
    /// The memory exists as long as the owner, in the device's primary context. Nobody writes there, except for work that `stream` has
    /// queued by now.
    ///
    /// # Errors
    /// If the stream is of another context than a device's primary one; if the driver does not know the memory, or it belongs to
    /// another device than the stream; and if the driver refuses.
    pub unsafe fn borrow(
        &self,
        owner: impl Send + Sync + 'static,
        address: CUdeviceptr,
        len: usize,
        stream: &Arc<CudaStream>,
    ) -> Result<Buffer, DeviceError> {
        let opened = self.opened(Self::device(stream.context().ordinal() as u32))?;
        if stream.context() != &*opened.context {
            let reason =
                "the stream is of a context of its own: make it in the device's primary one";
            return Err(DeviceError::new(opened.device, "borrow", reason));
        }
        if len > 0 {
            let found = device_of(opened, address)?;
            if found != opened.device {
                let reason = format!("the memory is of {found}, the stream is not");
                return Err(DeviceError::new(opened.device, "borrow", reason));
            }
        }
        let fence = self.fence(stream)?;
        let memory = CudaMemory::foreign(opened, Box::new(owner), address, len);
        memory.set_ready(fence);
        Ok(Buffer::new(Arc::new(memory)))
    }

    /// The slice that a buffer was [made](Self::buffer) of, if the buffer is all of it and nobody else holds it. Everything that the
    /// slice's stream queues from now on runs behind all work on it.
    ///
    /// # Errors
    /// The buffer itself in all other cases, and if the driver refuses: see [`read`](Self::read).
    pub fn into_slice<T: bytemuck::Pod>(&self, mut buffer: Buffer) -> Result<CudaSlice<T>, Buffer> {
        let _mine = ContextGuard::keep();
        Self::take_slice(&mut buffer).ok_or(buffer)
    }

    fn take_slice<T: bytemuck::Pod>(buffer: &mut Buffer) -> Option<CudaSlice<T>> {
        let is_whole = buffer.len() == buffer.memory().len();
        let memory = buffer.memory_mut().filter(|_| is_whole)?;
        // All of it: nobody else has a handle, to queue more.
        let unfinished = memory.work()?.unfinished();
        let memory = memory.as_any_mut().downcast_mut::<CudaMemory>()?;
        let stream = memory.stream()?.clone();
        let mut waits = unfinished.iter();
        waits
            .try_for_each(|fence| wait_for(&stream, &**fence))
            .ok()?;
        // Tells cudarc to order its other streams' work on the slice behind that, too. It keeps its errors in the context.
        forget_error(stream.context());
        drop(memory.slice_mut::<T>()?.device_ptr_mut(&stream).1);
        stream.context().check_err().ok()?;
        memory.take_slice()
    }

    /// The address of a buffer's bytes, for work on `stream` that reads them. That work runs behind the fence that the bytes are
    /// ready behind. When the result is dropped, the memory is kept until everything then queued on `stream` is done, and no graph is
    /// being captured there.
    ///
    /// # Errors
    /// If the memory is not of these devices, its bytes never came, `stream` is each thread's own (`CU_STREAM_PER_THREAD`) or of another
    /// device that does not reach the memory, or the driver refuses.
    pub fn read(
        &self,
        buffer: &Buffer,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceRead, DeviceError> {
        check(stream, "read")?;
        let _mine = ContextGuard::keep();
        let known = CudaMemory::of(&**buffer.memory());
        let known = known.filter(|known| buffer.offset() + buffer.len() <= known.len());
        let known = known.ok_or_else(|| foreign(buffer.device()))?;
        reaches(stream, known)?;
        if let Some(ready) = known.ready() {
            wait_for(stream, &*ready)?;
        }
        Ok(DeviceRead {
            address: known.address() + buffer.offset() as u64,
            buffer: buffer.clone(),
            stream: Kept::new(stream.clone()),
            cuda: self.clone(),
        })
    }

    /// The address of memory, for work on `stream` that fills it. That work runs behind everything that still uses the memory.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(
        &self,
        mut memory: BufferMut,
        stream: &Arc<CudaStream>,
    ) -> Result<DeviceWrite, DeviceError> {
        check(stream, "write")?;
        let _mine = ContextGuard::keep();
        for fence in memory.unfinished() {
            wait_for(stream, &*fence)?;
        }
        let device = memory.device();
        let known = memory
            .memory_mut()
            .and_then(|memory| CudaMemory::of(memory))
            .filter(|known| !known.is_read_only());
        let known = known.ok_or_else(|| foreign(device))?;
        reaches(stream, known)?;
        let address = known.address();
        Ok(DeviceWrite {
            address,
            memory: Some(memory),
            stream: Kept::new(stream.clone()),
            cuda: self.clone(),
        })
    }
}

/// Refuses a stream that is another one on each thread: what keeps a stream may be dropped on any.
fn check(stream: &CudaStream, call: &'static str) -> Result<(), DeviceError> {
    /// `CU_STREAM_PER_THREAD`.
    const PER_THREAD: usize = 2;
    if stream.cu_stream().addr() != PER_THREAD {
        return Ok(());
    }
    let device = CudaDevices::device(stream.context().ordinal() as u32);
    let reason = "CU_STREAM_PER_THREAD is another stream on each thread: pass a stream of its own";
    Err(DeviceError::new(device, call, reason))
}

/// Refuses a stream of another device that does not reach the memory.
pub(super) fn reaches(stream: &CudaStream, memory: &CudaMemory) -> Result<(), DeviceError> {
    if memory.is_reached_by(stream) {
        return Ok(());
    }
    let (here, ordinal) = (memory.device(), stream.context().ordinal());
    let reason = format!("the stream's device, {ordinal}, does not reach the memory");
    Err(DeviceError::new(here, "access", reason))
}

/// The device that memory lies on, whichever context is current.
fn device_of(opened: &Opened, address: CUdeviceptr) -> Result<Device, DeviceError> {
    let _here = enter(&opened.context);
    let ask = |attribute| {
        let mut said: c_int = -1;
        let into = (&raw mut said).cast();
        // SAFETY: there is room for the number, and the address is only looked up.
        let asked = unsafe { sys::cuPointerGetAttribute(into, attribute, address) };
        let refused = |error| failed(opened.device, "cuPointerGetAttribute", error);
        asked.result().map_err(refused).map(|()| said)
    };
    let kind = ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
    let ordinal = ask(sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
    // Main memory that is pinned has a device, too.
    let is_there = kind == sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as c_int;
    let ordinal = u32::try_from(ordinal).ok().filter(|_| is_there);
    let ordinal = ordinal.ok_or_else(|| {
        let reason = "it is no device's memory";
        DeviceError::new(opened.device, "cuPointerGetAttribute", reason)
    })?;
    Ok(CudaDevices::device(ordinal))
}

pub(super) fn foreign(device: Device) -> DeviceError {
    DeviceError::new(
        device,
        "access",
        "it is no memory of these devices, or somebody else's, to be read",
    )
}

/// Memory that work on a stream reads.
pub struct DeviceRead {
    address: CUdeviceptr,
    buffer: Buffer,
    stream: Kept<CudaStream>,
    cuda: CudaDevices,
}

impl DeviceRead {
    /// Address of the first byte, on the device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for DeviceRead {
    fn drop(&mut self) {
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.cuda.is_other_process() {
            return std::mem::forget((self.buffer.clone(), self.stream.clone(), self.cuda.clone()));
        }
        let (buffer, cuda) = (self.buffer.clone(), self.cuda.clone());
        let stream = Kept::new(self.stream.clone());
        let fence = move || match cuda.fence(&stream) {
            Ok(fence) => buffer.use_until(&fence),
            Err(error) => {
                tracing::warn!(%error, "memory of a device is lost");
                buffer.use_until(&lost(&error));
            }
        };
        after_capture(&self.stream, &self.cuda.shared.watcher, fence);
    }
}

impl std::fmt::Debug for DeviceRead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceRead({:#x}, {:?})", self.address, self.buffer)
    }
}

/// Memory that work on a stream fills.
pub struct DeviceWrite {
    address: CUdeviceptr,
    /// `None` once it is finished.
    memory: Option<BufferMut>,
    stream: Kept<CudaStream>,
    cuda: CudaDevices,
}

impl DeviceWrite {
    /// Address of the first byte, on the device.
    pub fn address(&self) -> CUdeviceptr {
        self.address
    }

    /// Queues a copy of `from` to offset `at`; a source on a device is copied behind its ready fence. Returns the fence that is reached
    /// when the copy is done; until then, `from` is kept. If no device reaches the source, the CPU first copies it, within the call, to
    /// memory that they reach.
    ///
    /// # Errors
    /// If the source is other memory, the copy would end beyond this memory, or the driver refuses.
    pub(crate) fn fill(&self, at: usize, from: &Buffer) -> Result<Arc<dyn Fence>, DeviceError> {
        let room = self.memory.as_ref().map_or(0, BufferMut::len);
        let device = CudaDevices::device(self.stream.context().ordinal() as u32);
        if from.len() > room.saturating_sub(at) {
            return Err(DeviceError::new(device, "copy", "the source is too long"));
        }
        let (cuda, stream) = (&self.cuda, self.stream.cu_stream());
        let source = match from.as_bytes() {
            Some(_) => cuda.reached(from, device, false)?,
            None => {
                cuda.source(from, &self.stream)?;
                from.clone()
            }
        };
        let (event, to) = (CudaDevices::event(&self.stream)?, self.address + at as u64);
        let queue = || match source.as_bytes() {
            Some(bytes) => {
                bind(&self.stream)?;
                // SAFETY: the source is kept until the fence behind the copy, and its bytes do not change; the destination is nobody
                // else's.
                let copied = unsafe { result::memcpy_htod_async(to, bytes, stream) };
                copied.map_err(|error| failed(device, "cuMemcpyHtoDAsync", error))
            }
            None => cuda.queue_copy(&source, device, to, &self.stream),
        };
        match queue().and_then(|()| cuda.record(event, &self.stream)) {
            Ok(fence) => {
                source.use_until(&fence);
                Ok(fence)
            }
            Err(error) => {
                // The copy may be queued all the same.
                source.use_until(&lost(&error));
                Err(error)
            }
        }
    }

    /// The memory, ready behind everything that the stream has queued by now.
    ///
    /// # Errors
    /// When the driver refuses. The memory is then lost, since work may be queued on it.
    pub fn finish(mut self) -> Result<Buffer, DeviceError> {
        let device = CudaDevices::device(self.stream.context().ordinal() as u32);
        let memory = self.memory.take().ok_or_else(|| foreign(device))?;
        match self.cuda.fence(&self.stream) {
            Ok(fence) => memory.freeze_at(fence).map_err(|_| foreign(device)),
            Err(error) => {
                lose(memory, &error);
                Err(error)
            }
        }
    }
}

impl Drop for DeviceWrite {
    fn drop(&mut self) {
        let Some(mut memory) = self.memory.take() else {
            return;
        };
        // As above.
        if self.cuda.is_other_process() {
            return std::mem::forget((memory, self.stream.clone(), self.cuda.clone()));
        }
        let (cuda, stream) = (self.cuda.clone(), Kept::new(self.stream.clone()));
        // Given up without `finish`: work may still be queued on it.
        let fence = move || match (cuda.fence(&stream), memory.memory_mut()) {
            (Ok(fence), Some(memory)) => {
                if let Some(work) = memory.work() {
                    work.use_until(fence);
                }
            }
            (Ok(_), None) => {}
            (Err(error), _) => lose(memory, &error),
        };
        after_capture(&self.stream, &self.cuda.shared.watcher, fence);
    }
}

impl std::fmt::Debug for DeviceWrite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceWrite({:#x}, {:?})", self.address, self.memory)
    }
}
