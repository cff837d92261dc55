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

/// Those of a context with these devices, in front of its others: main memory goes as these others let it.
pub(crate) fn of(devices: &CudaDevices, others: &[Arc<dyn Channel>]) -> Vec<Arc<dyn Channel>> {
    let mut all: Vec<Arc<dyn Channel>> = vec![Arc::new(CudaXthChannel::new(devices))];
    // Who lends and borrows no main memory lends and borrows none of a device's.
    if others.iter().any(|channel| channel.name() == "lease") {
        all.push(Arc::new(CudaIpcChannel::new(devices)));
    }
    for name in ["xth", "lease", "basic"] {
        let inner = others.iter().find(|channel| channel.name() == name);
        let staged = inner.map(|inner| CudaBasicChannel::over_this(inner.clone(), devices));
        all.extend(staged.map(|staged| Arc::new(staged) as Arc<dyn Channel>));
    }
    all
}
