//! The channel suite for each channel of CUDA devices, on a test driver, and upstream's further tests of such channels.
#![allow(missing_docs, reason = "a test")]

#[path = "cuda/bench.rs"]
#[allow(dead_code, reason = "no lane is a double here")]
mod bench;
#[path = "cuda/driver.rs"]
#[allow(
    dead_code,
    reason = "the driver counts for all tests of a process together"
)]
mod driver;
#[path = "cuda/fixture.rs"]
#[allow(dead_code, reason = "nobody's stream is held here but by the suite")]
mod fixture;

use tensorpipe::channels::{Channel, CudaIpcChannel, DeviceOffer};
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{DType, Device, Message, MessageTensor, Tensor};

use bench::{Bench, channel, device, moved, pair, subject};
use driver::nothing_went_wrong;

tensorpipe::channel_conformance!(cuda_xth, subject = subject("cuda_xth"));
tensorpipe::channel_conformance!(cuda_ipc, subject = subject("cuda_ipc"));
tensorpipe::channel_conformance!(cuda_basic, subject = subject("cuda_basic"));
tensorpipe::channel_conformance!(cuda_basic_over_lease, subject = subject("cuda_basic+lease"));
tensorpipe::channel_conformance!(cuda_basic_over_xth, subject = subject("cuda_basic+xth"));
tensorpipe::channel_conformance!(cuda_basic_over_mpt, subject = subject("cuda_basic+mpt"));
tensorpipe::channel_conformance!(cuda_basic_over_cma, subject = subject("cuda_basic+cma"));

/// A tensor that is the middle of an allocation.
#[tokio::test]
async fn part_of_an_allocation_is_sent() {
    let bench = Bench::new();
    for name in ["cuda_xth", "cuda_ipc", "cuda_basic"] {
        let pipes = pair(&bench, name).await;
        let whole = bench.upload(device(), &pattern(100_000, 1));
        let part = whole.slice(1000..81_000);
        let tensor = Tensor::from_buffer(part, DType::U8, [80_000]).unwrap();
        let tensor = MessageTensor::from(tensor).to_device(device());
        let message = moved(&pipes, Message::new("m").tensor(tensor)).await;
        let found = bench.download(message.tensors[0].tensor.buffer());
        assert!(found == pattern(100_000, 1)[1000..81_000], "over {name}");
    }
    nothing_went_wrong();
}

/// Tensors with a target land there, others in main memory.
#[tokio::test]
async fn some_tensors_have_a_target() {
    let bench = Bench::new();
    let pipes = pair(&bench, "cuda_basic").await;
    let (zero, cpu) = (CudaDevices::device(0), Device::CPU);
    let sent = [
        (zero, Some(device()), device()),
        (zero, None, cpu),
        (cpu, Some(zero), zero),
        (cpu, None, cpu),
        (device(), Some(cpu), cpu),
    ];
    let mut message = Message::new("m");
    for (seed, (from, to, _)) in (0..).zip(&sent) {
        let tensor = MessageTensor::from(bench.tensor(*from, &pattern(70_000, seed)));
        message = message.tensor(match to {
            Some(to) => tensor.to_device(*to),
            None => tensor,
        });
    }
    let message = moved(&pipes, message).await;
    for (seed, (tensor, (_, _, there))) in (0..).zip(message.tensors.iter().zip(&sent)) {
        assert_eq!(tensor.tensor.device(), *there);
        assert!(bench.download(tensor.tensor.buffer()) == pattern(70_000, seed));
    }
    nothing_went_wrong();
}

/// What a channel says of pairs that others serve.
#[test]
fn channels_refuse_what_is_not_theirs() {
    let bench = Bench::new();
    let staged = channel("cuda_basic", &bench.cuda);
    let said = staged.reaches(
        DeviceOffer::new(Device::CPU, b"any"),
        DeviceOffer::new(Device::CPU, b"any"),
    );
    assert_eq!(said, Err(String::new()), "none of its business");
    assert_eq!(
        staged.reaches(
            DeviceOffer::new(device(), b"any"),
            DeviceOffer::new(Device::CPU, b"any")
        ),
        Ok(())
    );
    let within = channel("cuda_xth", &bench.cuda);
    let said = within.reaches(
        DeviceOffer::new(device(), &[1; 16]),
        DeviceOffer::new(device(), &[2; 16]),
    );
    assert_eq!(said, Err("the peer is another process".to_owned()));
    let between = CudaIpcChannel::new(&bench.cuda);
    let mut devices = between.devices().into_iter();
    let (device, described) = devices.find(|(found, _)| *found == device()).unwrap();
    let said = between.reaches(
        DeviceOffer::new(device, &described),
        DeviceOffer::new(device, &described),
    );
    assert!(said.is_err(), "one process has cuda_xth");
    let hidden = [&[9; 16], &described[16..]].concat();
    let within = channel("cuda_ipc", &bench.cuda);
    let said = within.reaches(
        DeviceOffer::new(device, &described),
        DeviceOffer::new(device, &hidden),
    );
    assert!(said.unwrap_err().contains("CUDA_VISIBLE_DEVICES"));
}
