//! Decodes bytes to arguments, one after another.

use std::fmt;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use tensorpipe::{Device, Payload, Tensor};

use super::deserializer::Reader;
use super::error::{DecodeError, Fault, Subject};
use crate::remote::decoded_references;

/// The arguments of one call as they arrived, taken in order.
#[derive(Default)]
pub struct Arguments {
    metadata: Bytes,
    read: usize,
    payloads: Vec<Option<Payload>>,
    tensors: Vec<Option<Tensor>>,
    /// The device on which tensors that are taken must be, if there is one.
    device: Option<Device>,
    /// What they take is counted for the call that is being made.
    counts: bool,
}

impl Arguments {
    /// The values in `metadata` (without the call's header), with the parts that came beside them.
    pub fn new(metadata: impl Into<Bytes>, payloads: Vec<Payload>, tensors: Vec<Tensor>) -> Self {
        Self {
            metadata: metadata.into(),
            read: 0,
            payloads: payloads.into_iter().map(Some).collect(),
            tensors: tensors.into_iter().map(Some).collect(),
            device: None,
            counts: false,
        }
    }

    /// Counts the memory that they take in the receive budget, until the call that is being made has ended.
    pub(crate) fn counting(mut self) -> Self {
        self.counts = true;
        self
    }

    /// Decodes the next argument.
    ///
    /// # Errors
    /// [`DecodeError`], which names it. Nothing more can be taken afterwards.
    #[inline]
    pub fn take<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<T, DecodeError> {
        self.read(Subject::Argument(name))
    }

    /// Decodes an argument whose tensors must be on this device.
    ///
    /// # Errors
    /// As [`Arguments::take`], and if the caller has sent a tensor to another device.
    pub fn take_on<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        device: Device,
    ) -> Result<T, DecodeError> {
        self.device = Some(device);
        let value = self.take(name);
        self.device = None;
        value
    }

    /// Decodes an argument that its bytes alone identify: one without tensors, payloads and references. Appends its encoding to
    /// `bytes`.
    pub(crate) fn take_plain<T: DeserializeOwned>(
        &mut self,
        name: &'static str,
        bytes: &mut Vec<u8>,
    ) -> Result<T, DecodeError> {
        let begin = self.read;
        let beside = (self.parts_left(), decoded_references());
        let value = self.take(name)?;
        if beside != (self.parts_left(), decoded_references()) {
            drop(value);
            return Err(DecodeError::new(
                Subject::Argument(name),
                Fault::PartInBatchKey,
            ));
        }
        bytes.extend_from_slice(&self.metadata[begin..self.read]);
        Ok(value)
    }

    fn parts_left(&self) -> usize {
        self.tensors.iter().flatten().count() + self.payloads.iter().flatten().count()
    }

    /// Decodes the next item of a stream; `last` if the message has no further one.
    pub(crate) fn item<T: DeserializeOwned>(&mut self, last: bool) -> Result<T, DecodeError> {
        let item = self.read(Subject::Item)?;
        if last {
            std::mem::take(self).finish_about(Subject::Item)?;
        }
        Ok(item)
    }

    /// Checks that nothing is left over. Call it after the last argument.
    ///
    /// # Errors
    /// [`DecodeError`] when bytes, tensors or payloads are left over.
    pub fn finish(self) -> Result<(), DecodeError> {
        self.finish_about(Subject::Arguments)
    }

    fn read<T: DeserializeOwned>(&mut self, subject: Subject) -> Result<T, DecodeError> {
        let mut reader = Reader::new(
            &self.metadata[self.read..],
            &mut self.tensors,
            &mut self.payloads,
        )
        .with_device(self.device);
        if self.counts {
            reader = reader.counting();
        }
        match T::deserialize(&mut reader) {
            Ok(value) => {
                self.read = self.metadata.len() - reader.left();
                Ok(value)
            }
            Err(fault) => {
                // The next value's position is unknown after an error.
                self.metadata.clear();
                self.read = 0;
                Err(DecodeError::new(subject, fault))
            }
        }
    }

    fn finish_about(self, subject: Subject) -> Result<(), DecodeError> {
        nothing_left(
            self.metadata.len() - self.read,
            &self.tensors,
            &self.payloads,
        )
        .map_err(|fault| DecodeError::new(subject, fault))
    }
}

impl fmt::Debug for Arguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arguments")
            .field("bytes", &(self.metadata.len() - self.read))
            .field("tensors", &self.tensors)
            .field("payloads", &self.payloads)
            .finish()
    }
}

/// Decodes a whole reply: `metadata` (without its header) is one `T` and nothing else.
///
/// # Errors
/// [`DecodeError`] when it is not.
pub fn decode_reply<T: DeserializeOwned>(
    metadata: impl Into<Bytes>,
    payloads: Vec<Payload>,
    tensors: Vec<Tensor>,
) -> Result<T, DecodeError> {
    decode_whole(Subject::Reply, metadata, payloads, tensors)
}

/// Decodes a whole value, about any `subject`.
pub(crate) fn decode_whole<T: DeserializeOwned>(
    subject: Subject,
    metadata: impl Into<Bytes>,
    payloads: Vec<Payload>,
    tensors: Vec<Tensor>,
) -> Result<T, DecodeError> {
    let mut whole = Arguments::new(metadata, payloads, tensors);
    let value = whole.read(subject)?;
    whole.finish_about(subject)?;
    Ok(value)
}

pub(super) fn nothing_left(
    bytes: usize,
    tensors: &[Option<Tensor>],
    payloads: &[Option<Payload>],
) -> Result<(), Fault> {
    let tensors = tensors.iter().flatten().count();
    let payloads = payloads.iter().flatten().count();
    if bytes == 0 && tensors == 0 && payloads == 0 {
        return Ok(());
    }
    Err(Fault::LeftOver {
        bytes,
        tensors,
        payloads,
    })
}
