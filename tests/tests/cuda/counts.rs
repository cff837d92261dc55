//! Calls that wait for a device: the driver for tests counts each of them.

#![allow(
    unsafe_code,
    reason = "calls of the driver, which are tried one by one"
)]

use cudarc::driver::{CudaContext, result};
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::say;

use crate::driver::{faults, waits};
use crate::play;

/// Every call that waits for a device, and how often the driver for tests says that somebody has waited.
pub(crate) fn counts() {
    let context = CudaContext::new(0).unwrap();
    let stream = context.default_stream().fork().unwrap();
    let mut bytes = [7u8; 64];
    let mut counted = Vec::new();
    let mut count = |call, act: &mut dyn FnMut()| {
        let before = waits();
        act();
        counted.push(format!("{call} {}", waits() - before));
    };
    let mut address = 0;
    count("alloc", &mut || {
        // SAFETY: here and below, the memory is there until it is freed, and as long as what is copied; nothing else uses it.
        address = unsafe { result::malloc_sync(64) }.unwrap();
    });
    count("to", &mut || {
        // SAFETY: as above.
        unsafe { result::memcpy_htod_sync(address, &bytes) }.unwrap();
    });
    count("from", &mut || {
        // SAFETY: as above.
        unsafe { result::memcpy_dtoh_sync(&mut bytes, address) }.unwrap();
    });
    count("within", &mut || {
        // SAFETY: as above.
        unsafe { result::memcpy_dtod_sync(address, address, 64) }.unwrap();
    });
    count("fill", &mut || {
        // SAFETY: as above.
        unsafe { result::memset_d8_sync(address, 1, 64) }.unwrap();
    });
    count("free", &mut || {
        // SAFETY: as above.
        unsafe { result::free_sync(address) }.unwrap();
    });
    count("stream", &mut || stream.synchronize().unwrap());
    count("context", &mut || context.synchronize().unwrap());
    let event = stream.record_event(None).unwrap();
    count("event", &mut || event.synchronize().unwrap());
    // SAFETY: it is freed below, and nobody reads it.
    let pinned = unsafe { result::malloc_host(64, 0) }.unwrap();
    count("pinned", &mut || {
        // SAFETY: made above.
        unsafe { result::free_host(pinned) }.unwrap();
    });
    let slice = stream.clone_htod(&bytes).unwrap();
    count("ordinary memory", &mut || {
        drop(stream.clone_dtoh(&slice).unwrap())
    });
    say("counted", counted.join(", "));
    say("faults", faults().join("; "));
}

#[test]
fn the_driver_counts_every_call_that_waits() {
    let driver = Driver::load();
    let child = play(&driver, "counts", &[]);
    let calls =
        "alloc, to, from, within, fill, free, stream, context, event, pinned, ordinary memory";
    let once: Vec<_> = calls.split(", ").map(|call| format!("{call} 1")).collect();
    assert_eq!(child.hear("counted"), once.join(", "));
    assert_eq!(child.hear("faults"), "");
}
