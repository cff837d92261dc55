//! Devices that reach each other's memory: copies between them need no main memory in between.

#![allow(unsafe_code, reason = "contexts and devices are handles")]

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::{DriverError, sys};

use super::{CudaDevices, Opened, failed};
use crate::error::DeviceError;

/// Pairs that were looked at: who reaches whom.
#[derive(Default)]
pub(super) struct Peers(Mutex<BTreeSet<(u32, u32)>>);

impl CudaDevices {
    /// Lets `from` reach `to`, where the machine can do that: once. It takes the driver a while.
    ///
    /// # Errors
    /// When the driver refuses, and not because they do not reach each other.
    pub(super) fn introduce(&self, from: &Opened, to: &Opened) -> Result<(), DeviceError> {
        let pair = (from.device.index, to.device.index);
        let known = &self.shared.peers.0;
        let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
        if pair.0 == pair.1 || !known.insert(pair) {
            return Ok(());
        }
        let refused = |call| move |error| failed(from.device, call, error);
        let mut can = 0;
        let (here, there) = (from.context.cu_device(), to.context.cu_device());
        // SAFETY: there is room for the answer.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, here, there) };
        asked.result().map_err(refused("cuDeviceCanAccessPeer"))?;
        if can == 0 {
            tracing::debug!(from = %from.device, to = %to.device, "copies go by way of main memory");
            return Ok(());
        }
        let bound = from.context.bind_to_thread();
        bound.map_err(refused("cuCtxSetCurrent"))?;
        // SAFETY: both contexts are there.
        let enabled = unsafe { sys::cuCtxEnablePeerAccess(to.context.cu_ctx(), 0) };
        match enabled.result() {
            // The program has done so.
            Err(DriverError(sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)) => Ok(()),
            enabled => enabled.map_err(refused("cuCtxEnablePeerAccess")),
        }
    }
}
