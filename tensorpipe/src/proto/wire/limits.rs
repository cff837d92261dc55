//! What a side is prepared to receive, as HELLO and ANSWER say it.

use super::codec::{Put, Reader};
use crate::error::PeerFault;

/// The most that a writer puts into a frame of what its peer takes there, in bytes.
pub(crate) const FRAME_SHARE_MAX: u32 = 1 << 30;

/// What one side is prepared to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireLimits {
    /// The longest body of a DATA frame, in bytes.
    pub(crate) chunk: u32,
    /// Payloads and tensors up to this size ride in the MESSAGE frame, in bytes each.
    pub(crate) eager_part: u32,
    /// And together.
    pub(crate) eager_message: u32,
    /// All metadata of a message, in bytes.
    pub(crate) metadata: u32,
    /// Payloads plus tensors of a message.
    pub(crate) parts: u16,
    /// One payload, in bytes.
    pub(crate) payload: u64,
    /// One tensor, in bytes.
    pub(crate) tensor: u64,
    /// All payloads and tensors of a message, in bytes.
    pub(crate) message: u64,
    /// Messages, frame bytes and bulk bytes ahead of a go-ahead that may be under way: the first WINDOW.
    pub(crate) window_messages: u64,
    pub(crate) window_bytes: u64,
    pub(crate) window_ahead: u64,
}

impl WireLimits {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u16(68);
        out.put_u32(self.chunk);
        out.put_u32(self.eager_part);
        out.put_u32(self.eager_message);
        out.put_u32(self.metadata);
        out.put_u16(self.parts);
        out.put_u16(0);
        for value in [
            self.payload,
            self.tensor,
            self.message,
            self.window_messages,
            self.window_bytes,
            self.window_ahead,
        ] {
            out.put_u64(value);
        }
    }

    pub(super) fn take(r: &mut Reader<'_>, frame: &'static str) -> Result<Self, PeerFault> {
        let mut r = Reader::new(r.blob()?, frame);
        let limits = Self {
            chunk: r.u32()?,
            eager_part: r.u32()?,
            eager_message: r.u32()?,
            metadata: r.u32()?,
            parts: {
                let parts = r.u16()?;
                r.u16()?;
                parts
            },
            payload: r.u64()?,
            tensor: r.u64()?,
            message: r.u64()?,
            window_messages: r.u64()?,
            window_bytes: r.u64()?,
            window_ahead: r.u64()?,
        };
        if limits.chunk < 1024
            || limits.window_messages == 0
            || limits.window_bytes < u64::from(limits.frame_max())
        {
            return Err(PeerFault::Malformed {
                frame,
                what: "limits under which nothing can be sent",
            });
        }
        Ok(limits)
    }

    /// What a writer makes of its peer's limits: no chunk longer than its own, so that no stream starves the rest,
    /// and frames whose length a header can hold.
    pub(crate) fn capped(mut self, own: &Self) -> Self {
        self.chunk = self.chunk.min(own.chunk);
        self.eager_part = self.eager_part.min(FRAME_SHARE_MAX);
        self.eager_message = self.eager_message.min(FRAME_SHARE_MAX);
        self.metadata = self.metadata.min(FRAME_SHARE_MAX);
        self
    }

    /// The longest MESSAGE body that these limits allow.
    pub(crate) fn frame_max(&self) -> u32 {
        // A part's fixed fields take at most 40 bytes and 32 dimensions of 8 bytes.
        self.metadata
            .saturating_add(self.eager_message)
            .saturating_add(u32::from(self.parts).saturating_mul(320))
            .saturating_add(64)
    }
}
