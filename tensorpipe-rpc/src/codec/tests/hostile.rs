//! Whatever bytes a peer sends, decoding gives an error at worst.

use proptest::prelude::*;
use serde::Deserialize;
use tensorpipe::{DType, Tensor};

use super::super::{Arguments, Fault, Subject, decode_reply};
use super::{bytes_as, tensor};

#[test]
fn every_malformed_leaf_is_an_error() {
    assert!(bytes_as::<bool>(&[2]).is_err());
    assert!(bytes_as::<Option<u8>>(&[2, 0]).is_err());
    assert!(bytes_as::<String>(&[1, 0xff]).is_err());
    assert!(bytes_as::<char>(&[1, 0xff]).is_err());
    assert!(bytes_as::<char>(&[0]).is_err());
    assert!(bytes_as::<u16>(&[0xff, 0xff, 0xff, 1]).is_err());
    assert!(bytes_as::<Result<u8, u8>>(&[2, 0]).is_err());
    assert!(bytes_as::<DType>(&[3, b'f', b'3', b'3']).is_err());
    assert_eq!(bytes_as::<u64>(&[]).unwrap_err().fault(), &Fault::Truncated);
}

#[test]
fn an_index_is_good_once_and_inside_the_message() {
    let decode = |bytes: &[u8]| {
        decode_reply::<Vec<Tensor>>(bytes.to_vec(), vec![], vec![tensor(1), tensor(2)])
            .map(|_| ())
            .map_err(|error| error.fault().clone())
    };
    assert_eq!(decode(&[2, 1, 0]), Ok(()));
    let taken = Fault::PartTaken {
        kind: "tensor",
        index: 1,
    };
    assert_eq!(decode(&[2, 1, 1]), Err(taken));
    let none = Fault::NoSuchPart {
        kind: "tensor",
        index: 2,
        count: 2,
    };
    assert_eq!(decode(&[2, 0, 2]), Err(none));
    let left = Fault::LeftOver {
        bytes: 0,
        tensors: 1,
        payloads: 0,
    };
    assert_eq!(decode(&[1, 0]), Err(left));
}

#[test]
fn errors_name_the_argument_and_end_the_message() {
    let mut arguments = Arguments::new(vec![1, 2, 3], vec![], vec![]);
    assert_eq!(arguments.take::<u8>("a").unwrap(), 1);
    let error = arguments.take::<bool>("b").unwrap_err();
    assert_eq!(error.subject(), Subject::Argument("b"));
    assert_eq!(
        error.in_method("push").to_string(),
        "argument `b` of `push` cannot be decoded: a bool is neither 0 nor 1; check that both ends were built from \
         the same definition of its type"
    );
    assert!(arguments.take::<u8>("c").is_err());

    let arguments = Arguments::new(vec![1], vec![], vec![tensor(1)]);
    let error = arguments.finish().unwrap_err().to_string();
    assert!(
        error.contains("1 bytes, 1 tensors and 0 payloads are left over"),
        "{error}"
    );
}

#[test]
fn a_type_that_stops_early_does_not_shift_what_follows() {
    #[derive(Debug, PartialEq)]
    struct FirstTwo(u8, u8);
    impl<'de> Deserialize<'de> for FirstTwo {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Two;
            impl<'de> serde::de::Visitor<'de> for Two {
                type Value = FirstTwo;
                fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.write_str("two numbers")
                }
                fn visit_seq<A: serde::de::SeqAccess<'de>>(
                    self,
                    mut seq: A,
                ) -> Result<FirstTwo, A::Error> {
                    let mut next = || Ok(seq.next_element()?.unwrap_or_default());
                    Ok(FirstTwo(next()?, next()?))
                }
            }
            deserializer.deserialize_seq(Two)
        }
    }
    assert_eq!(bytes_as::<FirstTwo>(&[2, 8, 9]).unwrap(), FirstTwo(8, 9));
    assert!(bytes_as::<(FirstTwo, u8)>(&[3, 8, 9, 10, 11]).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Small byte values get further into the decoder.
    #[test]
    fn random_bytes_never_panic(
        bytes in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..600),
            proptest::collection::vec(0u8..5, 0..600),
        ],
    ) {
        crate::fuzzing::call(&[&[1], &bytes[..]].concat());
        let _ = bytes_as::<(Vec<Vec<Vec<String>>>, serde::de::IgnoredAny)>(&bytes);
    }
}
