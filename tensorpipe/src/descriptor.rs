//! What a reader is told before it takes a message.

use bytes::Bytes;

use crate::device::Device;
use crate::tensor::{DType, Shape, byte_len};

/// What a message holds: lengths, types, devices and metadata, not yet the bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Descriptor {
    /// The message's own metadata.
    pub metadata: Bytes,
    /// One for each payload, in order.
    pub payloads: Vec<PayloadDescriptor>,
    /// One for each tensor, in order.
    pub tensors: Vec<TensorDescriptor>,
}

/// What is known of a payload before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PayloadDescriptor {
    /// Length in bytes.
    pub len: u64,
    /// The payload's own metadata.
    pub metadata: Bytes,
}

/// What is known of a tensor before it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDescriptor {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, outermost first.
    pub shape: Shape,
    /// Where the writer has it.
    pub source: Device,
    /// Where the writer wants it, if it cares.
    pub target: Option<Device>,
    /// The tensor's own metadata.
    pub metadata: Bytes,
}

impl TensorDescriptor {
    /// Length in bytes.
    pub fn byte_len(&self) -> u64 {
        // Checked when it came in: it does not overflow.
        byte_len(self.dtype, &self.shape).unwrap_or(u64::MAX)
    }
}

impl Descriptor {
    /// Bytes of all payloads and tensors together.
    pub fn byte_len(&self) -> u64 {
        let payloads: u64 = self.payloads.iter().map(|payload| payload.len).sum();
        payloads
            + self
                .tensors
                .iter()
                .map(TensorDescriptor::byte_len)
                .sum::<u64>()
    }
}
