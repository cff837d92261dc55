//! The traced structure of all kinds of types, and why some cannot be traced.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize, de::DeserializeOwned};
use tensorpipe::{Payload, Tensor};

use super::super::Tracer;

fn structure<T: Serialize + DeserializeOwned>() -> String {
    let mut tracer = Tracer::new();
    tracer.returns::<T>();
    let (structure, untraced) = tracer.finish();
    assert_eq!(untraced, [] as [String; 0]);
    structure
}

fn reason<T: Serialize + DeserializeOwned>() -> String {
    let mut tracer = Tracer::new();
    tracer.argument::<T>("x");
    let (structure, untraced) = tracer.finish();
    assert_eq!(structure, "argument x: untraced\n");
    untraced.join("")
}

#[test]
fn plain_types() {
    type Plain = (
        Option<u128>,
        HashMap<String, Vec<Tensor>>,
        [Payload; 3],
        ((), char, f32),
        BTreeMap<u8, bool>,
    );
    assert_eq!(
        structure::<Plain>(),
        "returns: (Option<u128>, {str: [Tensor]}, [Payload; 3], ((), char, f32), {u8: bool})\n"
    );
}

#[test]
fn enums_are_seen_wherever_they_are() {
    #[derive(Serialize, Deserialize)]
    enum Level {
        Low,
        Mid(u8, i8),
        High { by: Vec<Inner> },
        Last(Box<Inner>),
    }
    #[derive(Serialize, Deserialize)]
    enum Inner {
        One,
        Two(Option<Unit>),
    }
    #[derive(Serialize, Deserialize)]
    struct Unit;
    #[derive(Serialize, Deserialize)]
    struct Outer {
        levels: Vec<Level>,
        one: Option<HashMap<u8, Inner>>,
    }
    assert_eq!(
        structure::<Outer>(),
        "returns: Outer\n\
         struct Outer\n  levels: [Level]\n  one: Option<{u8: Inner}>\n\
         enum Level\n  0 Low\n  1 Mid(u8, i8)\n  2 High { by: [Inner] }\n  3 Last(Inner)\n\
         enum Inner\n  0 One\n  1 Two(Option<Unit>)\n\
         struct Unit\n"
    );
}

#[test]
fn types_of_one_name_are_told_apart() {
    #[derive(Serialize, Deserialize)]
    struct Of<T>(T);
    #[derive(Serialize, Deserialize)]
    struct Both {
        a: Of<u8>,
        b: Of<String>,
        c: Of<u8>,
    }
    assert_eq!(
        structure::<Both>(),
        "returns: Both\nstruct Both\n  a: Of\n  b: Of#2\n  c: Of\nstruct Of(u8)\nstruct Of#2(str)\n"
    );
}

#[test]
fn recursive_types_end() {
    #[derive(Serialize, Deserialize)]
    enum List {
        Cons(u8, Box<Self>),
        Nil,
    }
    assert_eq!(
        structure::<List>(),
        "returns: List\nenum List\n  0 Cons(u8, List)\n  1 Nil\n"
    );

    // The type meets itself before its enum was visited.
    #[derive(Serialize, Deserialize)]
    struct Node {
        next: Option<Box<Self>>,
        children: HashMap<String, Self>,
        kind: Kind,
    }
    #[derive(Serialize, Deserialize)]
    enum Kind {
        Deep(Box<Node>, Far),
        Flat,
    }
    #[derive(Serialize, Deserialize)]
    enum Far {
        Back(Box<Kind>),
        Away,
        Third(u16),
    }
    assert_eq!(
        structure::<Node>(),
        "returns: Node\n\
         struct Node\n  next: Option<Node>\n  children: {str: Node}\n  kind: Kind\n\
         enum Kind\n  0 Deep(Node, Far)\n  1 Flat\n\
         enum Far\n  0 Back(Kind)\n  1 Away\n  2 Third(u16)\n"
    );

    // The recursion ends only through the last variant of the other enum.
    #[derive(Serialize, Deserialize)]
    enum Odd {
        Next(Box<Even>),
        Both(Box<Self>, Box<Even>),
    }
    #[derive(Serialize, Deserialize)]
    enum Even {
        Next(Box<Odd>),
        Both(Box<Odd>, Box<Odd>),
        End,
    }
    assert_eq!(
        structure::<Odd>(),
        "returns: Odd\n\
         enum Odd\n  0 Next(Even)\n  1 Both(Odd, Even)\n\
         enum Even\n  0 Next(Odd)\n  1 Both(Odd, Odd)\n  2 End\n"
    );

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Tree(Vec<Self>);
    assert_eq!(structure::<Tree>(), "returns: […]\n");
}

#[test]
fn types_that_check_what_they_read() {
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(try_from = "String", into = "String")]
    struct Address(std::net::SocketAddr);
    impl TryFrom<String> for Address {
        type Error = String;
        fn try_from(text: String) -> Result<Self, String> {
            let address: Result<std::net::SocketAddr, _> = text.parse();
            address.map(Self).map_err(|error| error.to_string())
        }
    }
    impl From<Address> for String {
        fn from(address: Address) -> Self {
            address.0.to_string()
        }
    }
    assert_eq!(structure::<NonZeroU32>(), "returns: u32\n");
    assert_eq!(structure::<Vec<Address>>(), "returns: [str]\n");
    let duration = "returns: Duration\nstruct Duration\n  secs: u64\n  nanos: u32\n";
    assert_eq!(structure::<std::time::Duration>(), duration);
    let either = structure::<Result<std::net::IpAddr, std::ops::Range<u8>>>();
    assert_eq!(
        either,
        "returns: Result\n\
         enum Result\n  0 Ok(IpAddr)\n  1 Err(Range)\n\
         enum IpAddr\n  0 V4([u8; 4])\n  1 V6([u8; 16])\n\
         struct Range\n  start: u8\n  end: u8\n"
    );
}

#[test]
fn aliases_leave_fields_and_variants_numbered() {
    #[derive(Serialize, Deserialize)]
    struct Fields {
        #[serde(alias = "old")]
        new: u8,
        other: u16,
    }
    #[derive(Serialize, Deserialize)]
    enum Variants {
        #[serde(alias = "Old", alias = "Older")]
        New,
        Other(Fields),
    }
    assert_eq!(
        structure::<Variants>(),
        "returns: Variants\nenum Variants\n  0\n  1(Fields)\nstruct Fields\n  0: u8\n  1: u16\n"
    );
}

#[test]
fn what_cannot_be_traced_says_why() {
    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        A(u8),
    }
    #[derive(Serialize, Deserialize)]
    struct Endless(Box<Self>);
    #[derive(Serialize, Deserialize)]
    enum EndlessEnum {
        A(Box<Self>),
    }
    #[derive(Serialize, Deserialize)]
    enum Never {}
    #[derive(Serialize)]
    struct Panics;
    impl<'de> Deserialize<'de> for Panics {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            std::panic::resume_unwind(Box::new("in Deserialize"))
        }
    }
    #[derive(Serialize)]
    struct Picky;
    impl<'de> Deserialize<'de> for Picky {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            u8::deserialize(deserializer)?;
            Err(serde::de::Error::custom("nothing pleases"))
        }
    }
    assert!(reason::<Untagged>().contains("self-describing format (deserialize_any)"));
    assert!(reason::<serde_json::Value>().contains("`serde_json::value::Value` needs"));
    assert!(reason::<Vec<Endless>>().contains("nests deeper"));
    assert!(reason::<EndlessEnum>().contains("too large"));
    assert!(reason::<Never>().contains("no variants"));
    assert!(reason::<Panics>().contains("panicked"));
    assert!(reason::<Picky>().contains("nothing pleases"));
}

#[test]
fn one_untraced_type_leaves_the_others() {
    #[derive(Serialize, Deserialize)]
    struct Inner(u8);
    #[derive(Serialize, Deserialize)]
    struct Bad {
        inner: Inner,
        value: serde_json::Value,
    }
    #[derive(Serialize, Deserialize)]
    struct Good {
        inner: Inner,
    }
    let mut tracer = Tracer::new();
    tracer.argument::<Bad>("bad");
    tracer.argument::<Good>("good");
    tracer.error::<Good>();
    let (structure, untraced) = tracer.finish();
    assert_eq!(
        structure,
        "argument bad: untraced\nargument good: Good\nerror: Good\n\
         struct Good\n  inner: Inner\nstruct Inner(u8)\n"
    );
    assert_eq!(untraced.len(), 1);
}

/// serde counts an enum's variants with those that are skipped when it writes, and without them when it reads.
#[test]
fn what_cannot_be_read_as_it_was_written_is_refused() {
    #[derive(Serialize, Deserialize)]
    enum Command {
        Pause,
        #[serde(skip)]
        Internal,
        Resume,
        Shutdown,
    }
    #[derive(Serialize, Deserialize)]
    struct Nested(u8, Option<Box<Command>>);
    #[derive(Serialize, Deserialize)]
    enum Last {
        Pause,
        Resume(u8),
        #[serde(skip)]
        Internal,
    }
    #[derive(Serialize, Deserialize)]
    struct Shifts(
        u8,
        #[serde(default, skip_serializing_if = "Option::is_none")] Option<u8>,
    );
    #[derive(Serialize, Deserialize)]
    #[serde(from = "u32", into = "u32")]
    #[derive(Clone)]
    struct Hidden(u32);
    impl From<u32> for Hidden {
        fn from(number: u32) -> Self {
            Self(number ^ 7)
        }
    }
    impl From<Hidden> for u32 {
        fn from(hidden: Hidden) -> Self {
            hidden.0 ^ 7
        }
    }
    /// Each read changes the last bits.
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(from = "[f32; 2]", into = "[f32; 2]")]
    struct Direction([f32; 2]);
    impl From<[f32; 2]> for Direction {
        fn from([x, y]: [f32; 2]) -> Self {
            let len = (x * x + y * y).sqrt();
            Self([x / len, y / len])
        }
    }
    impl From<Direction> for [f32; 2] {
        fn from(direction: Direction) -> Self {
            direction.0
        }
    }
    let _ = (Command::Internal, Last::Internal);
    for why in [
        reason::<Command>(),
        reason::<Vec<Nested>>(),
        reason::<Shifts>(),
    ] {
        assert!(why.contains("cannot be read as it is written"), "{why}");
    }
    assert_eq!(
        structure::<(Last, Hidden, Direction)>(),
        "returns: (Last, u32, (f32, f32))\nenum Last\n  0 Pause\n  1 Resume(u8)\n"
    );
}
