//! The deserializer of a trace: it answers each of a type's requests with a small value, and notes the type's shape.

use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use tensorpipe::tensor::lift::{self, Lifted};
use tensorpipe::{Buffer, Payload, Tensor};

use super::shape::{Body, Shape};
use super::trace::{Stop, Trace};

/// One request of a type.
pub(super) struct Probe<'t> {
    trace: &'t mut Trace,
    shape: &'t mut Shape,
}

impl<'t> Probe<'t> {
    pub(super) fn new(trace: &'t mut Trace, shape: &'t mut Shape) -> Self {
        Self { trace, shape }
    }

    /// Answers for a struct, and notes its body.
    fn structure<V, T>(
        self,
        name: &'static str,
        visit: impl FnOnce(&mut Trace) -> Result<(T, Body), Stop>,
    ) -> Result<T, Stop> {
        let (index, visited) = self.trace.within_struct::<V, _>(name, visit);
        *self.shape = Shape::Named(index);
        visited
    }

    /// Answers for a tensor or payload, which has no inner structure.
    fn lifted<'de, V: Visitor<'de>, L: Lifted>(
        self,
        name: &'static str,
        value: L,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.trace.ask()?;
        *self.shape = Shape::Leaf(name);
        let mut inside = Shape::Open;
        let probe = Probe::new(self.trace, &mut inside);
        lift::supply(value, || visitor.visit_newtype_struct(probe)).0
    }
}

macro_rules! leaves {
    ($($method:ident, $name:literal, $visit:ident, $trace:ident => $answer:expr;)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
            let $trace = self.trace;
            $trace.ask()?;
            *self.shape = Shape::Leaf($name);
            visitor.$visit($answer)
        })*
    };
}

macro_rules! refused {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Stop> {
            Err(Stop::SelfDescribing(stringify!($method)))
        })*
    };
}

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = Stop;

    leaves! {
        deserialize_bool, "bool", visit_bool, _trace => false;
        deserialize_i8, "i8", visit_i8, trace => trace.seed.number as i8;
        deserialize_i16, "i16", visit_i16, trace => trace.seed.number.into();
        deserialize_i32, "i32", visit_i32, trace => trace.seed.number.into();
        deserialize_i64, "i64", visit_i64, trace => trace.seed.number.into();
        deserialize_i128, "i128", visit_i128, trace => trace.seed.number.into();
        deserialize_u8, "u8", visit_u8, trace => trace.seed.number;
        deserialize_u16, "u16", visit_u16, trace => trace.seed.number.into();
        deserialize_u32, "u32", visit_u32, trace => trace.seed.number.into();
        deserialize_u64, "u64", visit_u64, trace => trace.seed.number.into();
        deserialize_u128, "u128", visit_u128, trace => trace.seed.number.into();
        deserialize_f32, "f32", visit_f32, trace => trace.seed.number.into();
        deserialize_f64, "f64", visit_f64, trace => trace.seed.number.into();
        deserialize_char, "char", visit_char, _trace => 'a';
        deserialize_str, "str", visit_borrowed_str, trace => trace.seed.text;
        deserialize_string, "str", visit_borrowed_str, trace => trace.seed.text;
        deserialize_bytes, "bytes", visit_borrowed_bytes, trace => trace.seed.bytes;
        deserialize_byte_buf, "bytes", visit_borrowed_bytes, trace => trace.seed.bytes;
    }

    refused! { deserialize_any deserialize_identifier deserialize_ignored_any }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        self.trace.ask()?;
        *self.shape = Shape::Leaf("()");
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let shape = self.shape;
        self.trace.within::<V, _>(|trace, again| {
            let mut inner = Shape::Open;
            let value = match trace.is_minimal() {
                true => visitor.visit_none(),
                false => visitor.visit_some(Probe::new(trace, &mut inner)),
            }?;
            *shape = unless(again, Shape::Option(Box::new(inner)));
            Ok(value)
        })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let shape = self.shape;
        self.trace.within::<V, _>(|trace, again| {
            let len = usize::from(!trace.is_minimal());
            let (value, inner) = elements(trace, len, |elements| visitor.visit_seq(elements))?;
            let inner = inner.into_iter().next().unwrap_or_default();
            *shape = unless(again, Shape::Seq(Box::new(inner)));
            Ok(value)
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Stop> {
        let shape = self.shape;
        self.trace.within::<V, _>(|trace, again| {
            let len = if trace.is_minimal() { 0 } else { 2 };
            let (value, inner) = elements(trace, len, |elements| visitor.visit_map(elements))?;
            let mut inner = inner.into_iter();
            let mut next = || inner.next().unwrap_or_default();
            *shape = unless(again, Shape::Map(Box::new((next(), next()))));
            Ok(value)
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        let shape = self.shape;
        self.trace.within::<V, _>(|trace, again| {
            let (value, inner) = elements(trace, len, |elements| visitor.visit_seq(elements))?;
            *shape = unless(again, Shape::Tuple(inner));
            Ok(value)
        })
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.structure::<V, _>(name, |_| Ok((visitor.visit_unit()?, Body::Unit)))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let nothing = || Buffer::from_vec(Vec::<u8>::new());
        if name == Tensor::NAME {
            return self.lifted("Tensor", Tensor::from_bytes(nothing()), visitor);
        }
        if name == Payload::NAME {
            let payload = Payload {
                metadata: bytes::Bytes::new(),
                data: nothing(),
            };
            return self.lifted("Payload", payload, visitor);
        }
        self.structure::<V, _>(name, |trace| {
            let mut inner = Shape::Open;
            let value = visitor.visit_newtype_struct(Probe::new(trace, &mut inner))?;
            Ok((value, Body::Newtype(inner)))
        })
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.structure::<V, _>(name, |trace| {
            let (value, inner) = elements(trace, len, |elements| visitor.visit_seq(elements))?;
            Ok((value, Body::Tuple(inner)))
        })
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        self.structure::<V, _>(name, |trace| {
            let visit = |elements: Elements<'_>| visitor.visit_seq(elements);
            let (value, inner) = elements(trace, fields.len(), visit)?;
            Ok((value, Body::fields(fields, inner)))
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let visit = |trace: &mut Trace, variant| {
            let mut body = Body::Unit;
            let value = visitor.visit_enum(Variant {
                trace,
                variant,
                body: &mut body,
            })?;
            Ok((value, body))
        };
        let (index, visited) = self.trace.within_enum::<V, _>(name, variants, visit);
        *self.shape = Shape::Named(index);
        visited
    }
}

fn unless(again: bool, shape: Shape) -> Shape {
    match again {
        true => Shape::Again,
        false => shape,
    }
}

fn elements<T>(
    trace: &mut Trace,
    left: usize,
    visit: impl FnOnce(Elements<'_>) -> Result<T, Stop>,
) -> Result<(T, Vec<Shape>), Stop> {
    let mut shapes = Vec::new();
    let value = visit(Elements {
        trace,
        left,
        shapes: &mut shapes,
    })?;
    Ok((value, shapes))
}

/// The elements of a compound value, and the shapes of those that the type asked for.
struct Elements<'t> {
    trace: &'t mut Trace,
    left: usize,
    shapes: &'t mut Vec<Shape>,
}

impl Elements<'_> {
    fn next<'de, S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Stop> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let mut shape = Shape::Open;
        let value = seed.deserialize(Probe::new(self.trace, &mut shape))?;
        self.shapes.push(shape);
        Ok(Some(value))
    }
}

impl<'de> SeqAccess<'de> for Elements<'_> {
    type Error = Stop;

    fn next_element_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        self.next(seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

impl<'de> MapAccess<'de> for Elements<'_> {
    type Error = Stop;

    fn next_key_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Stop> {
        self.next(seed)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Stop> {
        self.next(seed)?
            .ok_or_else(|| Stop::Refused("asked for a value without a key".to_owned()))
    }
}

/// A variant of an enum, and the body that it turns out to have.
struct Variant<'t> {
    trace: &'t mut Trace,
    variant: u32,
    body: &'t mut Body,
}

impl<'de> EnumAccess<'de> for Variant<'_> {
    type Error = Stop;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Stop> {
        let index: U32Deserializer<Stop> = self.variant.into_deserializer();
        let value = seed.deserialize(index).map_err(|_| Stop::NoVariant)?;
        Ok((value, self))
    }
}

impl<'de> VariantAccess<'de> for Variant<'_> {
    type Error = Stop;

    fn unit_variant(self) -> Result<(), Stop> {
        *self.body = Body::Unit;
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, Stop> {
        let mut inner = Shape::Open;
        let value = seed.deserialize(Probe::new(self.trace, &mut inner))?;
        *self.body = Body::Newtype(inner);
        Ok(value)
    }

    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Stop> {
        let (value, inner) = elements(self.trace, len, |elements| visitor.visit_seq(elements))?;
        *self.body = Body::Tuple(inner);
        Ok(value)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Stop> {
        let visit = |elements: Elements<'_>| visitor.visit_seq(elements);
        let (value, inner) = elements(self.trace, fields.len(), visit)?;
        *self.body = Body::fields(fields, inner);
        Ok(value)
    }
}
