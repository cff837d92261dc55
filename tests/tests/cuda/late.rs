//! A slow driver: other work goes on meanwhile, and memory that waits for the driver is bounded. Also a driver that cannot free memory.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::device::{Allocator, DevicePool, Memory};
use tensorpipe::{Buffer, BufferMut, Context, DType, Message, MessageTensor, Pipe, Tensor};
use tensorpipe_tests::{eventually, runtime};

use crate::bench::{Bench, device, moved, pair};
use crate::driver::{fails, has_failed, held, longest_pinned, nothing_went_wrong, registrations};
use crate::fixture::Hold;
use crate::foreign::{Holds, an_event_is_heard_of};

const SOON: Duration = Duration::from_secs(10);

/// The longest memory of a program's own that is pinned.
const MOST: usize = 16 << 20;

/// As much memory as may wait to be unpinned.
const BEHIND: usize = 1 << 30;

/// A tensor in memory of a program's own, which is gone with it.
async fn goes_by_xth(pipes: &(Pipe, Pipe)) {
    const LEN: usize = 100_000;
    let memory = Buffer::from_vec(vec![0u8; MOST]).slice(0..LEN);
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
    let until = Instant::now() + SOON;
    while held() == 0 {
        assert!(Instant::now() < until, "it is not made");
        std::thread::yield_now();
    }
    drop(fill);
    std::thread::sleep(Duration::from_millis(30));
    drop(other);
    let told = told.recv_timeout(SOON);
    drop(holds);
    told.expect("an event waits for the driver");
    makes.join().unwrap().unwrap();
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

/// Short memory is rounded to powers of two, so that it is used again for other lengths.
pub(crate) fn rounded() {
    let bench = Bench::new();
    for (len, most) in [(100_000, 1 << 17), ((33 << 20) + 1, (33 << 20) + 4096)] {
        drop(bench.cuda.pinned(device(), len).unwrap());
        assert_eq!(longest_pinned(), most, "{len} bytes");
    }
}
