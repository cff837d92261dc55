//! What a side is prepared to receive, as HELLO and ANSWER say it.

use super::codec::{Put, Reader};
use crate::error::PeerFault;

/// A writer puts at most this many bytes into a frame, however much more its peer takes there.
pub(crate) const FRAME_SHARE_MAX: u32 = 1 << 30;

/// What one side is prepared to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WireLimits {
    /// The longest body of a DATA frame, in bytes.
    pub(crate) chunk: u32,
    /// Payloads and tensors up to this size ride in the MESSAGE frame, in bytes each.
    pub(crate) eager_part: u32,
    /// All of them in one message, in bytes.
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
    /// The three of an [`Amount`] that may be under way in the beginning.
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
        for value in [self.payload, self.tensor, self.message] {
            out.put_u64(value);
        }
        self.window().put(out);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, PeerFault> {
        let mut r = Reader::new(r.blob()?, r.kind);
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
            return Err(r.malformed("limits under which nothing can be sent"));
        }
        Ok(limits)
    }

    /// The limits until the first WINDOW frame.
    pub(crate) fn window(&self) -> Amount {
        Amount {
            messages: self.window_messages,
            bytes: self.window_bytes,
            ahead: self.window_ahead,
        }
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

/// Amounts of the three things that credit is given for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    /// MESSAGE frames.
    pub(crate) messages: u64,
    /// Bytes of their bodies.
    pub(crate) bytes: u64,
    /// Bytes of bulk parts sent without waiting for a go-ahead, and [`AHEAD_PART`](crate::proto::AHEAD_PART) for each.
    pub(crate) ahead: u64,
}

impl Amount {
    pub(super) fn put(&self, out: &mut Vec<u8>) {
        out.put_u64(self.messages);
        out.put_u64(self.bytes);
        out.put_u64(self.ahead);
    }

    pub(super) fn take(r: &mut Reader<'_>) -> Result<Self, PeerFault> {
        Ok(Self {
            messages: r.u64()?,
            bytes: r.u64()?,
            ahead: r.u64()?,
        })
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            messages: self.messages.saturating_add(other.messages),
            bytes: self.bytes.saturating_add(other.bytes),
            ahead: self.ahead.saturating_add(other.ahead),
        }
    }
}
