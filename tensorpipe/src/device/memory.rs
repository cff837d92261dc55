//! The trait behind every buffer: memory of some device, when it may be read, and its registrations.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{BufferMut, Device, MemoryKind, QueuedWork};
use crate::sys::block::Block;
use crate::sys::registrations::Registrable;

/// Memory of a device, kept alive by whoever holds it.
///
/// Contract:
///
/// - `len` and `device` never change; `as_bytes` always returns the same `len` bytes, or always `None`;
/// - memory with [`work`](Memory::work) may be read when that is [ready](QueuedWork::ready), and freed or reused when none of it is
///   [unfinished](QueuedWork::unfinished). Other memory may be read and freed at once;
/// - the [registrations](Memory::registrable) that it keeps end before the memory does;
/// - its drop neither panics, waits, nor calls a pipe, since it may run inside one.
pub trait Memory: Send + Sync + 'static {
    /// Where it lives. Defaults to main memory; memory of a device must override this.
    fn device(&self) -> Device {
        Device::CPU
    }
    /// Its kind, by which a channel is chosen. Defaults to the heap, or its device's kind.
    fn kind(&self) -> MemoryKind {
        let device = self.device();
        match device.is_cpu() {
            true => MemoryKind::Heap,
            false => MemoryKind::Device(device.kind),
        }
    }
    /// Whether only a sole holder ever changes the bytes: no other process, no device. Code that parses bytes copies memory that is
    /// not private first ([`Payload::into_bytes`](crate::Payload::into_bytes)). By default no.
    fn is_private(&self) -> bool {
        false
    }
    /// Its size in bytes.
    fn len(&self) -> usize;
    /// Whether it holds no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The bytes, if the CPU can read them. If the memory is not private, they are there and initialised, but another process may
    /// change them between two reads.
    fn as_bytes(&self) -> Option<&[u8]>;
    /// The bytes, if the CPU may write them. Called only while there is one holder.
    fn as_bytes_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
    /// Memory of the same kind, to be filled by a copy. `None` for ordinary memory.
    fn allocate_like(&self, len: usize) -> Option<BufferMut> {
        let _ = len;
        None
    }
    /// The work that a device has queued on it. `None`, the default, for memory that the CPU fills: it is ready when it is handed
    /// over.
    fn work(&self) -> Option<&QueuedWork> {
        None
    }
    /// The allocation that it lies in, if a device or network card may register it. `None`, the default, and for main memory
    /// that no pool keeps: the bytes have to be copied. Registering memory takes as long, and to end that, a driver may wait for its device.
    fn registrable(&self) -> Option<Registrable<'_>> {
        None
    }
    /// For a channel that knows its own kind of memory. Memory from a [`DevicePool`](super::DevicePool) returns the object that the
    /// [`Allocator`](super::Allocator) made.
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
pub(super) struct Nothing(pub(super) Device);

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

/// Memory that its owner allocated, kept alive by owning the owner. Not private: it may be a mapped file.
pub(super) struct Foreign<O: AsRef<[u8]> + Send + 'static> {
    /// `None` only while dropping.
    owner: Option<O>,
}

impl<O: AsRef<[u8]> + Send + 'static> Foreign<O> {
    pub(super) fn new(owner: O) -> Self {
        Self { owner: Some(owner) }
    }

    fn bytes(&self) -> &[u8] {
        self.owner.as_ref().map_or(&[], AsRef::as_ref)
    }
}

impl<O: AsRef<[u8]> + Send + 'static> Drop for Foreign<O> {
    fn drop(&mut self) {
        // The last handle may be dropped in the middle of a pipe's work, which goes on.
        let end = || drop(self.owner.take());
        if catch_unwind(AssertUnwindSafe(end)).is_err() {
            tracing::warn!("the owner of some memory panicked as it was dropped");
        }
    }
}

impl<O: AsRef<[u8]> + Send + Sync + 'static> Memory for Foreign<O> {
    fn len(&self) -> usize {
        self.bytes().len()
    }
    fn as_bytes(&self) -> Option<&[u8]> {
        Some(self.bytes())
    }
    fn as_any(&self) -> &dyn Any {
        match &self.owner {
            Some(owner) => owner,
            none => none,
        }
    }
    fn as_any_mut(&mut self) -> &mut dyn Any {
        match &mut self.owner {
            Some(owner) => owner,
            none => none,
        }
    }
}

/// A vector of numbers, kept with its type so that it can be handed back.
pub(super) struct Numbers<T: Send + 'static>(pub(super) Vec<T>);

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
