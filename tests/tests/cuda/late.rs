//! A slow driver: other work goes on meanwhile, and memory that waits for the driver is bounded. Also a driver that cannot free memory.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use tensorpipe::channels::BasicChannel;
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::device::{Allocator, DevicePool, Memory};
use tensorpipe::{
    Buffer, BufferMut, Context, DType, Message, MessageTensor, Pipe, Pool, PoolOptions, Tensor,
};
use tensorpipe_tests::{eventually, runtime, soon};

use crate::bench::{Bench, channel, connected, device, moved, pair};
use crate::driver::{
    fails, handles, has_failed, held, longest_pinned, nothing_went_wrong, registrations,
};
use crate::fixture::Hold;
use crate::foreign::{Holds, Library, an_event_is_heard_of, proved};

const SOON: Duration = Duration::from_secs(10);

/// The longest memory of a pool's that is pinned, if it is lent to nobody.
const MOST: usize = 16 << 20;

/// As much memory as may wait to be unpinned.
const BEHIND: usize = 1 << 30;

/// A tensor in memory of a pool's that keeps nothing.
async fn goes_by_xth(pipes: &(Pipe, Pipe)) {
    const LEN: usize = 100_000;
    let keeps_nothing = PoolOptions {
        retain: 0,
        ..PoolOptions::default()
    };
    let memory = Pool::new(keeps_nothing).take(MOST).freeze().slice(0..LEN);
    let tensor = Tensor::from_buffer(memory, DType::U8, [LEN as u64]).unwrap();
    let tensor = MessageTensor::from(tensor).to_device(device());
    drop(moved(pipes, Message::new("m").tensor(tensor)).await);
}

/// Something else keeps a device at work, on a stream of its own.
fn work(bench: &Bench) -> (Hold, Arc<CudaStream>) {
    let zero = bench.cuda.context(CudaDevices::device(0)).unwrap();
    let stream = zero.new_stream().unwrap();
    (Hold::on(&stream), stream)
}

/// In unpinning a program's own memory, which the last copy from it lets go of: no more is pinned than may wait.
pub(crate) async fn unpinned() {
    let bench = Bench::new();
    let pipes = pair(&bench, "cuda_basic+xth").await;
    let work = work(&bench);
    let [before, _] = registrations();
    for _ in 0..BEHIND / MOST + 40 {
        goes_by_xth(&pipes).await;
    }
    an_event_is_heard_of(&bench).await;
    let [pinned, _] = registrations();
    let pinned = (pinned - before) as usize;
    // A few are pinned before all of those before them wait.
    let most = BEHIND / MOST + 20;
    assert!(
        (BEHIND / MOST..=most).contains(&pinned),
        "{pinned} are pinned, of {most}"
    );
    drop(work);
    let mut now = registrations()[0];
    for _ in 0..100 {
        goes_by_xth(&pipes).await;
        if registrations()[0] > now {
            break;
        }
        now = registrations()[0];
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(registrations()[0] > now, "nothing is pinned any more");
    nothing_went_wrong();
}

/// In unpinning: a mapping of memory that its lender has released goes meanwhile.
pub(crate) async fn unmapped_meanwhile() {
    let bench = Bench::new();
    let (pipes, others) = (proved(&bench).await.0, pair(&bench, "cuda_basic+xth").await);
    let library = Library::of(&bench, &[true; 3]);
    let tensor = library.tensor(&pattern(3_000_000, 1)).0;
    let read = moved(&pipes, Message::new("m").tensor(tensor)).await;
    let holds = Holds::calls_of("cuMemHostUnregister");
    goes_by_xth(&others).await;
    eventually("it is unpinned", || held() > 0).await;
    let before = handles();
    drop(read);
    // Those of the lender, and those of the mapping.
    eventually("it is unmapped", || handles() + 3 + 3 <= before).await;
    drop(holds);
}

/// In freeing pinned memory, beyond what is kept for later.
pub(crate) async fn freed() {
    let bench = Bench::new();
    let stream = bench.cuda.context(device()).unwrap().new_stream().unwrap();
    drop(bench.cuda.pinned(device(), 1).unwrap());
    let long = bench.cuda.pinned(device(), 260 << 20).unwrap().freeze();
    let memory = Arc::downgrade(long.memory());
    let (work, copy) = (work(&bench), Hold::on(&stream));
    long.use_until(&bench.cuda.fence(&stream).unwrap());
    drop(long);
    drop(copy);
    eventually("it is let go of", || memory.strong_count() == 0).await;
    an_event_is_heard_of(&bench).await;
    drop(work);
    nothing_went_wrong();
}

/// In freeing the pinned memory that is kept for later, when the last handle on the devices goes.
pub(crate) fn let_go() {
    let bench = Bench::new();
    let cuda = CudaDevices::open().unwrap();
    drop(cuda.pinned(device(), 100).unwrap());
    let work = work(&bench);
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        drop(cuda);
        done.send(())
    });
    let gone = is_done.recv_timeout(SOON);
    drop(work);
    gone.expect("its drop waits for the device");
}

/// A driver that cannot let go of something says so to nobody who wants something else.
pub(crate) fn failing() {
    let bench = Bench::new();
    for call in ["cuMemUnmap", "cuMemAddressFree", "cuMemRelease"] {
        let memory = bench.cuda.allocate(device(), 5_000_000).unwrap();
        fails(&format!("{call}:1:400"));
        drop(memory);
        let until = Instant::now() + SOON;
        while !has_failed() {
            assert!(Instant::now() < until, "{call} is not called");
            std::thread::yield_now();
        }
        fails("");
        let pinned = bench.cuda.pinned(device(), 1);
        drop(pinned.unwrap_or_else(|error| panic!("{call}: {error}")));
        let stream = bench.cuda.context(device()).unwrap().new_stream();
        drop(stream.unwrap_or_else(|error| panic!("{call}: {error}")));
    }
}

/// In opening a device: whoever asks for its pool has that, with which he keeps others from theirs.
pub(crate) fn opened() {
    let cuda = CudaDevices::open().unwrap();
    let context = Context::builder().cuda(&cuda).build().unwrap();
    let holds = Holds::calls_of("cuDevicePrimaryCtxRetain");
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || done.send(context.allocator(device())));
    let pool = is_done.recv_timeout(SOON);
    drop(holds);
    let pool = pool.expect("it waits for the device").unwrap();
    drop(pool.take(1).unwrap());
    assert!(pool.stats().retained_bytes > 0, "what comes back is kept");
}

/// In making memory, of which others are given back.
pub(crate) fn made() {
    let bench = Bench::new();
    let context = bench.cuda.context(device()).unwrap();
    let [fills, others] = [(); 2].map(|()| context.new_stream().unwrap());
    let memory: Arc<dyn Memory> = bench.cuda.allocate(device(), 100).unwrap().into();
    let room = BufferMut::from_memory(memory, 100).unwrap_or_else(|_| panic!("nobody has it"));
    let (fill, other) = (Hold::on(&fills), Hold::on(&others));
    let from = Buffer::copy_from_slice(&[1; 100]);
    drop(bench.cuda.upload(&from, room, &fills).unwrap());
    let (tell, told) = mpsc::channel();
    let last = bench.cuda.fence(&others).unwrap();
    last.when_reached(Box::new(move || tell.send(()).unwrap()));
    let holds = Holds::calls_of("cuMemCreate");
    let cuda = bench.cuda.clone();
    let makes = std::thread::spawn(move || cuda.allocate(device(), 100_000).map(drop));
    until_held("it is not made");
    drop(fill);
    std::thread::sleep(Duration::from_millis(30));
    drop(other);
    let told = told.recv_timeout(SOON);
    drop(holds);
    told.expect("an event waits for the driver");
    makes.join().unwrap().unwrap();
}

/// Waits without a timer of a runtime, whose threads may all wait for a pipe.
fn until_held(otherwise: &str) {
    let until = Instant::now() + SOON;
    while held() == 0 {
        assert!(Instant::now() < until, "{otherwise}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// In making memory that a tensor goes to, or in opening its device: the pipe passes other messages meanwhile.
pub(crate) fn made_for_a_tensor() {
    const LEN: usize = 3_000_000;
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    // Each call that does not return may have one.
    let threads = threads.worker_threads(4).enable_all().build().unwrap();
    for (name, own, function) in [
        ("cuda_xth", true, "cuMemCreate"),
        ("cuda_ipc", true, "cuMemCreate"),
        ("cuda_ipc", false, "cuMemCreate"),
        ("cuda_basic", true, "cuMemCreate"),
        ("cuda_xth", true, "cuDevicePrimaryCtxRetain"),
        ("cuda_basic", true, "cuDevicePrimaryCtxRetain"),
    ] {
        let case = format!("{function} over {name}, own memory: {own}");
        threads.block_on(async {
            let bench = Bench::new();
            let source = match own {
                true => bench.tensor(CudaDevices::device(0), &pattern(LEN, 1)),
                // Its writer copies it before it is lent.
                false => Library::of(&bench, &[false; 3]).tensor(&pattern(LEN, 1)).0,
            };
            let to = context_of(&CudaDevices::open().unwrap(), name);
            let pipes = connected(&context_of(&bench.cuda, name), &to).await;
            if name == "cuda_ipc" {
                // The proof needs memory, too.
                let first = bench.tensor(source.device(), &pattern(100, 2));
                moved(&pipes, Message::new("m").tensor(first)).await;
            }
            let (client, server) = pipes;
            if function == "cuMemCreate" {
                drop(to.allocator(device()).unwrap().take(1).unwrap());
            }
            let holds = Holds::calls_of(function);
            let message = MessageTensor::from(source).to_device(device());
            client.send(Message::new("m").tensor(message)).unwrap();
            let reader = server.clone();
            let read = tokio::spawn(async move { reader.read().await });
            until_held(&format!("{case} is not called"));
            std::thread::sleep(Duration::from_millis(50));
            for end in [client.clone(), server.clone()] {
                let (done, is_done) = mpsc::channel();
                std::thread::spawn(move || done.send(end.stats()));
                let stats = is_done.recv_timeout(SOON);
                stats.unwrap_or_else(|_| panic!("{case} locks the pipe"));
            }
            let writer = client.clone();
            let small = tokio::spawn(async move { writer.write(Message::new("small")).await });
            soon(&case, server.read()).await.unwrap();
            soon(&case, small).await.unwrap().unwrap();
            drop(holds);
            let read = soon(&case, read).await.unwrap().unwrap();
            let found = bench.download(read.tensors[0].tensor.buffer());
            assert!(found == pattern(LEN, 1), "{case}");
        });
    }
}

/// A context whose devices nobody else has opened.
fn context_of(cuda: &CudaDevices, name: &str) -> Context {
    let channels = [channel(name, cuda), Arc::new(BasicChannel::new())];
    let builder = Context::builder().channels(channels);
    builder.allocator(Arc::new(cuda.clone())).build().unwrap()
}

/// In unmapping memory of a pool's, behind the work on it.
pub(crate) fn unmapped() {
    let bench = Bench::new();
    let stream = bench.cuda.context(device()).unwrap().new_stream().unwrap();
    let pool = DevicePool::new(device(), Arc::new(bench.cuda.clone()));
    let work = Hold::on(&stream);
    let write = bench.cuda.write(pool.take(5_000_000).unwrap(), &stream);
    drop(write.unwrap().finish().unwrap());
    pool.trim(0);
    let holds = Holds::calls_of("cuMemUnmap");
    drop(work);
    runtime().block_on(async {
        eventually("it is unmapped", || held() > 0).await;
        an_event_is_heard_of(&bench).await;
    });
    drop(holds);
}

/// On devices of 64 MiB.
pub(crate) fn warm() {
    const MIB: usize = 1 << 20;
    let bench = Bench::new();
    let pool = DevicePool::new(device(), Arc::new(bench.cuda.clone()));
    let taken = [(); 4].map(|()| pool.take(8 * MIB).unwrap());
    drop(taken);
    let retained = || pool.stats().retained_bytes;
    assert_eq!(retained(), 32 << 20);
    for len in [1 << 40, 65 * MIB] {
        pool.take(len).unwrap_err();
        assert_eq!(retained(), 32 << 20, "{len} bytes");
    }
    let hog = bench.cuda.allocate(device(), 24 * MIB).unwrap();
    // Another 32 MiB would not do.
    pool.take(48 * MIB).unwrap_err();
    assert_eq!(retained(), 32 << 20, "it has not so much");
    drop(pool.take(10 * MIB).unwrap());
    assert_eq!(retained(), (24 + 10) << 20, "one block goes for it");
    drop(hog);
    // What was dropped is there for the next, however late it is unmapped.
    pool.trim(0);
    for _ in 0..20 {
        drop(bench.cuda.allocate(device(), 40 * MIB).unwrap());
    }
}

/// Main memory that the devices do not reach, and that is not registered for one copy.
pub(crate) async fn copied_in_pieces() {
    let bench = Bench::new();
    let copied = async |from: Vec<Buffer>, to: BufferMut| {
        let copying = Allocator::copy(&bench.cuda, from, to).unwrap();
        soon("a copy", copying).await.unwrap()
    };
    let bytes = pattern(MOST + (5 << 20) + 1, 1);
    let room = bench.room(device(), bytes.len());
    let long = copied(vec![Buffer::copy_from_slice(&bytes)], room).await;
    let short = long.slice(0..3);
    for (parts, len) in [(vec![long.clone()], 0), (vec![long, short], 3)] {
        let back = copied(parts, BufferMut::zeroed(bytes.len() + len)).await;
        assert!(back.as_bytes().unwrap() == [&bytes[..], &bytes[..len]].concat());
    }
    assert!(longest_pinned() <= 4 << 20, "{} bytes", longest_pinned());
    nothing_went_wrong();
}

/// Short memory is rounded to powers of two, so that it is used again for other lengths.
pub(crate) fn rounded() {
    let bench = Bench::new();
    for (len, most) in [(100_000, 1 << 17), ((33 << 20) + 1, (33 << 20) + 4096)] {
        drop(bench.cuda.pinned(device(), len).unwrap());
        assert_eq!(longest_pinned(), most, "{len} bytes");
    }
}
