//! serde's traits for tensors and payloads.
//!
//! For any serializer, a [`Tensor`] is `{dtype, shape, bytes}` and a [`Payload`] `{metadata, data}`, inside a newtype struct with a unique
//! name. A codec that carries tensors beside its bytes recognises the name and uses [`lift`]: its bytes then hold only an index. Hostile
//! values (a shape that disagrees with the bytes, an unknown element type) are errors.

pub mod lift;

use std::fmt;

use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::ser::{self, Serializer};
use serde::{Deserialize, Serialize};

use super::{DType, Tensor};
use crate::device::Buffer;
use crate::message::Payload;
use lift::{Lifted, Part};

impl Serialize for Tensor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        lift::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Tensor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        lift::deserialize(deserializer)
    }
}

impl Lifted for Tensor {
    const NAME: &'static str = "$tensorpipe::Tensor";

    fn serialize_plain<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Plain {
            dtype: self.dtype(),
            shape: self.shape(),
            bytes: ByteSlice(self.as_bytes().map_err(ser::Error::custom)?),
        }
        .serialize(serializer)
    }

    fn deserialize_plain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let plain = PlainOwned::deserialize(deserializer)?;
        Self::from_buffer(plain.bytes.0, plain.dtype, plain.shape).map_err(de::Error::custom)
    }

    fn into_part(self) -> Part {
        Part::Tensor(self)
    }

    fn from_part(part: Part) -> Result<Self, Part> {
        match part {
            Part::Tensor(tensor) => Ok(tensor),
            other => Err(other),
        }
    }
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        lift::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for Payload {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        lift::deserialize(deserializer)
    }
}

impl Lifted for Payload {
    const NAME: &'static str = "$tensorpipe::Payload";

    fn serialize_plain<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let data = self.data.as_bytes().ok_or_else(|| {
            ser::Error::custom(crate::error::Misuse::NotOnCpu(self.data.device()))
        })?;
        PlainPayload {
            metadata: ByteSlice(&self.metadata),
            data: ByteSlice(data),
        }
        .serialize(serializer)
    }

    fn deserialize_plain<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let plain = PlainPayloadOwned::deserialize(deserializer)?;
        Ok(Self {
            metadata: plain
                .metadata
                .0
                .as_bytes()
                .unwrap_or_default()
                .to_vec()
                .into(),
            data: plain.data.0,
        })
    }

    fn into_part(self) -> Part {
        Part::Payload(self)
    }

    fn from_part(part: Part) -> Result<Self, Part> {
        match part {
            Part::Payload(payload) => Ok(payload),
            other => Err(other),
        }
    }
}

/// A payload for any other serializer.
#[derive(Serialize)]
#[serde(rename = "Payload")]
struct PlainPayload<'a> {
    metadata: ByteSlice<'a>,
    data: ByteSlice<'a>,
}

#[derive(Deserialize)]
#[serde(rename = "Payload")]
struct PlainPayloadOwned {
    metadata: ByteBuffer,
    data: ByteBuffer,
}

/// A tensor for any other serializer.
#[derive(Serialize)]
#[serde(rename = "Tensor")]
struct Plain<'a> {
    dtype: DType,
    shape: &'a [u64],
    bytes: ByteSlice<'a>,
}

#[derive(Deserialize)]
#[serde(rename = "Tensor")]
struct PlainOwned {
    dtype: DType,
    shape: Vec<u64>,
    bytes: ByteBuffer,
}

impl Serialize for DType {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for DType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Name;

        impl Visitor<'_> for Name {
            type Value = DType;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of an element type, one of")?;
                DType::ALL
                    .iter()
                    .try_for_each(|dtype| write!(f, " {dtype}"))
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<DType, E> {
                DType::ALL
                    .into_iter()
                    .find(|dtype| dtype.as_str() == name)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
            }
        }

        deserializer.deserialize_str(Name)
    }
}

/// Bytes as serde's bytes, not as a sequence of numbers.
struct ByteSlice<'a>(&'a [u8]);

impl Serialize for ByteSlice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// Bytes, or the sequence of numbers that JSON makes of them; read into fresh aligned memory.
struct ByteBuffer(Buffer);

impl<'de> Deserialize<'de> for ByteBuffer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;

        impl<'de> Visitor<'de> for Bytes {
            type Value = ByteBuffer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<ByteBuffer, E> {
                Ok(ByteBuffer(Buffer::copy_from_slice(bytes)))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<ByteBuffer, A::Error> {
                // The hint comes from the peer: it is trusted for one page only.
                let mut bytes = Vec::with_capacity(seq.size_hint().unwrap_or(0).min(4096));
                while let Some(byte) = seq.next_element::<u8>()? {
                    bytes.push(byte);
                }
                self.visit_bytes(&bytes)
            }
        }

        deserializer.deserialize_bytes(Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor() -> Tensor {
        Tensor::from_vec(vec![1i16, -2], [1, 2]).unwrap()
    }

    #[test]
    fn json_carries_type_shape_and_bytes() {
        let json = serde_json::to_string(&tensor()).unwrap();
        assert_eq!(
            json,
            r#"{"dtype":"i16","shape":[1,2],"bytes":[1,0,254,255]}"#
        );
        let back: Tensor = serde_json::from_str(&json).unwrap();
        assert_eq!((back.dtype(), back.shape()), (DType::I16, &[1, 2][..]));
        assert_eq!(back.as_slice::<i16>().unwrap(), [1, -2]);
    }

    #[test]
    fn json_carries_a_payload() {
        let payload = Payload {
            metadata: bytes::Bytes::from_static(b"m"),
            data: Buffer::from_vec(vec![1u8, 2]),
        };
        let json = serde_json::to_string(&payload).unwrap();
        assert_eq!(json, r#"{"metadata":[109],"data":[1,2]}"#);
        let back: Payload = serde_json::from_str(&json).unwrap();
        assert_eq!(&back.metadata[..], b"m");
        assert_eq!(back.data.as_bytes(), Some(&[1, 2][..]));
    }

    #[test]
    fn hostile_values_are_refused() {
        for (json, why) in [
            (r#"{"dtype":"i17","shape":[1],"bytes":[1]}"#, "i17"),
            (r#"{"dtype":"u8","shape":[2],"bytes":[1]}"#, "takes 2 bytes"),
            (
                r#"{"dtype":"f64","shape":[18446744073709551615,9],"bytes":[]}"#,
                "64 bits",
            ),
            (r#"{"dtype":"u8","shape":[1],"bytes":[256]}"#, "256"),
            (r#"{"dtype":"u8","shape":[-1],"bytes":[]}"#, "-1"),
            (r#"{"dtype":"u8","bytes":[]}"#, "shape"),
            ("0", "integer `0`"),
        ] {
            let error = serde_json::from_str::<Tensor>(json).unwrap_err();
            assert!(error.to_string().contains(why), "{json}: {error}");
        }
        let json = format!(
            r#"{{"dtype":"u8","shape":[{}1],"bytes":[1]}}"#,
            "1,".repeat(super::super::MAX_DIMS)
        );
        assert!(serde_json::from_str::<Tensor>(&json).is_err());
    }

    #[test]
    fn a_lifted_tensor_is_an_index_and_nothing_else_is() {
        let (json, caught) = lift::offer::<Tensor, _>(7, || serde_json::to_string(&tensor()));
        // Armed around the whole of `Tensor`: its value is the index.
        assert_eq!(json.unwrap(), "7");
        assert_eq!(caught.unwrap().shape(), [1, 2]);

        let (json, caught) = lift::offer::<Tensor, _>(7, || serde_json::to_string("no tensor"));
        assert_eq!(json.unwrap(), r#""no tensor""#);
        assert!(caught.is_none());
        assert!(serde_json::to_string(&tensor()).unwrap().contains("dtype"));
    }

    #[test]
    fn only_the_first_tensor_is_lifted() {
        let pair = [tensor(), tensor()];
        let (json, caught) = lift::offer::<Tensor, _>(0, || serde_json::to_string(&pair));
        assert!(caught.is_some());
        assert!(json.unwrap().starts_with(r#"[0,{"dtype":"i16""#));
    }

    /// Passes itself on to the inside of any newtype struct, and supports nothing else.
    struct Empty;

    impl<'de> Deserializer<'de> for Empty {
        type Error = de::value::Error;

        fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
            visitor.visit_newtype_struct(self)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
        }
    }

    #[test]
    fn a_tensor_is_handed_back_once() {
        let (both, unused) = lift::supply(tensor(), || {
            (Tensor::deserialize(Empty), Tensor::deserialize(Empty))
        });
        assert_eq!(both.0.unwrap().as_slice::<i16>().unwrap(), [1, -2]);
        assert!(both.1.is_err());
        assert!(unused.is_none());
        let (_, unused) = lift::supply(tensor(), || ());
        assert!(unused.is_some());
        assert!(Tensor::deserialize(Empty).is_err());
    }

    #[test]
    fn arming_nests() {
        let (_, outer) = lift::offer::<Tensor, _>(1, || {
            let (inner, caught) = lift::offer::<Tensor, _>(2, || serde_json::to_string(&tensor()));
            assert_eq!((inner.unwrap().as_str(), caught.is_some()), ("2", true));
            assert_eq!(serde_json::to_string(&tensor()).unwrap(), "1");
        });
        assert!(outer.is_some());
    }

    #[test]
    fn a_panic_disarms() {
        let panicked = std::panic::catch_unwind(|| {
            lift::offer::<Tensor, ()>(0, || std::panic::resume_unwind(Box::new(())))
        });
        assert!(panicked.is_err());
        assert!(serde_json::to_string(&tensor()).unwrap().contains("dtype"));
    }
}
