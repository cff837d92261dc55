//! A program that captures a graph, for the whole process, while tensors move.

#![allow(unsafe_code, reason = "captures are the driver's calls")]

use std::sync::Arc;

use cudarc::driver::{CudaStream, DriverError, sys};
use tensorpipe::conformance::pattern;
use tensorpipe::device::Allocator;
use tensorpipe::{Message, MessageTensor};

use crate::bench::{Bench, device, moved, pair};
use crate::driver::handles;

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
    tensorpipe_tests::eventually("it is freed", || handles() <= before).await;
    drop(bench.cuda.pinned(device(), 300 << 10).unwrap());
    end(&captured).unwrap();
    let mut mode = GLOBAL;
    // SAFETY: there is a mode there.
    let asked = unsafe { sys::cuThreadExchangeStreamCaptureMode(&raw mut mode) };
    asked.result().unwrap();
    assert_eq!(mode, GLOBAL, "this thread has another mode now");
}
