//! CUDA devices, on the driver for tests.

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, Channel, CudaBasicChannel};
use tensorpipe::conformance::device::Fixture;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{ContextBuilder, Device, device::Allocator};
use tensorpipe_test_cuda::Driver;

use super::driver::nothing_went_wrong;
use super::fixture::CudaFixture;

pub(crate) const ZERO: &str = "cuda:0";
pub(crate) const ONE: &str = "cuda:1";

/// What carries tensors between them over tcp.
pub(crate) const CHANNEL: &str = "cuda_basic";

/// Calls a macro with the names of the first device, the second, and one that there is not.
macro_rules! bench {
    ($then:ident) => {
        $then!("cuda:0" "cuda:1" "cuda:7");
    };
}
pub(crate) use bench;

pub(crate) const fn toy(index: u32) -> Device {
    CudaDevices::device(index)
}

/// Devices, and what reads and writes them.
#[derive(Clone)]
pub(crate) struct Kind {
    cuda: CudaDevices,
    streams: Arc<CudaFixture>,
}

impl Kind {
    pub(crate) fn new(count: u32) -> Self {
        Driver::here();
        let cuda = CudaDevices::open().unwrap();
        assert_eq!(cuda.devices().len(), count as usize);
        Self {
            streams: Arc::new(CudaFixture::on(&cuda)),
            cuda,
        }
    }

    pub(crate) fn allocator(&self) -> Arc<dyn Allocator> {
        Arc::new(self.cuda.clone())
    }

    pub(crate) fn fixture(&self) -> &dyn Fixture {
        &*self.streams
    }

    /// A context of them, or of channels between them without their memory.
    pub(crate) fn on(&self, builder: ContextBuilder, memory: bool) -> ContextBuilder {
        if memory {
            return builder.cuda(&self.cuda);
        }
        let staged = CudaBasicChannel::over(BasicChannel::new(), &self.cuda);
        let channels: [Arc<dyn Channel>; 2] = [Arc::new(staged), Arc::new(BasicChannel::new())];
        builder.channels(channels)
    }
}

/// With the side that it is of.
impl Drop for Kind {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            nothing_went_wrong();
        }
    }
}
