//! A tensor-aware message pipe.

mod error;

pub mod device;
pub mod tensor;

pub use device::{Buffer, BufferMut, Device, DeviceKind, Memory};
pub use error::{Misuse, SystemError};
pub use tensor::{DType, Element, Tensor};
