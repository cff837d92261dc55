//! What the peer takes, for those who can arrange a message in several ways.

use crate::proto::wire::hello::WireLimits;

/// The largest message that the peer takes: its own [`Limits`](crate::Limits). A message beyond them is
/// [`Misuse::TooLarge`](crate::Misuse::TooLarge), and nothing of it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerLimits {
    /// All metadata of one message, in bytes.
    pub metadata: u32,
    /// One payload, in bytes.
    pub payload: u64,
    /// One tensor, in bytes.
    pub tensor: u64,
    /// All payloads and tensors of one message, in bytes.
    pub message: u64,
    /// Payloads plus tensors of one message.
    pub parts: u16,
}

impl PeerLimits {
    pub(super) fn new(limits: &WireLimits) -> Self {
        Self {
            metadata: limits.metadata,
            payload: limits.payload,
            tensor: limits.tensor,
            message: limits.message,
            parts: limits.parts,
        }
    }
}
