//! How encoded values become a message, and how a message becomes values again.
//!
//! The values' bytes, the *body*, stand behind the header in the metadata, or are the last payload. As a payload, a large body
//! moves without copies, and a small one reaches a peer whose metadata is too short for it.

use bytes::{Buf, Bytes};
use tensorpipe::device::MemoryKind;
use tensorpipe::engine::Outbound;
use tensorpipe::{Buffer, Device, Message, MessageTensor, Payload, PeerLimits, Tensor};

use crate::codec::Encoded;
use crate::context::own_bytes;
use crate::header::{BODY_IN_PAYLOAD, Header, INLINE_BODY, REFERENCES};
use crate::scratch;

/// Makes the body the last payload, where it is too long for the metadata. `encoded` begins with a header of `header_len` bytes.
pub(crate) fn spill_large_body(encoded: &mut Encoded, header_len: usize, peer: &PeerLimits) {
    let Encoded {
        metadata,
        payloads,
        tensors,
        targets: _,
        owners: _,
        references: _,
    } = encoded;
    if !is_beside(metadata.len(), header_len, payloads, tensors, peer) {
        return;
    }
    metadata[2] |= BODY_IN_PAYLOAD;
    let header = metadata[..header_len].to_vec();
    let body = Buffer::from_vec(std::mem::replace(metadata, header));
    // Last, so that the other payloads keep their indices.
    payloads.push(Payload::from(body.slice(header_len..body.len())));
}

/// Gives the message of `encoded`, whose body is [spilled](spill_large_body), to `send`. Keeps the vector it was encoded in for the next
/// message.
pub(super) fn outbound<T>(encoded: Encoded, send: impl FnOnce(&mut Outbound<'_>) -> T) -> T {
    let sent = {
        // Built and dropped in place: it is 800 bytes long.
        let mut outbound = Outbound::new(&encoded.metadata);
        if encoded.targets.is_empty() {
            outbound.extend(encoded.payloads, encoded.tensors);
        } else {
            let tensors = with_targets(encoded.tensors, encoded.targets);
            outbound.extend(encoded.payloads, tensors);
        }
        send(&mut outbound)
    };
    scratch::keep(encoded.metadata);
    sent
}

/// Pairs tensors with their target devices, where those are given.
#[inline(never)]
fn with_targets(tensors: Vec<Tensor>, targets: Vec<Option<Device>>) -> Vec<MessageTensor> {
    let targets = targets.into_iter().chain(std::iter::repeat(None));
    let tensors = tensors.into_iter().zip(targets);
    let targeted = tensors.map(|(tensor, target)| MessageTensor {
        target,
        ..tensor.into()
    });
    targeted.collect()
}

/// Whether the body is a payload. If the peer takes it neither way, the pipe's error names the limit.
fn is_beside(
    len: usize,
    header_len: usize,
    payloads: &[Payload],
    tensors: &[Tensor],
    peer: &PeerLimits,
) -> bool {
    let body = len - header_len;
    let theirs = || payloads.iter().map(|payload| payload.metadata.len());
    let fits_inline = || (len + theirs().sum::<usize>()) as u64 <= u64::from(peer.metadata);
    let parts = || {
        let tensors = tensors.iter().map(|tensor| tensor.byte_len() as u64);
        let payloads = payloads.iter().map(|payload| payload.as_bytes().len());
        tensors.sum::<u64>() + payloads.sum::<usize>() as u64
    };
    let fits_beside = || {
        payloads.len() + tensors.len() < usize::from(peer.parts)
            && body as u64 <= peer.payload
            && parts().saturating_add(body as u64) <= peer.message
    };
    match body > INLINE_BODY {
        true => fits_beside() || !fits_inline(),
        false => !fits_inline() && fits_beside(),
    }
}

/// An encoded call that can be sent several times, each time behind a new header. Its tensors and payloads are handles, and a large
/// body is shared: only a small body is copied.
pub(crate) struct ResendableCall {
    encoded: Encoded,
    /// The encoded body, if it is large; `encoded.metadata` is empty then.
    body: Option<Buffer>,
}

impl ResendableCall {
    /// Keeps a call that was encoded without a header. `waits`: the names of the results that it waits for still go behind its
    /// body, so the body is not a payload yet.
    pub(crate) fn new(mut encoded: Encoded, waits: bool) -> Self {
        encoded.references = None;
        let is_large = !waits && encoded.metadata.len() > INLINE_BODY;
        let body = is_large.then(|| Buffer::from_vec(std::mem::take(&mut encoded.metadata)));
        Self { encoded, body }
    }

    /// The call once more, to be sent.
    pub(crate) fn behind(&self, header: Vec<u8>, peer: &PeerLimits) -> Encoded {
        let mut metadata = header;
        let mut payloads = self.encoded.payloads.clone();
        let beside = |body: &Buffer| {
            let len = metadata.len() + body.len();
            is_beside(len, metadata.len(), &payloads, &self.encoded.tensors, peer)
        };
        match &self.body {
            None => metadata.extend_from_slice(&self.encoded.metadata),
            Some(body) if beside(body) => {
                metadata[2] |= BODY_IN_PAYLOAD;
                payloads.push(Payload::from(body.clone()));
            }
            Some(body) => metadata.extend_from_slice(body.as_bytes().unwrap_or_default()),
        }
        Encoded {
            metadata,
            payloads,
            tensors: self.encoded.tensors.clone(),
            targets: self.encoded.targets.clone(),
            owners: self.encoded.owners.clone(),
            references: None,
        }
    }
}

/// The body of a message behind its header, and what travelled beside it.
pub(crate) struct Body {
    pub(crate) metadata: Bytes,
    pub(crate) payloads: Vec<Payload>,
    pub(crate) tensors: Vec<Tensor>,
    /// Whether it holds references.
    pub(crate) references: bool,
}

impl Body {
    /// The body of a value that never left this process.
    pub(crate) fn here(encoded: Encoded) -> Self {
        Self {
            metadata: encoded.metadata.into(),
            payloads: encoded.payloads,
            tensors: encoded.tensors,
            references: false,
        }
    }

    /// How much of this process's memory it takes.
    pub(super) fn own_bytes(&self) -> u64 {
        let payloads = self.payloads.iter();
        let is_own = |part: &Payload| part.data.memory().kind() == MemoryKind::Heap;
        let payloads = payloads.map(|part| match is_own(part) {
            true => part.metadata.len() + part.data.len(),
            false => part.metadata.len(),
        });
        let values = self.metadata.len() + payloads.sum::<usize>();
        values as u64 + own_bytes(&self.tensors)
    }
}

/// Takes a message apart; `None` if its flags promise a payload that is not there.
pub(crate) fn to_body(message: Message, header: &Header) -> Option<Body> {
    let Message {
        mut metadata,
        mut payloads,
        tensors,
        ..
    } = message;
    let metadata = if header.flags & BODY_IN_PAYLOAD != 0 {
        // `into_bytes` copies memory that a peer shares: it must not change between check and use.
        payloads.pop()?.into_bytes()
    } else {
        // In place: a slice would be a second handle, for which the bytes need a reference count.
        metadata.advance(header.body_at);
        metadata
    };
    Some(Body {
        metadata,
        payloads,
        tensors: match tensors.is_empty() {
            true => Vec::new(),
            false => tensors.into_iter().map(|part| part.tensor).collect(),
        },
        references: header.flags & REFERENCES != 0,
    })
}
