//! A tensor-aware message pipe.

mod descriptor;
mod error;
mod message;
mod proto;
mod sys;

pub mod device;
pub mod tensor;

pub use descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
pub use device::{Buffer, BufferMut, Device, DeviceKind, Memory, Pool, PoolOptions, PoolStats};
pub use error::{Error, Misuse, PeerFault, ResetCode, SystemError};
pub use message::Payload;
pub use tensor::{DType, Element, Tensor};
