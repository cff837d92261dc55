//! A device of one's own, `fake:0`: memory that the CPU cannot read, as far as the pipe can tell. Its driver copies
//! between it and main memory.

use std::any::Any;
use std::sync::Arc;

use tensorpipe::{Buffer, BufferMut, Device, DeviceKind, Memory};

/// Its name in descriptors and routes.
pub(crate) const FAKE: Device = Device::new(DeviceKind::new("fake"), 0);

/// Memory of the device. A real one would hold an address there.
struct FakeMemory(Vec<u8>);

impl Memory for FakeMemory {
    fn device(&self) -> Device {
        FAKE
    }

    fn len(&self) -> usize {
        self.0.len()
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

/// Memory of the device, to be filled.
pub(crate) fn room(len: usize) -> BufferMut {
    let memory: Arc<dyn Memory> = Arc::new(FakeMemory(vec![0; len]));
    BufferMut::from_memory(memory, len).unwrap_or_else(|_| unreachable!("nobody else holds it"))
}

/// Copies bytes to the device.
pub(crate) fn upload(bytes: &[u8]) -> Buffer {
    Buffer::new(Arc::new(FakeMemory(bytes.to_vec())))
}

/// Copies bytes from wherever they are.
pub(crate) fn download(buffer: &Buffer) -> Vec<u8> {
    source(buffer).unwrap_or_default().to_vec()
}

/// What the driver reads when it copies from `buffer`; `None` for memory of somebody else's device.
pub(crate) fn source(buffer: &Buffer) -> Option<&[u8]> {
    if let Some(bytes) = buffer.as_bytes() {
        return Some(bytes);
    }
    let memory = buffer.memory().as_any().downcast_ref::<FakeMemory>()?;
    memory
        .0
        .get(buffer.offset()..buffer.offset() + buffer.len())
}

/// Copies bytes into `dest`, wherever it is; `false` if it is somewhere unknown, or of another length.
pub(crate) fn fill(dest: &mut BufferMut, bytes: &[u8]) -> bool {
    if dest.len() != bytes.len() {
        return false;
    }
    if let Some(to) = dest.as_bytes_mut() {
        to.copy_from_slice(bytes);
        return true;
    }
    let memory = dest.memory_mut().map(|memory| memory.as_any_mut());
    match memory.and_then(|memory| memory.downcast_mut::<FakeMemory>()) {
        Some(memory) => {
            memory.0[..bytes.len()].copy_from_slice(bytes);
            true
        }
        None => false,
    }
}

/// Memory on `device`.
pub(crate) fn room_on(device: Device, len: usize) -> BufferMut {
    if device == FAKE {
        room(len)
    } else {
        BufferMut::zeroed(len)
    }
}

/// The pairs that channels for this device serve: everything but main memory to main memory.
pub(crate) fn reaches(ours: Device, theirs: Device) -> Result<(), String> {
    if ours == FAKE || theirs == FAKE {
        Ok(())
    } else {
        Err("channel basic does that".to_owned())
    }
}
