//! Devices that reach each other's memory: copies between them need no main memory in between.

#![allow(unsafe_code, reason = "contexts and devices are handles")]

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{CudaContext, DriverError, result, sys};

use super::{CudaDevices, Opened, enter, probe};

/// Pairs of devices that were checked.
#[derive(Default)]
pub(super) struct Peers(Mutex<BTreeSet<(u32, u32)>>);

/// The devices that reach the memory of this context's device.
pub(super) fn of(context: &CudaContext) -> Result<Vec<sys::CUdevice>, DriverError> {
    let mut peers = Vec::new();
    for ordinal in 0..result::device::get_count()? {
        let device = result::device::get(ordinal)?;
        if device != context.cu_device() && can_reach(device, context.cu_device())? {
            peers.push(device);
        }
    }
    Ok(peers)
}

fn can_reach(from: sys::CUdevice, to: sys::CUdevice) -> Result<bool, DriverError> {
    let mut can = 0;
    // SAFETY: there is room for the answer.
    unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, from, to) }.result()?;
    Ok(can != 0)
}

impl CudaDevices {
    /// Lets two devices reach each other's memory, if the machine can; once for each pair. It takes the driver a while. It is optional:
    /// without it, copies are slower. This process's own memory does not need it.
    pub(super) fn enable_peer_access(&self, one: &Opened, other: &Opened) {
        for (from, to) in [(one, other), (other, one)] {
            let pair = (from.device.index, to.device.index);
            let known = &self.shared.peers.0;
            let is_new = pair.0 != pair.1
                && known
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(pair);
            if !is_new {
                continue;
            }
            if let Err(error) = let_in(from, to) {
                let reason = probe::words(error);
                tracing::debug!(from = %from.device, to = %to.device, reason, "copies go by way of main memory");
            }
        }
    }
}

fn let_in(from: &Opened, to: &Opened) -> Result<(), DriverError> {
    if !can_reach(from.context.cu_device(), to.context.cu_device())? {
        return Err(DriverError(
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
        ));
    }
    let _here = enter(&from.context);
    // SAFETY: both contexts are there.
    let enabled = unsafe { sys::cuCtxEnablePeerAccess(to.context.cu_ctx(), 0) };
    match enabled.result() {
        // The program has done so already.
        Err(DriverError(sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => Ok(()),
        enabled => enabled,
    }
}
