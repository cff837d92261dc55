//! The compound values of the deserializer: elements under a budget, fields, variants.

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, VariantAccess, Visitor,
};

use super::deserializer::Reader;
use super::error::Fault;

/// The elements of a sequence or map.
pub(super) struct Elements<'r, 'de, 'p> {
    pub(super) reader: &'r mut Reader<'de, 'p>,
    pub(super) left: &'r mut usize,
}

impl<'de> Elements<'_, 'de, '_> {
    #[inline]
    fn next<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Fault> {
        if *self.left == 0 {
            return Ok(None);
        }
        *self.left -= 1;
        self.reader.element(seed).map(Some)
    }

    /// How much a collection may reserve: no more elements than can still come.
    #[inline]
    fn hint(&self) -> Option<usize> {
        Some((*self.left).min(self.reader.left()))
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        self.next(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.hint()
    }
}

impl<'de> MapAccess<'de> for Elements<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        self.next(seed)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        self.reader.charged(seed)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        self.hint()
    }
}

/// The fields of a tuple or struct. The type fixes their number.
pub(super) struct Fields<'r, 'de, 'p> {
    pub(super) reader: &'r mut Reader<'de, 'p>,
    pub(super) left: usize,
}

impl<'de> SeqAccess<'de> for Fields<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        seed.deserialize(&mut *self.reader).map(Some)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// A variant: its index, then its fields.
pub(super) struct Variant<'r, 'de, 'p> {
    pub(super) reader: &'r mut Reader<'de, 'p>,
}

impl<'de> EnumAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Fault;
    type Variant = Self;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Fault> {
        let index: U32Deserializer<Fault> = self.reader.leaf::<u32>()?.into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, 'de, '_> {
    type Error = Fault;

    #[inline]
    fn unit_variant(self) -> Result<(), Fault> {
        Ok(())
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Fault> {
        self.reader.nested(|reader| seed.deserialize(reader))
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Fault> {
        self.reader.fields(len, visitor)
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        self.reader.fields(fields.len(), visitor)
    }
}
