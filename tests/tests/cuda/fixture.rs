//! CUDA devices as the suites use them.

#![allow(unsafe_code, reason = "host functions on streams")]

use std::any::Any;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, mpsc};

use cudarc::driver::{CudaStream, result};
use tensorpipe::conformance::device::Fixture;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::{Buffer, BufferMut, Device, device::Allocator};

/// A stream that writes and one that reads, for each device.
pub(crate) struct CudaFixture {
    cuda: CudaDevices,
    streams: HashMap<Device, [Arc<CudaStream>; 2]>,
}

impl CudaFixture {
    pub(crate) fn on(cuda: &CudaDevices) -> Self {
        let streams = |device: Device| {
            let context = cuda.context(device).unwrap();
            (device, [(); 2].map(|()| context.new_stream().unwrap()))
        };
        Self {
            streams: cuda.devices().into_iter().map(streams).collect(),
            cuda: cuda.clone(),
        }
    }
}

impl Fixture for CudaFixture {
    fn allocator(&self) -> Arc<dyn Allocator> {
        Arc::new(self.cuda.clone())
    }

    fn write(&self, bytes: &[u8], to: BufferMut) -> Buffer {
        let stream = &self.streams[&to.device()][0];
        let from = Buffer::copy_from_slice(bytes);
        self.cuda.upload(&from, to, stream).unwrap()
    }

    fn read(&self, buffer: &Buffer) -> Box<dyn FnOnce() -> Vec<u8> + Send> {
        let stream = &self.streams[&buffer.device()][1];
        let mut copied = self.cuda.download(buffer, stream).unwrap();
        Box::new(move || {
            let (done, is_done) = mpsc::channel();
            let fence = copied.fence().clone();
            fence.when_reached(Box::new(move || done.send(()).unwrap()));
            is_done.recv().unwrap();
            let filled = copied.take().unwrap().expect("it is filled").freeze();
            filled.as_bytes().unwrap().to_vec()
        })
    }

    fn hold_writes(&self, device: Device) -> Box<dyn Any + Send> {
        Box::new(Hold::on(&self.streams[&device][0]))
    }

    fn hold_reads(&self, device: Device) -> Box<dyn Any + Send> {
        Box::new(Hold::on(&self.streams[&device][1]))
    }
}

/// Keeps a stream from going on until it is dropped.
pub(crate) struct Hold(Arc<Gate>);

#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    has_begun: bool,
    is_open: bool,
}

impl Hold {
    pub(crate) fn on(stream: &CudaStream) -> Self {
        /// # Safety
        /// It takes over what `Arc::into_raw` gave.
        unsafe extern "C" fn wait(gate: *mut c_void) {
            // SAFETY: made by `into_raw` below, for this one call.
            let gate = unsafe { Arc::from_raw(gate.cast::<Gate>().cast_const()) };
            let mut state = gate.state.lock().unwrap();
            state.has_begun = true;
            gate.changed.notify_all();
            drop(gate.changed.wait_while(state, |state| !state.is_open));
        }
        let gate = Arc::new(Gate::default());
        stream.context().bind_to_thread().unwrap();
        let data = Arc::into_raw(gate.clone()).cast_mut().cast();
        // SAFETY: the function takes what it is given, and calls no driver.
        unsafe { result::stream::launch_host_function(stream.cu_stream(), wait, data) }.unwrap();
        Self(gate)
    }

    /// Waits until the stream has got to it: a driver may run one host function at a time, and another's is then not before it.
    pub(crate) fn begins(&self) {
        let state = self.0.state.lock().unwrap();
        drop(self.0.changed.wait_while(state, |state| !state.has_begun));
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.state.lock().unwrap().is_open = true;
        self.0.changed.notify_all();
    }
}
