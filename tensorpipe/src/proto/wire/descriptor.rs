//! The head of a MESSAGE frame: the descriptor and how each part travels. Its eager parts' bytes follow in the frame.
//!
//! Body: `u32` length of the fixed fields that follow (so that later fields can be skipped), then those fields. Then come all metadata back
//! to back (the message's, each payload's, each tensor's), then the eager parts' bytes in order.

use std::cmp::Ordering;

use bytes::Bytes;
use smallvec::SmallVec;

use super::codec::{Put, Reader};
use super::frame::{HEADER_LEN, Kind};
use super::hello::WireLimits;
use crate::descriptor::{Descriptor, PayloadDescriptor, TensorDescriptor};
use crate::device::Device;
use crate::error::PeerFault;
use crate::tensor::{DType, MAX_DIMS, Shape, byte_len};

/// The part's bytes follow in this frame.
const EAGER: u8 = 1;
/// The part's bytes follow without waiting for a go-ahead.
const AHEAD: u8 = 2;
/// The tensor has a target device.
const TARGET: u8 = 4;

/// Bytes in front of the fields of the parts: the frame's header, and four numbers.
const FRONT: usize = HEADER_LEN + 4 + 4 + 2 + 2;

const UNFILLED: &str = "eager parts that do not fill the frame";

/// How one payload (first) or tensor (then) travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriage {
    /// In the MESSAGE frame.
    Eager,
    /// Through the channel of this number, after the go-ahead or (`ahead`) without one.
    Bulk { channel: u8, ahead: bool },
}

pub(crate) type Carriages = SmallVec<[Carriage; 4]>;

/// What a head says of a tensor, beside what it says of any part.
#[derive(Debug)]
pub(crate) struct TensorFields {
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) source: Device,
    /// Its target device, if the writer named one.
    pub(crate) target: Option<Device>,
}

/// A MESSAGE frame that is put together, up to its eager bytes, which follow it.
pub(crate) struct Frame<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    counts: [u16; 2],
    eager: u64,
}

impl<'a> Frame<'a> {
    #[inline]
    pub(crate) fn begin(out: &'a mut Vec<u8>, metadata: usize) -> Self {
        let start = out.len();
        out.reserve(FRONT + metadata);
        // The lengths without parts; the rest is known in the end.
        let fields = (FRONT - HEADER_LEN - 4) as u32;
        let mut front = [0; FRONT];
        front[..4].copy_from_slice(&(4 + fields + metadata as u32).to_le_bytes());
        front[4] = Kind::Message as u8;
        front[8..12].copy_from_slice(&fields.to_le_bytes());
        front[12..16].copy_from_slice(&(metadata as u32).to_le_bytes());
        out.extend_from_slice(&front);
        Self {
            out,
            start,
            counts: [0; 2],
            eager: 0,
        }
    }

    /// The next part, of `len` bytes and so many of metadata: payloads first. Returns where its flags stand in the frame.
    #[inline(never)]
    pub(crate) fn part(
        &mut self,
        len: u64,
        metadata: usize,
        carriage: Carriage,
        tensor: Option<&TensorFields>,
    ) -> u32 {
        let flags_at = (self.out.len() - self.start) as u32;
        self.counts[usize::from(tensor.is_some())] += 1;
        if carriage == Carriage::Eager {
            self.eager += len;
        }
        let out = &mut *self.out;
        match tensor {
            None => {
                put_carriage(out, carriage, 0);
                out.put_u64(len);
            }
            Some(tensor) => {
                let target = if tensor.target.is_some() { TARGET } else { 0 };
                put_carriage(out, carriage, target);
                out.put_u8(tensor.dtype.code());
                out.put_u8(tensor.shape.len() as u8);
                tensor.shape.iter().for_each(|dim| out.put_u64(*dim));
                out.put_device(tensor.source);
                if let Some(target) = tensor.target {
                    out.put_device(target);
                }
            }
        }
        out.put_u32(metadata as u32);
        flags_at
    }

    /// The metadata of the message, and of each part.
    #[inline]
    pub(crate) fn end<'b>(self, metadata: &[u8], parts: impl Iterator<Item = &'b [u8]>) {
        let out = self.out;
        let fields = (out.len() - self.start - HEADER_LEN - 4) as u32;
        out.extend_from_slice(metadata);
        if self.counts == [0; 2] {
            return;
        }
        parts.for_each(|metadata| out.extend_from_slice(metadata));
        let body = ((out.len() - self.start - HEADER_LEN) as u64 + self.eager) as u32;
        let front = &mut out[self.start..self.start + FRONT];
        front[..4].copy_from_slice(&body.to_le_bytes());
        front[8..12].copy_from_slice(&fields.to_le_bytes());
        front[16..18].copy_from_slice(&self.counts[0].to_le_bytes());
        front[18..20].copy_from_slice(&self.counts[1].to_le_bytes());
    }
}

/// Sets the flag of a part that its bytes come without a go-ahead.
pub(crate) fn set_ahead(frame: &mut [u8], flags_at: u32) {
    frame[flags_at as usize] |= AHEAD;
}

/// Where the metadata begins in the frame of a message.
pub(crate) fn metadata_at(frame: &[u8]) -> Option<usize> {
    let (fields, _) = frame.get(HEADER_LEN..)?.split_first_chunk()?;
    (HEADER_LEN + fields.len()).checked_add(u32::from_le_bytes(*fields) as usize)
}

/// Everything of a message but the bytes. The public [`Descriptor`] is made of it where somebody asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) metadata: Bytes,
    /// `None` without payloads and tensors, as most are: it is handed on several times.
    parts: Option<Box<HeadParts>>,
}

/// The front of a head, and the length of the frame's body.
struct Front {
    body_len: usize,
    /// Where the metadata begins in the body.
    fields_end: usize,
    /// Bytes of the message's own metadata.
    message_meta: usize,
    /// Of payloads and of tensors.
    counts: [u16; 2],
}

/// Room for one without an allocation.
type Payloads = SmallVec<[PayloadDescriptor; 1]>;
type Tensors = SmallVec<[TensorDescriptor; 1]>;

#[derive(Clone, Debug, PartialEq, Eq)]
struct HeadParts {
    payloads: Payloads,
    tensors: Tensors,
    /// Payloads first, then tensors.
    carriages: Carriages,
}

impl Head {
    /// The head of a message of metadata alone.
    pub(crate) fn new(metadata: Bytes) -> Self {
        Self {
            metadata,
            parts: None,
        }
    }

    /// Of payloads and tensors that travel so.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn with(descriptor: Descriptor, carriages: Carriages) -> Self {
        let has_parts = !carriages.is_empty();
        let parts = HeadParts {
            payloads: descriptor.payloads.into(),
            tensors: descriptor.tensors.into(),
            carriages,
        };
        Self {
            metadata: descriptor.metadata,
            parts: has_parts.then(|| Box::new(parts)),
        }
    }

    pub(crate) fn payloads(&self) -> &[PayloadDescriptor] {
        self.parts.as_ref().map_or(&[], |parts| &parts.payloads)
    }

    pub(crate) fn tensors(&self) -> &[TensorDescriptor] {
        self.parts.as_ref().map_or(&[], |parts| &parts.tensors)
    }

    /// How each part travels, payloads first.
    pub(crate) fn carriages(&self) -> &[Carriage] {
        self.parts.as_ref().map_or(&[], |parts| &parts.carriages)
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor {
            metadata: self.metadata.clone(),
            payloads: self.payloads().to_vec(),
            tensors: self.tensors().to_vec(),
        }
    }

    /// Its payloads and tensors, to make a message from: in place, since they are long.
    pub(crate) fn parts_mut(&mut self) -> (&mut [PayloadDescriptor], &mut [TensorDescriptor]) {
        match &mut self.parts {
            None => (&mut [], &mut []),
            Some(parts) => (&mut parts.payloads, &mut parts.tensors),
        }
    }

    /// The tensor of this part's number.
    fn tensor(&self, part: usize) -> Option<&TensorDescriptor> {
        self.tensors().get(part.checked_sub(self.payloads().len())?)
    }

    /// Length of part number `part`, in bytes.
    pub(crate) fn part_len(&self, part: usize) -> u64 {
        match self.payloads().get(part) {
            Some(payload) => payload.len,
            None => self.tensor(part).map_or(0, TensorDescriptor::byte_len),
        }
    }

    /// The device where the writer wants a part: main memory if it named none.
    pub(crate) fn device(&self, part: usize) -> Device {
        let target = self.tensor(part).and_then(|tensor| tensor.target);
        target.unwrap_or(Device::CPU)
    }

    /// The device where the writer has a tensor.
    pub(crate) fn source(&self, part: usize) -> Option<Device> {
        self.tensor(part).map(|tensor| tensor.source)
    }

    /// Bytes of all payloads and tensors together.
    pub(crate) fn byte_len(&self) -> u64 {
        self.sum(|_| true)
    }

    pub(crate) fn eager_len(&self) -> u64 {
        self.sum(|carriage| *carriage == Carriage::Eager)
    }

    pub(crate) fn sum(&self, which: impl Fn(&Carriage) -> bool) -> u64 {
        let chosen = self.carriages().iter().enumerate();
        let chosen = chosen.filter(|(_, carriage)| which(carriage));
        chosen.map(|(part, _)| self.part_len(part)).sum()
    }

    /// Bytes of all metadata.
    pub(crate) fn metadata_len(&self) -> usize {
        let payloads = self.payloads().iter().map(|payload| payload.metadata.len());
        let tensors = self.tensors().iter().map(|tensor| tensor.metadata.len());
        self.metadata.len() + payloads.sum::<usize>() + tensors.sum::<usize>()
    }

    /// Appends the frame's header and head; the eager bytes are to follow.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let mut frame = Frame::begin(out, self.metadata.len());
        let mut carriages = self.carriages().iter();
        let mut carriage = || *carriages.next().expect("one for each part");
        for payload in self.payloads() {
            frame.part(payload.len, payload.metadata.len(), carriage(), None);
        }
        for tensor in self.tensors() {
            let fields = TensorFields {
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                source: tensor.source,
                target: tensor.target,
            };
            let metadata = tensor.metadata.len();
            frame.part(tensor.byte_len(), metadata, carriage(), Some(&fields));
        }
        let payloads = self.payloads().iter().map(|payload| &*payload.metadata);
        let tensors = self.tensors().iter().map(|tensor| &*tensor.metadata);
        frame.end(&self.metadata, payloads.chain(tensors));
    }

    /// Decodes the head at the front of `body_so_far`, of a body of `body_len` bytes. Returns it and its length, or how
    /// many bytes are needed before it can be decoded.
    #[inline]
    pub(crate) fn decode(
        body_so_far: &[u8],
        body_len: u32,
        channels: usize,
        limits: &WireLimits,
    ) -> Result<Result<(Self, usize), usize>, PeerFault> {
        let body_len = body_len as usize;
        if body_len < 4 {
            return Err(Kind::Message.truncated());
        }
        // What follows may be the next frame's.
        let body_so_far = &body_so_far[..body_so_far.len().min(body_len)];
        let Some((len, rest)) = body_so_far.split_first_chunk() else {
            return Ok(Err(4));
        };
        let fields_len = u32::from_le_bytes(*len) as usize;
        if fields_len > body_len - 4 {
            return Err(Kind::Message.truncated());
        }
        let Some(fields) = rest.get(..fields_len) else {
            return Ok(Err(4 + fields_len));
        };
        let mut r = Reader::new(fields, Kind::Message);
        let message_meta = take_metadata_len(&mut r, &mut 0, limits)?;
        let (payload_count, tensor_count) = (r.u16()?, r.u16()?);
        let parts = u64::from(payload_count) + u64::from(tensor_count);
        check("payloads and tensors", parts, u64::from(limits.parts))?;
        if parts as usize * 8 > r.remaining() {
            return Err(Kind::Message.truncated());
        }
        let front = Front {
            body_len,
            fields_end: 4 + fields_len,
            message_meta,
            counts: [payload_count, tensor_count],
        };
        match parts {
            0 => Self::of_metadata(body_so_far, &front),
            _ => Self::of_parts(body_so_far, &front, r, channels, limits),
        }
    }

    /// Decodes payloads and tensors, which come next in `r`. Not inlined: a message without parts should not pay for it.
    #[inline(never)]
    fn of_parts(
        body_so_far: &[u8],
        front: &Front,
        mut r: Reader<'_>,
        channels: usize,
        limits: &WireLimits,
    ) -> Result<Result<(Self, usize), usize>, PeerFault> {
        let [payload_count, tensor_count] = front.counts.map(usize::from);
        let mut carriages: Carriages = with_room(payload_count + tensor_count);
        let mut payloads: Payloads = with_room(payload_count);
        let mut tensors: Tensors = with_room(tensor_count);
        let mut metas: SmallVec<[usize; 4]> = with_room(payload_count + tensor_count);
        let mut sums = Sums::default();
        let mut metadata = front.message_meta as u64;
        for _ in 0..payload_count {
            let (carriage, _) = take_carriage(&mut r, channels)?;
            let len = r.u64()?;
            check("a payload", len, limits.payload)?;
            carriages.push(carriage);
            payloads.push(PayloadDescriptor {
                len,
                metadata: Bytes::new(),
            });
            metas.push(take_metadata_len(&mut r, &mut metadata, limits)?);
            sums.add(carriage, len, limits)?;
        }
        for _ in 0..tensor_count {
            let (carriage, flags) = take_carriage(&mut r, channels)?;
            let dtype =
                DType::from_code(r.u8()?).ok_or_else(|| r.malformed("an unknown element type"))?;
            let dims = usize::from(r.u8()?);
            if dims > MAX_DIMS {
                return Err(r.malformed("a tensor of more than 32 dimensions"));
            }
            // Less code than a list that may fail: this is cold where tensors are large.
            let mut shape = Shape::default();
            for _ in 0..dims {
                shape.push(r.u64()?);
            }
            let len = byte_len(dtype, &shape)
                .ok_or_else(|| r.malformed("a shape whose size overflows"))?;
            check("a tensor", len, limits.tensor)?;
            let source = r.device()?;
            let has_target = flags & TARGET != 0;
            let target = has_target.then(|| r.device()).transpose()?;
            carriages.push(carriage);
            tensors.push(TensorDescriptor {
                dtype,
                shape,
                source,
                target,
                metadata: Bytes::new(),
            });
            metas.push(take_metadata_len(&mut r, &mut metadata, limits)?);
            sums.add(carriage, len, limits)?;
        }
        let head_len = front.fields_end + metadata as usize;
        if head_len > front.body_len {
            return Err(Kind::Message.truncated());
        }
        if body_so_far.len() < head_len {
            return Ok(Err(head_len));
        }
        sums.check(front.body_len - head_len, limits)?;
        let bytes = &body_so_far[front.fields_end..head_len];
        let (message, mut bytes) = bytes.split_at(front.message_meta);
        // Each has memory of its own: whoever keeps a small one must not keep all.
        let message = Bytes::copy_from_slice(message);
        if !bytes.is_empty() {
            let of_payloads = payloads.iter_mut().map(|payload| &mut payload.metadata);
            let of_tensors = tensors.iter_mut().map(|tensor| &mut tensor.metadata);
            for (place, len) in of_payloads.chain(of_tensors).zip(metas) {
                let (metadata, rest) = bytes.split_at(len);
                (*place, bytes) = (Bytes::copy_from_slice(metadata), rest);
            }
        }
        let parts = HeadParts {
            payloads,
            tensors,
            carriages,
        };
        let head = Self {
            metadata: message,
            parts: Some(Box::new(parts)),
        };
        Ok(Ok((head, head_len)))
    }

    /// Decodes a head without parts: only the message's metadata follows the fields. Measured: `benches/RESULTS.md`, "Messages without
    /// parts".
    #[inline]
    fn of_metadata(body: &[u8], front: &Front) -> Result<Result<(Self, usize), usize>, PeerFault> {
        let head_len = front.fields_end + front.message_meta;
        match front.body_len.cmp(&head_len) {
            Ordering::Less => Err(Kind::Message.truncated()),
            Ordering::Greater => Err(Kind::Message.malformed(UNFILLED)),
            Ordering::Equal => Ok(match body.get(front.fields_end..head_len) {
                None => Err(head_len),
                Some(metadata) => {
                    let metadata = Bytes::copy_from_slice(metadata);
                    Ok((Self::new(metadata), head_len))
                }
            }),
        }
    }
}

/// A list of `count` things that are to come.
fn with_room<A: smallvec::Array>(count: usize) -> SmallVec<A> {
    /// Not inlined: its growth would stand four times in `of_parts`.
    #[cold]
    fn many<A: smallvec::Array>(count: usize) -> SmallVec<A> {
        SmallVec::with_capacity(count)
    }
    match count <= A::size() {
        true => SmallVec::new(),
        false => many(count),
    }
}

/// Bytes of the parts so far.
#[derive(Default)]
struct Sums {
    total: u64,
    eager: u64,
}

impl Sums {
    /// An empty part is always eager.
    fn add(&mut self, carriage: Carriage, len: u64, limits: &WireLimits) -> Result<(), PeerFault> {
        let total = self.total.checked_add(len);
        self.total = total.ok_or_else(|| exceeded("a message", u64::MAX, limits.message))?;
        if carriage == Carriage::Eager {
            self.eager += len;
            check("an eager part", len, u64::from(limits.eager_part))
        } else if len == 0 {
            Err(Kind::Message.malformed("an empty part that waits for a go-ahead"))
        } else {
            Ok(())
        }
    }

    /// Checks that they fit the limits, and that the eager parts fill the frame exactly.
    fn check(&self, eager_bytes: usize, limits: &WireLimits) -> Result<(), PeerFault> {
        check("a message", self.total, limits.message)?;
        let limit = u64::from(limits.eager_message);
        check("a message's eager parts", self.eager, limit)?;
        match self.eager == eager_bytes as u64 {
            true => Ok(()),
            false => Err(Kind::Message.malformed(UNFILLED)),
        }
    }
}

/// The length of one more piece of metadata, of which there are `total` bytes so far.
fn take_metadata_len(
    r: &mut Reader<'_>,
    total: &mut u64,
    limits: &WireLimits,
) -> Result<usize, PeerFault> {
    let len = r.u32()?;
    *total += u64::from(len);
    check("metadata", *total, u64::from(limits.metadata))?;
    Ok(len as usize)
}

fn check(what: &'static str, found: u64, limit: u64) -> Result<(), PeerFault> {
    match found <= limit {
        true => Ok(()),
        false => Err(exceeded(what, found, limit)),
    }
}

/// Cold: the compiler moves calls of it out of the way.
#[cold]
fn exceeded(what: &'static str, found: u64, limit: u64) -> PeerFault {
    PeerFault::LimitExceeded { what, found, limit }
}

fn put_carriage(out: &mut Vec<u8>, carriage: Carriage, more: u8) {
    match carriage {
        Carriage::Eager => out.put_u16(u16::from(EAGER | more)),
        Carriage::Bulk { channel, ahead } => {
            out.put_u8(more | if ahead { AHEAD } else { 0 });
            out.put_u8(channel);
        }
    }
}

fn take_carriage(r: &mut Reader<'_>, channels: usize) -> Result<(Carriage, u8), PeerFault> {
    let (flags, channel) = (r.u8()?, r.u8()?);
    if flags & !(EAGER | AHEAD | TARGET) != 0 {
        return Err(r.malformed("a part that travels in an unknown way"));
    }
    if flags & EAGER != 0 {
        return Ok((Carriage::Eager, flags));
    }
    if usize::from(channel) >= channels {
        return Err(r.malformed("a channel that was not negotiated"));
    }
    let ahead = flags & AHEAD != 0;
    Ok((Carriage::Bulk { channel, ahead }, flags))
}
