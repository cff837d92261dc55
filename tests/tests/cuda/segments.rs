//! Another library's memory that is one address range over several physical allocations, like PyTorch's expandable segments.

#![allow(unsafe_code, reason = "the driver's calls take addresses and handles")]

use std::sync::Arc;

use cudarc::driver::{CudaContext, sys};

/// Addresses, at which other physical memory may be mapped each time.
pub(crate) struct Segments {
    context: Arc<CudaContext>,
    address: sys::CUdeviceptr,
    /// Of each allocation.
    len: usize,
    /// Whether each has a descriptor for other processes.
    passed: Vec<bool>,
}

/// Physical memory there, until this is dropped.
pub(crate) struct Mapped {
    segments: Arc<Segments>,
    handles: Vec<sys::CUmemGenericAllocationHandle>,
}

fn properties(context: &CudaContext, passed: bool) -> sys::CUmemAllocationProp {
    use sys::CUmemAllocationHandleType as Kind;
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: match passed {
            true => Kind::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
            false => Kind::CU_MEM_HANDLE_TYPE_NONE,
        },
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: context.cu_device(),
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

impl Segments {
    /// Three allocations, which no other process may map.
    pub(crate) fn reserve(context: &Arc<CudaContext>) -> Arc<Self> {
        Self::of(context, &[false; 3])
    }

    /// So many allocations; whether other processes may map each.
    pub(crate) fn of(context: &Arc<CudaContext>, passed: &[bool]) -> Arc<Self> {
        context.bind_to_thread().unwrap();
        let (properties, mut len, mut address) = (properties(context, false), 0, 0);
        let least = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let ask = sys::cuMemGetAllocationGranularity;
        // SAFETY: the properties are whole, and there is room for the number.
        let asked = unsafe { ask(&raw mut len, &raw const properties, least) };
        asked.result().unwrap();
        let reserve = sys::cuMemAddressReserve;
        // SAFETY: there is room for the address.
        let reserved = unsafe { reserve(&raw mut address, passed.len() * len, 0, 0, 0) };
        reserved.result().unwrap();
        Arc::new(Self {
            context: context.clone(),
            address,
            len,
            passed: passed.to_vec(),
        })
    }

    /// Of all that is mapped, in bytes.
    pub(crate) fn len(&self) -> usize {
        self.passed.len() * self.len
    }

    /// Of a tensor of `len` bytes that begins in the first allocation and ends in the last.
    pub(crate) fn across(&self, len: usize) -> sys::CUdeviceptr {
        let all = self.len();
        assert!(len > all - 2 * self.len && len <= all);
        self.address + ((all - len) / 2) as u64
    }

    /// Maps memory that nobody has had.
    pub(crate) fn map(self: &Arc<Self>) -> Mapped {
        self.context.bind_to_thread().unwrap();
        let access = sys::CUmemAccessDesc {
            location: properties(&self.context, false).location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        let place = |number: usize| self.address + (number * self.len) as u64;
        let map = |number: usize| {
            let properties = properties(&self.context, self.passed[number]);
            let mut handle = 0;
            let create = sys::cuMemCreate;
            // SAFETY: the properties are whole, and there is room for the handle.
            let made = unsafe { create(&raw mut handle, self.len, &raw const properties, 0) };
            made.result().unwrap();
            // SAFETY: so many addresses are reserved there, and nothing is mapped.
            let mapped = unsafe { sys::cuMemMap(place(number), self.len, 0, handle, 0) };
            mapped.result().unwrap();
            handle
        };
        let handles = (0..self.passed.len()).map(map).collect();
        let (address, len) = (self.address, self.len());
        // SAFETY: all of it is mapped, and one description is there.
        let let_in = unsafe { sys::cuMemSetAccess(address, len, &raw const access, 1) };
        let_in.result().unwrap();
        Mapped {
            segments: self.clone(),
            handles,
        }
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let segments = &*self.segments;
        segments.context.bind_to_thread().unwrap();
        for (number, handle) in self.handles.iter().enumerate() {
            let place = segments.address + (number * segments.len) as u64;
            // SAFETY: mapped in `map`, and in use by no work: whoever has it sees to that.
            let unmapped = unsafe { sys::cuMemUnmap(place, segments.len) };
            unmapped.result().unwrap();
            // SAFETY: made in `map`, and given up once.
            unsafe { sys::cuMemRelease(*handle) }.result().unwrap();
        }
    }
}

impl Drop for Segments {
    fn drop(&mut self) {
        self.context.bind_to_thread().unwrap();
        // SAFETY: reserved above, and nothing is mapped there.
        let freed = unsafe { sys::cuMemAddressFree(self.address, self.len()) };
        freed.result().unwrap();
    }
}
