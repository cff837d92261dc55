//! postcard's serializer with tensors lifted out and depth limited.
//!
//! postcard writes every leaf; this layer follows the nesting. After an error the bytes are garbage, and the encoder cuts them off.

use std::fmt::{Display, Write as _};

use serde::ser::{Serialize, Serializer};
use tensorpipe::tensor::lift::{self, Lifted};
use tensorpipe::{Payload, Tensor};

use super::error::Fault;
use super::sequence::{Fields, Sequence};
use super::{MAX_DEPTH, MAX_EMPTY};

/// The destination of a message.
pub(super) struct Writer {
    postcard: postcard::Serializer<Output>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) payloads: Vec<Payload>,
    depth: u32,
    empty_left: u32,
}

/// How many bytes, tensors and payloads a writer holds.
#[derive(Clone, Copy, Default)]
pub(crate) struct Mark {
    pub(crate) bytes: usize,
    pub(crate) tensors: usize,
    pub(crate) payloads: usize,
}

impl Writer {
    pub(super) fn after(bytes: Vec<u8>) -> Self {
        Self {
            postcard: postcard::Serializer {
                output: Output(bytes),
            },
            tensors: Vec::new(),
            payloads: Vec::new(),
            depth: 0,
            empty_left: MAX_EMPTY,
        }
    }

    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.postcard.output.0
    }

    pub(super) fn into_parts(self) -> (Vec<u8>, Vec<Payload>, Vec<Tensor>) {
        (self.postcard.output.0, self.payloads, self.tensors)
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            bytes: self.bytes().len(),
            tensors: self.tensors.len(),
            payloads: self.payloads.len(),
        }
    }

    /// Goes back to an earlier state, at the outermost level.
    pub(super) fn truncate(&mut self, to: Mark) {
        self.postcard.output.0.truncate(to.bytes);
        self.tensors.truncate(to.tensors);
        self.payloads.truncate(to.payloads);
        self.depth = 0;
    }

    #[inline]
    pub(super) fn enter(&mut self) -> Result<(), Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        self.depth += 1;
        Ok(())
    }

    #[inline]
    pub(super) fn leave(&mut self) {
        self.depth -= 1;
    }

    /// Writes an element. If it takes no bytes, it counts against that limit.
    #[inline]
    pub(super) fn element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        let before = self.bytes().len();
        value.serialize(&mut *self)?;
        if self.bytes().len() == before {
            self.empty_left = self.empty_left.checked_sub(1).ok_or(Fault::TooManyEmpty)?;
        }
        Ok(())
    }

    /// Puts a length before everything that was written since `start`.
    pub(super) fn insert_len(&mut self, start: usize, len: usize) -> Result<(), Fault> {
        let end = self.bytes().len();
        self.postcard.serialize_u64(len as u64)?;
        let bytes = &mut self.postcard.output.0[start..];
        let moved = end - start;
        bytes.rotate_left(moved);
        Ok(())
    }

    #[inline]
    fn nested<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Fault> {
        self.enter()?;
        value.serialize(&mut *self)?;
        self.leave();
        Ok(())
    }

    fn lifted<L: Lifted, T: Serialize + ?Sized>(
        &mut self,
        value: &T,
        parts: fn(&mut Self) -> &mut Vec<L>,
    ) -> Result<(), Fault> {
        let index = u32::try_from(parts(self).len()).map_err(|_| Fault::TooManyParts)?;
        let (result, caught) = lift::offer::<L, _>(index, || self.nested(value));
        result?;
        parts(self).push(caught.ok_or(Fault::ReservedName(L::NAME))?);
        Ok(())
    }
}

macro_rules! leaves {
    ($($method:ident($($arg:ident: $type:ty),*);)*) => {
        $(#[inline]
        fn $method(self, $($arg: $type),*) -> Result<(), Fault> {
            Ok(self.postcard.$method($($arg),*)?)
        })*
    };
}

impl<'a> Serializer for &'a mut Writer {
    type Ok = ();
    type Error = Fault;
    type SerializeSeq = Sequence<'a>;
    type SerializeMap = Sequence<'a>;
    type SerializeTuple = Fields<'a>;
    type SerializeTupleStruct = Fields<'a>;
    type SerializeTupleVariant = Fields<'a>;
    type SerializeStruct = Fields<'a>;
    type SerializeStructVariant = Fields<'a>;

    leaves! {
        serialize_bool(v: bool);
        serialize_i8(v: i8);
        serialize_i16(v: i16);
        serialize_i32(v: i32);
        serialize_i64(v: i64);
        serialize_i128(v: i128);
        serialize_u8(v: u8);
        serialize_u16(v: u16);
        serialize_u32(v: u32);
        serialize_u64(v: u64);
        serialize_u128(v: u128);
        serialize_f32(v: f32);
        serialize_f64(v: f64);
        serialize_char(v: char);
        serialize_str(v: &str);
        serialize_bytes(v: &[u8]);
        serialize_none();
        serialize_unit();
        serialize_unit_struct(name: &'static str);
        serialize_unit_variant(name: &'static str, index: u32, variant: &'static str);
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Fault> {
        self.postcard.serialize_u8(1)?;
        self.nested(value)
    }

    #[inline]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        if name == Tensor::NAME {
            self.lifted::<Tensor, T>(value, |writer| &mut writer.tensors)
        } else if name == Payload::NAME {
            self.lifted::<Payload, T>(value, |writer| &mut writer.payloads)
        } else {
            self.nested(value)
        }
    }

    #[inline]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        value: &T,
    ) -> Result<(), Fault> {
        self.postcard.serialize_u32(index)?;
        self.nested(value)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Sequence<'a>, Fault> {
        if let Some(len) = len {
            self.postcard.serialize_u64(len as u64)?;
        }
        Sequence::begin(self, len)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Sequence<'a>, Fault> {
        // `#[serde(flatten)]` writes such a map, and reads it back only from a self-describing format.
        let len = len.ok_or(Fault::Flattened)?;
        self.postcard.serialize_u64(len as u64)?;
        Sequence::begin(self, Some(len))
    }

    #[inline]
    fn serialize_tuple(self, _len: usize) -> Result<Fields<'a>, Fault> {
        Fields::begin(self)
    }

    #[inline]
    fn serialize_tuple_struct(self, _name: &'static str, _len: usize) -> Result<Fields<'a>, Fault> {
        Fields::begin(self)
    }

    #[inline]
    fn serialize_tuple_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Fields<'a>, Fault> {
        self.postcard.serialize_u32(index)?;
        Fields::begin(self)
    }

    #[inline]
    fn serialize_struct(self, _name: &'static str, _len: usize) -> Result<Fields<'a>, Fault> {
        Fields::begin(self)
    }

    #[inline]
    fn serialize_struct_variant(
        self,
        _name: &'static str,
        index: u32,
        _variant: &'static str,
        _len: usize,
    ) -> Result<Fields<'a>, Fault> {
        self.postcard.serialize_u32(index)?;
        Fields::begin(self)
    }

    /// Formats once. postcard's own version formats twice, and relies on `Display` to write the same both times.
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<(), Fault> {
        let start = self.bytes().len();
        write!(self.postcard.output, "{value}")
            .map_err(|_| Fault::Malformed("its `Display` returned an error"))?;
        self.insert_len(start, self.bytes().len() - start)
    }
}

/// The growing bytes of a message.
struct Output(Vec<u8>);

impl postcard::ser_flavors::Flavor for Output {
    type Output = Vec<u8>;

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<Vec<u8>> {
        Ok(self.0)
    }
}

impl std::fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}
