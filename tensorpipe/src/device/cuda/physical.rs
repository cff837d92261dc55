//! Physical memory of a device, mapped where its streams reach it. It is either made here, with a descriptor by which other processes map
//! it too, or it belongs to another process and is mapped by its descriptors. Several allocations may lie side by side.

#![allow(
    unsafe_code,
    reason = "the driver's calls take addresses and handles as they are"
)]

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, DriverError, result, sys};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use super::exports::{Export, Exports};
use super::{Kept, enter, probe, report};
use crate::device::Fence;
use crate::sync::{AtomicBool, Ordering};
use crate::sys::fork::Owner;
use crate::sys::segment::Segment;

/// For this process only.
const BY_NOTHING: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;

const BY_FD: sys::CUmemAllocationHandleType =
    sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// Address ranges that a [`Physical`] has reserved, by their start: memory of this crate's own, and of other processes that have lent it.
static OURS: Mutex<BTreeMap<sys::CUdeviceptr, sys::CUdeviceptr>> = Mutex::new(BTreeMap::new());

/// Whether an address lies in a [`Physical`], however that memory has come back.
pub(super) fn is_ours(address: sys::CUdeviceptr) -> bool {
    let ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
    let before = ours.range(..=address).next_back();
    before.is_some_and(|(_, end)| address < *end)
}

/// The driver's handle on physical memory. The memory returns to the device when nobody has a handle on it and no process maps it.
pub(crate) struct Handle {
    number: sys::CUmemGenericAllocationHandle,
    context: Kept<CudaContext>,
    owner: Owner,
}

/// See the module's documentation. Dropping it unmaps it.
pub(crate) struct Physical {
    pub(super) address: sys::CUdeviceptr,
    pub(super) len: usize,
    /// What is mapped there, side by side, and the bytes of each.
    mapped: Vec<(Arc<Handle>, usize)>,
    context: Kept<CudaContext>,
    owner: Owner,
    /// Whether other processes may map it.
    has_descriptor: bool,
    /// The descriptor for them, while it is lent.
    export: Arc<Export>,
    /// There was one.
    was_shared: AtomicBool,
    /// Devices that reach it.
    reached_by: Vec<sys::CUdevice>,
}

fn location(context: &CudaContext) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: context.cu_device(),
    }
}

/// The allocation properties for physical memory of a device.
fn properties(
    context: &CudaContext,
    handles: sys::CUmemAllocationHandleType,
) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: handles,
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// The size, in bytes, that physical memory is a multiple of.
pub(super) fn granularity(context: &CudaContext) -> Result<usize, DriverError> {
    let (properties, mut bytes) = (properties(context, BY_NOTHING), 0);
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let ask = sys::cuMemGetAllocationGranularity;
    // SAFETY: the properties are whole, and there is room for the number.
    let asked = unsafe { ask(&raw mut bytes, &raw const properties, minimum) };
    asked.result()?;
    Ok(bytes.max(1))
}

impl Handle {
    fn of(context: &Arc<CudaContext>, number: sys::CUmemGenericAllocationHandle) -> Self {
        Self {
            number,
            context: Kept::new(context.clone()),
            owner: Owner::here(),
        }
    }

    fn new(
        context: &Arc<CudaContext>,
        len: usize,
        passed: sys::CUmemAllocationHandleType,
    ) -> Result<Self, DriverError> {
        let (properties, mut number) = (properties(context, passed), 0);
        // SAFETY: the properties are whole, and there is room for the handle.
        let made = unsafe { sys::cuMemCreate(&raw mut number, len, &raw const properties, 0) };
        made.result().map(|()| Self::of(context, number))
    }

    /// The handle of what is mapped around an address right now, whoever mapped it.
    pub(super) fn around(
        context: &Arc<CudaContext>,
        address: sys::CUdeviceptr,
    ) -> Result<Self, DriverError> {
        let _here = enter(context);
        let mut number = 0;
        let there = std::ptr::without_provenance_mut::<c_void>(address as usize);
        // SAFETY: there is room for the handle, and the address is only looked up.
        let found = unsafe { sys::cuMemRetainAllocationHandle(&raw mut number, there) };
        found.result().map(|()| Self::of(context, number))
    }

    /// From a descriptor that another process has passed.
    pub(super) fn import(
        context: &Arc<CudaContext>,
        fd: BorrowedFd<'_>,
    ) -> Result<Self, DriverError> {
        let _here = enter(context);
        let mut number = 0;
        // The driver takes the number of the descriptor as a pointer.
        let passed = std::ptr::without_provenance_mut::<c_void>(fd.as_raw_fd() as usize);
        let import = sys::cuMemImportFromShareableHandle;
        // SAFETY: there is room for the handle, and the descriptor is open.
        let imported = unsafe { import(&raw mut number, passed, BY_FD) };
        imported.result().map(|()| Self::of(context, number))
    }

    /// A descriptor for other processes.
    pub(super) fn export(&self) -> Result<OwnedFd, DriverError> {
        let _here = enter(&self.context);
        let mut number: c_int = -1;
        let into = (&raw mut number).cast();
        // SAFETY: for this kind of handle the driver writes a number.
        let exported = unsafe { sys::cuMemExportToShareableHandle(into, self.number, BY_FD, 0) };
        exported.result()?;
        // SAFETY: a new descriptor, which is nobody else's.
        let exported = unsafe { OwnedFd::from_raw_fd(number) };
        // A program that this process starts would keep the memory. The driver does not promise it, and on an open descriptor it cannot fail.
        let _ = fcntl(&exported, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC));
        Ok(exported)
    }

    /// The driver's number for it. No other memory has it while this exists.
    pub(super) fn number(&self) -> sys::CUmemGenericAllocationHandle {
        self.number
    }

    /// Whether it belongs to this context's device.
    pub(super) fn is_of(&self, context: &CudaContext) -> bool {
        self.context.cu_ctx() == context.cu_ctx()
    }
}

/// The mapping around an address: its start and length.
pub(super) fn mapping(
    context: &CudaContext,
    address: sys::CUdeviceptr,
) -> Result<(sys::CUdeviceptr, usize), DriverError> {
    let _here = enter(context);
    let (mut start, mut len) = (0, 0);
    let ask = sys::cuMemGetAddressRange_v2;
    // SAFETY: there is room for both, and the address is only looked up.
    let asked = unsafe { ask(&raw mut start, &raw mut len, address) };
    asked.result().map(|()| (start, len))
}

impl Physical {
    /// `len` bytes, a multiple of the [`granularity`], for this context's device and the devices that reach it.
    pub(super) fn new(
        context: &Arc<CudaContext>,
        len: usize,
        peers: &[sys::CUdevice],
    ) -> Result<Self, DriverError> {
        let _here = enter(context);
        let (handle, has_descriptor) = match Handle::new(context, len, BY_FD) {
            Ok(handle) => (handle, true),
            // Some machines (WSL 2, some virtual GPUs) export no memory.
            Err(error) if is_refusal(error) => (Handle::new(context, len, BY_NOTHING)?, false),
            Err(error) => return Err(error),
        };
        let mut physical = Self::map(context, vec![(Arc::new(handle), len)], peers)?;
        physical.has_descriptor = has_descriptor;
        Ok(physical)
    }

    /// Maps the first bytes of each handle, side by side: the driver maps no more than there is.
    pub(super) fn map(
        context: &Arc<CudaContext>,
        parts: Vec<(Arc<Handle>, usize)>,
        peers: &[sys::CUdevice],
    ) -> Result<Self, DriverError> {
        let _here = enter(context);
        let mut lens = parts.iter().map(|(_, len)| *len);
        let len = lens.try_fold(0, usize::checked_add);
        let out = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let (len, mut address) = (len.ok_or(out)?, 0);
        // SAFETY: there is room for the address.
        let reserved = unsafe { sys::cuMemAddressReserve(&raw mut address, len, 0, 0, 0) };
        reserved.result()?;
        // From here on, a drop undoes everything that was done.
        let mut physical = Self {
            address,
            len,
            mapped: Vec::with_capacity(parts.len()),
            context: Kept::new(context.clone()),
            owner: Owner::here(),
            has_descriptor: false,
            export: Arc::default(),
            was_shared: AtomicBool::new(false),
            reached_by: vec![context.cu_device()],
        };
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        ours.insert(address, address + len as u64);
        drop(ours);
        let mut at = address;
        for (handle, len) in parts {
            // SAFETY: so many addresses are reserved there, and nothing is mapped.
            let mapped = unsafe { sys::cuMemMap(at, len, 0, handle.number, 0) };
            mapped.result()?;
            physical.mapped.push((handle, len));
            at += len as u64;
        }
        let let_in = |id| {
            let access = sys::CUmemAccessDesc {
                location: sys::CUmemLocation {
                    id,
                    ..location(context)
                },
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            };
            // SAFETY: the range is what was mapped, and one description is there.
            unsafe { sys::cuMemSetAccess(address, len, &raw const access, 1) }.result()
        };
        let_in(context.cu_device())?;
        for peer in peers {
            match let_in(*peer) {
                Ok(()) => physical.reached_by.push(*peer),
                // Copies to that device then go through main memory.
                Err(error) => tracing::debug!(
                    peer,
                    reason = probe::words(error),
                    "a device does not reach another"
                ),
            }
        }
        Ok(physical)
    }

    /// Whether it belongs to this context's device.
    pub(super) fn is_of(&self, context: &CudaContext) -> bool {
        self.context.cu_ctx() == context.cu_ctx()
    }

    /// Whether work of a device may use it.
    pub(super) fn is_reached_by(&self, device: sys::CUdevice) -> bool {
        self.reached_by.contains(&device)
    }

    /// In bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Whether [`shared`](Self::shared) answers without asking the driver, and without waiting for another thread that asks.
    pub(super) fn is_shared(&self) -> bool {
        !self.has_descriptor || self.export.is_there()
    }

    /// Whether other processes may have mapped it, and may have it a little longer than this one.
    pub(super) fn was_shared(&self) -> bool {
        self.was_shared.load(Ordering::Relaxed)
    }

    /// Part of it is lent until this fence.
    pub(super) fn lent_until(&self, loan: &Arc<dyn Fence>) {
        self.export.lent_until(loan);
    }

    /// The segment for other processes; otherwise the reason, and whether it is lasting.
    pub(super) fn shared(&self, exports: &Exports) -> Result<Arc<Segment>, (String, bool)> {
        let Some((handle, _)) = self.mapped.first().filter(|_| self.has_descriptor) else {
            return Err((
                "the driver passes no memory to other processes".to_owned(),
                true,
            ));
        };
        let make = || {
            let fd = handle.export().map_err(|error| {
                let words = probe::words(error);
                (
                    format!("cuMemExportToShareableHandle: {words}"),
                    is_refusal(error),
                )
            })?;
            let made = Segment::of_device(fd, self.len);
            made.map_err(|error| (error.to_string(), false))
        };
        self.was_shared.store(true, Ordering::Relaxed);
        exports.of(&self.export, make)
    }
}

/// Whether the machine cannot do it at all, rather than just now.
pub(super) fn is_refusal(error: DriverError) -> bool {
    matches!(
        error.0,
        sys::CUresult::CUDA_ERROR_NOT_SUPPORTED
            | sys::CUresult::CUDA_ERROR_NOT_PERMITTED
            | sys::CUresult::CUDA_ERROR_INVALID_VALUE
            | sys::CUresult::CUDA_ERROR_INVALID_DEVICE
    )
}

impl Drop for Physical {
    fn drop(&mut self) {
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.owner.is_other_process() {
            let _kept = ManuallyDrop::new(self.context.clone());
            return;
        }
        let _here = enter(&self.context);
        let (mut at, mut is_free) = (self.address, true);
        for (_, len) in &self.mapped {
            // SAFETY: mapped in `map`, and in use by no work: whoever has it sees to that.
            let unmapped = unsafe { sys::cuMemUnmap(at, *len) };
            is_free &= unmapped == sys::CUresult::CUDA_SUCCESS;
            report(&self.context, "cuMemUnmap", unmapped.result());
            at += *len as u64;
        }
        // The mapping stays, at addresses that are not reused.
        if !is_free {
            return;
        }
        let mut ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
        ours.remove(&self.address);
        drop(ours);
        // SAFETY: reserved in `map`, and nothing is mapped there.
        let freed = unsafe { sys::cuMemAddressFree(self.address, self.len) };
        report(&self.context, "cuMemAddressFree", freed.result());
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // As above.
        if self.owner.is_other_process() {
            let _kept = ManuallyDrop::new(self.context.clone());
            return;
        }
        let _here = enter(&self.context);
        // SAFETY: this one's, and given up once.
        let released = unsafe { sys::cuMemRelease(self.number) };
        report(&self.context, "cuMemRelease", released.result());
    }
}

/// Identifies a device in all processes.
pub(crate) type Uuid = [u8; 16];

/// The UUID of a device, by its number. Needs no context.
pub(super) fn uuid(ordinal: i32) -> Result<Uuid, DriverError> {
    let device = result::device::get(ordinal)?;
    let mut found = sys::CUuuid { bytes: [0; 16] };
    // SAFETY: there is room for it.
    unsafe { sys::cuDeviceGetUuid_v2(&raw mut found, device) }.result()?;
    Ok(found.bytes.map(|byte| byte as u8))
}

/// Whether a device, by its number, exports its memory as a dma-buf. Needs no context.
pub(super) fn exports_dma_bufs(ordinal: i32) -> Result<bool, DriverError> {
    let device = result::device::get(ordinal)?;
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED;
    // SAFETY: the device is one of the driver's.
    let value = unsafe { result::device::get_attribute(device, attribute) }?;
    Ok(value != 0)
}
