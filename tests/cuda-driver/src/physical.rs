//! Physical memory, and where it is mapped. It lies in a file that has no name, so that a descriptor of it is all that another process
//! needs.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUresult,
};

use crate::blocks::{Bytes, GARBAGE};
use crate::devices::give;
use crate::machine::MACHINE;

/// In multiples of which there is some.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// What stands behind the bytes of a device: that, and whose they are.
const MARK: u64 = 0x7465_7374_6375_6461;

static GARBAGES: [u8; GRANULARITY] = [GARBAGE; GRANULARITY];

/// Of what a handle is.
struct Physical {
    file: File,
    len: usize,
    device: u32,
}

#[derive(Default)]
struct Handles {
    last: CUmemGenericAllocationHandle,
    all: BTreeMap<CUmemGenericAllocationHandle, Arc<Physical>>,
}

static HANDLES: LazyLock<Mutex<Handles>> = LazyLock::new(Mutex::default);

fn handles() -> MutexGuard<'static, Handles> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn status(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

fn keep(physical: Physical) -> CUmemGenericAllocationHandle {
    let mut handles = handles();
    handles.last += 1;
    let handle = handles.last;
    handles.all.insert(handle, Arc::new(physical));
    handle
}

fn known(handle: CUmemGenericAllocationHandle) -> Result<Arc<Physical>, CUresult> {
    let found = handles().all.get(&handle).cloned();
    found.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetAllocationGranularity(
    out: *mut usize,
    _properties: *const CUmemAllocationProp,
    _option: CUmemAllocationGranularity_flags,
) -> CUresult {
    may_fail!("cuMemGetAllocationGranularity");
    // SAFETY: the caller's promise.
    unsafe { give(out, Ok(GRANULARITY)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemCreate(
    out: *mut CUmemGenericAllocationHandle,
    len: usize,
    properties: *const CUmemAllocationProp,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemCreate");
    // SAFETY: the caller's promise.
    let device = unsafe { (*properties).location.id } as u32;
    let made = MACHINE.state().and_then(|()| {
        if len == 0 || !len.is_multiple_of(GRANULARITY) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        if MACHINE.used(device) + len as u64 > MACHINE.capacity {
            return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        }
        let made = file(len, device).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(keep(Physical {
            file: made,
            len,
            device,
        }))
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

fn file(len: usize, device: u32) -> std::io::Result<File> {
    // SAFETY: the name ends with a zero.
    let number = unsafe { libc::memfd_create(c"test cuda".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: it is new, and nobody else's.
    let file = unsafe { File::from_raw_fd(number) };
    for at in (0..len).step_by(GRANULARITY) {
        file.write_all_at(&GARBAGES, at as u64)?;
    }
    let mut end = MARK.to_le_bytes().to_vec();
    end.extend(u64::from(MACHINE.physical(device)).to_le_bytes());
    file.write_all_at(&end, len as u64)?;
    Ok(file)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemRelease(handle: CUmemGenericAllocationHandle) -> CUresult {
    may_fail!("cuMemRelease");
    let released = handles().all.remove(&handle);
    status(released.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE))
}

/// Addresses are cheap: one that nothing is mapped at is no memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAddressReserve(
    out: *mut CUdeviceptr,
    len: usize,
    _alignment: usize,
    _wanted: CUdeviceptr,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemAddressReserve");
    // SAFETY: the caller's promise.
    unsafe { give(out, MACHINE.state().map(|()| MACHINE.reserve(len))) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAddressFree(address: CUdeviceptr, len: usize) -> CUresult {
    may_fail!("cuMemAddressFree");
    match MACHINE.is_used(address, len) {
        false => CUresult::CUDA_SUCCESS,
        true => MACHINE.fault(format!(
            "{address:#x} is given up while something is mapped there"
        )),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemMap(
    address: CUdeviceptr,
    len: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemMap");
    status(known(handle).and_then(|physical| {
        if offset != 0 || len > physical.len {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let bytes = Bytes::of_file(&physical.file, len);
        let bytes = bytes.ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        MACHINE.map(address, physical.device, len, bytes)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemSetAccess(
    address: CUdeviceptr,
    len: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> CUresult {
    may_fail!("cuMemSetAccess");
    // SAFETY: the caller has so many.
    let _all = unsafe { std::slice::from_raw_parts(descriptions, count) };
    status(MACHINE.blocks(address, len, |block| block.is_reached = true))
}

/// What is queued on it must be done: the real one takes the pages away.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemUnmap(address: CUdeviceptr, len: usize) -> CUresult {
    may_fail!("cuMemUnmap");
    status(MACHINE.unmap(address, len))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemExportToShareableHandle(
    out: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    _kind: CUmemAllocationHandleType,
    _flags: c_ulonglong,
) -> CUresult {
    may_fail!("cuMemExportToShareableHandle");
    let exported = known(handle).and_then(|physical| {
        let another = match MACHINE.swaps("cuMemExportToShareableHandle") {
            true => file(physical.len, physical.device),
            false => physical.file.try_clone(),
        };
        let another = another.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
        Ok(another.into_raw_fd())
    });
    // SAFETY: the caller's promise.
    unsafe { give(out.cast::<c_int>(), exported) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemImportFromShareableHandle(
    out: *mut CUmemGenericAllocationHandle,
    number: *mut c_void,
    _kind: CUmemAllocationHandleType,
) -> CUresult {
    may_fail!("cuMemImportFromShareableHandle");
    MACHINE.imports.fetch_add(1, Ordering::Relaxed);
    let imported = MACHINE.state().and_then(|()| {
        // SAFETY: the caller's descriptor is open during the call; it stays the caller's.
        let theirs = unsafe { std::os::fd::BorrowedFd::borrow_raw(number.addr() as c_int) };
        let refused = |_| CUresult::CUDA_ERROR_INVALID_VALUE;
        let ours: OwnedFd = theirs.try_clone_to_owned().map_err(refused)?;
        let file = File::from(ours);
        let len = file.metadata().map_err(refused)?.len();
        let len = len
            .checked_sub(16)
            .ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let mut end = [0; 16];
        file.read_exact_at(&mut end, len).map_err(refused)?;
        let (mark, device) = end.split_at(8);
        if *mark != MARK.to_le_bytes() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let seen = MACHINE.seen_as(device[0].into());
        let (len, device) = (
            len as usize,
            seen.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?,
        );
        let file = match MACHINE.swaps("cuMemImportFromShareableHandle") {
            true => self::file(len, device).map_err(refused)?,
            false => file,
        };
        Ok(keep(Physical { file, len, device }))
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, imported) }
}

/// Maps all of a file, shared with who else has it.
pub(crate) fn map(file: &File, len: usize) -> Option<*mut u8> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let (shared, number) = (libc::MAP_SHARED, file.as_raw_fd());
    // SAFETY: a new mapping, wherever there is room.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, shared, number, 0) };
    (start != libc::MAP_FAILED).then_some(start.cast())
}
