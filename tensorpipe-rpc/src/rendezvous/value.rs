//! The values that a rendezvous hands over.

use serde::{Deserialize, Serialize};
use tensorpipe::Tensor;

/// A tensor, and TensorFlow's mark that it is dead. A dead value comes from a branch that was not taken: it travels so that its
/// receiver can go on, and its contents have no meaning. Cheap to clone: handles, not bytes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Value {
    /// The contents.
    pub tensor: Tensor,
    /// Whether the value is dead, so that the contents must not be used.
    pub is_dead: bool,
}

impl Value {
    /// A dead value, with an empty tensor.
    pub fn dead() -> Self {
        Self {
            tensor: Tensor::from_bytes(bytes::Bytes::new()),
            is_dead: true,
        }
    }

    /// Bytes of its tensor.
    pub fn byte_len(&self) -> u64 {
        self.tensor.byte_len() as u64
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Self {
        Self {
            tensor,
            is_dead: false,
        }
    }
}

impl From<&Tensor> for Value {
    fn from(tensor: &Tensor) -> Self {
        tensor.clone().into()
    }
}
