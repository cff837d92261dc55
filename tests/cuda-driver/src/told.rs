//! What tests ask of the driver beside CUDA's own functions: how often something happened, and which call is to fail.

use std::ffi::{CStr, c_char};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use crate::machine::{Failing, MACHINE};

/// How often memory of another process was opened.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaImports() -> u64 {
    MACHINE.imports.load(Ordering::Relaxed)
}

/// How often memory was passed to other processes.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaExports() -> u64 {
    MACHINE.exports.load(Ordering::Relaxed)
}

/// From now on calls of this function do not return, or all do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testCudaHolds(function: *const c_char) {
    // SAFETY: the caller's promise: it ends with a zero.
    let function = unsafe { CStr::from_ptr(function) };
    MACHINE.hold(&function.to_string_lossy());
}

/// How many calls do not return.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaHeld() -> u64 {
    MACHINE.are_held()
}

/// From now on a call fails, as `TEST_CUDA_FAILS` says it, or none. Whether the one that was to fail before has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testCudaFails(said: *const c_char) -> bool {
    // SAFETY: the caller's promise: it ends with a zero.
    let said = unsafe { CStr::from_ptr(said) };
    let next = Failing::parse(&said.to_string_lossy());
    let mut failing = MACHINE
        .failing
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let before = std::mem::replace(&mut *failing, next);
    before.is_some_and(|before| before.left == 0)
}

/// Whether the call that is to fail has: 1, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaHasFailed() -> u64 {
    let failing = MACHINE.failing.lock();
    let failing = failing.unwrap_or_else(PoisonError::into_inner);
    u64::from(failing.as_ref().is_some_and(|failing| failing.left == 0))
}

/// How many copies to main memory are queued and not made yet.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaDownloads() -> u64 {
    MACHINE.downloads.load(Ordering::Relaxed)
}

/// The longest pinned main memory that was made.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaLongestPinned() -> u64 {
    MACHINE.longest_pinned.load(Ordering::Relaxed)
}

/// How often main memory was registered.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaRegistrations() -> u64 {
    MACHINE.registrations.load(Ordering::Relaxed)
}

/// How often of that read-only.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaReadOnly() -> u64 {
    MACHINE.read_only.load(Ordering::Relaxed)
}

/// How many faults there were; the last one of them, as a C string, in `text`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn testCudaFaults(text: *mut c_char, room: usize) -> usize {
    let faults = MACHINE.faults();
    let last = faults.last().map(String::as_bytes).unwrap_or_default();
    let len = last.len().min(room.saturating_sub(1));
    if room > 0 {
        // SAFETY: the caller has room for so many bytes, and one more.
        unsafe { std::ptr::copy_nonoverlapping(last.as_ptr(), text.cast(), len) };
        // SAFETY: as above.
        let end = unsafe { text.add(len) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    faults.len()
}

/// How often somebody waited for a device.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaWaits() -> u64 {
    MACHINE.waits.load(Ordering::Relaxed)
}

/// How many copies between devices went by way of main memory.
#[unsafe(no_mangle)]
pub extern "C" fn testCudaDetours() -> u64 {
    MACHINE.detours.load(Ordering::Relaxed)
}
