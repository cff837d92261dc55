//! Which calls may share a batch.

use serde::de::DeserializeOwned;
use tensorpipe::{DType, Device, Identity, Shape, Tensor};

use crate::codec::{Arguments, DecodeError};

/// What all calls of a batch have in common. That is who makes them, as far as it was proved; the encoded arguments that are no
/// tensors; and the tensors' devices, element types and shapes behind the first dimension.
///
/// Bytes of one type after another are read in one way only, so that equal bytes are equal values. A peer that writes a value
/// in two ways gets two batches.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchKey {
    identity: Option<Identity>,
    values: Vec<u8>,
    tensors: Vec<(Device, DType, Shape)>,
}

impl BatchKey {
    /// Decodes the next argument, which is the same for all calls of a batch.
    ///
    /// # Errors
    /// As [`Arguments::take`]; for a value that holds tensors or payloads, which its bytes do not tell from others.
    pub fn take<T: DeserializeOwned>(
        &mut self,
        arguments: &mut Arguments,
        name: &'static str,
    ) -> Result<T, DecodeError> {
        arguments.take_plain(name, &mut self.values)
    }

    /// Who calls: the handler takes all of its batch for one caller's.
    pub(super) fn of(&mut self, identity: Option<&Identity>) {
        self.identity = identity.cloned();
    }

    /// Bytes of the values.
    pub(super) fn len(&self) -> u64 {
        self.values.len() as u64
    }

    /// Takes a tensor in, of which the calls of a batch share all but the first dimension.
    pub(super) fn push(&mut self, tensor: &Tensor) {
        let shape = tensor.shape().get(1..).unwrap_or_default();
        self.tensors
            .push((tensor.device(), tensor.dtype(), Shape::from(shape)));
    }
}
