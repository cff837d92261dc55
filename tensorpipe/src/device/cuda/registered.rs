//! Main memory that the devices access in place: its pages are pinned, once for each allocation. That is memory of pools, which is kept, and
//! what is borrowed; other memory is gone with its tensor, and is copied.
//!
//! To unpin pages, a driver waits for all work of the device (seen with driver 580), and other calls may wait for it meanwhile. So it is
//! done rarely, and a separate thread does it, and frees the memory
//! ([`Registrations::end_before`](crate::sys::registrations::Registrations::end_before)). If too much waits for that, no more is pinned.

#![allow(unsafe_code, reason = "the driver takes memory as an address")]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, sys};

use super::pinned::Pinned;
use super::{CudaDevices, Kept, enter, failed, report};
use crate::device::{Device, Memory, MemoryKind};
use crate::error::DeviceError;
use crate::sys::drop_thread;
use crate::sys::fork::{Owner, PerProcess};
use crate::sys::registrations::Domain;

/// The longest block of a pool's that is registered, if it is lent to nobody, in bytes: all of it gets pinned.
const PRIVATE: usize = 16 << 20;

/// The domain of these registrations: the driver knows the memory for all devices of the process.
fn domain() -> Domain {
    static DOMAIN: PerProcess<Domain> = PerProcess::new();
    *DOMAIN.get(Domain::unique)
}

/// An allocation as the driver knows it, until this is dropped.
struct Registration {
    start: usize,
    owner: Owner,
    context: Kept<CudaContext>,
    /// Or the driver refused, and is not asked again: the application has registered some of the memory, or its pages cannot be
    /// pinned.
    is_registered: bool,
}

impl CudaDevices {
    /// Whether the devices can copy from and to this memory directly.
    pub(crate) fn reach(&self, memory: &dyn Memory) -> bool {
        if memory.as_any().is::<Pinned>() {
            return true;
        }
        let place = memory.registrable();
        let known = place.and_then(|place| place.registrations.get(domain()));
        known.is_some_and(|known: Arc<Registration>| known.is_registered)
    }

    /// Registers the memory so that the devices reach it, if the driver allows that; returns whether they do. The first time, that
    /// takes some 100 µs for each mebibyte of the allocation.
    ///
    /// # Errors
    /// There is no such device.
    pub(crate) fn make_reach(
        &self,
        device: Device,
        memory: &dyn Memory,
    ) -> Result<bool, DeviceError> {
        if memory.as_any().is::<Pinned>() {
            return Ok(true);
        }
        let (Some(place), Some(bytes)) = (memory.registrable(), memory.as_bytes()) else {
            return Ok(false);
        };
        // No more is pinned than tensors probably fill.
        if memory.kind() == MemoryKind::Heap && place.len > PRIVATE {
            return Ok(false);
        }
        let context = &self.opened(device)?.context;
        let start = bytes.as_ptr().addr().wrapping_sub(place.offset);
        let is_read_only = memory.kind() == MemoryKind::Borrowed;
        let registered = place.registrations.of(domain(), || {
            Registration::new(context, start, place.len, is_read_only)
        });
        // If the failure may pass, a later attempt may succeed.
        Ok(registered.is_ok_and(|registered| registered.is_registered))
    }
}

impl Registration {
    fn new(
        context: &Arc<CudaContext>,
        start: usize,
        len: usize,
        is_read_only: bool,
    ) -> Result<Self, DriverError> {
        if drop_thread::is_backlogged() {
            return Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        let _here = enter(context);
        let read_only = sys::CU_MEMHOSTREGISTER_READ_ONLY * u32::from(is_read_only);
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | read_only;
        let address = std::ptr::with_exposed_provenance_mut::<c_void>(start);
        // SAFETY: the allocation lies there, and this ends before it does.
        let registered = unsafe { sys::cuMemHostRegister_v2(address, len, flags) };
        if let Err(error) = registered.result() {
            let device = CudaDevices::device(context.ordinal() as u32);
            let words = failed(device, "cuMemHostRegister", error);
            tracing::debug!(error = %words, len, "main memory is copied once more");
            let lasts = matches!(
                error.0,
                sys::CUresult::CUDA_ERROR_NOT_SUPPORTED
                    | sys::CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
            );
            if !lasts {
                return Err(error);
            }
        }
        Ok(Self {
            start,
            owner: Owner::here(),
            context: Kept::new(context.clone()),
            is_registered: registered == sys::CUresult::CUDA_SUCCESS,
        })
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // CUDA does not survive a fork: a child must not call it for what it inherited.
        if self.owner.is_other_process() {
            std::mem::forget(self.context.clone());
            return;
        }
        if self.is_registered {
            let _here = enter(&self.context);
            let address = std::ptr::with_exposed_provenance_mut::<c_void>(self.start);
            // SAFETY: registered in `new`, and in use by no copy: each keeps the memory.
            let undone = unsafe { sys::cuMemHostUnregister(address) };
            report(&self.context, "cuMemHostUnregister", undone.result());
        }
    }
}
