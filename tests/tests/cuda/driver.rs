//! The counters and controls of the test driver.

#![allow(unsafe_code, reason = "functions of a library, by their names")]

use std::ffi::{CStr, CString, c_char};
use std::time::Duration;

use tensorpipe_test_cuda::is_real;

fn driver() -> libloading::Library {
    assert!(!is_real(), "a story for the driver for tests alone");
    // SAFETY: it is loaded already.
    unsafe { libloading::Library::new("libcuda.so.1") }.expect("the driver for tests")
}

/// Lets a real driver unpin what the story before has used. It waits for all work, and whoever is to let go of a stream may wait for it.
pub(crate) fn rests() {
    if is_real() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// What its user did wrong on the devices: how often, and the last of it.
pub(crate) fn faults() -> Vec<String> {
    // A real one keeps its errors: later calls fail.
    if is_real() {
        return Vec::new();
    }
    type Faults = unsafe extern "C" fn(*mut c_char, usize) -> usize;
    let driver = driver();
    // SAFETY: the function of that name has this type.
    let faults = unsafe { driver.get::<Faults>(b"testCudaFaults") }.expect("it is there");
    let mut text = [0; 256];
    // SAFETY: there is room for so many bytes.
    let count = unsafe { faults(text.as_mut_ptr(), text.len()) };
    // SAFETY: it ends with a zero.
    let last = unsafe { CStr::from_ptr(text.as_ptr()) };
    match count {
        0 => Vec::new(),
        _ => vec![format!("{count}, the last: {}", last.to_string_lossy())],
    }
}

/// From now on a call of the driver for tests fails: `NAME:NTH:CODE` (`NTH+`: and later ones), or none. Whether the one before has.
pub(crate) fn fails(what: &str) -> bool {
    type Fails = unsafe extern "C" fn(*const c_char) -> bool;
    let driver = driver();
    // SAFETY: the function of that name has this type.
    let fails = unsafe { driver.get::<Fails>(b"testCudaFails") }.expect("it is there");
    let what = CString::new(what).expect("no zero");
    // SAFETY: it ends with a zero.
    unsafe { fails(what.as_ptr()) }
}

/// Whether the call that is to fail has.
pub(crate) fn has_failed() -> bool {
    count("testCudaHasFailed") > 0
}

/// From now on calls of a function of the driver for tests do not return, or all do where none is named.
pub(crate) fn holds(function: &str) {
    type Holds = unsafe extern "C" fn(*const c_char);
    let driver = driver();
    // SAFETY: the function of that name has this type.
    let holds = unsafe { driver.get::<Holds>(b"testCudaHolds") }.expect("it is there");
    let function = CString::new(function).expect("no zero");
    // SAFETY: it ends with a zero.
    unsafe { holds(function.as_ptr()) }
}

/// How many calls do not return.
pub(crate) fn held() -> u64 {
    count("testCudaHeld")
}

fn count(name: &str) -> u64 {
    if is_real() {
        return 0;
    }
    let driver = driver();
    // SAFETY: functions of such names have this type.
    let count = unsafe { driver.get::<extern "C" fn() -> u64>(name.as_bytes()) };
    count.expect("it is there")()
}

/// How often somebody waited for a device.
pub(crate) fn waits() -> u64 {
    count("testCudaWaits")
}

/// How often memory of another process was opened.
pub(crate) fn imports() -> u64 {
    count("testCudaImports")
}

/// How often memory was passed to other processes.
pub(crate) fn exports() -> u64 {
    count("testCudaExports")
}

/// How many handles of physical memory there are.
pub(crate) fn handles() -> u64 {
    count("testCudaHandles")
}

/// How many copies to main memory are queued and not made yet.
pub(crate) fn downloads() -> u64 {
    count("testCudaDownloads")
}

/// The longest pinned main memory that was made, in bytes.
pub(crate) fn longest_pinned() -> u64 {
    count("testCudaLongestPinned")
}

/// How often main memory was registered, and how often of that read-only.
pub(crate) fn registrations() -> [u64; 2] {
    ["testCudaRegistrations", "testCudaReadOnly"].map(count)
}

/// How many copies between devices went by way of main memory.
pub(crate) fn detours() -> u64 {
    count("testCudaDetours")
}

/// Nothing was done wrong on the devices, and nobody has waited for one.
pub(crate) fn nothing_went_wrong() {
    assert_eq!(faults(), [""; 0]);
    assert_eq!(waits(), 0, "calls that wait for a device");
}
