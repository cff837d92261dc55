//! A tensor-aware message pipe.

mod error;
mod message;

pub mod device;
pub mod tensor;

pub use device::{Buffer, BufferMut, Device, DeviceKind, Memory};
pub use error::{Misuse, SystemError};
pub use message::Payload;
pub use tensor::{DType, Element, Tensor};
