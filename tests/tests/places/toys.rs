//! The test device, whose channel is the example's.

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::conformance::TestDevices;
use tensorpipe::conformance::device::{Fixture, TestFixture};
use tensorpipe::{ContextBuilder, Device, device::Allocator};

use super::staged::StagedChannel;

pub(crate) const ZERO: &str = "test:0";
pub(crate) const ONE: &str = "test:1";

/// What carries tensors between them over tcp.
pub(crate) const CHANNEL: &str = "staged";

/// Calls a macro with the names of the first device, the second, and one that there is not.
macro_rules! bench {
    ($then:ident) => {
        $then!("test:0" "test:1" "test:7");
    };
}
pub(crate) use bench;

pub(crate) const fn toy(index: u32) -> Device {
    TestDevices::device(index)
}

/// Devices, and what reads and writes them.
#[derive(Clone)]
pub(crate) struct Kind {
    devices: TestDevices,
    queues: Arc<TestFixture>,
}

impl Kind {
    pub(crate) fn new(count: u32) -> Self {
        let devices = TestDevices::new(count);
        Self {
            queues: Arc::new(TestFixture::new(&devices)),
            devices,
        }
    }

    pub(crate) fn allocator(&self) -> Arc<dyn Allocator> {
        Arc::new(self.devices.clone())
    }

    pub(crate) fn fixture(&self) -> &dyn Fixture {
        &*self.queues
    }

    /// A context with channels between them, and maybe without their memory.
    pub(crate) fn on(&self, builder: ContextBuilder, memory: bool) -> ContextBuilder {
        let staged = StagedChannel {
            devices: self.devices.clone(),
            inner: Arc::new(BasicChannel::new()),
        };
        let channels: [Arc<dyn Channel>; 2] = [Arc::new(staged), Arc::new(BasicChannel::new())];
        let builder = builder.channels(channels);
        match memory {
            true => builder.allocator(self.allocator()),
            false => builder,
        }
    }
}
