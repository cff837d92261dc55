//! serde attributes that need a self-describing format are refused, with an error that names them.

use serde::{Deserialize, Serialize};

#[cfg(debug_assertions)]
use super::super::{Encoder, Fault};
#[cfg(debug_assertions)]
use super::tensor;
use super::{decode, encode, there_and_back};

#[derive(Debug, Default, Serialize, Deserialize)]
struct Inner {
    a: u8,
    b: u8,
}

/// The sender's error. Release builds do not read back what they encode, so there it is the receiver's.
fn refusal<T: Serialize + serde::de::DeserializeOwned>(value: &T) -> String {
    match encode(value) {
        Err(error) => error.in_method("push").to_string(),
        Ok(encoded) => match decode::<T>(encoded) {
            Err(error) if !cfg!(debug_assertions) => error.in_method("push").to_string(),
            _ => panic!("it was not refused"),
        },
    }
}

#[test]
fn flatten() {
    #[derive(Serialize, Deserialize)]
    struct Outer {
        name: String,
        #[serde(flatten)]
        inner: Inner,
    }
    let outer = Outer {
        name: "n".into(),
        inner: Inner::default(),
    };
    assert_eq!(
        refusal(&outer),
        "argument `x` of `push` cannot be encoded: a map of unknown length cannot be sent, and `#[serde(flatten)]` \
         makes one; make the flattened struct a plain field"
    );
}

#[test]
fn untagged_and_tagged() {
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u8),
    }
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "type")]
    enum Tagged {
        One { value: u8 },
    }
    #[derive(Serialize, Deserialize)]
    #[serde(tag = "type", content = "value")]
    enum Adjacent {
        One(u8),
    }
    for error in [
        refusal(&Adjacent::One(1)),
        refusal(&Untagged::Number(1)),
        refusal(&Tagged::One { value: 1 }),
        refusal(&serde_json::json!(1)),
    ] {
        assert!(error.contains(" of `push` cannot be "), "{error}");
        assert!(error.contains("`#[serde(untagged)]`"), "{error}");
        assert!(error.contains("tag = .."), "{error}");
    }
}

#[test]
fn skip_serializing_if() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sparse {
        a: u8,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        b: Option<u8>,
    }
    #[derive(Serialize, Deserialize)]
    enum Variant {
        Sparse {
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            c: Vec<u8>,
        },
    }
    let full = Sparse { a: 1, b: Some(2) };
    assert_eq!(there_and_back(&full), full);
    let error = refusal(&Sparse { a: 1, b: None });
    assert!(error.contains("field `b` was left out"), "{error}");
    assert!(error.contains("skip_serializing_if"), "{error}");
    let error = refusal(&Variant::Sparse { c: Vec::new() });
    assert!(error.contains("field `c` was left out"), "{error}");
}

#[test]
fn skipped_both_ways_is_fine_and_one_way_is_not() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Both {
        a: u8,
        #[serde(skip)]
        b: u8,
    }
    #[derive(Serialize, Deserialize)]
    struct One {
        #[serde(skip_serializing)]
        #[expect(dead_code, reason = "only decoded")]
        a: u16,
        b: u16,
    }
    assert_eq!(there_and_back(&Both { a: 1, b: 2 }), Both { a: 1, b: 0 });
    let error = refusal(&One { a: 1, b: 2 });
    let hint = match cfg!(debug_assertions) {
        true => "look for `skip_serializing_if`, `skip_serializing`",
        false => "check that both ends were built from the same definition",
    };
    assert!(error.contains(hint), "{error}");
}

#[cfg(debug_assertions)]
#[test]
fn a_serialize_unlike_its_deserialize() {
    let mut encoder = Encoder::new();
    let error = encoder.write::<u8, _>(&(1u8, 2u8)).unwrap_err();
    let left_over = Fault::LeftOver {
        bytes: 1,
        tensors: 0,
        payloads: 0,
    };
    assert_eq!(error.fault(), &left_over);
    let error = encoder.write::<(), _>(&tensor(1)).unwrap_err();
    assert!(matches!(error.fault(), Fault::LeftOver { tensors: 1, .. }));
}

#[test]
fn the_names_of_tensors_and_payloads_are_taken() {
    #[derive(Serialize, Deserialize)]
    #[serde(rename = "$tensorpipe::Tensor")]
    struct Mine(u8);
    assert!(refusal(&Mine(1)).contains("rename this newtype struct"));
}
