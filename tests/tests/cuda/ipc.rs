//! Memory of devices that one process lends to another: it stays what it is for as long as it is held, and comes back, however its
//! holder ends.

#![allow(unsafe_code, reason = "another library's memory is an address")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::result;
use tensorpipe::channels::{
    BasicChannel, Channel, ChannelFault, CudaIpcChannel, Lane, LaneIo, LeaseChannel, Link, OpId,
    PieceEvent, Want,
};
use tensorpipe::conformance::device::Fixture;
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::device::{DeviceOffer, Memory, MemoryKind};
use tensorpipe::{
    Allocation, Buffer, BufferMut, Context, ContextBuilder, DType, Device, DeviceKind, Error,
    Message, MessageTensor, Misuse, Pipe, Place, Pool, Tensor, device::DevicePool,
};
use tensorpipe_test_cuda::is_real;
use tensorpipe_tests::{Child, runtime, say, soon};

use crate::bench::{Bench, channel, connected, device, pair};
use crate::driver::{detours, faults, imports, nothing_went_wrong, registrations, waits};
use crate::segments::Segments;

const LEN: usize = 3_000_000;

const BORROWS_NOTHING: &str = "TEST_CUDA_BORROWS_NOTHING";

const URL: &str = "TEST_CUDA_URL";

/// How many tensors a writer sends.
const TENSORS: &str = "TEST_CUDA_TENSORS";

/// Copies as long as a proof's number fail.
const NO_NUMBERS: (&str, &str) = ("TEST_CUDA_LOSES", "16");

fn context(cuda: &CudaDevices) -> Context {
    Context::builder().cuda(cuda).build().unwrap()
}

/// Keeps what it is sent, until it is told to look at it, or to let go of it.
pub(crate) fn reads() {
    let bench = Bench::new();
    runtime().block_on(async {
        let builder = Context::builder().cuda(&bench.cuda);
        let builder = match std::env::var(BORROWS_NOTHING) {
            Ok(_) => builder.prefer_channel(LeaseChannel::lends_only()),
            Err(_) => builder,
        };
        let context = builder.build().unwrap();
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("url", listener.url());
        let pipe = listener.accept().await.unwrap();
        let mut kept: Vec<Tensor> = Vec::new();
        loop {
            match pipe.read().await {
                Ok(message) => {
                    let what = String::from_utf8(message.metadata.to_vec()).unwrap();
                    kept.extend(message.tensors.into_iter().map(|tensor| tensor.tensor));
                    match &*what {
                        "let go" => kept.clear(),
                        "write" => {
                            say("write", writes(&bench, kept.remove(0)));
                            continue;
                        }
                        "imports" => {
                            say("imports", imports());
                            continue;
                        }
                        "registrations" => {
                            say("registrations", format!("{:?}", registrations()));
                            continue;
                        }
                        "detours" => {
                            say("detours", detours());
                            continue;
                        }
                        "where" => {
                            let found = kept.iter().map(|tensor| tensor.device().to_string());
                            say("where", found.collect::<Vec<_>>().join(" "));
                            continue;
                        }
                        _ => {}
                    }
                    say("read", report(&bench, &pipe, &kept));
                }
                // It did not go as its writer requires.
                Err(error) if !error.ends_pipe() => {}
                // The writer is gone; what it has lent is not.
                Err(_) => {
                    say("left", report(&bench, &pipe, &kept));
                    return;
                }
            }
        }
    });
}

/// What becomes of an attempt to write to what is lent.
fn writes(bench: &Bench, tensor: Tensor) -> &'static str {
    let memory = tensor.into_buffer().memory().clone();
    let Ok(room) = BufferMut::from_memory(memory, LEN) else {
        return "shared";
    };
    let context = bench.cuda.context(device()).unwrap();
    let stream = context.new_stream().unwrap();
    match bench.cuda.write(room, &stream) {
        Ok(_) => "written",
        Err(_) => "refused",
    }
}

/// How many tensors are what they were, how many bytes lie in the writer's memory, and what went wrong.
fn report(bench: &Bench, pipe: &Pipe, kept: &[Tensor]) -> String {
    let is_whole =
        |(seed, tensor): &(u64, &Tensor)| bench.download(tensor.buffer()) == pattern(LEN, *seed);
    let whole = (0..).zip(kept).filter(is_whole).count();
    let borrowed = pipe.stats().bytes_borrowed;
    let foreign = kept.iter().filter(|tensor| tensor.device().is_cpu());
    let foreign = foreign.filter(|tensor| !tensor.buffer().memory().is_private());
    assert_eq!(foreign.count(), 0, "in memory that others write");
    assert_eq!(waits(), 0, "calls that wait for a device");
    let why = pipe.route().to_string();
    let known = [
        ("cuMemImport", " cannot import"),
        ("not the peer's memory", " other memory"),
    ];
    let why = known.iter().find(|(words, _)| why.contains(words));
    let why = why.map_or("", |(_, said)| *said);
    format!(
        "{whole} of {}, {borrowed} borrowed{why}{}",
        kept.len(),
        faults().join("; ")
    )
}

/// Sends two tensors, or as many as it is told, and waits for ever.
pub(crate) fn lends() {
    let bench = Bench::new();
    runtime().block_on(async {
        let context = context(&bench.cuda);
        let pipe = context.connect(std::env::var(URL).unwrap()).await.unwrap();
        let count = std::env::var(TENSORS).map_or(2, |count| count.parse().unwrap());
        for seed in 0..count {
            let tensor = bench.tensor(device(), &pattern(LEN, seed));
            pipe.write(message("keep", tensor)).await.unwrap();
        }
        say("lent", pipe.stats().bytes_lent);
        say("route", pipe.route().to_string().replace('\n', " "));
        std::future::pending::<()>().await;
    });
}

fn message(what: &str, tensor: Tensor) -> Message {
    to(device(), what, tensor)
}

/// To a device of the reader's.
fn to(there: Device, what: &str, tensor: Tensor) -> Message {
    Message::new(what.to_owned()).tensor(MessageTensor::from(tensor).to_device(there))
}

fn reader(variables: &[(&str, &str)]) -> (Child, String) {
    let reader = Child::start("ipc reads", variables);
    let url = reader.hear("url");
    (reader, url)
}

fn lent(count: usize) -> String {
    format!("{count} of {count}, {} borrowed", count * LEN)
}

/// A writer in this process.
struct Writer {
    bench: Bench,
    pool: DevicePool,
    /// Main memory, which may be lent.
    main: Pool,
    pipe: Pipe,
}

impl Writer {
    async fn to(url: &str) -> Self {
        Self::with(url, |builder| builder).await
    }

    async fn with(url: &str, set: impl FnOnce(ContextBuilder) -> ContextBuilder) -> Self {
        let bench = Bench::new();
        let context = set(Context::builder().cuda(&bench.cuda)).build().unwrap();
        let pool = context.allocator(device()).unwrap();
        let pipe = context.connect(url).await.unwrap();
        let main = context.pool().clone();
        Self {
            bench,
            pool,
            main,
            pipe,
        }
    }

    /// A tensor of its pool, which nobody else uses.
    fn tensor(&self, seed: u64) -> Tensor {
        let room = self.pool.take(LEN).unwrap();
        let buffer = self.bench.fixture.write(&pattern(LEN, seed), room);
        Tensor::from_buffer(buffer, DType::U8, [LEN as u64]).unwrap()
    }

    /// One is sent. Returns its memory.
    async fn send(&self, seed: u64) -> Arc<dyn Memory> {
        let tensor = self.tensor(seed);
        let memory = tensor.buffer().memory().clone();
        self.pipe.write(message("keep", tensor)).await.unwrap();
        memory
    }

    /// One message with all of them.
    async fn send_all(&self, seeds: std::ops::Range<u64>) {
        let message = seeds.fold(Message::new("keep"), |message, seed| {
            message.tensor(MessageTensor::from(self.tensor(seed)).to_device(device()))
        });
        let written = soon("it is sent", self.pipe.write(message)).await;
        written.unwrap();
    }

    async fn say(&self, what: &'static str) {
        self.pipe.write(Message::new(what)).await.unwrap();
    }
}

fn is_in_use(memory: &Arc<dyn Memory>) -> bool {
    !memory.work().unwrap().unfinished().is_empty()
}

async fn comes_back(memory: &Arc<dyn Memory>) {
    let until = Instant::now() + Duration::from_secs(20);
    while is_in_use(memory) {
        assert!(Instant::now() < until, "it does not come back");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What is lent is not copied, and is not used again before it is back.
#[test]
fn what_is_lent_is_not_used_again_before_it_is_back() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let mut lent_out = Vec::new();
        for seed in 0..3 {
            lent_out.push(writer.send(seed).await);
            assert_eq!(child.hear("read"), lent(seed as usize + 1));
        }
        assert_eq!(writer.pipe.stats().bytes_lent, 3 * LEN as u64);
        assert!(writer.pipe.route().to_string().contains("cuda_ipc"));
        // Nobody here has a handle on one of them, which the pool does not give out.
        drop(lent_out.pop());
        let fresh = writer.pool.stats().fresh;
        let others: Vec<_> = (0..3).map(|_| writer.pool.take(LEN).unwrap()).collect();
        assert_eq!(writer.pool.stats().fresh, fresh + 3, "none of what is lent");
        let others = others
            .into_iter()
            .map(|room| writer.bench.fixture.write(&pattern(LEN, 99), room));
        others.for_each(|buffer| drop(writer.bench.download(&buffer)));
        writer.say("look").await;
        assert_eq!(child.hear("read"), lent(3));
        assert!(lent_out.iter().all(is_in_use));
        writer.say("write").await;
        assert_eq!(child.hear("write"), "refused");
        writer.say("let go").await;
        child.hear("read");
        for memory in &lent_out {
            comes_back(memory).await;
        }
    });
    nothing_went_wrong();
}

/// Whoever reads into memory that is lent waits until it is back.
#[test]
fn what_is_lent_is_read_into_when_it_is_back() {
    for name in ["cuda_xth", "cuda_basic", "cuda_ipc"] {
        let (child, url) = reader(&[]);
        runtime().block_on(async {
            let writer = Writer::to(&url).await;
            let memory = writer.send(0).await;
            assert_eq!(child.hear("read"), lent(1));
            let (from, to) = pair(&writer.bench, name).await;
            from.send(message("m", writer.tensor(7))).unwrap();
            let room = BufferMut::from_memory(memory, LEN).ok().unwrap();
            let place = Allocation {
                tensors: vec![Place::Into(room)],
                ..Allocation::default()
            };
            let incoming = to.read_descriptor().await.unwrap();
            let mut read = std::pin::pin!(incoming.read_into(place));
            let early = tokio::time::timeout(Duration::from_millis(100), &mut read).await;
            assert!(early.is_err(), "{early:?} while it is lent");
            writer.say("look").await;
            assert_eq!(child.hear("read"), lent(1));
            writer.say("let go").await;
            child.hear("read");
            let read = tokio::time::timeout(Duration::from_secs(20), read).await;
            let read = read.expect("it is back").unwrap();
            let read = writer.bench.download(read.tensors[0].tensor.buffer());
            assert!(read == pattern(LEN, 7), "over {name}");
            // Given up while it waits: the message is skipped, and the pipe goes on.
            let memory = writer.send(0).await;
            child.hear("read");
            from.send(message("m", writer.tensor(8))).unwrap();
            from.send(Message::new("next")).unwrap();
            let room = BufferMut::from_memory(memory, LEN).ok().unwrap();
            let place = Allocation {
                tensors: vec![Place::Into(room)],
                ..Allocation::default()
            };
            let incoming = to.read_descriptor().await.unwrap();
            let read = incoming.read_into(place);
            let early = tokio::time::timeout(Duration::from_millis(5), read).await;
            assert!(early.is_err(), "{early:?} while it is lent");
            assert_eq!(&to.read().await.unwrap().metadata[..], b"next");
        });
        nothing_went_wrong();
    }
}

/// Whoever only lends has what it receives for itself, on devices and from them.
#[test]
fn whoever_borrows_nothing_has_memory_of_its_own() {
    let (child, url) = reader(&[(BORROWS_NOTHING, "1")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let memory = writer.send(0).await;
        assert_eq!(child.hear("read"), "1 of 1, 0 borrowed");
        comes_back(&memory).await;
        let main = Message::new("keep").tensor(writer.tensor(1));
        writer.pipe.write(main).await.unwrap();
        assert_eq!(child.hear("read"), "2 of 2, 0 borrowed");
    });
    nothing_went_wrong();
}

#[test]
fn what_a_reader_has_that_is_killed_comes_back() {
    let (mut child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let memory = writer.send(0).await;
        assert_eq!(child.hear("read"), lent(1));
        assert!(is_in_use(&memory));
        child.kill();
        comes_back(&memory).await;
    });
    nothing_went_wrong();
}

#[test]
fn what_is_lent_outlives_a_writer_that_is_killed() {
    let (child, url) = reader(&[]);
    let mut writer = Child::start("ipc lends", &[(URL, &url)]);
    assert_eq!(writer.hear("lent"), (2 * LEN).to_string());
    assert_eq!(child.hear("read"), lent(1));
    assert_eq!(child.hear("read"), lent(2));
    writer.kill();
    assert_eq!(child.hear("left"), lent(2));
}

/// A tensor of another library's that lies in several physical allocations. It is read there as any other; what it is lent from is
/// opened once; and what the library maps at its addresses later is another tensor.
#[test]
fn a_tensor_over_several_physical_allocations_is_lent() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let context = writer.bench.cuda.context(device()).unwrap();
        let stream = context.new_stream().unwrap();
        let segments = Segments::reserve(&context);
        let (until, mut sent) = (Instant::now() + Duration::from_secs(20), 0);
        let send = async |seed| {
            let (mapped, address) = (Arc::new(segments.map()), segments.across(LEN));
            let (bytes, known) = (pattern(LEN, seed), Arc::downgrade(&mapped));
            // SAFETY: so much is mapped there, and nobody else's.
            let queued = unsafe { result::memcpy_htod_async(address, &bytes, stream.cu_stream()) };
            queued.unwrap();
            let cuda = &writer.bench.cuda;
            // SAFETY: it is there until its owner is dropped, in the primary context, and is written by that copy alone.
            let buffer = unsafe { cuda.borrow(mapped, (address, LEN), &stream) };
            let tensor = Tensor::from_buffer(buffer.unwrap(), DType::U8, [LEN as u64]);
            let message = message("keep", tensor.unwrap());
            writer.pipe.write(message).await.unwrap();
            // The library has it back, and unmaps it: other memory is mapped there next.
            while known.upgrade().is_some() {
                assert!(Instant::now() < until, "its owner is not told");
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        for seed in 0..2 {
            send(seed).await;
            sent += 1;
            assert_eq!(child.hear("read"), lent(sent));
        }
        // Until a block is lent again.
        while writer.pool.stats().fresh == sent as u64 {
            assert!(Instant::now() < until, "no block is lent again");
            writer.say("let go").await;
            child.hear("read");
            send(0).await;
            sent += 1;
            let one = format!("1 of 1, {} borrowed", sent * LEN);
            assert_eq!(child.hear("read"), one);
        }
        writer.say("imports").await;
        // Beside them that of the proof. A real driver does not count.
        let opened = if is_real() {
            0
        } else {
            writer.pool.stats().fresh + 1
        };
        assert_eq!(
            child.hear("imports"),
            opened.to_string(),
            "each is opened once"
        );
        assert_eq!(writer.pipe.stats().bytes_lent, (sent * LEN) as u64);
    });
    nothing_went_wrong();
}

/// Where that is required it does not go another way, whenever that is found out.
#[test]
fn without_descriptors_what_is_required_is_an_error() {
    let (_child, url) = reader(&[("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let strict = |builder: ContextBuilder| builder.require(DeviceKind::CUDA, ["cuda_ipc"]);
        let writer = Writer::with(&url, strict).await;
        for seed in 0..2 {
            let tensor = writer.tensor(seed);
            let refused = writer.pipe.write(message("keep", tensor)).await;
            let refused = refused.unwrap_err();
            let is_typed = matches!(refused, Error::Misuse(Misuse::NotAsRequired { .. }));
            assert!(is_typed, "{refused}");
        }
        let stats = writer.pipe.stats();
        assert!(
            stats.bytes_out < 10_000 && stats.bytes_diverted == 0,
            "{stats:?}"
        );
    });
}

/// The same of one message: the first finds it out, the next knows. Others go as they can.
#[test]
fn without_descriptors_what_one_message_requires_is_an_error() {
    let (child, url) = reader(&[("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for seed in 0..2 {
            let message = message("keep", writer.tensor(seed)).require(["cuda_ipc"]);
            let refused = writer.pipe.write(message).await.unwrap_err();
            let Error::Misuse(Misuse::NotAsRequired {
                what,
                instead,
                reason,
                ..
            }) = &refused
            else {
                panic!("{refused:?}");
            };
            assert!(
                what.starts_with("tensor 0") && instead.starts_with("cuda_basic"),
                "{refused}"
            );
            assert!(
                reason.contains("cuMemImportFromShareableHandle"),
                "{refused}"
            );
        }
        assert!(writer.pipe.stats().bytes_out < 10_000);
        writer.send(0).await;
        assert!(child.hear("read").starts_with("1 of 1, "));
    });
}

/// A driver that passes no memory to other processes: it goes by way of main memory, and the route says why.
#[test]
fn without_descriptors_it_goes_by_way_of_main_memory() {
    let (child, url) = reader(&[("TEST_CUDA_REFUSES", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for count in 1..3 {
            let memory = writer.send(count - 1).await;
            let heard = child.hear("read");
            assert!(
                heard.starts_with(&format!("{count} of {count}, ")),
                "{heard}"
            );
            assert!(heard.ends_with(" cannot import"), "{heard}");
            comes_back(&memory).await;
        }
        // The first one was tried, the next one is not.
        assert_eq!(writer.pipe.stats().bytes_diverted, LEN as u64);
        let route = writer.pipe.route();
        let of_ipc = route.channels.iter().find(|one| one.name == "cuda_ipc");
        let diverted = of_ipc.unwrap().diverted.all();
        let [one] = &diverted[..] else {
            panic!("{diverted:?}");
        };
        assert_eq!(
            (&*one.over, one.parts, one.bytes),
            ("cuda_basic", 1, LEN as u64)
        );
        let why = "cuMemImportFromShareableHandle";
        assert!(one.reason.contains(why), "{one}");
        let route = route.to_string();
        assert!(route.contains(&one.to_string()), "{route}");
    });
    nothing_went_wrong();
}

/// A driver that opens other memory than the peer's: nothing is read there but the number that it does not hold.
#[test]
fn what_opens_and_holds_another_value_is_not_used() {
    let (child, url) = reader(&[("TEST_CUDA_SWAPS", "cuMemImportFromShareableHandle")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for count in 1..3 {
            let memory = writer.send(count - 1).await;
            let heard = child.hear("read");
            let whole = format!("{count} of {count}, ");
            assert!(heard.starts_with(&whole), "{heard}");
            assert!(heard.ends_with(" other memory"), "{heard}");
            comes_back(&memory).await;
        }
        // The first one was tried, the next one is not.
        assert_eq!(writer.pipe.stats().bytes_diverted, LEN as u64);
        let route = writer.pipe.route().to_string();
        assert!(
            route.contains("sends nothing: what was opened is not the peer's"),
            "{route}"
        );
    });
    nothing_went_wrong();
}

/// The reader is asked for the number when that is there, however late the writer's devices are.
#[test]
fn a_number_is_read_when_it_is_there() {
    let (child, url) = reader(&[]);
    let late = ("TEST_CUDA_DELAY_US", "50000");
    let writer = Child::start("ipc lends", &[(URL, &url), late]);
    assert_eq!(writer.hear("lent"), (2 * LEN).to_string());
    assert_eq!(child.hear("read"), lent(1));
    assert_eq!(child.hear("read"), lent(2));
}

/// Main memory that the writer has lent is read by the reader's device where it lies: it is registered there, as what may not be written.
#[test]
fn main_memory_that_is_lent_is_registered_with_its_reader_s_driver() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        for seed in 0..3 {
            let mut tensor = writer.main.tensor(DType::U8, [LEN as u64]).unwrap();
            tensor
                .make_mut::<u8>()
                .unwrap()
                .copy_from_slice(&pattern(LEN, seed));
            writer.pipe.write(message("keep", tensor)).await.unwrap();
            let heard = child.hear("read");
            assert!(
                heard.starts_with(&format!("{0} of {0}, ", seed + 1)),
                "{heard}"
            );
        }
        writer.say("registrations").await;
        let heard = child.hear("registrations");
        let [all, read_only] = &heard[1..heard.len() - 1].split(", ").collect::<Vec<_>>()[..]
        else {
            panic!("{heard}");
        };
        assert!(all == read_only && *all != "0", "all, read-only: {heard}");
        let route = writer.pipe.route();
        let carried = |name: &str| {
            let channel = route.channels.iter().find(|one| one.name == name);
            channel.unwrap().carried.bytes()
        };
        assert_eq!(carried("cuda_basic+lease"), 3 * LEN as u64);
    });
    nothing_went_wrong();
}

/// To another device of the machine it is copied there, by way of main memory where the one does not reach the other.
#[test]
fn to_another_device_of_the_driver_s_it_is_copied_once() {
    for (peers, is_direct) in [("", false), ("0-1,1-0", true)] {
        let (child, url) = reader(&[("TEST_CUDA_PEERS", peers)]);
        runtime().block_on(async {
            let writer = Writer::to(&url).await;
            let zero = CudaDevices::device(0);
            for seed in 0..2 {
                let tensor = writer.tensor(seed);
                assert_eq!(tensor.device(), CudaDevices::device(1));
                let memory = tensor.buffer().memory().clone();
                writer.pipe.write(to(zero, "keep", tensor)).await.unwrap();
                assert_eq!(
                    child.hear("read"),
                    format!("{0} of {0}, 0 borrowed", seed + 1)
                );
                comes_back(&memory).await;
            }
            writer.say("where").await;
            assert_eq!(child.hear("where"), format!("{zero} {zero}"));
            writer.say("detours").await;
            let detours: u64 = child.hear("detours").parse().unwrap();
            assert_eq!(detours == 0, is_direct, "{detours} by way of main memory");
            let route = writer.pipe.route();
            let of_ipc = route.channels.iter().find(|one| one.name == "cuda_ipc");
            assert_eq!(of_ipc.unwrap().carried.bytes(), 2 * LEN as u64);
            assert_eq!(writer.pipe.stats().bytes_diverted, 0);
        });
        nothing_went_wrong();
    }
}

/// Devices are the same by who they are, not by their number: the reader has them in another order.
#[test]
fn whoever_counts_devices_of_the_driver_otherwise_borrows_of_the_same_ones() {
    let (child, url) = reader(&[("TEST_CUDA_ORDER", "1,0")]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let (zero, one) = (CudaDevices::device(0), CudaDevices::device(1));
        // Its own second device is the reader's first.
        let lent = writer.tensor(0);
        assert_eq!(lent.device(), one);
        writer.pipe.write(to(zero, "keep", lent)).await.unwrap();
        assert_eq!(child.hear("read"), format!("1 of 1, {LEN} borrowed"));
        // To the other one it is copied.
        let copied = to(one, "keep", writer.tensor(1));
        writer.pipe.write(copied).await.unwrap();
        assert_eq!(child.hear("read"), format!("2 of 2, {LEN} borrowed"));
        writer.say("where").await;
        assert_eq!(child.hear("where"), format!("{zero} {one}"));
        assert_eq!(writer.pipe.stats().bytes_diverted, 0);
    });
    nothing_went_wrong();
}

/// The same of a peer that passes other memory than it says.
#[test]
fn a_peer_that_passes_other_memory_than_it_says_lends_nothing() {
    let (child, url) = reader(&[]);
    let lies = ("TEST_CUDA_SWAPS", "cuMemExportToShareableHandle");
    let writer = Child::start("ipc lends", &[(URL, &url), lies]);
    let route = writer.hear("route");
    assert!(
        route.contains("sends nothing: what was opened is not the peer's"),
        "{route}"
    );
    for count in 1..3 {
        let heard = child.hear("read");
        let whole = format!("{count} of {count}, ");
        assert!(heard.starts_with(&whole), "{heard}");
        assert!(heard.ends_with(" other memory"), "{heard}");
    }
}

/// Where the writer's number does not get to its device, its tensors go another way. After three it tries no more, and says so.
#[test]
fn a_number_that_cannot_be_written_keeps_no_tensor_back_and_the_third_is_the_last() {
    for (tensors, gives_up) in [("2", false), ("4", true)] {
        let (child, url) = reader(&[]);
        let variables = [(URL, &*url), NO_NUMBERS, (TENSORS, tensors)];
        let writer = Child::start("ipc lends", &variables);
        for count in 1..=tensors.parse().unwrap() {
            let heard = child.hear("read");
            let whole = format!("{count} of {count}, ");
            assert!(heard.starts_with(&whole), "{heard}");
            assert!(
                count > 3 || heard == format!("{whole}0 borrowed"),
                "{heard}"
            );
        }
        let route = writer.hear("route");
        let why = "sends nothing: 3 proofs for the peer came to nothing";
        assert_eq!(route.contains(why), gives_up, "{route}");
    }
}

/// A reader that does not go on with a proof: it does not hear that it is asked, or stops so many steps behind that.
struct Stalls {
    honest: CudaIpcChannel,
    steps: Option<u32>,
}

struct StallsLane {
    honest: Box<dyn Lane>,
    steps: Option<u32>,
    /// About this part.
    asked: Option<OpId>,
}

impl Channel for Stalls {
    fn name(&self) -> &'static str {
        self.honest.name()
    }

    fn devices(&self) -> Vec<(Device, Vec<u8>)> {
        self.honest.devices()
    }

    fn reaches(&self, ours: DeviceOffer<'_>, theirs: DeviceOffer<'_>) -> Result<(), String> {
        self.honest.reaches(ours, theirs)
    }

    fn moves_bytes(&self, memory: MemoryKind) -> bool {
        self.honest.moves_bytes(memory)
    }

    fn open(&self, link: Link) -> Result<Box<dyn Lane>, Error> {
        Ok(Box::new(StallsLane {
            honest: self.honest.open(link)?,
            steps: self.steps,
            asked: None,
        }))
    }
}

impl Lane for StallsLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        self.honest.send(op, source, io);
    }

    fn recv(&mut self, op: OpId, want: Want, io: &mut LaneIo<'_>) {
        self.honest.recv(op, want, io);
    }

    fn control(&mut self, op: OpId, body: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        // As docs/WIRE.md says: to prove something; it cannot be lent.
        match body[0] {
            19 if self.steps.is_none() => return Ok(()),
            19 => self.asked = Some(op),
            18 if self.asked == Some(op) => self.asked = None,
            _ => {}
        }
        self.honest.control(op, body, io)
    }

    fn streamed(&mut self, op: OpId, dest: Option<BufferMut>, io: &mut LaneIo<'_>) {
        self.honest.streamed(op, dest, io);
    }

    fn resume(&mut self, op: OpId, io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        if self.asked == Some(op) {
            match &mut self.steps {
                None | Some(0) => return Ok(()),
                Some(steps) => *steps -= 1,
            }
        }
        self.honest.resume(op, io)
    }

    fn inner(
        &mut self,
        piece: OpId,
        event: PieceEvent<'_>,
        io: &mut LaneIo<'_>,
    ) -> Result<(), ChannelFault> {
        self.honest.inner(piece, event, io)
    }

    fn cancel(&mut self, op: OpId, io: &mut LaneIo<'_>) {
        self.honest.cancel(op, io);
    }
}

/// It holds up nothing for long, nor ends the pipe, at whichever step it stops: tensors go another way.
#[test]
fn a_reader_that_gives_no_proof_gets_tensors_another_way() {
    let bench = Bench::new();
    let story = async |steps| {
        let honest = CudaIpcChannel::also_within_process(&bench.cuda);
        let with = |channel: Arc<dyn Channel>| {
            let channels = [channel, Arc::new(BasicChannel::new())];
            let builder = Context::builder().channels(channels);
            builder.allocator(Arc::new(bench.cuda.clone())).build()
        };
        let far = with(Arc::new(Stalls { honest, steps })).unwrap();
        let near = with(channel("cuda_ipc", &bench.cuda)).unwrap();
        let (client, server) = connected(&near, &far).await;
        for seeds in [0..2, 2..4] {
            let message = seeds.fold(Message::new("m"), |message, seed| {
                let tensor = MessageTensor::from(bench.tensor(device(), &pattern(LEN, seed)));
                message.tensor(tensor.to_device(device()))
            });
            client.send(message).unwrap();
        }
        let first = server.read_descriptor().await.unwrap();
        let second = server.read_descriptor().await.unwrap();
        let reads = async { tokio::join!(first.read(), second.read()) };
        let reads = tokio::time::timeout(Duration::from_secs(30), reads).await;
        let (first, second) = reads.expect("it goes on");
        for (seeds, read) in [(0..2, first.unwrap()), (2..4, second.unwrap())] {
            for (seed, tensor) in seeds.zip(read.tensors) {
                let read = bench.download(tensor.tensor.buffer());
                assert!(read == pattern(LEN, seed), "{steps:?}");
            }
        }
        let diverted = client.stats().bytes_diverted;
        assert_eq!(diverted, 4 * LEN as u64, "{steps:?}: {}", client.route());
        let route = client.route().to_string();
        assert!(route.contains("gave no proof within 5 s"), "{route}");
    };
    runtime().block_on(async {
        tokio::join!(story(None), story(Some(0)), story(Some(1)), story(Some(2)))
    });
    nothing_went_wrong();
}

/// A number that cannot be read is not asked for again and again: one proof serves all tensors of a message, and the third is the last.
#[test]
fn a_number_that_cannot_be_read_keeps_no_tensor_back_and_the_third_is_the_last() {
    let (child, url) = reader(&[NO_NUMBERS]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        let mut diverted = Vec::new();
        for seeds in [0..4, 4..5, 5..6, 6..7] {
            let count = seeds.end;
            writer.send_all(seeds).await;
            let heard = child.hear("read");
            let whole = format!("{count} of {count}, ");
            assert!(heard.starts_with(&whole), "{heard}");
            diverted.push(writer.pipe.stats().bytes_diverted / LEN as u64);
        }
        // The last one was not tried.
        assert_eq!(diverted, [4, 5, 6, 6]);
        let route = writer.pipe.route().to_string();
        let why = "sends nothing: 3 proofs of the peer's memory could not be read";
        assert!(route.contains(why), "{route}");
    });
    nothing_went_wrong();
}

#[test]
fn all_tensors_of_a_first_message_are_lent() {
    let (child, url) = reader(&[]);
    runtime().block_on(async {
        let writer = Writer::to(&url).await;
        writer.send_all(0..4).await;
        assert_eq!(child.hear("read"), lent(4));
        assert_eq!(writer.pipe.stats().bytes_lent, 4 * LEN as u64);
    });
    nothing_went_wrong();
}

/// The reader of the first tensor goes, at whatever step of its proof: the second one does not wait for that.
#[test]
fn a_proof_that_is_given_up_is_made_for_the_next() {
    let bench = Bench::new();
    runtime().block_on(async {
        for round in 0..25 {
            let (client, server) = pair(&bench, "cuda_ipc").await;
            for seed in 0..2 {
                let tensor = bench.tensor(device(), &pattern(LEN, seed));
                client.send(message("m", tensor)).unwrap();
            }
            let first = server.read_descriptor().await.unwrap();
            let first = tokio::spawn(first.read());
            let second = server.read_descriptor().await.unwrap();
            let second = tokio::spawn(second.read());
            tokio::time::sleep(Duration::from_micros(200 * round)).await;
            first.abort();
            let second = tokio::time::timeout(Duration::from_secs(20), second).await;
            let second = second.expect("it goes on").unwrap().unwrap();
            let read = bench.download(second.tensors[0].tensor.buffer());
            assert!(read == pattern(LEN, 1), "round {round}");
            assert_eq!(client.stats().bytes_diverted, 0, "round {round}");
        }
    });
    nothing_went_wrong();
}
