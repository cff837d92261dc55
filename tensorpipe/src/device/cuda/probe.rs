//! Checks for a usable CUDA driver before cudarc looks for one: cudarc panics if the driver is missing or lacks a function.

#![allow(
    unsafe_code,
    reason = "a library is opened, and its functions are called by their names"
)]

use std::ffi::c_int;
use std::io;
use std::path::Path;

use cudarc::driver::{DriverError, result, sys};
use libloading::Library;

use crate::sync::{AtomicBool, Ordering};
use crate::sys::fork::PerProcess;

/// The driver of CUDA 12.0.
const OLDEST: c_int = 12000;

/// Every driver function that is called here, or by the used parts of cudarc.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetUuid_v2",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuThreadExchangeStreamCaptureMode",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamIsCapturing",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuPointerGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuMemGetInfo_v2",
    "cuMemGetAllocationGranularity",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemGetAddressRange_v2",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemFreeAsync",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
];

/// Why this process has no CUDA devices, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No driver is found.
    #[error(
        "no CUDA driver ({0}): install NVIDIA's driver, or run with LD_LIBRARY_PATH where libcuda.so.1 is"
    )]
    NoDriver(String),
    /// There is one, but of another version, or something else has its name.
    #[error("the CUDA driver, {library}, has no {function}: install one of CUDA 12.0 or later")]
    MissingFunction {
        /// The function that it lacks.
        function: &'static str,
        /// The name under which the loader has found it.
        library: String,
    },
    /// There is one, but it is too old.
    #[error("the CUDA driver is one of CUDA {}.{}: install one of CUDA 12.0 or later", .0 / 1000, .0 % 1000 / 10)]
    OldDriver(i32),
    /// It shows no device to this process.
    #[error("the CUDA driver shows no device: see what nvidia-smi says, and CUDA_VISIBLE_DEVICES")]
    NoDevice,
    /// This process may not open the devices' files.
    #[error("{0} may not be opened: let this user in, or give its container the devices")]
    NotPermitted(&'static str),
    /// A device has no virtual memory management, in which all memory here is made.
    #[error(
        "CUDA device {0} has no virtual memory management (an old device, or a virtual one without it): leave it out by CUDA_VISIBLE_DEVICES"
    )]
    NoMemoryManagement(usize),
    /// Anything else.
    #[error("{call}: {reason}")]
    Failed {
        /// The call.
        call: &'static str,
        /// What the driver said, with its number.
        reason: String,
    },
}

/// The number of devices. The first call's result is kept, since a driver that was found stays.
pub(super) fn devices() -> Result<usize, Unavailable> {
    // A forked child cannot use its parent's driver; its own `cuInit` reports that.
    static FOUND: PerProcess<Result<usize, Unavailable>> = PerProcess::new();
    FOUND.get(probe).clone()
}

/// Whether this process has opened a driver.
fn opened() -> &'static AtomicBool {
    static OPENED: PerProcess<AtomicBool> = PerProcess::new();
    OPENED.get(AtomicBool::default)
}

/// Whether this process has a driver by now.
#[cfg(feature = "dlpack")]
pub(super) fn is_open() -> bool {
    opened().load(Ordering::Relaxed)
}

fn probe() -> Result<usize, Unavailable> {
    let (name, library) = library()?;
    for function in FUNCTIONS {
        // SAFETY: it is only looked whether it is there.
        let found = unsafe { library.get::<unsafe extern "C" fn()>(function.as_bytes()) };
        found.map_err(|_| Unavailable::MissingFunction {
            function,
            library: name.clone(),
        })?;
    }
    result::init().map_err(|error| refused("cuInit", error))?;
    let version = version().map_err(|error| refused("cuDriverGetVersion", error))?;
    if version < OLDEST {
        return Err(Unavailable::OldDriver(version));
    }
    let count = result::device::get_count().map_err(|error| refused("cuDeviceGetCount", error))?;
    // cudarc opens it again, so closing it here would achieve nothing.
    std::mem::forget(library);
    opened().store(true, Ordering::Relaxed);
    match usize::try_from(count) {
        Ok(count @ 1..) => (0..count).try_for_each(check_memory).map(|()| count),
        _ => Err(no_device()),
    }
}

fn check_memory(ordinal: usize) -> Result<(), Unavailable> {
    let managed =
        sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    let device = result::device::get(ordinal as c_int);
    let device = device.map_err(|error| refused("cuDeviceGet", error))?;
    // SAFETY: the driver has just named the device.
    let found = unsafe { result::device::get_attribute(device, managed) };
    match found.map_err(|error| refused("cuDeviceGetAttribute", error))? {
        0 => Err(Unavailable::NoMemoryManagement(ordinal)),
        _ => Ok(()),
    }
}

/// The library that cudarc will use, and its name. cudarc tries names in the same order and keeps the first that opens.
fn library() -> Result<(String, Library), Unavailable> {
    let mut why = String::new();
    let names = ["cuda", "nvcuda"].map(cudarc::get_lib_name_candidates);
    for name in names.into_iter().flatten() {
        // SAFETY: the driver's own initialisers run, as in every program that uses it.
        match unsafe { Library::new(&name) } {
            Ok(library) => return Ok((name, library)),
            // Drivers install it under this name.
            Err(error) if name == "libcuda.so.1" => {
                let source = std::error::Error::source(&error).map(ToString::to_string);
                why = source.unwrap_or_else(|| error.to_string());
            }
            Err(_) => {}
        }
    }
    Err(Unavailable::NoDriver(why))
}

pub(super) fn version() -> Result<c_int, DriverError> {
    let mut version = 0;
    // SAFETY: there is room for the number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(version)
}

fn refused(call: &'static str, error: DriverError) -> Unavailable {
    match error.0 {
        sys::CUresult::CUDA_ERROR_NO_DEVICE => no_device(),
        _ => Unavailable::Failed {
            call,
            reason: words(error),
        },
    }
}

/// The driver reports only this if it may not open the devices' files.
fn no_device() -> Unavailable {
    const CONTROL: &str = "/dev/nvidiactl";
    let opened = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(Path::new(CONTROL));
    match opened.map_err(|error| error.kind()) {
        Err(io::ErrorKind::PermissionDenied) => Unavailable::NotPermitted(CONTROL),
        _ => Unavailable::NoDevice,
    }
}

/// The driver's name and number for an error.
pub(super) fn words(error: DriverError) -> String {
    let text = error.error_string().map(|text| text.to_string_lossy());
    let text = text.unwrap_or_else(|_| "an error that the driver has no words for".into());
    format!("{text} (CUDA error {})", error.0 as u32)
}
