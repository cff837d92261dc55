//! Memory owned by an operation: reference-counted [`Buffer`]s to read from, exclusive [`BufferMut`]s to fill.
//!
//! Invariant: a `BufferMut` holds the only reference to its memory, so filling it needs no lock, and turning it into a
//! `Buffer` costs nothing. All memory is initialised from birth (zero pages or earlier content of a pool), so that a
//! half-filled buffer is never undefined.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::memory::{Foreign, Nothing, Numbers};
use super::{Device, Memory};
use crate::error::SystemError;
use crate::sys::block::Block;

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

    /// No bytes, on this device. No allocator is involved.
    pub fn empty(device: Device) -> Self {
        if device.is_cpu() {
            // Aligned: every type needs that, even for zero elements.
            return BufferMut::zeroed(0).freeze();
        }
        Self::new(Arc::new(Nothing(device)))
    }

    /// Uses the owner's bytes without a copy; their alignment stays as it is. The owner is dropped with the last handle, on any
    /// thread, possibly inside a pipe. Its drop must therefore not wait, nor call a pipe. A panic in it goes no further.
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::new(Arc::new(Foreign::new(owner)))
    }

    /// Takes over a vector, without a copy.
    pub fn from_vec<T: bytemuck::Pod + Send + Sync>(vec: Vec<T>) -> Self {
        Self::new(Arc::new(Numbers(vec)))
    }

    /// Copies `bytes` into fresh aligned memory.
    ///
    /// # Panics
    /// When the system has no such memory.
    pub fn copy_from_slice(bytes: &[u8]) -> Self {
        Self::copied(bytes, BufferMut::zeroed(bytes.len()))
    }

    /// As [`copy_from_slice`](Self::copy_from_slice), with an error where the system has no such memory.
    pub(crate) fn try_copy_from_slice(bytes: &[u8]) -> Result<Self, SystemError> {
        Ok(Self::copied(bytes, BufferMut::try_zeroed(bytes.len())?))
    }

    fn copied(bytes: &[u8], mut to: BufferMut) -> Self {
        if let Some(to) = to.as_bytes_mut() {
            to.copy_from_slice(bytes);
        }
        to.freeze()
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

    /// The memory, if nobody else has a handle on it. A backend uses this to hand back the object that the memory was made of.
    pub fn memory_mut(&mut self) -> Option<&mut dyn Memory> {
        Arc::get_mut(&mut self.memory)
    }

    /// The bytes, if the CPU can read them. A peer of this machine can change [borrowed](super::MemoryKind::Borrowed) memory while it is
    /// read. Numbers then come out wrong; code that parses bytes must copy them first, see [`Memory::is_private`].
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

    /// Exclusive access. Copies first if somebody else holds the memory, it is lent to another process, or it is read-only. The copy
    /// uses the same kind of memory if available. `None` if the CPU cannot read it.
    ///
    /// # Panics
    /// When the system has no memory for the copy.
    pub fn make_mut(&mut self) -> Option<&mut [u8]> {
        self.make_mut_or(|bytes| Ok::<_, Infallible>(Self::copy_from_slice(bytes)))
            .unwrap_or_else(|never| match never {})
    }

    /// As [`make_mut`](Self::make_mut), with an error where the system has no memory for the copy.
    pub(crate) fn try_make_mut(&mut self) -> Result<Option<&mut [u8]>, SystemError> {
        self.make_mut_or(Self::try_copy_from_slice)
    }

    fn make_mut_or<E>(
        &mut self,
        copy: impl FnOnce(&[u8]) -> Result<Self, E>,
    ) -> Result<Option<&mut [u8]>, E> {
        if self.as_bytes_mut().is_none()
            && let Some(bytes) = self.as_bytes()
        {
            *self = match self.memory.allocate_like(bytes.len()) {
                Some(mut like) => {
                    // Memory that the CPU cannot write must not take the place of what it can read.
                    let Some(to) = like.as_bytes_mut() else {
                        return Ok(None);
                    };
                    to.copy_from_slice(bytes);
                    like.freeze()
                }
                None => copy(bytes)?,
            };
        }
        Ok(self.as_bytes_mut())
    }

    /// The vector of `T` that it was made of, if the range is whole and nobody else holds it; otherwise itself.
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
    ///
    /// # Panics
    /// When the system has no such memory: see [`try_zeroed`](Self::try_zeroed).
    pub fn zeroed(len: usize) -> Self {
        Self {
            memory: Arc::new(Block::zeroed(len)),
            len,
        }
    }

    /// As [`zeroed`](Self::zeroed), for a length that may be too large for this machine.
    ///
    /// # Errors
    /// When the system has no such memory, where [`BufferMut::zeroed`] panics.
    pub fn try_zeroed(len: usize) -> Result<Self, SystemError> {
        Ok(Self {
            memory: Arc::new(Block::try_zeroed(len)?),
            len,
        })
    }

    /// The first `len` bytes of memory that nobody else holds. Returns the memory as an error if it has another holder (including a
    /// process that it is lent to), is too short, or is main memory that cannot be written.
    pub fn from_memory(mut memory: Arc<dyn Memory>, len: usize) -> Result<Self, Arc<dyn Memory>> {
        let device = memory.device();
        let exclusive = Arc::get_mut(&mut memory)
            .is_some_and(|memory| !device.is_cpu() || memory.as_bytes_mut().is_some());
        if !exclusive || memory.len() < len {
            return Err(memory);
        }
        Ok(Self { memory, len })
    }

    /// Takes over a vector without a copy. Its content may be overwritten.
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

    pub(crate) fn memory(&self) -> &dyn Memory {
        &*self.memory
    }

    /// The memory, whose only handle this is, and the length that is used.
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

    /// Mutable access to the memory, for a channel that knows its own kind. The bytes to fill begin at the start of the memory, and
    /// may be fewer. `None` while somebody keeps a `Weak` to it.
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
