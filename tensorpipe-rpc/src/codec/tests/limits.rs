//! Depth, elements without bytes, and memory.

use std::collections::HashMap;
use std::mem::ManuallyDrop;

use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Serialize, Serializer};

use super::super::{Arguments, Encoder, Fault, MAX_DEPTH, MAX_EMPTY};
use super::{bytes_as, encode, there_and_back};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum List {
    End,
    Node(Box<Self>),
}

fn list(depth: u32) -> List {
    (0..depth).fold(List::End, |list, _| List::Node(Box::new(list)))
}

#[test]
fn a_type_may_nest_to_the_limit_and_no_deeper() {
    let deep = list(MAX_DEPTH);
    assert_eq!(there_and_back(&deep), deep);
    let error = encode(&list(MAX_DEPTH + 1)).unwrap_err();
    assert_eq!(error.fault(), &Fault::TooDeep);
    assert!(
        error.to_string().contains("nests deeper than 128 levels"),
        "{error}"
    );
    // Its derived `Drop` would overflow the stack. Encoding must not.
    let endless = ManuallyDrop::new(list(50_000));
    let error = encode::<List>(&endless).unwrap_err();
    assert_eq!(error.fault(), &Fault::TooDeep);
    let mut endless = ManuallyDrop::into_inner(endless);
    while let List::Node(inner) = endless {
        endless = *inner;
    }
}

#[test]
fn writer_and_reader_count_the_same_levels() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Nest {
        End,
        Unit(()),
        Newtype(Box<Self>),
        Tuple(u8, Box<Self>),
        Fields { inner: Box<Self> },
        Option(Option<Box<Self>>),
        Seq(Vec<Self>),
        Map(HashMap<u8, Self>),
        Struct(Box<Wrapper>),
        Pair((Box<Self>, u8)),
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrapper {
        inner: Nest,
    }
    let wraps: [fn(Nest) -> Nest; 8] = [
        |inner| Nest::Newtype(Box::new(inner)),
        |inner| Nest::Tuple(1, Box::new(inner)),
        |inner| Nest::Fields {
            inner: Box::new(inner),
        },
        |inner| Nest::Option(Some(Box::new(inner))),
        |inner| Nest::Seq(vec![inner]),
        |inner| Nest::Map(HashMap::from([(1, inner)])),
        |inner| Nest::Struct(Box::new(Wrapper { inner })),
        |inner| Nest::Pair((Box::new(inner), 1)),
    ];
    for wrap in wraps {
        for end in [|| Nest::End, || Nest::Unit(())] {
            let value = |depth| (0..depth).fold(end(), |inner, _| wrap(inner));
            // Finds the writer's limit. The reader must accept it.
            let deepest = (1..=MAX_DEPTH)
                .rev()
                .find(|depth| !matches!(encode(&value(*depth)), Err(e) if !e.fails_read_back));
            let value = value(deepest.unwrap());
            let bytes = postcard::to_stdvec(&value).unwrap();
            assert_eq!(bytes_as::<Nest>(&bytes).unwrap(), value);
            assert_eq!(there_and_back(&value), value);
        }
    }
}

#[test]
fn a_peer_cannot_nest_deeper_either() {
    #[derive(Debug, Deserialize)]
    struct Nested(#[expect(dead_code, reason = "only decoded")] Vec<Self>);
    #[derive(Debug, Deserialize)]
    struct Chain {
        #[expect(dead_code, reason = "only decoded")]
        next: Option<Box<Self>>,
    }
    let ones = vec![1; 1 << 20];
    assert_eq!(
        bytes_as::<List>(&ones).unwrap_err().fault(),
        &Fault::TooDeep
    );
    assert_eq!(
        bytes_as::<Nested>(&ones).unwrap_err().fault(),
        &Fault::TooDeep
    );
    assert_eq!(
        bytes_as::<Chain>(&ones).unwrap_err().fault(),
        &Fault::TooDeep
    );
}

#[test]
fn depth_is_left_again() {
    let wide: Vec<_> = (0..1000).map(|_| (Some(list(3)), vec![[1u8; 2]])).collect();
    assert_eq!(there_and_back(&wide), wide);
}

#[test]
fn elements_without_bytes_are_counted() {
    assert_eq!(there_and_back(&vec![(); 1000]).len(), 1000);
    let limit = MAX_EMPTY as usize;
    assert_eq!(there_and_back(&vec![(); limit]).len(), limit);
    let error = encode(&vec![(); limit + 1]).unwrap_err();
    assert_eq!(error.fault(), &Fault::TooManyEmpty);

    // A peer claims 2^60 of them.
    let mut huge = vec![0x80; 8];
    huge.push(0x10);
    assert_eq!(
        bytes_as::<Vec<()>>(&huge).unwrap_err().fault(),
        &Fault::Truncated
    );
    assert_eq!(
        bytes_as::<Vec<u8>>(&huge).unwrap_err().fault(),
        &Fault::Truncated
    );
    // A peer sends many sequences that are each within the limit.
    let many = [[0xff, 0xff, 0x3f]; 3000].concat();
    let bytes = [&[200, 1][..], &many].concat();
    assert_eq!(
        bytes_as::<Vec<Vec<()>>>(&bytes).unwrap_err().fault(),
        &Fault::TooManyEmpty
    );
}

#[test]
fn memory_is_charged_where_bytes_are_few() {
    type Sparse = Vec<Option<[[[u64; 32]; 32]; 4]>>;
    let mut bytes = vec![0; 100_000];
    bytes[..3].copy_from_slice(&[0x9d, 0x8d, 0x06]);
    assert_eq!(
        bytes_as::<Sparse>(&bytes).unwrap_err().fault(),
        &Fault::TooMuchMemory
    );
    let mut bytes = vec![0; 1001];
    bytes[..2].copy_from_slice(&[0xe7, 0x07]);
    assert_eq!(bytes_as::<Sparse>(&bytes).unwrap().len(), 999);
}

/// Fields lie in their struct, which is charged as an element.
#[test]
fn fields_are_not_charged_again() {
    #[derive(Debug, Serialize, Deserialize)]
    enum Value {
        Null,
        Text(String),
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Row([Value; 8], (Value, Value));
    // More than fit if each field counted again.
    let rows: u32 = 700_000;
    let mut bytes = postcard::to_allocvec(&rows).unwrap();
    bytes.resize(bytes.len() + rows as usize * 10, 0);
    let read = bytes_as::<Vec<Row>>(&bytes).unwrap();
    assert_eq!(read.len(), rows as usize);
    assert!(read.iter().all(|row| matches!(row.0[7], Value::Null)));
}

/// A box allocates as much as its largest variant takes, however little was written.
#[test]
fn memory_in_boxes_is_charged() {
    #[derive(Debug, Serialize, Deserialize)]
    #[expect(clippy::large_enum_variant, reason = "that is the point")]
    enum Event {
        Nothing,
        Much([[[u64; 16]; 16]; 2]),
    }
    let mut bytes = vec![0; 200_000];
    bytes[..3].copy_from_slice(&[0xbd, 0x9a, 0x0c]);
    let refused = bytes_as::<Vec<Box<Event>>>(&bytes).unwrap_err();
    assert_eq!(refused.fault(), &Fault::TooMuchMemory);
    let mut bytes = vec![0; 1001];
    bytes[..2].copy_from_slice(&[0xe7, 0x07]);
    assert_eq!(bytes_as::<Vec<Box<Event>>>(&bytes).unwrap().len(), 999);
}

#[test]
fn a_wrong_length_is_found_by_the_writer() {
    struct Liar;
    impl Serialize for Liar {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut seq = serializer.serialize_seq(Some(3))?;
            seq.serialize_element(&1u8)?;
            seq.end()
        }
    }
    let error = Encoder::new().write::<Vec<u8>, _>(&Liar).unwrap_err();
    let fault = Fault::WrongLength {
        announced: 3,
        written: 1,
    };
    assert_eq!(error.fault(), &fault);
}

/// A recursive type whose nodes are large: a few of them are more than a thread's stack.
#[derive(Debug, Serialize, Deserialize)]
enum Large {
    Leaf([[[u64; 32]; 32]; 4]),
    Node(Box<Self>, [[[u64; 32]; 32]; 4]),
    Around(Option<Box<Self>>),
}

#[test]
fn a_peer_cannot_use_up_the_stack() {
    let decode = |levels: usize| {
        let mut bytes = [2, 1].repeat(levels);
        bytes.extend_from_slice(&[2, 0]);
        Arguments::new(bytes, Vec::new(), Vec::new()).take::<Large>("large")
    };
    let decode = move || {
        assert!(decode(3).is_ok());
        decode(62).unwrap_err()
    };
    // The stack size of tokio's threads.
    let thread = std::thread::Builder::new().stack_size(2 << 20);
    let error = thread.spawn(decode).unwrap().join().unwrap();
    assert_eq!(*error.fault(), Fault::TooMuchStack);
    assert!(
        error
            .to_string()
            .ends_with("box the large parts of a recursive type"),
        "{error}"
    );
}
