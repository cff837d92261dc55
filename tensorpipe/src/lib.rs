//! A tensor-aware message pipe.

mod error;
mod sys;

pub mod device;
pub mod tensor;

pub use device::{Buffer, BufferMut, Device, DeviceKind, Memory, Pool, PoolOptions, PoolStats};
pub use error::{Misuse, SystemError};
pub use tensor::{DType, Element, Tensor};
