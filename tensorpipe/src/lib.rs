//! A tensor-aware message pipe.

mod address;
mod config;
mod context;
mod descriptor;
mod error;
mod listener;
mod message;
mod negotiate;
mod pipe;
mod process;
mod proto;
mod route;
mod stop;
mod sync;
mod sys;

#[cfg(feature = "blocking")]
pub mod blocking;
pub mod channels;
#[cfg(feature = "conformance")]
pub mod conformance;
pub mod device;
pub mod tensor;
pub mod transports;

pub use address::Url;
pub use config::{ConnectPolicy, Limits, Timeouts};
pub use context::{Context, ContextBuilder};
pub use descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
pub use device::{Buffer, BufferMut, Device, DeviceKind, Memory, Pool, PoolOptions, PoolStats};
pub use error::{Error, Misuse, PeerFault, ResetCode, SystemError};
pub use listener::Listener;
pub use message::{Allocation, Message, MessageTensor, Payload, Place};
pub use pipe::{Awaiting, Flush, Handler, Incoming, Pipe, PipeStats, Read, Write};
pub use route::{ChannelRoute, Refusal, Route};
pub use tensor::{DType, Element, Tensor};
