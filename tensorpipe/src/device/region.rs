//! Memory owned by an operation: reference-counted [`Buffer`]s to read from, exclusive [`BufferMut`]s to fill.
//!
//! Invariant: a `BufferMut` holds the only reference to its memory, so filling it needs no lock, and turning it into a
//! `Buffer` costs nothing. All memory is initialised from birth (zero pages or earlier content of a pool), so that a
//! half-filled buffer is never undefined.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::{Device, MemoryKind};
use crate::error::SystemError;
use crate::sys::block::Block;

/// Memory of a device, kept alive by whoever holds it.
///
/// Contract: `len` never changes; `as_bytes` always returns the same `len` bytes, or always `None`; `device` never
/// changes.
pub trait Memory: Send + Sync + 'static {
    /// Where it lives.
    fn device(&self) -> Device {
        Device::CPU
    }
    /// What sort it is, for the choice of a channel.
    fn kind(&self) -> MemoryKind {
        let device = self.device();
        match device.is_cpu() {
            true => MemoryKind::Heap,
            false => MemoryKind::Device(device.kind),
        }
    }
    /// Whether nobody but a sole holder of it ever changes its bytes: no other process, no device. Who parses bytes of memory that
    /// is not private decides on a copy ([`Payload::into_bytes`](crate::Payload::into_bytes)).
    fn is_private(&self) -> bool {
        false
    }
    /// Its size in bytes.
    fn len(&self) -> usize;
    /// Whether it holds no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes, where the CPU can read them. Of memory that is not private a holder may assume that they are there and
    /// initialised, and no more: another process may change them between two looks.
    fn as_bytes(&self) -> Option<&[u8]>;
    /// The bytes, where the CPU may write them. Called only while there is one holder.
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
    /// Memory of the same sort, to fill: where a copy should go. `None` for ordinary memory.
    fn another(&self, len: usize) -> Option<BufferMut> {
        let _ = len;
        None
    }
    /// For a channel that knows its own kind of memory.
    fn as_any(&self) -> &dyn Any;
    /// The same, to write.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

impl Memory for Block {
    fn is_private(&self) -> bool {
        true
    }
    fn len(&self) -> usize {
        self.len()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(self.bytes_mut())
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// No memory, on a device that is not the CPU.
struct Nothing(Device);

impl Memory for Nothing {
    fn device(&self) -> Device {
        self.0
    }
    fn len(&self) -> usize {
        0
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        None
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Memory that somebody else allocated, borrowed by owning its owner. Not private: it may be a mapped file.
struct Foreign<O>(O);

impl<O: AsRef<[u8]> + Send + Sync + 'static> Memory for Foreign<O> {
    fn len(&self) -> usize {
        self.0.as_ref().len()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self.0.as_ref())
    }
    fn as_any(&self) -> &dyn Any {
        &self.0
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        &mut self.0
    }
}

/// A vector of numbers, kept as what it is so that it can be handed back.
struct Numbers<T>(Vec<T>);

impl<T: bytemuck::Pod + Send + Sync> Memory for Numbers<T> {
    fn is_private(&self) -> bool {
        true
    }
    fn len(&self) -> usize {
        size_of_val(self.0.as_slice())
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(bytemuck::cast_slice(&self.0))
    }
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        Some(bytemuck::cast_slice_mut(&mut self.0))
    }
    fn as_any(&self) -> &dyn Any {
        &self.0
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        &mut self.0
    }
}

/// Reference-counted bytes on a device: a range of some [`Memory`]. Cloning clones the handle.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn Memory>,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// All of `memory`.
    pub fn new(memory: Arc<dyn Memory>) -> Self {
        Self {
            offset: 0,
            len: memory.len(),
            memory,
        }
    }

    /// No bytes, on this device.
    pub fn empty(device: Device) -> Self {
        if device.is_cpu() {
            // Aligned, as every type wants even where there is nothing.
            return BufferMut::zeroed(0).freeze();
        }
        Self::new(Arc::new(Nothing(device)))
    }

    /// Borrows what `owner` holds, without a copy; its alignment stays what it is. The owner is dropped with the last
    /// handle, on any thread, maybe inside a pipe: it must not wait then, nor call one.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::new(Arc::new(Foreign(owner)))
    }

    /// Takes over a vector, without a copy.
    pub fn from_vec<T: bytemuck::Pod + Send + Sync>(vec: Vec<T>) -> Self {
        Self::new(Arc::new(Numbers(vec)))
    }

    /// Copies `bytes` into fresh aligned memory.
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        let mut buffer = BufferMut::zeroed(bytes.len());
        if let Some(to) = buffer.as_bytes_mut() {
            to.copy_from_slice(bytes);
        }
        buffer.freeze()
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        self.memory.device()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where this range begins within its memory, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The memory it is a range of.
    pub fn memory(&self) -> &Arc<dyn Memory> {
        &self.memory
    }

    /// Whether nobody else has a handle on its memory.
    pub(crate) fn is_only_handle(&mut self) -> bool {
        Arc::get_mut(&mut self.memory).is_some()
    }

    /// The bytes, where the CPU can read them. A peer of this machine can change those of [borrowed](MemoryKind::Borrowed) memory
    /// under their holder: numbers then come out wrong, and what parses bytes needs a copy, see [`Memory::is_private`].
    pub fn as_bytes(&self) -> Option<&[u8]> {
        self.memory
            .as_bytes()
            .map(|bytes| &bytes[self.offset..self.offset + self.len])
    }

    /// A part of it; shares the memory.
    ///
    /// # Panics
    /// When the range is outside.
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "range {range:?} of {} bytes",
            self.len
        );
        Self {
            memory: self.memory.clone(),
            offset: self.offset + range.start,
            len: range.end - range.start,
        }
    }

    /// Exclusive access, if this is the only handle and the CPU may write there.
    pub fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        let range = self.offset..self.offset + self.len;
        Arc::get_mut(&mut self.memory)?
            .as_bytes_mut()
            .map(|bytes| &mut bytes[range])
    }

    /// Exclusive access, after a copy if somebody else holds it, it is lent to another process, or it is read-only. The copy
    /// is memory of the same sort where there is some. `None` where the CPU cannot read it.
    pub fn make_mut(&mut self) -> Option<&mut [u8]> {
        if self.as_bytes_mut().is_none() {
            let bytes = self.as_bytes()?;
            *self = match self.memory.another(bytes.len()) {
                Some(mut copy) => {
                    copy.as_bytes_mut()?.copy_from_slice(bytes);
                    copy.freeze()
                }
                None => Self::copy_from_slice(bytes),
            };
        }
        self.as_bytes_mut()
    }

    /// Takes the vector of `T` back if it was made of one, whole, and nobody else holds it; else returns itself.
    pub fn try_into_vec<T: bytemuck::Pod + Send + Sync>(mut self) -> Result<Vec<T>, Self> {
        let whole = self.offset == 0 && self.len == self.memory.len();
        match Arc::get_mut(&mut self.memory)
            .and_then(|memory| memory.as_any_mut().downcast_mut::<Vec<T>>())
        {
            Some(vec) if whole => Ok(std::mem::take(vec)),
            _ => Err(self),
        }
    }
}

impl From<Bytes> for Buffer {
    fn from(bytes: Bytes) -> Self {
        Self::from_owner(bytes)
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.len, self.device())
    }
}

/// Exclusive memory to be filled, then frozen into a [`Buffer`].
pub struct BufferMut {
    memory: Arc<dyn Memory>,
    len: usize,
}

impl BufferMut {
    /// Fresh zeroed main memory, aligned to 64 bytes. Large sizes cost a page fault per page when first touched: on a
    /// hot path take memory from a [`Pool`](crate::Pool).
    pub fn zeroed(len: usize) -> Self {
        Self {
            memory: Arc::new(Block::zeroed(len)),
            len,
        }
    }

    /// The same, for a length that may be too much for this machine.
    ///
    /// # Errors
    /// When the system has no such memory, where [`BufferMut::zeroed`] panics.
    pub fn try_zeroed(len: usize) -> Result<Self, SystemError> {
        Ok(Self {
            memory: Arc::new(Block::try_zeroed(len)?),
            len,
        })
    }

    /// The first `len` bytes of memory that nobody else holds; gives it back where somebody does (a process to which it is
    /// lent, too), or it is shorter, or main memory that cannot be written.
    pub fn from_memory(mut memory: Arc<dyn Memory>, len: usize) -> Result<Self, Arc<dyn Memory>> {
        let device = memory.device();
        let exclusive = Arc::get_mut(&mut memory)
            .is_some_and(|memory| !device.is_cpu() || memory.as_bytes_mut().is_some());
        if !exclusive || memory.len() < len {
            return Err(memory);
        }
        Ok(Self { memory, len })
    }

    /// Takes over a vector whose content may be overwritten, without a copy.
    pub fn from_vec<T: bytemuck::Pod + Send + Sync>(vec: Vec<T>) -> Self {
        let memory: Arc<dyn Memory> = Arc::new(Numbers(vec));
        Self {
            len: memory.len(),
            memory,
        }
    }

    /// Where it lives.
    pub fn device(&self) -> Device {
        self.memory.device()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, of which this is the only handle, and how much of it is meant.
    pub(crate) fn into_memory(self) -> (Arc<dyn Memory>, usize) {
        (self.memory, self.len)
    }

    /// The bytes to fill, where the CPU may write them.
    pub fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        let len = self.len;
        // The only handle: `get_mut` succeeds by this type's invariant.
        Arc::get_mut(&mut self.memory)?
            .as_bytes_mut()
            .map(|bytes| &mut bytes[..len])
    }

    /// The memory, to write, for a channel that knows its own kind.
    pub fn memory_mut(&mut self) -> Option<&mut dyn Memory> {
        Arc::get_mut(&mut self.memory)
    }

    /// Done filling: shareable from now on. Costs nothing.
    pub fn freeze(self) -> Buffer {
        Buffer {
            memory: self.memory,
            offset: 0,
            len: self.len,
        }
    }
}

impl fmt::Debug for BufferMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BufferMut({} bytes on {})", self.len, self.device())
    }
}

// By its path, since `tensorpipe-loom` includes this file by its own.
#[cfg(test)]
#[path = "region/tests.rs"]
mod tests;
