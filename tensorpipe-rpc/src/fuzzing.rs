//! The fuzz target `call` in `fuzz/` (feature `fuzzing`): decodes hostile messages, checks invariants, and panics if one does not hold.
//! Private: it changes without notice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tensorpipe::{Buffer, DType, Message, MessageTensor, Payload, Tensor};

use crate::codec::{Arguments, Encoder, decode_reply};
use crate::context::TraceContext;
use crate::engine::to_body;
use crate::header::{FailureCode, Header, Kind, PLACES, TRACE};
use crate::placement::decode_results;
use crate::schema::{self, Description, MethodDescription};

/// The first byte selects the kind of the rest: a message with a header, arguments, or the description of a service.
pub fn call(data: &[u8]) {
    match data.split_first() {
        None => {}
        Some((0, bytes)) => message(bytes),
        Some((1, bytes)) => arguments(bytes),
        Some((_, bytes)) => description(bytes),
    }
}

/// Initial inputs: the name of a target, and one of its inputs.
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let mut all = Vec::new();
    for header in [
        Header::call(5, 1, 2, 3, TraceContext::default()),
        Header::call(
            6,
            1,
            2,
            0,
            TraceContext {
                trace_id: 7,
                span_id: 8,
            },
        ),
        Header::plain(Kind::Value, 5),
        Header::plain(Kind::Failure(FailureCode::Overloaded), 5),
        Header::plain(Kind::Bind, 1),
    ] {
        let body = encoded(&some()).metadata;
        all.push([&[0][..], &header.to_vec(), &body].concat());
    }
    let mut placed = Header::call(7, 1, 2, 0, TraceContext::default()).to_vec();
    placed[2] |= PLACES;
    placed.extend_from_slice(&[2, 0, 1, 1]);
    all.push([&[0][..], &placed, &encoded(&some()).metadata].concat());
    let mut encoder = Encoder::new();
    let pushed = encoder
        .push::<Tree>("tree", &some())
        .and_then(|()| encoder.push::<Vec<Tensor>>("rest", &vec![number(3)]));
    pushed.unwrap_or_else(|error| panic!("{error}"));
    all.push([&[1][..], &encoder.finish().metadata].concat());
    all.push([&[2][..], &encoded(&ours()).metadata].concat());
    let calls = all.into_iter().map(|bytes| ("call", bytes));
    // Everything that a conversation, or a meeting of lanes, chooses among, in turn.
    let talk = ["conversation", "lanes"].into_iter().flat_map(|target| {
        let choices = |of: u8| (0..=255).map(move |i: u8| i.wrapping_mul(7 + 2 * of) ^ of);
        (0..8).map(move |of| (target, choices(of).collect()))
    });
    calls.chain(talk).collect()
}

/// Any accepted header has its body inside the message.
fn message(bytes: &[u8]) {
    let Ok(header) = Header::decode(bytes) else {
        return;
    };
    assert!(header.body_at <= bytes.len());
    let places = header.places(bytes);
    assert_eq!(places.len(), usize::from(header.places_len));
    let _ = decode_results(places);
    let mut again = header.to_vec();
    if header.body_at > usize::from(bytes[1]) {
        // The caller puts its places behind the header.
        again.extend_from_slice(&header.places_len.to_le_bytes());
        again.extend_from_slice(places);
    }
    let decoded = Header::decode(&again).unwrap_or_else(|what| panic!("{what}"));
    // Unknown fields, and a trace without an id, are not sent on.
    let traced = header.trace.trace_id != 0;
    let known = Header {
        body_at: again.len(),
        flags: header.flags & !TRACE | if traced { TRACE } else { 0 },
        trace: match traced {
            true => header.trace,
            false => TraceContext::default(),
        },
        ..header
    };
    assert_eq!(decoded, known);
    let message = Message {
        metadata: bytes.to_vec().into(),
        payloads: vec![Payload::from(Buffer::from_vec(bytes.to_vec()))],
        tensors: vec![MessageTensor::from(number(1))],
        ..Message::default()
    };
    let body = to_body(message, &header);
    let body = body.unwrap_or_else(|| panic!("the payload is there"));
    let _ = decode_reply::<Tree>(body.metadata, body.payloads, body.tensors);
}

/// Decoded arguments are encoded again, and that decodes and encodes to the same.
fn arguments(bytes: &[u8]) {
    let tensors = || vec![number(1), number(2), number(3)];
    let payloads = || vec![payload()];
    let mut arguments = Arguments::new(bytes.to_vec(), payloads(), tensors());
    let Ok(tree) = arguments.take::<Tree>("tree") else {
        assert!(arguments.take::<u8>("nothing follows a fault").is_err());
        return;
    };
    let rest = arguments.take::<Vec<Tensor>>("rest");
    let whole = rest.is_ok() && arguments.finish().is_ok();
    let once = encoded(&tree);
    let tree: Tree = decode_reply(once.metadata.clone(), once.payloads, once.tensors)
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(encoded(&tree).metadata, once.metadata);
    if whole {
        // Other types that the bytes may fit, too.
        let _ = decode_reply::<Vec<Vec<Vec<String>>>>(bytes.to_vec(), payloads(), tensors());
        let _ = decode_reply::<Vec<Option<Payload>>>(bytes.to_vec(), payloads(), tensors());
    }
}

/// A client's description: it can be compared with ours, shown to people, and agrees with itself.
fn description(bytes: &[u8]) {
    let Ok(theirs) = decode_reply::<Description>(bytes.to_vec(), vec![], vec![]) else {
        return;
    };
    let ours = ours();
    for (client, server) in [(&theirs, &ours), (&ours, &theirs)] {
        if let Err(mismatch) = schema::compare(client, server) {
            assert!(!mismatch.differences.is_empty());
            let text = mismatch.to_string();
            assert!(text.len() < 32 << 10, "{} bytes for people", text.len());
            assert!(!text.contains(char::is_control), "{text:?}");
        }
    }
    let again: Description = decode_reply(encoded(&theirs).metadata, vec![], vec![])
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again, theirs);
}

/// A value of every kind that serde knows. Its maps are ordered, so it has only one encoding.
#[derive(Serialize, Deserialize)]
enum Tree {
    Leaf,
    Pair(Box<Self>, Box<Self>),
    Many(Vec<Self>),
    Named {
        by: BTreeMap<String, Self>,
        tensor: Option<Tensor>,
        payload: Option<Payload>,
    },
    Other(Everything),
}

#[derive(Serialize, Deserialize)]
struct Everything {
    numbers: (i8, u16, i32, u64, i128, f32, f64),
    text: String,
    letter: char,
    nothing: Vec<()>,
    set: BTreeSet<Option<bool>>,
    map: BTreeMap<u8, Vec<Vec<u16>>>,
    time: Duration,
    result: Result<(), std::net::IpAddr>,
    large: Vec<Option<[u128; 32]>>,
    dtype: Option<DType>,
}

fn some() -> Tree {
    let named = Tree::Named {
        by: BTreeMap::from([("a".to_owned(), Tree::Leaf)]),
        tensor: Some(number(1)),
        payload: Some(payload()),
    };
    let other = Tree::Other(Everything {
        numbers: (-1, 2, -3, 4, -5, 6.5, 7.5),
        text: "text".to_owned(),
        letter: 'x',
        nothing: vec![(); 3],
        set: BTreeSet::from([None, Some(true)]),
        map: BTreeMap::from([(1, vec![vec![2, 3], vec![]])]),
        time: Duration::from_millis(1500),
        result: Err([127, 0, 0, 1].into()),
        large: vec![None, Some([9; 32])],
        dtype: Some(DType::F32),
    });
    Tree::Many(vec![
        Tree::Pair(Box::new(named), Box::new(Tree::Leaf)),
        other,
    ])
}

fn ours() -> Description {
    let method = |name: &str, structure: &str| MethodDescription {
        name: name.to_owned(),
        id: schema::method_id(name),
        signature: format!("async fn {name}(&self, x: Options) -> Tensor"),
        structure: structure.to_owned(),
        untraced: vec![],
    };
    Description {
        service: "Store".to_owned(),
        methods: vec![
            method("push", "x: Options\nstruct Options\n  depth: u32\n"),
            method("pull", "x: Options\n"),
        ],
        unsuitable: None,
    }
}

fn payload() -> Payload {
    Payload::from(Buffer::from_vec(vec![1, 2, 3]))
}

fn number(value: i32) -> Tensor {
    Tensor::scalar(value)
}

fn encoded<T: Serialize + DeserializeOwned>(value: &T) -> crate::codec::Encoded {
    let mut encoder = Encoder::new();
    let pushed = encoder.push::<T>("x", value);
    pushed.unwrap_or_else(|error| panic!("{error}"));
    encoder.finish()
}

#[cfg(test)]
mod tests {
    /// The target does not panic on any seed, also if it is cut anywhere or one byte is changed.
    #[test]
    fn seeds_and_what_is_near_them_hold() {
        let calls = super::seeds()
            .into_iter()
            .filter(|(target, _)| *target == "call");
        for (_, seed) in calls {
            super::call(&seed);
            for at in 0..seed.len() {
                super::call(&seed[..at]);
                for value in [0, 0xff, seed[at] ^ 0x10] {
                    let mut near = seed.clone();
                    near[at] = value;
                    super::call(&near);
                }
            }
        }
    }
}
