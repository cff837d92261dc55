//! What a writer hands in, what a reader gets, and where a reader wants it.

use std::sync::Arc;

use bytes::Bytes;

use crate::descriptor::Descriptor;
use crate::device::{Buffer, BufferMut, Device, Fence};
use crate::tensor::Tensor;

/// Metadata, CPU payloads and tensors, sent and received as one.
///
/// ```
/// # use tensorpipe::{Message, Payload, Tensor};
/// let message = Message::new("step 7")
///     .payload(Payload::new(b"some bytes".to_vec()))
///     .tensor(Tensor::from(vec![1f32, 2.0]));
/// ```
#[derive(Clone, Debug, Default)]
pub struct Message {
    /// A few bytes that say what it is; they arrive with the descriptor.
    pub metadata: Bytes,
    /// CPU bytes.
    pub payloads: Vec<Payload>,
    /// Tensors on any device.
    pub tensors: Vec<MessageTensor>,
    /// If set and not empty, each tensor that does not fit the message's own frame goes over one of these channels, or not at all; otherwise the
    /// context decides. Payloads go as ever. See [`Message::require`].
    pub required: Option<Arc<Vec<String>>>,
}

impl Message {
    /// A message of metadata alone.
    pub fn new(metadata: impl Into<Bytes>) -> Self {
        Self {
            metadata: metadata.into(),
            ..Self::default()
        }
    }

    /// Adds a payload.
    pub fn payload(mut self, payload: impl Into<Payload>) -> Self {
        self.payloads.push(payload.into());
        self
    }

    /// Adds a tensor.
    pub fn tensor(mut self, tensor: impl Into<MessageTensor>) -> Self {
        self.tensors.push(tensor.into());
        self
    }

    /// Each of its tensors that is not in the frame goes over one of these channels. Otherwise the write fails with
    /// [`Misuse::NotAsRequired`](crate::Misuse::NotAsRequired) before a byte of it moves. The requirements of the context
    /// ([`ContextBuilder::require`](crate::ContextBuilder::require)) hold as well.
    pub fn require(mut self, channels: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.required = Some(Arc::new(channels.into_iter().map(Into::into).collect()));
        self
    }

    /// Bytes of all payloads and tensors together.
    pub fn byte_len(&self) -> u64 {
        let payloads: usize = self.payloads.iter().map(|payload| payload.data.len()).sum();
        let tensors: usize = self
            .tensors
            .iter()
            .map(|tensor| tensor.tensor.byte_len())
            .sum();
        payloads as u64 + tensors as u64
    }
}

/// CPU bytes that travel beside a message's metadata.
#[derive(Clone, Debug)]
pub struct Payload {
    /// A few bytes that say what it is.
    pub metadata: Bytes,
    /// The bytes.
    pub data: Buffer,
}

impl Payload {
    /// Takes over bytes, without a copy.
    pub fn new(data: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::from(Buffer::from_owner(data))
    }

    /// The same with metadata of its own.
    pub fn with_metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// The bytes. Empty for memory that the CPU cannot read, which no payload of a received message is. To parse them, take
    /// [`Payload::into_bytes`]: these may lie in memory that a peer has lent, and can still change.
    pub fn as_bytes(&self) -> &[u8] {
        self.data.as_bytes().unwrap_or_default()
    }

    /// The bytes, which nobody changes any more: they are copied first if their memory is not [private](crate::device::Memory::is_private).
    /// Bytes that become a `str` or an index must not change after they were checked.
    pub fn into_bytes(self) -> Bytes {
        if self.data.memory().is_private() {
            Bytes::from_owner(Private(self))
        } else {
            Bytes::copy_from_slice(self.as_bytes())
        }
    }
}

struct Private(Payload);

impl AsRef<[u8]> for Private {
    fn as_ref(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl From<Buffer> for Payload {
    fn from(data: Buffer) -> Self {
        Self {
            metadata: Bytes::new(),
            data,
        }
    }
}

/// A tensor of a message.
#[derive(Clone, Debug)]
pub struct MessageTensor {
    /// The tensor. To give it away, keep no other handle: then a receiver in the same process owns it alone.
    pub tensor: Tensor,
    /// A few bytes that say what it is.
    pub metadata: Bytes,
    /// The device at the receiver where it should go, if the receiver does not say otherwise. `None`: main memory.
    pub target: Option<Device>,
}

impl MessageTensor {
    /// A tensor with metadata of its own.
    pub fn with_metadata(mut self, metadata: impl Into<Bytes>) -> Self {
        self.metadata = metadata.into();
        self
    }

    /// A tensor that should go to `target`.
    pub fn to_device(mut self, target: Device) -> Self {
        self.target = Some(target);
        self
    }
}

impl From<Tensor> for MessageTensor {
    fn from(tensor: Tensor) -> Self {
        Self {
            tensor,
            metadata: Bytes::new(),
            target: None,
        }
    }
}

/// Where a reader wants the parts of a message.
#[derive(Debug, Default)]
pub struct Allocation {
    /// One for each payload.
    pub payloads: Vec<Place>,
    /// One for each tensor.
    pub tensors: Vec<Place>,
}

/// Where a reader wants one payload or tensor.
#[derive(Debug, Default)]
pub enum Place {
    /// In main memory that the context's pool provides, or that the channel can give without a copy; on the tensor's
    /// target device if the writer named one.
    #[default]
    Pool,
    /// In memory that the channel provides on this device. The channel has to reach it from where the writer has the tensor, see
    /// [`Pipe::route`](crate::Pipe::route); otherwise the read fails with [`Misuse::OutOfReach`](crate::Misuse::OutOfReach). A part in the
    /// message's own frame, or one that comes ahead of the go-ahead, cannot be sent elsewhere any more.
    On(Device),
    /// In this memory, of the part's length, on a device that the part can reach, as for [`Place::On`]. A part in the message's own frame,
    /// or one that comes ahead of the go-ahead, is copied: only into main memory. If the read fails, the memory comes back in
    /// [`ReadError`](crate::ReadError).
    Into(BufferMut),
    /// Nowhere: its bytes are not sent, where they have not been sent yet. An empty part stands in its place.
    Skip,
}

impl Allocation {
    /// Fences until which its memory is in use, unless a device orders its own work behind them.
    pub(crate) fn held(&self) -> Vec<Arc<dyn Fence>> {
        let places = self.payloads.iter().chain(&self.tensors);
        let fences = places.filter_map(|place| match place {
            Place::Into(memory) => Some(memory.held()),
            _ => None,
        });
        fences.flatten().collect()
    }

    /// Everything into pooled memory.
    pub fn for_descriptor(descriptor: &Descriptor) -> Self {
        Self {
            payloads: descriptor.payloads.iter().map(|_| Place::Pool).collect(),
            tensors: descriptor.tensors.iter().map(|_| Place::Pool).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::{DeviceKind, Pool};

    #[test]
    fn bytes_to_parse_are_copied_only_out_of_memory_that_others_write() {
        let pool = Pool::default();
        let received = pool.try_take(100_000).unwrap().freeze();
        let lendable = pool.try_take_lendable(100_000).unwrap().freeze();
        let private = [Buffer::from_vec(vec![7u8; 100]), received, lendable];
        for buffer in private {
            let at = buffer.as_bytes().unwrap().as_ptr();
            let bytes = Payload::from(buffer.slice(10..90)).into_bytes();
            assert_eq!((bytes.len(), bytes.as_ptr()), (80, at.wrapping_add(10)));
        }
        // Nobody knows what it is: a mapped file, say.
        let owned = Payload::new(Arc::<[u8]>::from([1, 2, 3]));
        let at = owned.as_bytes().as_ptr();
        let bytes = owned.into_bytes();
        assert_eq!(bytes[..], [1, 2, 3]);
        assert_ne!(bytes.as_ptr(), at);
        let far = Payload::from(Buffer::empty(Device::new(DeviceKind::CUDA, 0)));
        assert!(far.into_bytes().is_empty());
    }
}
