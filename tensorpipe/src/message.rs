//! What a writer hands in.

use bytes::Bytes;

use crate::device::Buffer;

/// CPU bytes that travel beside a message's metadata.
#[derive(Clone, Debug)]
pub struct Payload {
    /// A few bytes that say what it is.
    pub metadata: Bytes,
    /// The bytes.
    pub data: Buffer,
}
