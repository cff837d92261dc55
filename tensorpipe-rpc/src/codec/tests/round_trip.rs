//! Tensors anywhere in a value, values of every kind, and several arguments in one message.

use std::collections::BTreeMap;

use bytes::Bytes;
use proptest::prelude::*;
use serde::ser::{SerializeSeq as _, SerializeTuple as _};
use serde::{Deserialize, Serialize, Serializer};
use tensorpipe::{Buffer, Payload, Tensor};

use super::super::{Encoder, Fault, decode_reply};
use super::{decode, encode, number, tensor, there_and_back};

#[test]
fn a_tensor_costs_one_byte_and_is_not_copied() {
    let t = tensor(7);
    let encoded = encode(&vec![t.clone(), tensor(8)]).unwrap();
    assert_eq!(encoded.metadata, [2, 0, 1]);
    let at = encoded.tensors[0].as_bytes().unwrap().as_ptr();
    assert_eq!(at, t.as_bytes().unwrap().as_ptr());
    let back: Vec<Tensor> = decode(encoded).unwrap();
    assert_eq!(back.iter().map(number).collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn payloads_have_their_own_indices() {
    let payload = Payload {
        metadata: Bytes::from_static(b"meta"),
        data: Buffer::from_vec(vec![1u8, 2]),
    };
    let encoded = encode(&(tensor(1), payload.clone(), tensor(2), payload)).unwrap();
    assert_eq!(encoded.metadata, [0, 0, 1, 1]);
    let (_, payload, second, _): (Tensor, Payload, Tensor, Payload) = decode(encoded).unwrap();
    assert_eq!(&payload.metadata[..], b"meta");
    assert_eq!(payload.data.as_bytes(), Some(&[1, 2][..]));
    assert_eq!(number(&second), 2);
}

#[test]
fn each_tensor_of_a_call_is_named_by_its_argument() {
    let many = BTreeMap::from([("a".to_owned(), tensor(2)), ("b".to_owned(), tensor(3))]);
    let mut encoder = Encoder::new();
    encoder.push::<Tensor>("first", &tensor(1)).unwrap();
    encoder.push::<String>("key", &"k").unwrap();
    encoder.push::<Option<Tensor>>("none", &None).unwrap();
    encoder
        .push::<BTreeMap<String, Tensor>>("many", &many)
        .unwrap();
    encoder.push::<Tensor>("last", &tensor(4)).unwrap();
    let owners = encoder.finish().owners;
    let names: Vec<_> = (0..5).map(|tensor| owners.name(tensor)).collect();
    assert_eq!(
        names,
        [
            Some("argument `first`".to_owned()),
            Some("tensor 0 of argument `many`".to_owned()),
            Some("tensor 1 of argument `many`".to_owned()),
            Some("argument `last`".to_owned()),
            None,
        ]
    );
}

#[test]
fn a_refused_argument_leaves_the_encoder_as_it_was() {
    struct Broken;
    impl Serialize for Broken {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut tuple = serializer.serialize_tuple(2)?;
            tuple.serialize_element(&tensor(1))?;
            tuple.serialize_element(&Err::<(), _>(serde::ser::Error::custom("refused"))?)?;
            tuple.end()
        }
    }
    let mut encoder = Encoder::new();
    encoder.push::<u8>("a", &1).unwrap();
    let error = encoder.write::<(Tensor, ()), _>(&Broken).unwrap_err();
    assert_eq!(error.fault(), &Fault::Custom("refused".into()));
    encoder.push::<u8>("b", &2).unwrap();
    let encoded = encoder.finish();
    assert_eq!(
        (&encoded.metadata[..], encoded.tensors.len()),
        (&[1, 2][..], 0)
    );
}

#[test]
fn json_inside_an_argument_carries_the_bytes() {
    #[derive(Deserialize)]
    struct AsJson(#[serde(deserialize_with = "parse")] Tensor);
    impl Serialize for AsJson {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let json = serde_json::to_string(&self.0).map_err(serde::ser::Error::custom)?;
            serializer.serialize_newtype_struct("AsJson", &json)
        }
    }
    fn parse<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Tensor, D::Error> {
        let json = String::deserialize(deserializer)?;
        serde_json::from_str(&json).map_err(serde::de::Error::custom)
    }

    let encoded = encode(&(tensor(1), AsJson(tensor(258)), tensor(3))).unwrap();
    assert_eq!(encoded.tensors.len(), 2);
    let text = String::from_utf8_lossy(&encoded.metadata);
    assert!(text.contains(r#""bytes":[2,1,0,0]"#), "{text}");
    let (one, AsJson(json), three): (Tensor, AsJson, Tensor) = decode(encoded).unwrap();
    assert_eq!([&one, &json, &three].map(number), [1, 258, 3]);
}

#[test]
fn the_codec_inside_the_codec() {
    #[derive(Deserialize)]
    struct Nested(#[expect(dead_code, reason = "only decoded")] Vec<u8>);
    impl Serialize for Nested {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let inner = encode(&vec![tensor(1), tensor(2)]).unwrap();
            assert_eq!(inner.tensors.len(), 2);
            serializer.serialize_newtype_struct("Nested", &inner.metadata)
        }
    }
    let encoded = encode(&(tensor(1), Nested(Vec::new()), tensor(2))).unwrap();
    assert_eq!(
        (encoded.metadata, encoded.tensors.len()),
        (vec![0, 3, 2, 0, 1, 1], 2)
    );
}

#[test]
fn a_panic_in_serialize_leaves_the_thread_usable() {
    #[derive(Deserialize)]
    struct Panics;
    impl Serialize for Panics {
        fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            std::panic::resume_unwind(Box::new("in Serialize"))
        }
    }
    assert!(std::panic::catch_unwind(|| encode(&(tensor(1), Panics))).is_err());
    assert!(serde_json::to_string(&tensor(1)).unwrap().contains("bytes"));
    assert_eq!(number(&there_and_back(&tensor(2))), 2);
}

#[test]
fn a_sequence_of_unknown_length_and_a_display() {
    #[derive(Debug, PartialEq, Deserialize)]
    struct Lazy(Vec<u32>, String);
    impl Serialize for Lazy {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            struct Items<'a>(&'a [u32]);
            impl Serialize for Items<'_> {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    let mut seq = serializer.serialize_seq(None)?;
                    self.0
                        .iter()
                        .try_for_each(|item| seq.serialize_element(item))?;
                    seq.end()
                }
            }
            struct Shown<'a>(&'a str);
            impl Serialize for Shown<'_> {
                fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                    serializer.collect_str(self.0)
                }
            }
            let mut tuple = serializer.serialize_tuple(2)?;
            tuple.serialize_element(&Items(&self.0))?;
            tuple.serialize_element(&Shown(&self.1))?;
            tuple.end()
        }
    }
    for len in [0, 1, 127, 128, 20_000] {
        let lazy = Lazy((0..len).collect(), "é".repeat(len as usize));
        assert_eq!(there_and_back(&lazy), lazy);
        // The bytes are the same as with a known length.
        let known = encode(&(lazy.0.clone(), lazy.1.clone())).unwrap();
        assert_eq!(encode(&lazy).unwrap().metadata, known.metadata);
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum Value {
    Unit,
    Leaves(bool, i8, u16, i32, u64, i128, u128, char),
    Floats { one: f32, two: f64 },
    Text(String),
    Maybe(Option<Box<Self>>),
    List(Vec<Self>),
    Map(BTreeMap<String, Self>),
    Pair((Box<Self>, [u8; 3])),
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Unit),
        any::<(bool, i8, u16, i32, u64, i128, u128, char)>()
            .prop_map(|(a, b, c, d, e, f, g, h)| Value::Leaves(a, b, c, d, e, f, g, h)),
        any::<(i32, i32)>().prop_map(|(one, two)| Value::Floats {
            one: one as f32,
            two: two.into()
        }),
        any::<String>().prop_map(Value::Text),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        prop_oneof![
            proptest::option::of(inner.clone().prop_map(Box::new)).prop_map(Value::Maybe),
            proptest::collection::vec(inner.clone(), 0..8).prop_map(Value::List),
            proptest::collection::btree_map(any::<String>(), inner.clone(), 0..4)
                .prop_map(Value::Map),
            (inner.prop_map(Box::new), any::<[u8; 3]>()).prop_map(Value::Pair),
        ]
    })
}

proptest! {
    #[test]
    fn every_value_comes_back_and_is_postcards(value in values()) {
        let encoded = encode(&value).unwrap();
        prop_assert_eq!(&postcard::to_stdvec(&value).unwrap(), &encoded.metadata);
        prop_assert_eq!(decode::<Value>(encoded).unwrap(), value);
    }

    #[test]
    fn tensors_keep_their_places(numbers in proptest::collection::vec(any::<Option<i32>>(), 0..40)) {
        let tensors: Vec<_> = numbers.iter().map(|n| n.map(tensor)).collect();
        let encoded = encode(&tensors).unwrap();
        let back: Vec<Option<Tensor>> =
            decode_reply(encoded.metadata, encoded.payloads, encoded.tensors).unwrap();
        let back: Vec<_> = back.iter().map(|t| t.as_ref().map(number)).collect();
        prop_assert_eq!(back, numbers);
    }
}
