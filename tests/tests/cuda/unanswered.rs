//! Events that the driver does not answer for. Errors that last end each wait, and memory that may be in use is never used again.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use tensorpipe::BufferMut;
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe::device::{Allocator, DevicePool, Fence, Memory};

use crate::bench::device;
use crate::driver::fails;
use crate::fixture::Hold;

const LEN: usize = 100_000;

/// Longer than any wait here should take.
const SOON: Duration = Duration::from_secs(10);

/// Waits for the fence's callback, which the driver's errors must not prevent.
fn is_heard_of(fence: &Arc<dyn Fence>) -> bool {
    let (tell, told) = mpsc::channel();
    fence.when_reached(Box::new(move || tell.send(()).unwrap()));
    told.recv_timeout(SOON).is_ok()
}

pub(crate) fn waits_end() {
    let cuda = CudaDevices::open().unwrap();
    let context = cuda.context(device()).unwrap();
    let [fills, others] = [(); 2].map(|()| context.new_stream().unwrap());
    let pool = DevicePool::new(device(), Arc::new(cuda.clone()));
    let pooled = || pool.take(LEN).unwrap();
    let fresh = || {
        let memory: Arc<dyn Memory> = cuda.allocate(device(), LEN).unwrap().into();
        BufferMut::from_memory(memory, LEN).unwrap_or_else(|_| panic!("nobody else has it"))
    };
    let rooms: [&dyn Fn() -> BufferMut; 2] = [&pooled, &fresh];
    let mut kept = Vec::new();
    for code in [46, 201, 400, 806, 911, 999] {
        for room in rooms {
            let held = Hold::on(&fills);
            let write = cuda.write(room(), &fills).unwrap();
            let address = write.address();
            let buffer = write.finish().unwrap();
            let ready = buffer.ready().expect("its stream stands still");
            fails(&format!("cuEventQuery:1+:{code}"));
            assert!(is_heard_of(&ready), "error {code} ends no wait");
            let error = ready.reached().expect("its wait has ended").unwrap_err();
            let words = format!("(CUDA error {code})");
            assert!(error.to_string().contains(&words), "{error}");
            fails("");
            drop(buffer);
            // What fills it may still be under way.
            for _ in 0..3 {
                let next = cuda.write(room(), &others).unwrap();
                assert_ne!(next.address(), address, "error {code}: it is used again");
                kept.push(next);
            }
            drop(held);
        }
    }
    // Main memory that a device may still read is not used again, either.
    let held = Hold::on(&fills);
    let pinned = cuda.pinned(device(), LEN).unwrap().freeze();
    let start = pinned.as_bytes().unwrap().as_ptr();
    let fence = cuda.fence(&fills).unwrap();
    pinned.use_until(&fence);
    drop(pinned);
    fails("cuEventQuery:1+:999");
    assert!(is_heard_of(&fence));
    fails("");
    let next = cuda.pinned(device(), LEN).unwrap().freeze();
    assert_ne!(next.as_bytes().unwrap().as_ptr(), start);
    drop(held);
}

/// Errors of the capture family pass: the work goes on.
pub(crate) fn asked_again() {
    let cuda = CudaDevices::open().unwrap();
    let stream = cuda.context(device()).unwrap().new_stream().unwrap();
    for code in [900, 908] {
        let held = Hold::on(&stream);
        let fence = cuda.fence(&stream).unwrap();
        fails(&format!("cuEventQuery:1+:{code}"));
        let (tell, told) = mpsc::channel();
        fence.when_reached(Box::new(move || tell.send(()).unwrap()));
        assert!(told.recv_timeout(Duration::from_millis(50)).is_err());
        assert!(fence.reached().is_none());
        fails("");
        drop(held);
        told.recv_timeout(SOON).expect("it is asked again");
        assert_eq!(fence.reached(), Some(Ok(())));
    }
}
