//! Channels of CUDA devices (feature `cuda`), most preferred first:
//!
//! | between | channel | what it does |
//! |---|---|---|
//! | devices of one process | [`CudaXthChannel`] | hands the memory over; to another device one copy |
//! | a device and anything | [`CudaBasicChannel`] | by way of main memory, over another channel |

mod basic;
mod job;
mod xth;

pub use basic::CudaBasicChannel;
pub use xth::CudaXthChannel;

use std::sync::Arc;

use super::{
    BasicChannel, Channel, ChannelFault, Lane, LaneHandle, LaneIo, LeaseChannel, Link, OpId,
    Outcome, PartKind, PieceEvent, Threshold, Want, XthChannel, costs, handover,
};
use crate::device::cuda::CudaDevices;

/// Those of a context with these devices, in front of its others.
pub(crate) fn of(devices: &CudaDevices) -> [Arc<dyn Channel>; 4] {
    [
        Arc::new(CudaXthChannel::new(devices)),
        Arc::new(CudaBasicChannel::over(XthChannel::new(), devices)),
        Arc::new(CudaBasicChannel::over(LeaseChannel::new(), devices)),
        Arc::new(CudaBasicChannel::over(BasicChannel::new(), devices)),
    ]
}
