//! Random hostile lanes on each device channel: the meetings of `tests/lanes`, with tensors on devices.

use std::sync::Arc;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tensorpipe::channels::Channel;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, ContextBuilder, Device, MessageTensor, Tensor};
use tensorpipe_test_cuda::is_real;
use tensorpipe_tests::eventually;

use crate::bench::{Bench, channel, device};
use crate::driver::{handles, imports, nothing_went_wrong};
use crate::lanes::{Ground, Input, on};

/// How many meetings there are.
const MEETINGS: u32 = 150;

const CHANNELS: [&str; 6] = [
    "cuda_ipc",
    "cuda_ipc",
    "cuda_xth",
    "cuda_basic",
    "cuda_basic+lease",
    "cuda_basic+cma",
];

struct Devices(Bench);

impl Devices {
    fn all() -> [Device; 3] {
        [device(), CudaDevices::device(0), Device::CPU]
    }
}

impl Ground for Devices {
    fn channel(&self, input: &Input) -> Arc<dyn Channel> {
        channel(CHANNELS[input.below(CHANNELS.len())], &self.0.cuda)
    }

    fn on_devices(&self, builder: ContextBuilder) -> ContextBuilder {
        builder.allocator(Arc::new(self.0.cuda.clone()))
    }

    fn tensor(&self, _: &Context, bytes: Vec<u8>, input: &Input) -> MessageTensor {
        let [from, to] = [(); 2].map(|()| Self::all()[input.below(3)]);
        MessageTensor::from(self.0.tensor(from, &bytes)).to_device(to)
    }

    fn bytes(&self, tensor: &Tensor) -> Vec<u8> {
        self.0.download(tensor.buffer())
    }

    fn held(&self, context: &Context) -> Vec<u64> {
        let pool = context.pool().stats();
        let main = [pool.outstanding_bytes, pool.lendable.outstanding_bytes];
        let on_devices = Self::all().into_iter().filter(|device| !device.is_cpu());
        let on_devices = on_devices.map(|device| {
            let pool = context.allocator(device).unwrap();
            pool.stats().outstanding_bytes
        });
        main.into_iter().chain(on_devices).collect()
    }
}

/// Once all are over no physical memory is left, so that all loans are back, and nothing was done wrong on the devices.
pub(crate) fn meetings() {
    let bench = Bench::new();
    let before = handles();
    let ground = Arc::new(Devices(bench));
    let inputs = prop::collection::vec(any::<u8>(), 0..500);
    let config = ProptestConfig {
        cases: MEETINGS,
        failure_persistence: None,
        max_shrink_iters: 20,
        ..ProptestConfig::default()
    };
    let met = TestRunner::new(config).run(&inputs, |input| {
        on(&ground, &input);
        nothing_went_wrong();
        Ok(())
    });
    met.unwrap();
    drop(ground);
    // In some fifty meetings on `cuda_ipc`. A real driver does not count.
    assert!(is_real() || imports() > 0, "nothing was opened");
    let gone = eventually("no physical memory is left", || handles() == before);
    tensorpipe_tests::runtime().block_on(gone);
}
