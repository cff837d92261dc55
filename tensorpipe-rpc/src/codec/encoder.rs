//! Encodes arguments, one after another, into one vector.

use std::fmt;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::{Device, Payload, Tensor};

use super::deserializer::Reader;
use super::error::{EncodeError, Fault, Subject};
use super::serializer::{Mark, Writer};
use crate::placement::tensor_of;
use crate::remote::EncodedReferences;

/// A value that can be given to a stub for a parameter of type `T`: a `T`, a reference to one, and for strings and vectors also
/// their borrowed forms.
#[diagnostic::on_unimplemented(
    message = "a parameter of type `{T}` does not take `{Self}`",
    label = "give a `{T}` or a `&{T}`"
)]
pub trait Argument<T> {
    /// Appends this value, in the encoding of a `T`.
    ///
    /// # Errors
    /// [`EncodeError`] when calls cannot carry the value.
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError>;
}

impl<T: Serialize + DeserializeOwned> Argument<T> for T {
    #[inline]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<T, T>(self)
    }
}

impl<T: Serialize + DeserializeOwned> Argument<T> for &T {
    #[inline]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<T, T>(self)
    }
}

impl Argument<String> for &str {
    #[inline]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<String, str>(self)
    }
}

impl<E: Serialize + DeserializeOwned> Argument<Vec<E>> for &[E] {
    #[inline]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<Vec<E>, [E]>(self)
    }
}

impl<E: Serialize + DeserializeOwned, const N: usize> Argument<Vec<E>> for &[E; N] {
    #[inline]
    fn encode(&self, encoder: &mut Encoder) -> Result<(), EncodeError> {
        encoder.write::<Vec<E>, [E]>(*self)
    }
}

/// Encoded values, ready to become a message.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    /// The encoder's initial bytes, then the values.
    pub metadata: Vec<u8>,
    /// Payloads, in the order of their indices.
    pub payloads: Vec<Payload>,
    /// Tensors, in the order of their indices.
    pub tensors: Vec<Tensor>,
    /// The device where each tensor is to land. Tensors beyond the end have no target.
    pub(crate) targets: Vec<Option<Device>>,
    pub(crate) owners: TensorNames,
    /// References in a reply. Those of arguments are kept beside the arguments.
    pub(crate) references: Option<Box<EncodedReferences>>,
}

/// The arguments that hold tensors, in order: each one's name, and how many tensors there are up to its end. For errors.
#[derive(Clone, Debug, Default)]
pub(crate) struct TensorNames(Vec<(&'static str, usize)>);

impl TensorNames {
    /// Names the argument that holds tensor number `tensor` of the call, and which of the argument's tensors it is, if there are
    /// several.
    pub(crate) fn name(&self, tensor: usize) -> Option<String> {
        let index = self.0.partition_point(|(_, end)| *end <= tensor);
        let (name, end) = self.0.get(index)?;
        let start = index.checked_sub(1).map_or(0, |before| self.0[before].1);
        Some(tensor_of(
            &format!("argument `{name}`"),
            tensor - start,
            end - start,
        ))
    }
}

/// Encodes the arguments of one call.
pub struct Encoder {
    writer: Writer,
    subject: Subject,
    targets: Vec<Option<Device>>,
    owners: TensorNames,
}

impl Encoder {
    /// An encoder whose metadata begins with the first value.
    pub fn new() -> Self {
        // Large enough for a small call, so that it takes one allocation.
        Self::after(Vec::with_capacity(64))
    }

    /// An encoder whose metadata begins with `header`, so that header and arguments share one vector.
    pub fn after(header: Vec<u8>) -> Self {
        Self {
            writer: Writer::after(header),
            subject: Subject::Arguments,
            targets: Vec::new(),
            owners: TensorNames::default(),
        }
    }

    /// Appends an argument. An error leaves the encoder as it was before.
    ///
    /// # Errors
    /// [`EncodeError`], which names the argument. Debug builds also decode what they have encoded, so that they fail here and not
    /// at the other end.
    #[inline]
    pub fn push<T>(
        &mut self,
        name: &'static str,
        value: &impl Argument<T>,
    ) -> Result<(), EncodeError> {
        self.subject = Subject::Argument(name);
        let before = self.writer.tensors.len();
        value.encode(self)?;
        let after = self.writer.tensors.len();
        if after > before {
            self.owners.0.push((name, after));
        }
        Ok(())
    }

    /// Appends an argument whose tensors are to land on this device of the other end.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    pub fn push_to<T>(
        &mut self,
        name: &'static str,
        value: &impl Argument<T>,
        device: Device,
    ) -> Result<(), EncodeError> {
        let before = self.writer.tensors.len();
        self.push(name, value)?;
        self.targets.resize(before, None);
        self.targets.resize(self.writer.tensors.len(), Some(device));
        Ok(())
    }

    /// Appends `value` in the encoding of a `T`, for the argument that [`Encoder::push`] named.
    ///
    /// # Errors
    /// As [`Encoder::push`].
    #[inline]
    pub fn write<T: DeserializeOwned, S: Serialize + ?Sized>(
        &mut self,
        value: &S,
    ) -> Result<(), EncodeError> {
        let writer = &mut self.writer;
        let mark = writer.mark();
        let (fault, fails_read_back) = match value.serialize(&mut *writer) {
            Err(fault) => (fault, false),
            Ok(()) if !cfg!(debug_assertions) => return Ok(()),
            Ok(()) => match read_back::<T>(writer, mark) {
                Ok(_) => return Ok(()),
                Err(fault) => (fault, true),
            },
        };
        writer.truncate(mark);
        Err(EncodeError {
            method: None,
            subject: self.subject,
            fault,
            fails_read_back,
        })
    }

    /// How much it holds.
    pub(crate) fn mark(&self) -> Mark {
        self.writer.mark()
    }

    /// Drops all that was written since `mark`.
    pub(crate) fn truncate(&mut self, mark: Mark) {
        self.writer.truncate(mark);
    }

    /// The size of all that was written since `mark`, parts included.
    pub(crate) fn bytes_since(&self, mark: Mark) -> usize {
        let writer = &self.writer;
        let tensors = writer.tensors[mark.tensors..].iter().map(Tensor::byte_len);
        let payloads = writer.payloads[mark.payloads..].iter();
        let payloads = payloads.map(|payload| payload.as_bytes().len());
        writer.bytes().len() - mark.bytes + tensors.sum::<usize>() + payloads.sum::<usize>()
    }

    /// How many parts it holds.
    pub(crate) fn parts(&self) -> usize {
        self.writer.tensors.len() + self.writer.payloads.len()
    }

    pub(crate) fn about(mut self, subject: Subject) -> Self {
        self.subject = subject;
        self
    }

    /// The encoded values.
    pub fn finish(self) -> Encoded {
        let (metadata, payloads, tensors) = self.writer.into_parts();
        Encoded {
            metadata,
            payloads,
            tensors,
            targets: self.targets,
            owners: self.owners,
            references: None,
        }
    }
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder")
            .field("bytes", &self.writer.bytes().len())
            .field("tensors", &self.writer.tensors)
            .field("payloads", &self.writer.payloads)
            .finish()
    }
}

/// By how many bytes a value may grow from one round to the next: another variant's fields are longer.
const GROWTH: usize = 1024;

/// How often [`read_fault`] writes a value that changes each time, at most.
const ROUNDS: usize = 1024;

/// Why values of this type cannot be read, though they were written. Each value that is read is written again: where variants are
/// counted differently, each round ends at a later one, and the last at none. A value that may change, as one that is normalised, is
/// none of this function's business.
pub(crate) fn read_fault<T: Serialize + DeserializeOwned>(value: &T) -> Option<Fault> {
    let write = |value: &T| {
        let mut writer = Writer::after(Vec::new());
        value.serialize(&mut writer).ok().map(|()| writer)
    };
    let mut written = write(value)?;
    for _ in 0..ROUNDS {
        let read = match read_back::<T>(&written, Mark::default()) {
            Ok(read) => read,
            Err(fault) => return Some(fault),
        };
        let before = std::mem::replace(&mut written, write(&read)?);
        // A value that grows is not one whose variants are counted differently.
        if before.bytes() == written.bytes()
            || written.bytes().len() > before.bytes().len() + GROWTH
        {
            break;
        }
    }
    None
}

/// Decodes what was written since `mark`, as the other end will. So its author notices a type that needs a self-describing format.
fn read_back<T: DeserializeOwned>(writer: &Writer, mark: Mark) -> Result<T, Fault> {
    let mut tensors = since(mark.tensors, &writer.tensors);
    let mut payloads = since(mark.payloads, &writer.payloads);
    let mut reader = Reader::new(&writer.bytes()[mark.bytes..], &mut tensors, &mut payloads);
    let value = T::deserialize(&mut reader)?;
    let left = reader.left();
    super::arguments::nothing_left(left, &tensors, &payloads).map(|()| value)
}

/// The parts from index `start` on, each at its index; earlier ones are `None`.
fn since<P: Clone>(start: usize, parts: &[P]) -> Vec<Option<P>> {
    let earlier = std::iter::repeat_n(None, start);
    earlier
        .chain(parts[start..].iter().cloned().map(Some))
        .collect()
}
