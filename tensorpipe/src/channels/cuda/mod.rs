//! Channels of CUDA devices (feature `cuda`), most preferred first:
//!
//! | between | channel | what it does |
//! |---|---|---|
//! | devices of one process | [`CudaXthChannel`] | hands the memory over; to another device one copy |
//! | devices of one machine | [`CudaIpcChannel`] | lends the memory; to another device one copy |
//! | a device and anything | [`CudaBasicChannel`] | by way of main memory, over another channel |

mod basic;
mod ipc;
mod job;
mod xth;

pub use basic::CudaBasicChannel;
pub use ipc::CudaIpcChannel;
pub use xth::CudaXthChannel;

use std::sync::Arc;

use super::{
    Channel, ChannelFault, Lane, LaneHandle, LaneIo, Link, OpId, Outcome, PartKind, PieceEvent,
    Setback, Threshold, Want, costs, handover,
};
use crate::device::cuda::CudaDevices;

/// What a context without devices lacks.
pub(crate) const OF_DEVICES: [&str; 2] = ["cuda_xth", "cuda_ipc"];

/// Those of a context with these devices, in front of its others: main memory goes as these others let it.
pub(crate) fn of(devices: &CudaDevices, others: &[Arc<dyn Channel>]) -> Vec<Arc<dyn Channel>> {
    let mut all: Vec<Arc<dyn Channel>> = vec![Arc::new(CudaXthChannel::new(devices))];
    // Who lends and borrows no main memory lends and borrows none of a device's.
    if others.iter().any(|channel| channel.name() == "lease") {
        all.push(Arc::new(CudaIpcChannel::new(devices)));
    }
    all.extend(staged(Some(devices), others));
    all
}

/// Those by way of main memory, over those of `others` that move it best.
pub(crate) fn staged(
    devices: Option<&CudaDevices>,
    others: &[Arc<dyn Channel>],
) -> impl Iterator<Item = Arc<dyn Channel>> {
    let inner = ["xth", "lease", "basic"]
        .into_iter()
        .filter_map(move |name| {
            let inner = others.iter().find(|channel| channel.name() == name)?;
            Some(CudaBasicChannel::over_this(inner.clone(), devices))
        });
    inner.map(|staged| Arc::new(staged) as Arc<dyn Channel>)
}
