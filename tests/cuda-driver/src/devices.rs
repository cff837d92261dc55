//! The driver itself, devices, and contexts: one for each device, its number its name.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUcontext, CUdevice, CUdevice_attribute, CUresult, CUuuid};

use crate::machine::MACHINE;

thread_local! {
    /// This thread's context.
    static CURRENT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// The device of this thread's context.
pub(crate) fn current() -> Result<u32, CUresult> {
    CURRENT.get().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// A context by its address, which nobody looks at.
pub(crate) fn context(device: u32) -> CUcontext {
    std::ptr::without_provenance_mut((device as usize + 1) << 8)
}

pub(crate) fn device_of(context: CUcontext) -> Option<u32> {
    let device = u32::try_from(context.addr() >> 8).ok()?.checked_sub(1)?;
    (device < MACHINE.devices).then_some(device)
}

fn known(device: CUdevice) -> Result<u32, CUresult> {
    let device = u32::try_from(device).ok();
    let known = device.filter(|device| *device < MACHINE.devices);
    known.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
}

/// Gives C what `value` is.
///
/// # Safety
/// `out` has room for it.
pub(crate) unsafe fn give<T>(out: *mut T, value: Result<T, CUresult>) -> CUresult {
    match value {
        Ok(value) => {
            // SAFETY: as the caller promises.
            unsafe { out.write(value) };
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> CUresult {
    may_fail!("cuInit");
    match MACHINE.init {
        0 => CUresult::CUDA_SUCCESS,
        100 => CUresult::CUDA_ERROR_NO_DEVICE,
        803 => CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
        _ => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(out: *mut c_int) -> CUresult {
    may_fail!("cuDriverGetVersion");
    // SAFETY: the caller's promise.
    unsafe { give(out, Ok(MACHINE.version)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(out: *mut c_int) -> CUresult {
    may_fail!("cuDeviceGetCount");
    // SAFETY: the caller's promise.
    unsafe { give(out, Ok(MACHINE.devices as c_int)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(out: *mut CUdevice, ordinal: c_int) -> CUresult {
    may_fail!("cuDeviceGet");
    // SAFETY: the caller's promise.
    unsafe { give(out, known(ordinal).map(|device| device as CUdevice)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(
    out: *mut c_char,
    room: c_int,
    device: CUdevice,
) -> CUresult {
    may_fail!("cuDeviceGetName");
    let name = match known(device) {
        Ok(device) => format!("test device {}\0", MACHINE.physical(device)),
        Err(error) => return error,
    };
    if usize::try_from(room).is_ok_and(|room| room < name.len()) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller has room for so many bytes.
    unsafe { std::ptr::copy_nonoverlapping(name.as_ptr(), out.cast(), name.len()) };
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(out: *mut CUuuid, device: CUdevice) -> CUresult {
    may_fail!("cuDeviceGetUuid_v2");
    let uuid = known(device).map(|device| CUuuid {
        bytes: [MACHINE.physical(device) as c_char + 1; 16],
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, uuid) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    out: *mut c_int,
    attribute: CUdevice_attribute,
    device: CUdevice,
) -> CUresult {
    may_fail!("cuDeviceGetAttribute");
    use CUdevice_attribute as A;
    let value = known(device).map(|_| match attribute {
        A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => MACHINE.pools,
        A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING => 1,
        A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED => MACHINE.managed,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 9,
        A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED => MACHINE.dma_bufs,
        _ => 0,
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, value) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(out: *mut usize, device: CUdevice) -> CUresult {
    may_fail!("cuDeviceTotalMem_v2");
    // SAFETY: the caller's promise.
    unsafe { give(out, known(device).map(|_| MACHINE.capacity as usize)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CUresult {
    may_fail!("cuMemGetInfo_v2");
    let left = current().map(|device| MACHINE.capacity.saturating_sub(MACHINE.used(device)));
    // SAFETY: the caller's promise.
    match unsafe { give(free, left.map(|left| left as usize)) } {
        // SAFETY: as above.
        CUresult::CUDA_SUCCESS => unsafe { give(total, Ok(MACHINE.capacity as usize)) },
        refused => refused,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(
    out: *mut CUcontext,
    device: CUdevice,
) -> CUresult {
    may_fail!("cuDevicePrimaryCtxRetain");
    let known = MACHINE.state().and_then(|()| known(device));
    let retained = known.map(|device| {
        *retained().entry(device).or_default() += 1;
        context(device)
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, retained) }
}

/// How often each device's context is retained.
fn retained() -> MutexGuard<'static, BTreeMap<u32, u32>> {
    static RETAINED: Mutex<BTreeMap<u32, u32>> = Mutex::new(BTreeMap::new());
    RETAINED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a device's context is there: using what is in one that was let go of is a fault.
pub(crate) fn is_there(device: u32, what: &str) -> Result<(), CUresult> {
    if retained().contains_key(&device) {
        return Ok(());
    }
    Err(MACHINE.fault(format!("{what} of device {device}, whose context is gone")))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) -> CUresult {
    may_fail!("cuDevicePrimaryCtxRelease_v2");
    let device = match known(device) {
        Ok(device) => device,
        Err(error) => return error,
    };
    let mut retained = retained();
    match retained.get_mut(&device) {
        None => return CUresult::CUDA_ERROR_INVALID_CONTEXT,
        Some(1) => drop(retained.remove(&device)),
        Some(count) => {
            *count -= 1;
            return CUresult::CUDA_SUCCESS;
        }
    }
    // Still under the lock: what is in a context that another thread retains next stays.
    MACHINE.lose(device);
    drop(retained);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: CUcontext) -> CUresult {
    may_fail!("cuCtxSetCurrent");
    let device = device_of(context);
    if device.is_none() && !context.is_null() {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    }
    if device.is_some_and(|device| !retained().contains_key(&device)) {
        return CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    CURRENT.set(device);
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(out: *mut CUcontext) -> CUresult {
    may_fail!("cuCtxGetCurrent");
    let found = CURRENT.get().map_or(std::ptr::null_mut(), context);
    // SAFETY: the caller's promise.
    unsafe { give(out, Ok(found)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> CUresult {
    may_fail!("cuCtxSynchronize");
    match current() {
        Ok(device) => crate::streams::synchronize(device),
        Err(error) => return error,
    }
    MACHINE.state().err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Pairs of devices that reach each other's memory, as `TEST_CUDA_PEERS` says, and those that were let.
static PEERS: LazyLock<Mutex<BTreeMap<(u32, u32), bool>>> = LazyLock::new(|| {
    let said = std::env::var("TEST_CUDA_PEERS").unwrap_or_default();
    let pairs = said.split(',').filter_map(|pair| {
        let (from, to) = pair.split_once('-')?;
        Some((from.parse().ok()?, to.parse().ok()?))
    });
    Mutex::new(pairs.map(|pair| (pair, false)).collect())
});

fn peers() -> MutexGuard<'static, BTreeMap<(u32, u32), bool>> {
    PEERS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceCanAccessPeer(
    out: *mut c_int,
    from: CUdevice,
    to: CUdevice,
) -> CUresult {
    may_fail!("cuDeviceCanAccessPeer");
    let pair = known(from).and_then(|from| Ok((from, known(to)?)));
    let can = pair.map(|pair| c_int::from(peers().contains_key(&pair)));
    // SAFETY: the caller's promise.
    unsafe { give(out, can) }
}

/// Lets the context of this thread reach another one's memory.
#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(to: CUcontext, _flags: c_uint) -> CUresult {
    may_fail!("cuCtxEnablePeerAccess");
    let (Ok(from), Some(to)) = (current(), device_of(to)) else {
        return CUresult::CUDA_ERROR_INVALID_CONTEXT;
    };
    match peers().get_mut(&(from, to)) {
        None => CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        Some(let_in) if *let_in => CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
        Some(let_in) => {
            *let_in = true;
            CUresult::CUDA_SUCCESS
        }
    }
}

/// Whether copies between two devices need no main memory.
pub(crate) fn reaches(from: u32, to: u32) -> bool {
    from == to || peers().get(&(from, to)) == Some(&true)
}

fn text(error: CUresult) -> Option<&'static std::ffi::CStr> {
    Some(match error {
        CUresult::CUDA_SUCCESS => c"no error",
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => c"out of memory",
        CUresult::CUDA_ERROR_NO_DEVICE => c"no CUDA-capable device is detected",
        CUresult::CUDA_ERROR_INVALID_DEVICE => c"invalid device ordinal",
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: CUresult, out: *mut *const c_char) -> CUresult {
    may_fail!("cuGetErrorString");
    let text = text(error).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE);
    // SAFETY: the caller's promise.
    unsafe { give(out, text.map(std::ffi::CStr::as_ptr)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: CUresult, out: *mut *const c_char) -> CUresult {
    may_fail!("cuGetErrorName");
    // SAFETY: the caller's promise.
    unsafe { cuGetErrorString(error, out) }
}
