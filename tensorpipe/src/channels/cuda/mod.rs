//! Channels of CUDA devices (feature `cuda`), most preferred first:
//!
//! | between | channel | what it does |
//! |---|---|---|
//! | devices of one process | [`CudaXthChannel`] | hands the memory over; to another device one copy |
//! | devices of one machine | [`CudaIpcChannel`] | lends the memory; to another device one copy |
//! | a device and anything | [`CudaBasicChannel`] | by way of main memory, over another channel |
//!
//! `cuda_gdr`, in which a network adapter would access device memory directly, does not exist yet: routes say what it lacks.

mod basic;
mod gdr;
mod ipc;
mod job;
mod xth;

pub use basic::CudaBasicChannel;
pub use ipc::CudaIpcChannel;
pub use xth::CudaXthChannel;

use std::sync::Arc;

use super::{
    Channel, ChannelFault, Degraded, Lane, LaneHandle, LaneIo, Link, OpId, Outcome, PartKind,
    PieceEvent, Threshold, Want, costs, handover,
};
use crate::device::cuda::CudaDevices;

/// Channels that a context without devices lacks.
pub(crate) const OF_DEVICES: [&str; 3] = ["cuda_xth", "cuda_ipc", gdr::NAME];

/// The reason for a context that was never asked for devices.
pub(crate) const UNASKED: &str = "nobody asked for CUDA: ContextBuilder::try_cuda";

/// The channel that a context with these devices lacks, and the reason.
pub(crate) fn missing(devices: &CudaDevices) -> (&'static str, String) {
    (gdr::NAME, gdr::why_not(devices))
}

/// Puts the device channels, which stage over `others`, before them. `devices` is `None` at an end without devices. A channel whose name is
/// already among `others` is not added.
pub(crate) fn before(
    devices: Option<&CudaDevices>,
    others: Vec<Arc<dyn Channel>>,
) -> Vec<Arc<dyn Channel>> {
    let named = |name: &str| others.iter().find(|channel| channel.name() == name);
    let mut all: Vec<Arc<dyn Channel>> = Vec::new();
    if let Some(devices) = devices {
        all.push(Arc::new(CudaXthChannel::new(devices)));
        // A context that lends or borrows no main memory does not do so with device memory either.
        if let Some(lease) = named("lease") {
            let channel = CudaIpcChannel::new(devices);
            all.push(Arc::new(channel.borrowing(lease.borrows())));
        }
    }
    let inner = ["xth", "lease", "basic"].into_iter().filter_map(named);
    let staged = inner
        .filter(|inner| inner.borrows())
        .map(|inner| CudaBasicChannel::over_this(inner.clone(), devices));
    all.extend(staged.map(|staged| Arc::new(staged) as Arc<dyn Channel>));
    all.retain(|channel| named(channel.name()).is_none());
    all.into_iter().chain(others).collect()
}
