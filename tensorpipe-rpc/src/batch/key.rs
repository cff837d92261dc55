//! The key that decides which calls may share a batch.

use serde::de::DeserializeOwned;
use tensorpipe::{DType, Device, Identity, Shape, Tensor};

use crate::codec::{Arguments, DecodeError};

/// What the calls of a batch must share: the caller's proven identity; the encoded arguments other than tensors; and the tensors'
/// devices, element types and shapes after the first dimension.
///
/// The codec reads each type's bytes in only one way, so equal bytes are equal values. If a peer encodes a value in two ways, it
/// gets two batches.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
pub struct BatchKey {
    identity: Option<Identity>,
    values: Vec<u8>,
    tensors: Vec<(Device, DType, Shape)>,
}

impl BatchKey {
    /// Decodes the next argument, which all calls of a batch must share.
    ///
    /// # Errors
    /// As [`Arguments::take`]; also for a value with tensors or payloads, because its bytes do not determine it.
    pub fn take<T: DeserializeOwned>(
        &mut self,
        arguments: &mut Arguments,
        name: &'static str,
    ) -> Result<T, DecodeError> {
        arguments.take_plain(name, &mut self.values)
    }

    /// Adds the caller's identity: the handler treats its whole batch as one caller's.
    pub(super) fn of(&mut self, identity: Option<&Identity>) {
        self.identity = identity.cloned();
    }

    /// The length of the encoded values.
    pub(super) fn len(&self) -> u64 {
        self.values.len() as u64
    }

    /// Adds a tensor. The calls of a batch share all of its dimensions but the first.
    pub(super) fn push(&mut self, tensor: &Tensor) {
        let shape = tensor.shape().get(1..).unwrap_or_default();
        self.tensors
            .push((tensor.device(), tensor.dtype(), Shape::from(shape)));
    }
}
