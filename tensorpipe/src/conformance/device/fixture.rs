//! The test device, as the suite uses it.

use std::any::Any;
use std::sync::Arc;

use super::Fixture;
use crate::conformance::{TestDevices, TestQueue};
use crate::device::{Allocator, Buffer, BufferMut, Device};

/// Two devices, a queue that writes to them, and one that reads. Dropping it panics if their memory had faults.
#[derive(Debug)]
pub struct TestFixture {
    devices: TestDevices,
    writes: TestQueue,
    reads: TestQueue,
}

impl TestFixture {
    /// Queues on these devices.
    pub fn new(devices: &TestDevices) -> Self {
        Self {
            writes: devices.queue(),
            reads: devices.queue(),
            devices: devices.clone(),
        }
    }
}

impl Default for TestFixture {
    fn default() -> Self {
        Self::new(&TestDevices::new(2))
    }
}

impl Fixture for TestFixture {
    fn allocator(&self) -> Arc<dyn Allocator> {
        Arc::new(self.devices.clone())
    }

    fn write(&self, bytes: &[u8], to: BufferMut) -> Buffer {
        let written = self.writes.write(Buffer::copy_from_slice(bytes), to);
        written.unwrap_or_else(|error| panic!("{error}"))
    }

    fn read(&self, buffer: &Buffer) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let copied = self.reads.read(buffer, BufferMut::zeroed(buffer.len()));
        let copied = copied.unwrap_or_else(|error| panic!("{error}"));
        Box::new(|| copied.wait())
    }

    fn hold_writes(&self, _: Device) -> Box<dyn Any + Send> {
        Box::new(self.writes.hold())
    }

    fn hold_reads(&self, _: Device) -> Box<dyn Any + Send> {
        Box::new(self.reads.hold())
    }
}

impl Drop for TestFixture {
    fn drop(&mut self) {
        let faults = self.devices.faults();
        if !std::thread::panicking() {
            assert!(faults.is_empty(), "{faults:#?}");
        }
    }
}
