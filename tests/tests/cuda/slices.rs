//! Tensors together with a program's own work on streams. The tests hold each stream while the CPU queues everything.

#![allow(unsafe_code, reason = "a program's own copies take addresses")]

use std::any::Any;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUdeviceptr};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DriverError, result};
use tensorpipe::DeviceError;
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::{CudaDevices, Download};
use tensorpipe::device::{Fence, Memory};
use tensorpipe::{
    Buffer, BufferMut, Context, DType, Tensor,
    device::{Allocator, DevicePool},
};

use crate::bench::device;
use crate::driver::{fails, waits};
use crate::fixture::Hold;

const LEN: usize = 100_000;

/// In which a stream that waits for nothing does all that it has.
const LONG: Duration = Duration::from_millis(30);

fn streams(cuda: &CudaDevices, index: u32) -> [Arc<CudaStream>; 3] {
    let context = cuda.context(CudaDevices::device(index)).unwrap();
    [(); 3].map(|()| context.new_stream().unwrap())
}

fn bytes_of(cuda: &CudaDevices, buffer: &Buffer, stream: &Arc<CudaStream>) -> Vec<u8> {
    let copied = cuda.download(buffer, stream).unwrap();
    filled(copied).as_bytes().unwrap().to_vec()
}

/// Waits for all that is queued on a stream, without a call of the driver's that waits: those are counted.
fn end_of(cuda: &CudaDevices, stream: &CudaStream) {
    let fence = cuda.fence(stream).unwrap();
    let until = Instant::now() + Duration::from_secs(30);
    while fence.reached().is_none() {
        assert!(Instant::now() < until, "it does not end");
        std::thread::yield_now();
    }
}

/// Waits for the copy, for half a minute at most.
fn filled(mut copied: Download) -> Buffer {
    let until = Instant::now() + Duration::from_secs(30);
    loop {
        match copied.take().unwrap() {
            Some(filled) => return filled.freeze(),
            None => assert!(Instant::now() < until, "it does not come: {copied:?}"),
        }
        std::thread::yield_now();
    }
}

/// Where a slice lies on its device.
fn address_of<T>(slice: &CudaSlice<T>) -> CUdeviceptr {
    slice.device_ptr(slice.stream()).0
}

pub(crate) fn there_and_back() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, reads, _] = streams(&cuda, device().index);
    let mut slice = makes.alloc_zeros::<f32>(LEN / 4).unwrap();
    let numbers: Vec<f32> = (0..LEN / 4).map(|n| n as f32).collect();
    let before = waits();
    let (held, held_reads) = (Hold::on(&makes), Hold::on(&reads));
    makes.memcpy_htod(&numbers, &mut slice).unwrap();
    let address = address_of(&slice);
    let tensor = Tensor::from_cuda(&cuda, slice, [50, 500]).unwrap();
    assert_eq!(
        (tensor.shape(), tensor.device().index),
        (&[50, 500][..], device().index)
    );
    let wrong = tensor.into_cuda::<u32>(&cuda).unwrap_err();
    let other = wrong.clone();
    let shared = wrong.into_cuda::<f32>(&cuda).unwrap_err();
    drop(other);
    // Queued behind what makes it, which has not begun.
    let copied = cuda.download(shared.buffer(), &reads).unwrap();
    let slice = shared.into_cuda::<f32>(&cuda).unwrap();
    assert_eq!(address_of(&slice), address, "nothing is copied");
    assert_eq!(waits(), before, "nobody waits for a device");
    // Behind the copy that reads it, too.
    let zeros = vec![0f32; LEN / 4];
    let mut slice = slice;
    makes.memcpy_htod(&zeros, &mut slice).unwrap();
    drop(held);
    std::thread::sleep(LONG);
    drop(held_reads);
    let found = filled(copied);
    let expected: Vec<u8> = numbers.iter().flat_map(|n| n.to_ne_bytes()).collect();
    assert!(found.as_bytes() == Some(&expected[..]));
    let zeroed = cuda.buffer(slice).unwrap();
    assert!(bytes_of(&cuda, &zeroed, &reads) == vec![0; LEN]);
}

pub(crate) fn dropped_under_work() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, reads, others] = streams(&cuda, 0);
    let held = Hold::on(&reads);
    let slice = makes.clone_htod(&pattern(LEN, 1)).unwrap();
    let tensor = Tensor::from_cuda(&cuda, slice, [LEN as u64]).unwrap();
    let copied = cuda.download(tensor.buffer(), &reads).unwrap();
    drop(tensor);
    // Whoever gets its memory now would find it in use.
    let next = others.clone_htod(&pattern(LEN, 2)).unwrap();
    end_of(&cuda, &others);
    drop(held);
    let found = filled(copied);
    assert!(found.as_bytes() == Some(&pattern(LEN, 1)[..]));
    drop(next);
    // The same of memory of no pool's: with others in one block, and of its own.
    for len in [LEN, 5_000_000] {
        let device = CudaDevices::device(0);
        let room = || {
            let memory: Arc<dyn Memory> = cuda.allocate(device, len).unwrap().into();
            BufferMut::from_memory(memory, len).unwrap_or_else(|_| panic!("nobody else has it"))
        };
        let from = Buffer::from_vec(pattern(len, 3));
        let buffer = cuda.upload(&from, room(), &makes).unwrap();
        let held = Hold::on(&reads);
        let copied = cuda.download(&buffer, &reads).unwrap();
        drop(buffer);
        let other = Buffer::from_vec(pattern(len, 4));
        let next = cuda.upload(&other, room(), &others).unwrap();
        end_of(&cuda, &others);
        drop(held);
        assert!(filled(copied).as_bytes() == from.as_bytes());
        drop(next);
    }
}

/// The driver frees such a slice once all work of its stream is done, for which cudarc waits.
pub(crate) fn dropped_without_pools() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, reads, _] = streams(&cuda, 0);
    let unused = || {
        makes.context().bind_to_thread().unwrap();
        result::mem_get_info().unwrap().0
    };
    let before = unused();
    let slice = makes.clone_htod(&pattern(LEN, 1)).unwrap();
    let tensor = Tensor::from_cuda(&cuda, slice, [LEN as u64]).unwrap();
    let held = Hold::on(&reads);
    let copied = cuda.download(tensor.buffer(), &reads).unwrap();
    let (done, is_done) = mpsc::channel();
    std::thread::spawn(move || {
        drop(tensor);
        done.send(())
    });
    let dropped = is_done.recv_timeout(Duration::from_secs(10));
    drop(held);
    dropped.expect("its drop waits for the work on it");
    assert!(filled(copied).as_bytes() == Some(&pattern(LEN, 1)[..]));
    let until = Instant::now() + Duration::from_secs(30);
    while unused() != before {
        assert!(Instant::now() < until, "it is not freed");
        std::thread::yield_now();
    }
}

pub(crate) fn filled_by_hand() {
    let cuda = CudaDevices::open().unwrap();
    let [fills, reads, others] = streams(&cuda, 0);
    let pool = DevicePool::new(CudaDevices::device(0), Arc::new(cuda.clone()));
    let bytes = pattern(LEN, 3);
    let held = Hold::on(&fills);
    held.begins();
    let held_reads = Hold::on(&reads);
    let filled = cuda.write(pool.take(LEN).unwrap(), &fills).unwrap();
    // SAFETY: the bytes live until the end of this story, and the destination is as long.
    let queued = unsafe { result::memcpy_htod_async(filled.address(), &bytes, fills.cu_stream()) };
    queued.unwrap();
    let buffer = filled.finish().unwrap();
    let into = pool.take(LEN).unwrap();
    let copied = {
        let from = cuda.read(&buffer, &reads).unwrap();
        let to = cuda.write(into, &reads).unwrap();
        // SAFETY: both are as long, and kept until the copy is made.
        let queued = unsafe {
            result::memcpy_dtod_async(to.address(), from.address(), LEN, reads.cu_stream())
        };
        queued.unwrap();
        to.finish().unwrap()
    };
    drop(held);
    end_of(&cuda, &fills);
    // It goes back to the pool, which does not hand it out while it is read.
    drop(buffer);
    let next = cuda.write(pool.take(LEN).unwrap(), &others).unwrap();
    // SAFETY: so many bytes are there.
    let queued = unsafe { result::memset_d8_async(next.address(), 0, LEN, others.cu_stream()) };
    queued.unwrap();
    drop(next);
    end_of(&cuda, &others);
    drop(held_reads);
    assert!(bytes_of(&cuda, &copied, &reads) == bytes);
}

/// Work of one's own reads what is there, however early it is queued.
pub(crate) fn read_by_hand() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, reads, _] = streams(&cuda, device().index);
    let pool = DevicePool::new(device(), Arc::new(cuda.clone()));
    let held = Hold::on(&makes);
    let from = Buffer::from_vec(pattern(LEN, 8));
    let buffer = cuda.upload(&from, pool.take(LEN).unwrap(), &makes);
    let buffer = buffer.unwrap();
    let from = cuda.read(&buffer, &reads).unwrap();
    let to = cuda.write(pool.take(LEN).unwrap(), &reads).unwrap();
    let (there, here) = (to.address(), from.address());
    // SAFETY: both are as long, and kept until the copy is made.
    let queued = unsafe { result::memcpy_dtod_async(there, here, LEN, reads.cu_stream()) };
    queued.unwrap();
    drop(from);
    let copied = to.finish().unwrap();
    std::thread::sleep(LONG);
    drop(held);
    assert!(bytes_of(&cuda, &copied, &reads) == pattern(LEN, 8));
}

/// Memory that is given up while it is filled is nobody else's before that is over.
pub(crate) fn given_up() {
    let cuda = CudaDevices::open().unwrap();
    let [fills, others, reads] = streams(&cuda, device().index);
    let pool = DevicePool::new(device(), Arc::new(cuda.clone()));
    let held = Hold::on(&fills);
    let room = cuda.write(pool.take(LEN).unwrap(), &fills).unwrap();
    // SAFETY: so many bytes are there.
    let queued = unsafe { result::memset_d8_async(room.address(), 0, LEN, fills.cu_stream()) };
    queued.unwrap();
    drop(room);
    let from = Buffer::from_vec(pattern(LEN, 9));
    let next = cuda.upload(&from, pool.take(LEN).unwrap(), &others);
    let next = next.unwrap();
    std::thread::sleep(LONG);
    drop(held);
    end_of(&cuda, &fills);
    assert!(bytes_of(&cuda, &next, &reads) == pattern(LEN, 9));
}

/// Main memory that is copied from is kept until the copy is made: that of the program's, and that to which the CPU copies first.
pub(crate) fn sources_are_kept() {
    let cuda = CudaDevices::open().unwrap();
    let [fills, reads, _] = streams(&cuda, device().index);
    let pool = DevicePool::new(device(), Arc::new(cuda.clone()));
    let pinned = |seed| {
        let mut room = cuda.pinned(device(), LEN).unwrap();
        room.as_bytes_mut()
            .unwrap()
            .copy_from_slice(&pattern(LEN, seed));
        room.freeze()
    };
    let sources: [&dyn Fn(u64) -> Buffer; 2] =
        [&pinned, &|seed| Buffer::from_vec(pattern(LEN, seed))];
    for source in sources {
        let held = Hold::on(&fills);
        let upload = |seed| cuda.upload(&source(seed), pool.take(LEN).unwrap(), &fills);
        let filled = [1, 2, 3].map(|seed| (seed, upload(seed).unwrap()));
        drop(held);
        for (seed, buffer) in filled {
            assert!(bytes_of(&cuda, &buffer, &reads) == pattern(LEN, seed));
        }
    }
}

pub(crate) fn copied_to_another_device() {
    let cuda = CudaDevices::open().unwrap();
    let ([makes, _, _], [copies, reads, _]) = (streams(&cuda, 0), streams(&cuda, device().index));
    let there = DevicePool::new(device(), Arc::new(cuda.clone()));
    let (held, held_copies) = (Hold::on(&makes), Hold::on(&copies));
    let slice = makes.clone_htod(&pattern(LEN, 4)).unwrap();
    let tensor = Tensor::from_cuda(&cuda, slice, [LEN as u64]).unwrap();
    let half = tensor.buffer().slice(LEN / 2..LEN);
    let copied = cuda.copy(&half, there.take(LEN - LEN / 2).unwrap(), &copies);
    let copied = copied.unwrap();
    assert!(
        copied
            .ready()
            .is_some_and(|fence| fence.reached().is_none())
    );
    // It is not freed before the copy is made, which begins long after its own stream is through.
    drop((tensor, half));
    drop(held);
    std::thread::sleep(LONG);
    drop(held_copies);
    assert!(bytes_of(&cuda, &copied, &reads) == pattern(LEN, 4)[LEN / 2..]);
}

/// Of which device memory is, the driver knows, whichever device this thread has used last and however often it was let go of.
pub(crate) fn borrowed_by_device() {
    let cuda = CudaDevices::open().unwrap();
    let ([zero, ..], [one, ..]) = (streams(&cuda, 0), streams(&cuda, 1));
    let slices = [&zero, &one].map(|stream| stream.clone_htod(&pattern(LEN, 1)).unwrap());
    let addresses = [address_of(&slices[0]), address_of(&slices[1])];
    let borrow = |at: CUdeviceptr, stream: &Arc<CudaStream>| {
        // SAFETY: the slices are kept to the end of this story, and nobody writes there.
        unsafe { cuda.borrow((), at, LEN, stream) }
    };
    for used_last in [&zero, &one, &zero] {
        used_last.context().bind_to_thread().unwrap();
        for (address, stream) in [(addresses[0], &zero), (addresses[1], &one)] {
            // Not at the start of its allocation, too.
            for at in [0, 512] {
                // SAFETY: as above, and as much is there.
                let buffer = unsafe { cuda.borrow((), address + at, LEN - 512, stream) };
                let buffer = buffer.unwrap();
                assert_eq!(buffer.device().index as usize, stream.context().ordinal());
            }
        }
        for (address, stream, found) in [(addresses[0], &one, 0), (addresses[1], &zero, 1)] {
            let refused = borrow(address, stream).unwrap_err();
            assert_eq!(refused.device.index as usize, stream.context().ordinal());
            let why = format!("the memory is of cuda:{found}, the stream is not");
            assert!(refused.to_string().contains(&why), "{refused}");
        }
    }
    let unknown = borrow(0x10, &zero).unwrap_err();
    assert_eq!(unknown.call, "cuPointerGetAttribute", "{unknown}");
    let pinned = cuda.pinned(CudaDevices::device(0), LEN).unwrap().freeze();
    let pinned = pinned.as_bytes().unwrap().as_ptr().addr() as u64;
    let refused = borrow(pinned, &zero).unwrap_err().to_string();
    assert!(refused.contains("no device's memory"), "{refused}");
    // A context that is made anew knows it, too.
    drop(
        CudaDevices::open()
            .unwrap()
            .context(CudaDevices::device(0))
            .unwrap(),
    );
    assert!(borrow(addresses[0], &zero).is_ok());
    for stream in [&zero, &one] {
        end_of(&cuda, stream);
    }
    drop(slices);
}

/// What is on a device keeps what it needs: the devices, the context, the pool and the streams are gone before it is read.
pub(crate) fn outlive_their_devices() {
    let (first, last) = (CudaDevices::device(0), device());
    let (tensor, copied, pinned, fence) = {
        let cuda = CudaDevices::open().unwrap();
        let [makes, reads, others] = streams(&cuda, 0);
        let context = Context::builder().cuda(&cuda).build().unwrap();
        let pool = context.allocator(first).unwrap();
        let upload = |seed| {
            let from = Buffer::from_vec(pattern(LEN, seed));
            cuda.upload(&from, pool.take(LEN).unwrap(), &makes).unwrap()
        };
        let tensor = Tensor::from_buffer(upload(1), DType::U8, [LEN as u64]).unwrap();
        let copied = cuda.download(&upload(2), &reads).unwrap();
        let mut pinned = cuda.pinned(last, LEN).unwrap();
        let bytes = pinned.as_bytes_mut().unwrap();
        bytes.copy_from_slice(&pattern(LEN, 3));
        (tensor, copied, pinned, cuda.fence(&others).unwrap())
    };
    let until = Instant::now() + Duration::from_secs(30);
    while fence.reached().is_none() {
        assert!(Instant::now() < until, "it is not reached");
        std::thread::yield_now();
    }
    assert_eq!(fence.reached(), Some(Ok(())));
    let found = filled(copied);
    assert!(found.as_bytes() == Some(&pattern(LEN, 2)[..]));
    assert!(pinned.freeze().as_bytes() == Some(&pattern(LEN, 3)[..]));
    // By devices that are opened now: the context is the one that the tensor has kept.
    let cuda = CudaDevices::open().unwrap();
    let [reads, ..] = streams(&cuda, 0);
    assert!(bytes_of(&cuda, tensor.buffer(), &reads) == pattern(LEN, 1));
}

/// Panics once more when it is caught.
struct PanicsAgain;

impl Drop for PanicsAgain {
    fn drop(&mut self) {
        panic!("as planned, too");
    }
}

/// The others hear of their events all the same, whatever was thrown.
pub(crate) fn a_callback_panics() {
    let cuda = CudaDevices::open().unwrap();
    let [reads, others, _] = streams(&cuda, 0);
    let (held, other) = (Hold::on(&reads), Hold::on(&others));
    let (tell, told) = mpsc::channel();
    let (first, last) = (cuda.fence(&others).unwrap(), cuda.fence(&reads).unwrap());
    first.when_reached(Box::new(|| panic!("as planned")));
    first.when_reached(Box::new(|| std::panic::panic_any(PanicsAgain)));
    last.when_reached(Box::new(move || tell.send(()).unwrap()));
    drop(other);
    std::thread::sleep(LONG);
    drop(held);
    told.recv_timeout(Duration::from_secs(30)).unwrap();
}

/// cudarc's other streams wait for what was done with the tensor, and the tensor for them.
pub(crate) fn two_streams_of_cudarcs() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, reads, others] = streams(&cuda, 0);
    let (held, held_others) = (Hold::on(&reads), Hold::on(&others));
    let slice = makes.clone_htod(&pattern(LEN, 6)).unwrap();
    let copy = others.clone_dtod(&slice).unwrap();
    let tensor = Tensor::from_cuda(&cuda, slice, [LEN as u64]).unwrap();
    let copied = cuda.download(tensor.buffer(), &reads).unwrap();
    let mut slice = tensor.into_cuda::<u8>(&cuda).unwrap();
    drop(held_others);
    others.memcpy_htod(&vec![0u8; LEN], &mut slice).unwrap();
    std::thread::sleep(LONG);
    drop(held);
    let found = filled(copied);
    assert!(found.as_bytes() == Some(&pattern(LEN, 6)[..]));
    for (slice, bytes) in [(copy, pattern(LEN, 6)), (slice, vec![0; LEN])] {
        let buffer = cuda.buffer(slice).unwrap();
        assert!(bytes_of(&cuda, &buffer, &makes) == bytes);
    }
    // What another stream of its has written is there before the tensor is.
    let mut slice = makes.alloc_zeros::<u8>(LEN).unwrap();
    let held_others = Hold::on(&others);
    others.memcpy_htod(&pattern(LEN, 7), &mut slice).unwrap();
    let tensor = Tensor::from_cuda(&cuda, slice, [LEN as u64]).unwrap();
    let copied = cuda.download(tensor.buffer(), &reads).unwrap();
    std::thread::sleep(LONG);
    drop(held_others);
    assert!(filled(copied).as_bytes() == Some(&pattern(LEN, 7)[..]));
}

/// Another library's memory on its own stream, and memory for one: nobody waits, and it hears when the last work is done.
pub(crate) fn by_dlpack() {
    let cuda = CudaDevices::open().unwrap();
    let [theirs, reads, late] = streams(&cuda, device().index);
    let mut slice = theirs.alloc_zeros::<u8>(LEN).unwrap();
    let before = waits();
    let held = Hold::on(&theirs);
    theirs.memcpy_htod(&pattern(LEN, 1), &mut slice).unwrap();
    let address = address_of(&slice);
    let given = Tensor::from_cuda(&cuda, slice, [LEN]).unwrap();
    let memory = Arc::downgrade(given.buffer().memory());
    let given = given.into_dlpack_on(&cuda, &late).unwrap();
    let data = given.validate_export().unwrap().data_ptr();
    assert_eq!(data.addr() as u64, address, "nothing is copied");
    // SAFETY: what was made above is true, and nobody writes there.
    let tensor = unsafe { Tensor::from_dlpack_on(given, &cuda, &late) }.unwrap();
    assert_eq!(
        (tensor.device(), tensor.shape()),
        (device(), &[LEN as u64][..])
    );
    let taken = cuda.read(tensor.buffer(), &late).unwrap().address();
    assert_eq!(taken, address, "nothing is copied");
    held.begins();
    let held_reads = Hold::on(&reads);
    let copied = cuda.download(tensor.buffer(), &reads).unwrap();
    let [early, ..] = streams(&cuda, device().index);
    let at_once = cuda.download(tensor.buffer(), &early).unwrap();
    assert_eq!(waits(), before, "nobody waits for a device");
    drop(tensor);
    std::thread::sleep(LONG);
    drop(held);
    assert!(filled(at_once).as_bytes() == Some(&pattern(LEN, 1)[..]));
    std::thread::sleep(LONG);
    assert!(
        memory.upgrade().is_some(),
        "a copy is still to be made of it"
    );
    drop(held_reads);
    assert!(filled(copied).as_bytes() == Some(&pattern(LEN, 1)[..]));
    let until = Instant::now() + Duration::from_secs(10);
    while memory.upgrade().is_some() {
        assert!(Instant::now() < until, "its owner is not told");
        std::thread::sleep(Duration::from_millis(1));
    }
    // What is somebody else's is not written.
    let theirs = late.alloc_zeros::<u8>(LEN).unwrap();
    let theirs = Tensor::from_cuda(&cuda, theirs, [LEN]).unwrap();
    let theirs = theirs.into_dlpack_on(&cuda, &late).unwrap();
    // SAFETY: as above.
    let theirs = unsafe { Tensor::from_dlpack_on(theirs, &cuda, &late) }.unwrap();
    let memory = theirs.into_buffer().memory().clone();
    let room = BufferMut::from_memory(memory, LEN);
    assert!(cuda.write(room.ok().unwrap(), &late).is_err());
    // Of another device than the stream's, and main memory.
    if device().index != 0 {
        let [other, ..] = streams(&cuda, 0);
        let there = Tensor::from_cuda(&cuda, other.alloc_zeros::<u8>(8).unwrap(), [8]).unwrap();
        let there = there.into_dlpack_on(&cuda, &other).unwrap();
        // SAFETY: as above.
        let refused = unsafe { Tensor::from_dlpack_on(there, &cuda, &late) }.unwrap_err();
        assert!(
            refused.to_string().contains("not on the stream's"),
            "{refused}"
        );
    }
    let main = Tensor::from(vec![1u8])
        .into_dlpack_on(&cuda, &late)
        .err()
        .unwrap();
    assert!(
        main.to_string().contains("no memory of these devices"),
        "{main}"
    );
}

/// Such a stream is another one on each thread, and what keeps a stream may be dropped on any.
pub(crate) fn stream_per_thread() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, ..] = streams(&cuda, device().index);
    let own = cuda.context(device()).unwrap().per_thread_stream();
    let pool = DevicePool::new(device(), Arc::new(cuda.clone()));
    let from = Buffer::from_vec(pattern(LEN, 1));
    let buffer = cuda.upload(&from, pool.take(LEN).unwrap(), &makes);
    let buffer = buffer.unwrap();
    let tensor = Tensor::from_buffer(buffer.clone(), DType::U8, [LEN as u64]).unwrap();
    let slice = own.alloc_zeros::<u8>(LEN).unwrap();
    let refused = [
        cuda.read(&buffer, &own).err(),
        cuda.write(pool.take(LEN).unwrap(), &own).err(),
        cuda.buffer(slice).err(),
        tensor.into_dlpack_on(&cuda, &own).err(),
    ];
    for (number, error) in refused.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("number {number} keeps it"));
        let words = error.to_string();
        assert!(words.contains("CU_STREAM_PER_THREAD"), "{words}");
    }
    // What keeps no stream works on it.
    assert!(bytes_of(&cuda, &buffer, &own) == pattern(LEN, 1));
}

/// Lets another thread go on while it is asked, and is reached then.
struct AskedSlowly(Mutex<mpsc::Sender<()>>);

impl Fence for AskedSlowly {
    fn reached(&self) -> Option<Result<(), DeviceError>> {
        let _ = self.0.lock().unwrap().send(());
        std::thread::sleep(Duration::from_millis(1));
        Some(Ok(()))
    }

    fn when_reached(&self, act: Box<dyn FnOnce() + Send>) {
        act();
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Whoever drops the other handle last has queued work before.
pub(crate) fn taken_by_the_last() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, reads, _] = streams(&cuda, 0);
    // One processor: a thread that is woken goes first.
    let mut one = nix::sched::CpuSet::new();
    let here = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let first = (0..nix::sched::CpuSet::count()).find(|cpu| here.is_set(*cpu).unwrap());
    one.set(first.unwrap()).unwrap();
    nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &one).unwrap();
    for _ in 0..100 {
        let held = Hold::on(&reads);
        let fence = cuda.fence(&reads).unwrap();
        let slice = makes.alloc_zeros::<u8>(512).unwrap();
        let buffer = cuda.buffer(slice).unwrap();
        let (tell, told) = mpsc::channel();
        let slowly: Arc<dyn Fence> = Arc::new(AskedSlowly(Mutex::new(tell.clone())));
        buffer.use_until(&slowly);
        let other = buffer.clone();
        let drops = std::thread::spawn(move || {
            told.recv().unwrap();
            other.use_until(&fence);
            drop(other);
        });
        let taken = cuda.into_slice::<u8>(buffer);
        let _ = tell.send(());
        drops.join().unwrap();
        let slice = taken.or_else(|buffer| cuda.into_slice::<u8>(buffer));
        let behind = cuda.fence(slice.unwrap().stream()).unwrap();
        std::thread::sleep(Duration::from_millis(3));
        assert!(behind.reached().is_none(), "its stream waits for no reader");
        drop(held);
    }
}

/// A failed wait of cudarc's is no success, and an old error no failure.
pub(crate) fn cudarcs_wait_fails() {
    let cuda = CudaDevices::open().unwrap();
    let [makes, writes, _] = streams(&cuda, 0);
    let held = Hold::on(&writes);
    let mut slice = makes.alloc_zeros::<u8>(LEN).unwrap();
    writes.memcpy_htod(&pattern(LEN, 1), &mut slice).unwrap();
    fails("cuStreamWaitEvent:1:999");
    let refused = cuda.buffer(slice).unwrap_err();
    assert_eq!(refused.call, "cuStreamWaitEvent", "{refused}");
    drop(held);
    let slice = makes.clone_htod(&pattern(LEN, 2)).unwrap();
    let buffer = cuda.buffer(slice).unwrap();
    end_of(&cuda, &makes);
    fails("cuStreamWaitEvent:1:999");
    let buffer = cuda.into_slice::<u8>(buffer).expect_err("its stream waits");
    let slice = cuda.into_slice::<u8>(buffer).unwrap();
    let stale = Err::<(), _>(DriverError(sys::CUresult::CUDA_ERROR_UNKNOWN));
    let held = Hold::on(&writes);
    let fence = cuda.fence(&writes).unwrap();
    makes.context().record_err(stale);
    cuda.wait_for(&makes, &*fence).unwrap();
    drop(held);
    makes.context().record_err(stale);
    let buffer = cuda.buffer(slice).unwrap();
    assert!(bytes_of(&cuda, &buffer, &makes) == pattern(LEN, 2));
    // In an object of the program's for the same context.
    let own = CudaContext::new(0).unwrap();
    let [makes, writes, reads] = [(); 3].map(|()| own.default_stream().fork().unwrap());
    let mut slice = makes.alloc_zeros::<u8>(LEN).unwrap();
    let held = Hold::on(&writes);
    writes.memcpy_htod(&pattern(LEN, 3), &mut slice).unwrap();
    own.record_err(stale);
    let buffer = cuda.buffer(slice).unwrap();
    let copied = cuda.download(&buffer, &reads).unwrap();
    std::thread::sleep(LONG);
    drop(held);
    assert!(filled(copied).as_bytes() == Some(&pattern(LEN, 3)[..]));
}

fn current() -> sys::CUcontext {
    let mut found = std::ptr::null_mut();
    // SAFETY: there is room for it.
    unsafe { sys::cuCtxGetCurrent(&raw mut found) }
        .result()
        .unwrap();
    found
}

/// Also with streams of another device than that of the context, and when the devices are let go of.
pub(crate) fn current_context() {
    let cuda = CudaDevices::open().unwrap();
    let there = device();
    let ([zero, ..], [one, other, _]) = (streams(&cuda, 0), streams(&cuda, there.index));
    let pool = DevicePool::new(there, Arc::new(cuda.clone()));
    let room = || pool.take(LEN).unwrap();
    let from = Buffer::from_vec(pattern(LEN, 1));
    let context = zero.context().clone();
    let slices = [(); 2].map(|()| one.alloc_zeros::<u8>(LEN).unwrap());
    let address = address_of(&slices[0]);
    context.bind_to_thread().unwrap();
    let is_kept = |call: &str| assert_eq!(current(), context.cu_ctx(), "after {call}");
    let held = Hold::on(&one);
    context.bind_to_thread().unwrap();
    let buffer = cuda.upload(&from, room(), &one).unwrap();
    is_kept("upload");
    drop(cuda.copy(&buffer, room(), &other).unwrap());
    is_kept("copy");
    let copied = cuda.download(&buffer, &other).unwrap();
    is_kept("download");
    let fence = cuda.fence(&one).unwrap();
    is_kept("fence");
    cuda.wait_for(&other, &*fence).unwrap();
    is_kept("wait_for");
    drop(cuda.read(&buffer, &other).unwrap());
    is_kept("read");
    drop(cuda.write(room(), &other).unwrap().finish().unwrap());
    is_kept("write");
    let [borrowed, slice] = slices;
    // SAFETY: the slice is there as long as the owner, and nobody writes there.
    drop(unsafe { cuda.borrow(borrowed, address, LEN, &other) }.unwrap());
    is_kept("borrow");
    let taken = cuda.buffer(slice).unwrap();
    is_kept("buffer");
    let taken = cuda.into_slice::<u8>(taken).unwrap();
    is_kept("into_slice");
    drop(held);
    drop(filled(copied));
    drop((taken, fence));
    end_of(&cuda, &other);
    drop((buffer, one, other));
    context.bind_to_thread().unwrap();
    drop(pool);
    is_kept("the pool's end");
    let again = CudaDevices::open().unwrap();
    drop(again.context(there).unwrap());
    context.bind_to_thread().unwrap();
    drop(again);
    is_kept("the end of devices");
    let last = cuda.allocate(there, LEN).unwrap();
    drop(cuda);
    is_kept("the end of devices whose memory is there");
    drop(last);
    is_kept("the end of the last memory");
}

/// On a thread that has no current context, where the last handle on something goes.
pub(crate) fn no_current_context() {
    type Last = Box<dyn Any + Send>;
    let on = |cuda: &CudaDevices| cuda.context(device()).unwrap().new_stream().unwrap();
    let tensor = |cuda: &CudaDevices| {
        let (stream, from) = (on(cuda), Buffer::from_vec(pattern(LEN, 1)));
        let memory: Arc<dyn Memory> = cuda.allocate(device(), LEN).unwrap().into();
        let room = BufferMut::from_memory(memory, LEN).ok().unwrap();
        let buffer = cuda.upload(&from, room, &stream).unwrap();
        end_of(cuda, &stream);
        Tensor::from_buffer(buffer, DType::U8, [LEN as u64]).unwrap()
    };
    let cases: [(&str, &dyn Fn(CudaDevices) -> Last); 6] = [
        ("devices with pinned memory", &|cuda| {
            drop(cuda.pinned(device(), LEN).unwrap());
            Box::new(cuda)
        }),
        ("pinned memory", &|cuda| {
            Box::new(cuda.pinned(device(), LEN).unwrap())
        }),
        ("memory", &|cuda| {
            Box::new(cuda.allocate(device(), LEN).unwrap())
        }),
        ("a capsule", &|cuda| {
            Box::new(tensor(&cuda).into_dlpack_on(&cuda, &on(&cuda)).unwrap())
        }),
        ("a read", &|cuda| {
            Box::new(cuda.read(tensor(&cuda).buffer(), &on(&cuda)).unwrap())
        }),
        ("a write that is given up", &|cuda| {
            let room: Arc<dyn Memory> = cuda.allocate(device(), LEN).unwrap().into();
            let room = BufferMut::from_memory(room, LEN).ok().unwrap();
            Box::new(cuda.write(room, &on(&cuda)).unwrap())
        }),
    ];
    let mut left = Vec::new();
    for (name, make) in cases {
        // Other handles are there as well, or not.
        for others in [true, false] {
            let cuda = CudaDevices::open().unwrap();
            let kept = others.then(|| cuda.clone());
            let last = make(cuda);
            let ends = std::thread::spawn(move || {
                drop(last);
                current().is_null()
            });
            if !ends.join().unwrap() {
                left.push(format!("{name}, others: {others}"));
            }
            drop(kept);
        }
    }
    assert_eq!(left, [""; 0], "a context is current then");
}

/// A stream of another device, which reaches memory of this crate's where the machine can, and no other memory.
pub(crate) fn another_device_s_stream() {
    let cuda = CudaDevices::open().unwrap();
    let ([zero, ..], [one, ..]) = (streams(&cuda, 0), streams(&cuda, 1));
    let can = std::env::var("TEST_CUDA_PEERS").is_ok_and(|peers| !peers.is_empty());
    let pool = DevicePool::new(CudaDevices::device(0), Arc::new(cuda.clone()));
    let room = || pool.take(LEN).unwrap();
    let from = Buffer::from_vec(pattern(LEN, 1));
    let ours = cuda.upload(&from, room(), &zero).unwrap();
    let slice = zero.clone_htod(&pattern(LEN, 2)).unwrap();
    let slice = cuda.buffer(slice).unwrap();
    let uploaded = cuda.upload(&from, room(), &one);
    assert_eq!(uploaded.is_ok(), can, "{uploaded:?}");
    if let Ok(uploaded) = uploaded {
        assert!(bytes_of(&cuda, &uploaded, &one) == pattern(LEN, 1));
    }
    for (buffer, can, seed) in [(&ours, can, 1), (&slice, false, 2)] {
        let calls = [
            ("read", cuda.read(buffer, &one).map(drop)),
            ("download", cuda.download(buffer, &one).map(drop)),
        ];
        for (name, done) in calls {
            assert_eq!(done.is_ok(), can, "{name}: {done:?}");
            let words = done.err().map(|error| error.to_string());
            let is_said = |words: String| words.contains("does not reach");
            assert!(words.is_none_or(is_said), "{name}");
        }
        // Copies go by way of main memory.
        let there = DevicePool::new(CudaDevices::device(1), Arc::new(cuda.clone()));
        let copied = cuda.copy(buffer, there.take(LEN).unwrap(), &one).unwrap();
        assert!(bytes_of(&cuda, &copied, &one) == pattern(LEN, seed));
    }
    let write = cuda.write(room(), &one);
    assert_eq!(write.is_ok(), can, "{write:?}");
}
