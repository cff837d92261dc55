//! A program that captures a graph, for the whole process, while tensors move.

#![allow(unsafe_code, reason = "captures are the driver's calls")]

use std::sync::{Arc, mpsc};
use std::time::Duration;

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};
use tensorpipe::conformance::pattern;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::device::{Allocator, Memory};
use tensorpipe::{Buffer, BufferMut, DType, Message, MessageTensor, Tensor};
use tensorpipe_tests::eventually;

use crate::bench::{Bench, device, moved, pair};
use crate::driver::handles;
use crate::fixture::Hold;

const LEN: usize = 3_000_000;

const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;

fn begin(stream: &CudaStream) {
    // SAFETY: the stream is there.
    let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.cu_stream(), GLOBAL) };
    begun.result().unwrap();
}

fn end(stream: &CudaStream) -> Result<(), DriverError> {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the stream is there, and there is room for a graph.
    unsafe { sys::cuStreamEndCapture(stream.cu_stream(), &raw mut graph) }.result()
}

/// No thread of this crate's ends the capture, nor does the program's by a call of this crate's.
pub(crate) async fn goes_on() {
    let bench = Bench::new();
    let context = bench.cuda.context(device()).unwrap();
    let captured: Arc<CudaStream> = context.new_stream().unwrap();
    for name in ["cuda_basic+lease", "cuda_basic", "cuda_ipc", "cuda_xth"] {
        let pipes = pair(&bench, name).await;
        begin(&captured);
        let tensor = bench.tensor(device(), &pattern(LEN, 1));
        let tensor = MessageTensor::from(tensor).to_device(device());
        let read = moved(&pipes, Message::new("m").tensor(tensor)).await;
        assert!(bench.download(read.tensors[0].tensor.buffer()) == pattern(LEN, 1));
        drop((read, pipes));
        end(&captured).unwrap_or_else(|error| panic!("{name}: {error:?}"));
    }
    begin(&captured);
    // Its work is not queued yet, so there is no position behind it.
    let refused = bench
        .cuda
        .fence(&captured)
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(refused.contains("end the capture"), "{refused}");
    let before = handles();
    drop(bench.cuda.allocate(device(), 5_000_000).unwrap());
    eventually("it is freed", || handles() <= before).await;
    drop(bench.cuda.pinned(device(), 300 << 10).unwrap());
    end(&captured).unwrap();
    let mut mode = GLOBAL;
    // SAFETY: there is a mode there.
    let asked = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    asked.result().unwrap();
    assert_eq!(mode, GLOBAL, "this thread has another mode now");
}

/// Longer than the pause between two questions whether a capture has ended.
const LONG: Duration = Duration::from_millis(60);

/// On the stream whose work is captured, what was made before that is dropped: a slice of its own, memory that it reads, and memory that
/// it fills. The capture goes on, and all of it is there again afterwards.
pub(crate) async fn dropped() {
    let bench = Bench::new();
    let (cuda, context) = (&bench.cuda, bench.cuda.context(device()).unwrap());
    let [captured, reads] = [(); 2].map(|()| context.new_stream().unwrap());
    let unused = || {
        context.bind_to_thread().unwrap();
        result::mem_get_info().unwrap().0
    };
    let before = unused();
    for is_read in [false, true] {
        let slice = captured.clone_htod(&pattern(LEN, 1)).unwrap();
        let tensor = Tensor::from_cuda(cuda, slice, [LEN as u64]).unwrap();
        let held = Hold::on(&reads);
        let copied = is_read.then(|| cuda.download(tensor.buffer(), &reads).unwrap());
        begin(&captured);
        drop(tensor);
        tokio::time::sleep(LONG).await;
        end(&captured).unwrap_or_else(|error| panic!("a slice, read: {is_read}: {error:?}"));
        drop(held);
        eventually("the slice is freed", || unused() == before).await;
        drop(copied);
    }
    let tensor = bench.tensor(device(), &pattern(LEN, 1));
    let address = cuda.read(tensor.buffer(), &reads).unwrap().address();
    let owner = Arc::new(());
    let is_there = Arc::downgrade(&owner);
    // SAFETY: the tensor is there to the end, and nobody writes to it.
    let theirs = unsafe { cuda.borrow(owner, address, LEN, &reads) }.unwrap();
    let read = cuda.read(&theirs, &captured).unwrap();
    let before = handles();
    let memory: Arc<dyn Memory> = cuda.allocate(device(), LEN).unwrap().into();
    let room = BufferMut::from_memory(memory, LEN).ok().unwrap();
    let write = cuda.write(room, &captured).unwrap();
    begin(&captured);
    drop((read, theirs, write));
    tokio::time::sleep(LONG).await;
    assert!(is_there.upgrade().is_some(), "its work is not queued yet");
    end(&captured).unwrap();
    eventually("its owner is told", || is_there.upgrade().is_none()).await;
    eventually("the memory is freed", || handles() <= before).await;
}

/// Pinned main memory of another library, which tells whether the driver has freed it.
struct Pinned {
    start: usize,
    context: Arc<CudaContext>,
    freed: mpsc::Sender<Result<(), DriverError>>,
}

impl Pinned {
    const LEN: usize = 64;

    fn start(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.start)
    }
}

impl AsRef<[u8]> for Pinned {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: so many bytes are there until it is dropped, and nobody writes there.
        unsafe { std::slice::from_raw_parts(self.start(), Self::LEN) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.bind_to_thread().unwrap();
        // SAFETY: it was made by the driver, and is used by nobody from now on.
        let freed = unsafe { result::free_host(self.start().cast()) };
        self.freed.send(freed).unwrap();
    }
}

/// Another library frees its pinned memory on a thread of this crate's, while a program captures.
pub(crate) fn pinned_of_others() {
    let cuda = CudaDevices::open().unwrap();
    let context = cuda.context(device()).unwrap();
    let captured = context.new_stream().unwrap();
    let (freed, is_freed) = mpsc::channel();
    // SAFETY: it is filled below, and freed by its owner.
    let start = unsafe { result::malloc_host(Pinned::LEN, sys::CU_MEMHOSTALLOC_PORTABLE) };
    let start = start.unwrap().cast::<u8>();
    // SAFETY: so many bytes are there.
    unsafe { start.write_bytes(7, Pinned::LEN) };
    let start = start.expose_provenance();
    let owner = Pinned {
        start,
        context,
        freed,
    };
    let tensor = Tensor::from_buffer(Buffer::from_owner(owner), DType::U8, [Pinned::LEN as u64]);
    let given = tensor.unwrap().into_dlpack().unwrap();
    // SAFETY: what was made above is true, and nobody writes there.
    let tensor = unsafe { Tensor::from_dlpack(given) }.unwrap();
    assert_eq!(tensor.as_bytes().unwrap(), [7; Pinned::LEN]);
    begin(&captured);
    drop(tensor);
    let freed = is_freed.recv_timeout(Duration::from_secs(10)).unwrap();
    end(&captured).unwrap();
    freed.unwrap();
}
