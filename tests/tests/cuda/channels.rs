//! Tensors between every pair of devices, and the cost of moving them.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::CudaContext;
use tensorpipe::channels::BasicChannel;
use tensorpipe::conformance::device::Fixture;
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{
    Allocation, Buffer, BufferMut, Context, Device, DeviceKind, Error, Limits, Message,
    MessageTensor, Misuse, Pipe, Place, device::DevicePool,
};
use tensorpipe_tests::{eventually, say};

use crate::bench::{Bench, channel, connected, device, moved, of_channel, pair};
use crate::driver::{detours, downloads, fails, nothing_went_wrong, waits};
use crate::fixture::Hold;
use crate::pieces;

/// Moves tensors of some lengths from each of these devices to each.
async fn move_between(bench: &Bench, pipes: &(Pipe, Pipe), all: &[Device]) {
    let pairs = all.iter().flat_map(|a| all.iter().map(|b| (*a, *b)));
    for (seed, (from, to)) in (0u64..).zip(pairs) {
        for len in [1, 70_000, 5_000_001] {
            let bytes = pattern(len, seed);
            let tensor = MessageTensor::from(bench.tensor(from, &bytes)).to_device(to);
            let message = Message::new("m").tensor(tensor);
            let tensor = moved(pipes, message).await.tensors.remove(0).tensor;
            assert_eq!(tensor.device(), to);
            let found = bench.download(tensor.buffer());
            let route = pipes.0.route();
            assert!(found == bytes, "{len} bytes from {from} to {to}: {route}");
        }
    }
}

/// Between each pair of devices and main memory, in one piece and in many.
pub(crate) async fn every_pair_has_a_way() {
    let bench = Bench::new();
    let all = [CudaDevices::device(0), device(), Device::CPU];
    for name in ["cuda_basic", "cuda_basic+lease", "cuda_basic+cma"] {
        move_between(&bench, &pair(&bench, name).await, &all).await;
    }
    nothing_went_wrong();
}

/// A peer that knows of no devices has its main memory brought to them and back.
pub(crate) async fn with_an_ordinary_peer() {
    let bench = Bench::new();
    let devices = Context::builder().cuda(&bench.cuda).build().unwrap();
    let tcp: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
    let remote = Context::builder().transports(tcp).build().unwrap();
    for (ordinary, name) in [(remote, "cuda_basic"), (Context::new(), "cuda_basic+xth")] {
        let pipes = connected(&ordinary, &devices).await;
        let route = pipes.0.route().to_string();
        let expected = format!("cpu:0 -> {}: {name}\n", device());
        assert!(route.contains(&expected), "{route}");
        let bytes = pattern(3_000_000, 1);
        let tensor = MessageTensor::from(bench.tensor(Device::CPU, &bytes)).to_device(device());
        let mut there = moved(&pipes, Message::new("there").tensor(tensor)).await;
        let there = there.tensors.remove(0).tensor;
        assert_eq!(there.device(), device());
        let back = moved(&(pipes.1, pipes.0), Message::new("back").tensor(there)).await;
        assert!(
            back.tensors[0].tensor.as_bytes().unwrap() == bytes,
            "{route}"
        );
    }
    nothing_went_wrong();
}

/// What a context requires is carried so, or not at all; the rest goes on.
pub(crate) async fn required() {
    let bench = Bench::new();
    let builder = || Context::builder().cuda(&bench.cuda);
    let strict = builder().require(DeviceKind::CUDA, ["cuda_ipc"]);
    let strict = strict.build().unwrap();
    let pipes = connected(&strict, &builder().build().unwrap()).await;
    let on_gpu = bench.tensor(device(), &pattern(70_000, 1));
    for target in [device(), Device::CPU] {
        let tensor = MessageTensor::from(on_gpu.clone()).to_device(target);
        let refused = pipes.0.write(Message::new("m").tensor(tensor)).await;
        let refused = refused.unwrap_err();
        let is_typed = matches!(refused, Error::Misuse(Misuse::NotAsRequired { .. }));
        assert!(
            is_typed && refused.to_string().contains("over cuda_ipc"),
            "{refused}"
        );
    }
    let route = pipes.0.route().to_string();
    assert!(
        route.contains("not other channels for cuda: this context requires cuda_ipc"),
        "{route}"
    );
    // Of main memory it is not about, nor of what comes.
    let main = bench.tensor(Device::CPU, &pattern(70_000, 2));
    moved(&pipes, Message::new("m").tensor(main)).await;
    let tensor = MessageTensor::from(on_gpu).to_device(device());
    let come = moved(&(pipes.1, pipes.0), Message::new("m").tensor(tensor)).await;
    assert!(bench.download(come.tensors[0].tensor.buffer()) == pattern(70_000, 1));
    // What must stay in main memory goes to no GPU instead.
    let main = builder()
        .require(DeviceKind::CPU, ["lease"])
        .build()
        .unwrap();
    let pipes = connected(&main, &builder().build().unwrap()).await;
    let long = bench.tensor(Device::CPU, &pattern(70_000, 2));
    let refused = pipes.0.write(Message::new("m").tensor(long)).await;
    let words = "tensor 0 from cpu:0 to cpu:0 cannot go over lease";
    assert!(refused.unwrap_err().to_string().contains(words));
    let payload = Message::new("m").payload(Buffer::copy_from_slice(&pattern(70_000, 2)));
    let refused = pipes.0.write(payload).await;
    assert!(refused.unwrap_err().to_string().contains("payload 0 from"));
    // The same of one message, whatever its context says. The error says what it would have gone over, and why not what was wanted.
    let plain = builder().build().unwrap();
    let pipes = connected(&plain, &plain).await;
    let tensor =
        || MessageTensor::from(bench.tensor(device(), &pattern(70_000, 3))).to_device(device());
    let wanted = Message::new("m").tensor(tensor()).require(["cuda_ipc"]);
    let refused = pipes.0.write(wanted).await.unwrap_err();
    let Error::Misuse(Misuse::NotAsRequired {
        what,
        required,
        instead,
        reason,
    }) = &refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!(**what, *format!("tensor 0 from {0} to {0}", device()));
    assert_eq!((&**required, &**instead), ("cuda_ipc", "cuda_xth"));
    let of_ipc = pipes
        .0
        .route()
        .refused
        .iter()
        .find(|one| one.candidate == "channel cuda_ipc");
    assert_eq!(**reason, *format!("cuda_ipc: {}", of_ipc.unwrap().reason));
    let wanted = Message::new("m")
        .tensor(tensor())
        .require(["cuda_ipc", "cuda_xth"]);
    let come = moved(&pipes, wanted).await;
    assert!(bench.download(come.tensors[0].tensor.buffer()) == pattern(70_000, 3));
    let unknown = builder().require(DeviceKind::CUDA, ["cuda_icp"]).build();
    let unknown = unknown.unwrap_err().to_string();
    assert!(unknown.contains("got `cuda_icp`"), "{unknown}");
}

/// Devices of 32 MiB each, one of them full.
pub(crate) async fn full() {
    const LEN: usize = 9 << 20;
    let bench = Bench::new();
    let bytes = pattern(LEN, 1);
    let source = bench.tensor(CudaDevices::device(0), &bytes);
    for name in ["cuda_xth", "cuda_ipc", "cuda_basic"] {
        let (client, server) = pair(&bench, name).await;
        let pool = DevicePool::new(device(), Arc::new(bench.cuda.clone()));
        let hog = pool.take(26 << 20).unwrap();
        let refused = pool.take(LEN).unwrap_err();
        let said = (refused.device, refused.call);
        assert_eq!(said, (device(), "cuMemCreate"), "{refused}");
        let message = || {
            let tensor = MessageTensor::from(source.clone()).to_device(device());
            Message::new("m").tensor(tensor)
        };
        let both = async { tokio::join!(client.write(message()), server.read()) };
        let bounded = tokio::time::timeout(Duration::from_secs(30), both);
        let (written, read) = bounded.await.expect("nothing for 30 s");
        let read = read.unwrap_err();
        assert!(
            matches!(read, Error::OutOfMemory { bytes, .. } if bytes == LEN as u64),
            "{name}: {read:?}"
        );
        assert!(
            matches!(written, Err(Error::Refused { .. })),
            "{name}: {written:?}"
        );
        // Nothing is lost, here or there.
        assert!(bench.download(source.buffer()) == bytes, "over {name}");
        drop((hog, pool));
        let come = moved(&(client, server), message()).await;
        let come = come.tensors[0].tensor.buffer();
        assert!(bench.download(come) == bytes, "over {name}");
    }
    nothing_went_wrong();
}

/// To main memory that the reader fills go many copies at once, into one destination; one where the reader gets the writer's memory itself.
pub(crate) async fn pieces_to_main_memory() {
    const LEN: usize = 33_000_001;
    let bench = Bench::new();
    let zero = CudaDevices::device(0);
    for (name, own_memory, least, most) in [
        ("cuda_basic", false, 4, 8),
        ("cuda_basic", true, 4, 8),
        ("cuda_basic+cma", false, 4, 8),
        ("cuda_basic+elsewhere", true, 4, 8),
        ("cuda_basic+elsewhere", false, 4, 8),
        ("cuda_basic+lease", true, 4, 8),
        ("cuda_basic+lease", false, 1, 1),
        ("cuda_basic+xth", false, 1, 1),
    ] {
        let pipes = match name {
            "cuda_basic+elsewhere" => {
                let channel = pieces::over(&bench, |_| pieces::Elsewhere);
                of_channel(&bench, channel).await
            }
            name => pair(&bench, name).await,
        };
        let held = bench.fixture.hold_writes(zero);
        let bytes = pattern(LEN, 3);
        let tensor = MessageTensor::from(bench.tensor(zero, &bytes)).to_device(Device::CPU);
        pipes.0.send(Message::new("m").tensor(tensor)).unwrap();
        let incoming = pipes.1.read_descriptor().await.unwrap();
        let room = own_memory.then(|| Place::Into(BufferMut::zeroed(LEN)));
        let place = Allocation {
            tensors: Vec::from_iter(room),
            ..Allocation::default()
        };
        let read = tokio::spawn(incoming.read_into(place));
        let what = format!("copies to main memory over {name}");
        eventually(&what, || downloads() >= least).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(
            (least..=most).contains(&downloads()),
            "{what}: {}",
            downloads()
        );
        drop(held);
        let read = read.await.unwrap().unwrap();
        assert!(
            read.tensors[0].tensor.as_bytes().unwrap() == bytes,
            "{name}"
        );
        assert_eq!(downloads(), 0, "{what}");
        // Given up half-way, it leaves the pipe as it was.
        let held = bench.fixture.hold_writes(zero);
        let tensor = MessageTensor::from(bench.tensor(zero, &bytes)).to_device(Device::CPU);
        pipes.0.send(Message::new("m").tensor(tensor)).unwrap();
        let read = pipes.1.read_descriptor().await.unwrap().read();
        let early = tokio::time::timeout(Duration::from_millis(20), read).await;
        assert!(early.is_err(), "{early:?} while it is held");
        drop(held);
        let next = moved(&pipes, Message::new("next")).await;
        assert_eq!(&next.metadata[..], b"next");
        eventually(&what, || downloads() == 0).await;
    }
    nothing_went_wrong();
}

/// Main memory of a reader's counts as it is filled: a tensor that is announced, and of which nothing comes, is in nobody's way.
pub(crate) async fn what_has_not_come_takes_no_budget() {
    const LEN: usize = 9 << 20;
    let bench = Bench::new();
    let mut limits = Limits::default();
    limits.receive_budget = LEN as u64 + (4 << 20);
    for name in ["cuda_basic", "cuda_basic+mpt", "cuda_basic+cma"] {
        let context = Context::builder()
            .channels([channel(name, &bench.cuda), Arc::new(BasicChannel::new())])
            .allocator(Arc::new(bench.cuda.clone()))
            .limits(limits.clone())
            .build()
            .unwrap();
        let (idle, busy) = (
            connected(&context, &context).await,
            connected(&context, &context).await,
        );
        let to_main = |from, seed| {
            let tensor = MessageTensor::from(bench.tensor(from, &pattern(LEN, seed)));
            Message::new("m").tensor(tensor.to_device(Device::CPU))
        };
        let held = bench.fixture.hold_writes(CudaDevices::device(0));
        let late = to_main(CudaDevices::device(0), 1);
        idle.0.send(late).unwrap();
        let incoming = idle.1.read_descriptor().await.unwrap();
        let read = tokio::spawn(incoming.read());
        // Its reader has asked for it.
        eventually(name, || downloads() >= 4).await;
        let come = moved(&busy, to_main(device(), 2)).await;
        assert!(come.tensors[0].tensor.as_bytes().unwrap() == pattern(LEN, 2));
        drop((held, come));
        let come = read.await.unwrap().unwrap();
        assert!(come.tensors[0].tensor.as_bytes().unwrap() == pattern(LEN, 1));
    }
    nothing_went_wrong();
}

/// A call of the driver's that fails costs the message that needs it, or nothing: what comes next goes, over the same pipe.
pub(crate) async fn calls_fail() {
    const LEN: usize = 700_001;
    let calls = [
        ("cuMemCreate", "2"),
        ("cuStreamCreate", "2"),
        ("cuEventCreate", "2"),
        ("cuEventRecord", "400"),
        ("cuMemcpyDtoHAsync_v2", "999"),
        ("cuMemcpyHtoDAsync_v2", "999"),
        ("cuMemcpyPeerAsync", "999"),
        ("cuMemHostRegister_v2", "2"),
        ("cuMemHostAlloc", "2"),
    ];
    for name in ["cuda_xth", "cuda_ipc", "cuda_basic", "cuda_basic+lease"] {
        let mut have_failed = Vec::new();
        for (call, code) in calls {
            for (nth, own_memory) in (1..=3).flat_map(|nth| [(nth, false), (nth, true)]) {
                // Nothing is warm.
                let bench = Bench::new();
                let pipes = pair(&bench, name).await;
                let source = bench.tensor(CudaDevices::device(0), &pattern(LEN, nth));
                bench.download(source.buffer());
                let message = || {
                    let tensor = MessageTensor::from(source.clone()).to_device(device());
                    Message::new("m").tensor(tensor)
                };
                let place = own_memory.then(|| Place::Into(bench.room(device(), LEN)));
                let allocation = Allocation {
                    tensors: place.into_iter().collect(),
                    ..Allocation::default()
                };
                let read = async {
                    let incoming = pipes.1.read_descriptor().await?;
                    incoming.read_into(allocation).await.map_err(Error::from)
                };
                fails(&format!("{call}:{nth}:{code}"));
                let both = async { tokio::join!(pipes.0.write(message()), read) };
                let ended = tokio::time::timeout(Duration::from_secs(30), both).await;
                let has_failed = fails("");
                let what = format!("{call} number {nth} over {name}, own memory: {own_memory}");
                let (written, read) = ended.unwrap_or_else(|_| panic!("{what}: nothing for 30 s"));
                for error in [written.as_ref().err(), read.as_ref().err()]
                    .into_iter()
                    .flatten()
                {
                    assert!(!error.ends_pipe() && has_failed, "{what}: {error:?}");
                }
                match read {
                    Ok(read) => {
                        let come = read.tensors[0].tensor.buffer();
                        assert!(bench.download(come) == pattern(LEN, nth), "{what}");
                    }
                    Err(error) => {
                        let words = error.to_string();
                        let is_said = words.contains(call.trim_end_matches("_v2"))
                            || matches!(error, Error::OutOfMemory { .. } | Error::Refused { .. });
                        assert!(is_said, "{what}: {words}");
                    }
                }
                if has_failed {
                    have_failed.push(call);
                }
                let come = moved(&pipes, message()).await;
                let come = come.tensors[0].tensor.buffer();
                assert!(bench.download(come) == pattern(LEN, nth), "after {what}");
            }
        }
        for call in ["cuMemCreate", "cuStreamCreate", "cuEventRecord"] {
            assert!(
                have_failed.contains(&call),
                "{call} is not called over {name}"
            );
        }
    }
    nothing_went_wrong();
}

/// Within a process memory is handed over; to another device it is copied once.
pub(crate) async fn handed_over() {
    let bench = Bench::new();
    let pipes = pair(&bench, "cuda_xth").await;
    let tensor = bench.tensor(device(), &pattern(100_000, 1));
    let memory = tensor.buffer().memory().clone();
    let message = Message::new("m").tensor(MessageTensor::from(tensor).to_device(device()));
    let arrived = moved(&pipes, message).await.tensors.remove(0).tensor;
    assert!(
        Arc::ptr_eq(arrived.buffer().memory(), &memory),
        "the same memory"
    );
    assert_eq!(pipes.1.stats().bytes_copied, 0);
    move_between(&bench, &pipes, &[CudaDevices::device(0), device()]).await;
    nothing_went_wrong();
    say("detours", detours());
}

/// Nobody waits for a device, from the first message on: not where a source is not ready, nor where a tensor has just come.
pub(crate) async fn nobody_waits() {
    let bench = Bench::new();
    for name in ["cuda_xth", "cuda_ipc", "cuda_basic+lease", "cuda_basic"] {
        let pipes = pair(&bench, name).await;
        both_ways(&bench, &pipes).await;
        assert_eq!(waits(), 0, "{}", pipes.0.route());
    }
}

async fn both_ways(bench: &Bench, pipes: &(Pipe, Pipe)) {
    let all = [CudaDevices::device(0), device()];
    for round in 0..4 {
        let tensors = all.map(|device| bench.tensor(device, &pattern(3_000_000, round)));
        let message = tensors.iter().fold(Message::new("m"), |message, tensor| {
            let device = all[usize::from(tensor.device() == all[0])];
            message.tensor(MessageTensor::from(tensor.clone()).to_device(device))
        });
        for tensor in moved(pipes, message).await.tensors {
            let found = bench.download(tensor.tensor.buffer());
            assert!(found == pattern(3_000_000, round));
        }
    }
}

/// What waits for its source on a stream holds up nothing that is ready.
pub(crate) async fn a_late_source_holds_up_nobody() {
    let bench = Bench::new();
    let zero = CudaDevices::device(0);
    // A copy that has just been queued; and as much main memory as may wait for devices.
    for (name, count, len) in [("cuda_xth", 1, 70_000), ("cuda_basic", 9, 32 << 20)] {
        let pipes = pair(&bench, name).await;
        let early = bench.tensor(zero, &pattern(70_000, 1));
        bench.download(early.buffer());
        let held = bench.fixture.hold_writes(zero);
        let bytes = pattern(len, 2);
        let late = bench.tensor(zero, &bytes);
        let to_one = |tensor| MessageTensor::from(tensor).to_device(device());
        let copies = (0..count).map(|_| to_one(late.clone()));
        let message = copies.fold(Message::new("late"), Message::tensor);
        pipes.0.send(message).unwrap();
        let incoming = pipes.1.read_descriptor().await.unwrap();
        let read = tokio::spawn(incoming.read());
        let message = Message::new("early").tensor(to_one(early));
        let early = moved(&pipes, message).await;
        let tensor = early.tensors[0].tensor.clone();
        let look = bench.clone();
        let found = tokio::task::spawn_blocking(move || look.download(tensor.buffer()));
        let found = tokio::time::timeout(Duration::from_secs(30), found).await;
        let found = found.expect("it waits for the late one");
        assert!(found.unwrap() == pattern(70_000, 1), "over {name}");
        drop(held);
        for tensor in read.await.unwrap().unwrap().tensors {
            assert!(
                bench.download(tensor.tensor.buffer()) == bytes,
                "over {name}"
            );
        }
    }
}

/// A device that stands still takes no more main memory of its reader's than eight pieces of a tensor.
pub(crate) async fn a_device_that_stands_still_takes_little() {
    const LEN: usize = 96 << 20;
    let bench = Bench::new();
    let (client, server) = pair(&bench, "cuda_basic").await;
    let room = bench.room(device(), LEN);
    let held = bench.fixture.hold_writes(device());
    let filled = bench.fixture.write(&vec![0; LEN], room);
    let memory = filled.memory().clone();
    drop(filled);
    let bytes = pattern(LEN, 1);
    let tensor = MessageTensor::from(bench.tensor(Device::CPU, &bytes)).to_device(device());
    client.send(Message::new("m").tensor(tensor)).unwrap();
    let place = Allocation {
        tensors: vec![Place::Into(
            BufferMut::from_memory(memory, LEN).ok().unwrap(),
        )],
        ..Allocation::default()
    };
    let incoming = server.read_descriptor().await.unwrap();
    let mut read = std::pin::pin!(incoming.read_into(place));
    let early = tokio::time::timeout(Duration::from_secs(1), &mut read).await;
    assert!(early.is_err(), "{early:?} while it is in use");
    let come = server.stats().bytes_in;
    assert!(come < 9 * (4 << 20), "{come} bytes have come");
    drop(held);
    let read = read.await.unwrap();
    assert!(bench.download(read.tensors[0].tensor.buffer()) == bytes);
}

/// Also the first transfer of a program whose own work has a device, which has made no stream.
pub(crate) async fn nobody_waits_at_first() {
    let [zero, one] = [CudaDevices::device(0), device()];
    // A context that is let go of for the last time waits for its work.
    let theirs = [zero, one].map(|device| {
        let context = CudaContext::new(device.index as usize).unwrap();
        (Hold::on(&context.default_stream()), context)
    });
    let cuda = CudaDevices::open().unwrap();
    let context = Context::builder().cuda(&cuda).build().unwrap();
    let pipes = connected(&context, &context).await;
    let main = tensorpipe::Tensor::from(pattern(70_000, 1));
    let mut tensor = main.clone();
    for device in [zero, one, Device::CPU] {
        let target = MessageTensor::from(tensor).to_device(device);
        let message = moved(&pipes, Message::new("m").tensor(target)).await;
        tensor = message.tensors[0].tensor.clone();
        assert_eq!(tensor.device(), device);
    }
    assert!(tensor.as_bytes().unwrap() == main.as_bytes().unwrap());
    drop(theirs);
}
