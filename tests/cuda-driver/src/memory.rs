//! Memory of devices, and copies.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_READ_ONLY, CUcontext, CUdeviceptr, CUmemPool_attribute, CUmemPoolProps,
    CUmemoryPool, CUmemorytype, CUpointer_attribute, CUresult, CUstream,
};

use crate::captures;
use crate::devices::{current, give};
use crate::machine::{MACHINE, handle};
use crate::streams::{settle, stream, synchronize};

fn status(result: Result<(), CUresult>) -> CUresult {
    result.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Waits for the device, as the real one may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(out: *mut CUdeviceptr, len: usize) -> CUresult {
    may_fail!("cuMemAlloc_v2");
    let made = MACHINE.state().and_then(|()| current());
    let made = made.and_then(|device| {
        synchronize(device);
        MACHINE.allocate(device, len, None)
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

/// Waits for the device, as the real one does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: CUdeviceptr) -> CUresult {
    may_fail!("cuMemFree_v2");
    let device = MACHINE.block(address, |block| block.device);
    status(device.and_then(|device| {
        synchronize(device);
        MACHINE.free(address)
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(
    out: *mut CUdeviceptr,
    len: usize,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemAllocAsync");
    let made = stream(named).and_then(|stream| {
        stream.queue(|| ());
        let made = MACHINE.allocate(stream.device, len, Some(stream.position()));
        made.inspect(|address| captures::makes(named, *address))
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocFromPoolAsync(
    out: *mut CUdeviceptr,
    len: usize,
    pool: CUmemoryPool,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemAllocFromPoolAsync");
    if pool.is_null() {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    // SAFETY: the caller's promise.
    unsafe { cuMemAllocAsync(out, len, named) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: CUdeviceptr, named: CUstream) -> CUresult {
    may_fail!("cuMemFreeAsync");
    status(stream(named).and_then(|stream| {
        let refused = CUresult::CUDA_ERROR_INVALID_VALUE;
        captures::ends(named, refused, |made| made.contains(&address))?;
        let was_released = MACHINE.block(address, |block| {
            std::mem::replace(&mut block.is_released, true)
        })?;
        if was_released {
            return Err(MACHINE.fault(format!("{address:#x} is freed twice")));
        }
        stream.queue(move || _ = MACHINE.free(address));
        Ok(())
    }))
}

/// A pool of one device's memory.
struct Pool;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolCreate(
    out: *mut CUmemoryPool,
    _props: *const CUmemPoolProps,
) -> CUresult {
    may_fail!("cuMemPoolCreate");
    let made = MACHINE
        .state()
        .map(|()| handle(std::sync::Arc::new(Pool)).cast());
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(
    _pool: CUmemoryPool,
    _attribute: CUmemPool_attribute,
    _value: *mut c_void,
) -> CUresult {
    may_fail!("cuMemPoolSetAttribute");
    CUresult::CUDA_SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolDestroy(pool: CUmemoryPool) -> CUresult {
    may_fail!("cuMemPoolDestroy");
    // SAFETY: made by `cuMemPoolCreate`, and given up by the caller.
    drop(unsafe { std::sync::Arc::from_raw(pool.cast::<Pool>().cast_const()) });
    CUresult::CUDA_SUCCESS
}

/// Two things are known of memory, whichever context is this thread's: its device, and whether it is that device's. Main memory that was
/// pinned has one, too, here the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuPointerGetAttribute(
    out: *mut c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> CUresult {
    may_fail!("cuPointerGetAttribute");
    let found = match MACHINE.device_of(address) {
        Some(device) => Ok((device, CUmemorytype::CU_MEMORYTYPE_DEVICE)),
        None if MACHINE.is_pinned(address as usize, 1) => Ok((0, CUmemorytype::CU_MEMORYTYPE_HOST)),
        None => Err(CUresult::CUDA_ERROR_INVALID_VALUE),
    };
    let said = match attribute {
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
            found.map(|(device, _)| device as c_int)
        }
        CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            found.map(|(_, kind)| kind as c_int)
        }
        _ => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
    };
    // SAFETY: the caller has room for a number.
    unsafe { give(out.cast::<c_int>(), said) }
}

/// Memory of the process, as an address that may go to a stream's thread.
#[derive(Clone, Copy)]
struct Host(usize);

impl Host {
    fn of(memory: *const c_void) -> Self {
        Self(memory.expose_provenance())
    }

    /// # Safety
    /// The caller of the copy keeps so many bytes there until it is done, and nobody changes them meanwhile.
    unsafe fn read(self, to: &mut [u8]) {
        let from = std::ptr::with_exposed_provenance::<u8>(self.0);
        // SAFETY: as said above.
        unsafe { std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), to.len()) };
    }

    /// # Safety
    /// As [`read`](Self::read), and nobody reads them.
    unsafe fn write(self, from: &[u8]) {
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.0);
        // SAFETY: as said above.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: CUdeviceptr,
    from: *const c_void,
    len: usize,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemcpyHtoDAsync_v2");
    let from = Host::of(from);
    if MACHINE.is_pinned(from.0, len) {
        return status(stream(named).map(|stream| {
            let by = Some(stream.device);
            stream.queue_copy(len, move || {
                // SAFETY: the caller's promise.
                MACHINE.touch(by, to, len, "a copy to the device", |bytes| unsafe {
                    from.read(bytes)
                });
            });
        }));
    }
    let mut staged = vec![0; len];
    // SAFETY: the caller's promise.
    unsafe { from.read(&mut staged) };
    status(stream(named).map(|stream| {
        let by = Some(stream.device);
        stream.queue_copy(len, move || {
            MACHINE.touch(by, to, len, "a copy to the device", |bytes| {
                bytes.copy_from_slice(&staged);
            });
        });
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(
    to: CUdeviceptr,
    value: u8,
    len: usize,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemsetD8Async");
    status(stream(named).map(|stream| {
        let by = Some(stream.device);
        stream.queue(move || MACHINE.touch(by, to, len, "a fill", |bytes| bytes.fill(value)));
    }))
}

/// Waits until what a call on the stream of address 0 has queued is done: these are copies that the caller waits for.
fn at_once(queue: impl FnOnce(CUstream) -> CUresult) -> CUresult {
    let usual = std::ptr::null_mut();
    match queue(usual) {
        CUresult::CUDA_SUCCESS => {
            let waited = stream(usual).map(|stream| stream.synchronize());
            status(waited.and_then(|()| MACHINE.state()))
        }
        refused => refused,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(
    to: CUdeviceptr,
    from: *const c_void,
    len: usize,
) -> CUresult {
    may_fail!("cuMemcpyHtoD_v2");
    // SAFETY: the caller's promise.
    at_once(|usual| unsafe { cuMemcpyHtoDAsync_v2(to, from, len, usual) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    len: usize,
) -> CUresult {
    may_fail!("cuMemcpyDtoH_v2");
    let to = Host::of(to);
    at_once(|usual| {
        status(stream(usual).map(|stream| {
            let by = Some(stream.device);
            stream.queue(move || {
                // SAFETY: the caller's promise.
                MACHINE.touch(by, from, len, "a copy to the host", |bytes| unsafe {
                    to.write(bytes)
                });
            });
        }))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, len: usize) -> CUresult {
    may_fail!("cuMemcpyDtoD_v2");
    at_once(|usual| cuMemcpyDtoDAsync_v2(to, from, len, usual))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: CUdeviceptr, value: u8, len: usize) -> CUresult {
    may_fail!("cuMemsetD8_v2");
    at_once(|usual| cuMemsetD8Async(to, value, len, usual))
}

/// Where the destination is not pinned, it waits until the copy is made, as the real one does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: *mut c_void,
    from: CUdeviceptr,
    len: usize,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemcpyDtoHAsync_v2");
    let to = Host::of(to);
    status(stream(named).map(|stream| {
        MACHINE.downloads.fetch_add(1, Ordering::Relaxed);
        let by = Some(stream.device);
        stream.queue_copy(len, move || {
            // SAFETY: the caller's promise.
            MACHINE.touch(by, from, len, "a copy to the host", |bytes| unsafe {
                to.write(bytes)
            });
            MACHINE.downloads.fetch_sub(1, Ordering::Relaxed);
        });
        if !MACHINE.is_pinned(to.0, len) {
            stream.synchronize();
        }
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(
    out: *mut *mut c_void,
    len: usize,
    _flags: c_uint,
) -> CUresult {
    may_fail!("cuMemHostAlloc");
    (MACHINE.longest_pinned).fetch_max(len as u64, Ordering::Relaxed);
    let made = MACHINE.state().and_then(|()| current()).map(|_| {
        let memory: Box<[u8]> = vec![0xdd; len.max(1)].into();
        let start = Box::into_raw(memory).cast::<c_void>();
        MACHINE
            .pinned()
            .insert(start.expose_provenance(), len.max(1));
        start
    });
    // SAFETY: the caller's promise.
    unsafe { give(out, made) }
}

/// Waits for the devices, as the real one may.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(start: *mut c_void) -> CUresult {
    may_fail!("cuMemFreeHost");
    settle();
    let Some(len) = MACHINE.pinned().remove(&start.addr()) else {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    };
    let memory = std::ptr::slice_from_raw_parts_mut(start.cast::<u8>(), len);
    // SAFETY: made in `cuMemHostAlloc`, of this length, and given up by the caller.
    drop(unsafe { Box::from_raw(memory) });
    CUresult::CUDA_SUCCESS
}

/// Whole pages of the caller's, as the real one takes them: two registrations do not touch. Memory that cannot be written is refused
/// unless it is said so.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(start: *mut c_void, len: usize, flags: c_uint) -> CUresult {
    may_fail!("cuMemHostRegister_v2");
    let start = start.addr();
    let read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY != 0;
    status(MACHINE.state().and_then(|()| current()).and_then(|_| {
        if len == 0 || !(read_only || is_writable(start, len)) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let mut pinned = MACHINE.pinned();
        let overlaps = |(at, long): (&usize, &usize)| start < at + long && *at < start + len;
        if pinned.iter().any(overlaps) {
            return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
        }
        pinned.insert(start, len);
        MACHINE.registrations.fetch_add(1, Ordering::Relaxed);
        (MACHINE.read_only).fetch_add(read_only.into(), Ordering::Relaxed);
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(start: *mut c_void) -> CUresult {
    may_fail!("cuMemHostUnregister");
    settle();
    match MACHINE.pinned().remove(&start.addr()) {
        Some(_) => CUresult::CUDA_SUCCESS,
        None => CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    }
}

/// Whether this process may write to these addresses, as its maps say.
fn is_writable(start: usize, len: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let mut at = start;
    for line in maps.lines() {
        let mut fields = line.split([' ', '-']);
        let mut bound = || usize::from_str_radix(fields.next()?, 16).ok();
        let (Some(from), Some(to)) = (bound(), bound()) else {
            continue;
        };
        let writes = fields.next().is_some_and(|access| access.contains('w'));
        if writes && from <= at && at < to {
            at = to;
        }
    }
    at >= start + len
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(
    to: CUdeviceptr,
    from: CUdeviceptr,
    len: usize,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemcpyDtoDAsync_v2");
    status(stream(named).map(|stream| {
        stream.queue(move || {
            let mut between = Vec::new();
            MACHINE.touch(None, from, len, "a copy's source", |bytes| {
                between.extend_from_slice(bytes)
            });
            if between.len() == len {
                MACHINE.touch(None, to, len, "a copy's destination", |bytes| {
                    bytes.copy_from_slice(&between)
                });
            }
        });
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(
    to: CUdeviceptr,
    to_context: CUcontext,
    from: CUdeviceptr,
    from_context: CUcontext,
    len: usize,
    named: CUstream,
) -> CUresult {
    may_fail!("cuMemcpyPeerAsync");
    let device_of = crate::devices::device_of;
    if let (Some(from), Some(to)) = (device_of(from_context), device_of(to_context))
        && !crate::devices::reaches(from, to)
    {
        MACHINE.detours.fetch_add(1, Ordering::Relaxed);
    }
    let is_there = |address, context| MACHINE.device_of(address) == device_of(context);
    if !is_there(to, to_context) || !is_there(from, from_context) {
        return CUresult::CUDA_ERROR_INVALID_VALUE;
    }
    cuMemcpyDtoDAsync_v2(to, from, len, named)
}
