//! postcard's deserializer, with tensors put back, and with limits on all that a peer's bytes could blow up.
//!
//! postcard reads every leaf; this layer follows the nesting. A length is accepted only if enough bytes are left for its elements.
//! Elements without bytes, and the memory of all elements and of what is in a `Box`, have a budget. A call's arguments may be many times as
//! large as their bytes, and stay until it ends, so their memory counts in the pipe's budget, too. Depth is bounded, both by levels and by
//! the stack that they take.

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Visitor};
use tensorpipe::engine::NoRoom;
use tensorpipe::tensor::lift::{self, Lifted};
use tensorpipe::{Device, Payload, Tensor};

use super::access::{Elements, Fields, Variant};
use super::error::Fault;
use super::{MAX_DEPTH, MAX_EMPTY, MAX_STACK, MEMORY_FACTOR, MEMORY_FLOOR, MEMORY_UNCOUNTED};
use crate::context::count_decoded;

/// The least memory that is counted at once, in bytes.
const COUNTED: u64 = 1 << 20;

/// The source of a value, and what is left of its budgets.
pub(super) struct Reader<'de, 'p> {
    rest: &'de [u8],
    tensors: &'p mut [Option<Tensor>],
    payloads: &'p mut [Option<Payload>],
    depth: u32,
    /// The stack's address at the outermost level.
    stack: usize,
    empty_left: u32,
    memory_left: u64,
    /// Memory that it may take, too, once that is counted.
    countable: u64,
    /// Memory that is counted.
    counted: u64,
    /// How much of the memory around the next value is charged already, and may be that value's.
    around: u64,
    /// The next value is all of an element.
    is_element: bool,
    /// The device on which its tensors must be, if there is one.
    device: Option<Device>,
}

/// Roughly the stack's address.
#[inline(never)]
fn stack() -> usize {
    let here = 0u8;
    std::ptr::from_ref(std::hint::black_box(&here)).addr()
}

impl<'de, 'p> Reader<'de, 'p> {
    #[inline]
    pub(super) fn new(
        bytes: &'de [u8],
        tensors: &'p mut [Option<Tensor>],
        payloads: &'p mut [Option<Payload>],
    ) -> Self {
        Self {
            memory_left: MEMORY_FLOOR.saturating_add(bytes.len() as u64 * MEMORY_FACTOR),
            rest: bytes,
            tensors,
            payloads,
            depth: 0,
            stack: stack(),
            empty_left: MAX_EMPTY,
            countable: 0,
            counted: 0,
            around: 0,
            is_element: false,
            device: None,
        }
    }

    /// Requires the tensors to be on this device.
    #[inline]
    pub(super) fn with_device(mut self, device: Option<Device>) -> Self {
        self.device = device;
        self
    }

    /// Counts what it takes beyond a little for the call that is being made.
    #[inline]
    pub(super) fn counting(mut self) -> Self {
        let uncounted = MEMORY_UNCOUNTED + self.rest.len() as u64;
        (self.memory_left, self.countable) = (uncounted, self.memory_left - uncounted);
        self
    }

    /// Bytes not yet read.
    #[inline]
    pub(super) fn left(&self) -> usize {
        self.rest.len()
    }

    #[inline]
    pub(super) fn leaf<T: Deserialize<'de>>(&mut self) -> Result<T, Fault> {
        let mut postcard = postcard::Deserializer::from_bytes(self.rest);
        let value = T::deserialize(&mut postcard)?;
        self.rest = postcard.finalize()?;
        Ok(value)
    }

    /// Runs `read` one level deeper.
    #[inline]
    pub(super) fn nested<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        if self.depth == MAX_DEPTH {
            return Err(Fault::TooDeep);
        }
        if self.stack.abs_diff(stack()) > MAX_STACK {
            return Err(Fault::TooMuchStack);
        }
        self.depth += 1;
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    /// Reads the length of a sequence or map, if that many elements can still come.
    fn len(&mut self) -> Result<usize, Fault> {
        let len = self.leaf::<u64>()?;
        let without_bytes = len.saturating_sub(self.rest.len() as u64);
        if without_bytes > u64::from(MAX_EMPTY) {
            Err(Fault::Truncated)
        } else if without_bytes > u64::from(self.empty_left) {
            Err(Fault::TooManyEmpty)
        } else {
            usize::try_from(len).map_err(|_| Fault::Truncated)
        }
    }

    /// Reads an element. Charges its memory and, if it takes no bytes, counts it against that limit.
    #[inline]
    pub(super) fn element<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let before = self.rest.len();
        let value = self.charged(seed)?;
        if self.rest.len() == before {
            self.empty_left = self.empty_left.checked_sub(1).ok_or(Fault::TooManyEmpty)?;
        }
        Ok(value)
    }

    /// Reads an element, and charges its memory.
    #[inline]
    pub(super) fn charged<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let size = size_of::<S::Value>() as u64;
        self.charge(size)?;
        let around = std::mem::replace(&mut self.around, size);
        self.is_element = true;
        let value = seed.deserialize(&mut *self)?;
        (self.around, self.is_element) = (around, false);
        Ok(value)
    }

    #[inline]
    fn charge(&mut self, size: u64) -> Result<(), Fault> {
        match self.memory_left.checked_sub(size) {
            Some(left) => self.memory_left = left,
            None => self.charge_counted(size)?,
        }
        Ok(())
    }

    /// Counts memory before it is taken: each time half as much again, so that a large value needs few steps.
    #[cold]
    fn charge_counted(&mut self, size: u64) -> Result<(), Fault> {
        let least = size - self.memory_left;
        if least > self.countable {
            return Err(Fault::TooMuchMemory);
        }
        let most = size.max(COUNTED).max(self.counted / 2).min(self.countable);
        let counted = count_decoded(most, least)
            .map_err(|NoRoom { others, reason }| Fault::OutOfMemory { others, reason })?;
        self.countable -= counted;
        self.counted += counted;
        self.memory_left = self.memory_left + counted - size;
        Ok(())
    }

    /// Reads a struct or enum. Charges its memory unless it can lie in memory that is charged: else it may be in a `Box`. A value of
    /// its own type is never in it, so chains of boxes are charged.
    #[inline]
    fn compound<V>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<V, Fault>,
    ) -> Result<V, Fault> {
        let size = size_of::<V>() as u64;
        let is_element = std::mem::take(&mut self.is_element);
        match size < self.around || is_element && size == self.around {
            true => self.around -= size,
            false => self.charge(size)?,
        }
        let around = std::mem::replace(&mut self.around, size);
        let value = read(self)?;
        self.around = around;
        Ok(value)
    }

    pub(super) fn fields<V: Visitor<'de>>(
        &mut self,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.nested(|reader| visitor.visit_seq(Fields { reader, left: len }))
    }

    fn lifted<L: Lifted, V: Visitor<'de>>(
        &mut self,
        kind: &'static str,
        parts: fn(&mut Self) -> &mut [Option<L>],
        fits: impl FnOnce(&L) -> Result<(), Fault>,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let index = self.leaf::<u32>()?;
        let parts = parts(self);
        let count = parts.len();
        let part = parts
            .get_mut(index as usize)
            .ok_or(Fault::NoSuchPart { kind, index, count })?
            .take()
            .ok_or(Fault::PartTaken { kind, index })?;
        fits(&part)?;
        let (value, unused) = lift::supply(part, || {
            self.nested(|reader| visitor.visit_newtype_struct(reader))
        });
        match unused {
            Some(_) => Err(Fault::ReservedName(L::NAME)),
            None => value,
        }
    }
}

macro_rules! leaves {
    ($($method:ident -> $visit:ident($type:ty);)*) => {
        $(#[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
            let value = self.leaf::<$type>()?;
            visitor.$visit(value)
        })*
    };
}

macro_rules! refused {
    ($($method:ident)*) => {
        $(#[cold]
        fn $method<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Fault> {
            Err(Fault::SelfDescribing(stringify!($method)))
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Reader<'de, '_> {
    type Error = Fault;

    leaves! {
        deserialize_bool -> visit_bool(bool);
        deserialize_i8 -> visit_i8(i8);
        deserialize_i16 -> visit_i16(i16);
        deserialize_i32 -> visit_i32(i32);
        deserialize_i64 -> visit_i64(i64);
        deserialize_i128 -> visit_i128(i128);
        deserialize_u8 -> visit_u8(u8);
        deserialize_u16 -> visit_u16(u16);
        deserialize_u32 -> visit_u32(u32);
        deserialize_u64 -> visit_u64(u64);
        deserialize_u128 -> visit_u128(u128);
        deserialize_f32 -> visit_f32(f32);
        deserialize_f64 -> visit_f64(f64);
        deserialize_char -> visit_char(char);
        deserialize_str -> visit_borrowed_str(&'de str);
        deserialize_string -> visit_borrowed_str(&'de str);
        deserialize_bytes -> visit_borrowed_bytes(&'de [u8]);
        deserialize_byte_buf -> visit_borrowed_bytes(&'de [u8]);
    }

    refused! { deserialize_any deserialize_identifier deserialize_ignored_any }

    #[inline]
    fn is_human_readable(&self) -> bool {
        false
    }

    #[inline]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.leaf::<u8>()? {
            0 => visitor.visit_none(),
            1 => self.nested(|reader| visitor.visit_some(reader)),
            _ => Err(Fault::Malformed("an option is neither 0 nor 1")),
        }
    }

    #[inline]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_unit()
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.compound(|_| visitor.visit_unit())
    }

    #[inline]
    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        if name == Tensor::NAME {
            let device = self.device;
            let fits = |tensor: &Tensor| match device {
                Some(wanted) if tensor.device() != wanted => Err(Fault::WrongDevice {
                    found: tensor.device(),
                    wanted,
                }),
                _ => Ok(()),
            };
            self.lifted::<Tensor, V>("tensor", |reader| reader.tensors, fits, visitor)
        } else if name == Payload::NAME {
            self.lifted::<Payload, V>("payload", |reader| reader.payloads, |_| Ok(()), visitor)
        } else {
            self.compound(|reader| reader.nested(|reader| visitor.visit_newtype_struct(reader)))
        }
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let mut left = self.len()?;
        let value = self.nested(|reader| {
            visitor.visit_seq(Elements {
                reader,
                left: &mut left,
            })
        })?;
        all_read(left, value)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let mut left = self.len()?;
        let value = self.nested(|reader| {
            visitor.visit_map(Elements {
                reader,
                left: &mut left,
            })
        })?;
        all_read(left, value)
    }

    #[inline]
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        self.compound(|reader| reader.fields(len, visitor))
    }

    #[inline]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.compound(|reader| reader.fields(len, visitor))
    }

    #[inline]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.compound(|reader| reader.fields(fields.len(), visitor))
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        // The variant's body counts as the next level, as in the writer.
        self.compound(|reader| visitor.visit_enum(Variant { reader }))
    }
}

/// Fails if elements are left. Otherwise the next value would be read from the middle of them.
#[inline]
fn all_read<T>(left: usize, value: T) -> Result<T, Fault> {
    match left {
        0 => Ok(value),
        _ => Err(Fault::Malformed(
            "more elements were sent than the type takes",
        )),
    }
}
