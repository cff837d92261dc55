//! Each device channel between two processes: every tensor, sent from any device to any other, comes back unchanged.

use std::sync::Arc;

use tensorpipe::channels::BasicChannel;
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Context, Device, Message, MessageTensor, Pipe, Tensor};
use tensorpipe_tests::{Child, runtime, say, soon};

use crate::bench::{Bench, channel, device};
use crate::driver::nothing_went_wrong;

const CHANNEL: &str = "TEST_CUDA_CHANNEL";

const LENGTHS: [usize; 4] = [0, 1, 70_000, 1_500_001];

/// Messages that are under way at once.
const MANY: u64 = 8;

fn context(bench: &Bench, name: &str) -> Context {
    // Behind it what it does not carry goes: main memory, and for `cuda_ipc` what goes from there to devices and back.
    let behind = (name == "cuda_ipc").then(|| channel("cuda_basic", &bench.cuda));
    let mut channels = vec![channel(name, &bench.cuda)];
    channels.extend(behind);
    channels.push(Arc::new(BasicChannel::new()));
    let builder = Context::builder().channels(channels);
    let allocator = Arc::new(bench.cuda.clone());
    builder.allocator(allocator).build().unwrap()
}

fn devices() -> [Device; 3] {
    [CudaDevices::device(0), device(), Device::CPU]
}

/// Sends back each tensor, to where it says, and skips what it shall not read.
pub(crate) fn echoes() {
    let bench = Bench::new();
    runtime().block_on(async {
        let name = std::env::var(CHANNEL).unwrap();
        let context = context(&bench, &name);
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        while let Ok(incoming) = pipe.read_descriptor().await {
            if incoming.metadata() == b"skip" {
                continue;
            }
            let read = incoming.read().await.unwrap();
            let answer = Message::new(read.metadata);
            let answer = read.tensors.into_iter().fold(answer, |answer, tensor| {
                let back = devices()[usize::from(tensor.metadata[0])];
                answer.tensor(MessageTensor::from(tensor.tensor).to_device(back))
            });
            pipe.send(answer).unwrap();
        }
    });
}

/// A tensor of each of these lengths from each device to each, which is to come back to where it was.
fn message(bench: &Bench, number: u64, lengths: &[usize]) -> Message {
    let mut message = Message::new(number.to_le_bytes().to_vec());
    for (back, from) in devices().into_iter().enumerate() {
        for to in devices() {
            for len in lengths {
                let tensor = bench.tensor(from, &pattern(*len, number));
                let tensor = MessageTensor::from(tensor).to_device(to);
                message = message.tensor(tensor.with_metadata(vec![back as u8]));
            }
        }
    }
    message
}

async fn comes_back(bench: &Bench, pipe: &Pipe, number: u64, lengths: &[usize]) {
    let read = soon("an answer", pipe.read()).await.unwrap();
    assert_eq!(read.metadata[..], number.to_le_bytes());
    let expected = devices().into_iter().flat_map(|from| {
        let each = devices().into_iter().flat_map(|_| lengths.iter());
        each.map(move |len| (from, *len))
    });
    let found: Vec<Tensor> = read.tensors.into_iter().map(|one| one.tensor).collect();
    assert_eq!(found.len(), 9 * lengths.len());
    for (tensor, (from, len)) in found.iter().zip(expected) {
        assert_eq!(tensor.device(), from);
        let bytes = bench.download(tensor.buffer());
        assert!(bytes == pattern(len, number), "{len} bytes from {from}");
    }
}

fn goes_there_and_back(name: &str) {
    let child = Child::start("across", &[(CHANNEL, name)]);
    let bench = Bench::new();
    runtime().block_on(async {
        let context = context(&bench, name);
        let pipe = soon("a pipe", context.connect(child.hear("url")))
            .await
            .unwrap();
        pipe.send(message(&bench, 0, &LENGTHS)).unwrap();
        comes_back(&bench, &pipe, 0, &LENGTHS).await;
        // Of one of two nobody reads anything.
        for number in 1..=MANY {
            let skipped = MessageTensor::from(bench.tensor(device(), &pattern(70_000, 99)));
            let skipped = Message::new("skip").tensor(skipped.to_device(device()));
            pipe.send(skipped).unwrap();
            pipe.send(message(&bench, number, &[70_000])).unwrap();
        }
        for number in 1..=MANY {
            comes_back(&bench, &pipe, number, &[70_000]).await;
        }
        let route = pipe.route();
        let carried = route.channels.iter().find(|one| one.name == name);
        assert!(carried.unwrap().carried.bytes() > 0, "{route}");
    });
    crate::ends_well(&child, "across");
    nothing_went_wrong();
}

#[test]
fn by_cuda_ipc_it_comes_back_as_it_was() {
    goes_there_and_back("cuda_ipc");
}

#[test]
fn by_cuda_basic_it_comes_back_as_it_was() {
    goes_there_and_back("cuda_basic");
}

#[test]
fn by_cuda_basic_over_leases_it_comes_back_as_it_was() {
    goes_there_and_back("cuda_basic+lease");
}

#[test]
fn by_cuda_basic_over_cma_it_comes_back_as_it_was() {
    goes_there_and_back("cuda_basic+cma");
}

#[test]
fn by_cuda_basic_over_mpt_it_comes_back_as_it_was() {
    goes_there_and_back("cuda_basic+mpt");
}
