//! Comparing: ends that agree, and the differences that others get.

use std::sync::Arc;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::super::*;
use crate::remote::{self, Remote};
use crate::value::{Known, Unknown as _};

#[test]
fn ids_are_fnv1a() {
    const FOOBAR: u32 = method_id("foobar");
    assert_eq!((method_id(""), FOOBAR), (0x811c_9dc5, 0xbf9c_f968));
}

mod versions {
    use super::*;

    #[derive(Serialize, Deserialize)]
    pub(super) struct Options {
        depth: u32,
        name: String,
    }

    pub(super) mod later {
        use super::*;

        #[derive(Serialize, Deserialize)]
        pub(in super::super) struct Options {
            depth: u64,
            name: String,
        }
    }
}

const fn method(name: &'static str, signature: &'static str, structure: fn(&mut Tracer)) -> Method {
    Method {
        service: "Store",
        name,
        id: method_id(name),
        signature,
        idempotent: false,
        promises: false,
        places: Places::NOWHERE,
        streams: Streams {
            argument: false,
            reply: false,
        },
        structure,
    }
}

const PUSH: &str = "async fn push(&self, options: Options) -> u64";

static NOW: Schema = Schema {
    service: "Store",
    methods: &[
        method("push", PUSH, |tracer| {
            tracer.argument::<versions::Options>("options");
            tracer.returns::<u64>();
        }),
        method("pull", "async fn pull(&self)", |tracer| {
            tracer.returns::<()>()
        }),
    ],
};

static LATER: Schema = Schema {
    service: "Store",
    methods: &[
        method("erase", "async fn erase(&self)", |tracer| {
            tracer.returns::<()>()
        }),
        method("push", PUSH, |tracer| {
            tracer.argument::<versions::later::Options>("options");
            tracer.returns::<u64>();
        }),
    ],
};

#[test]
fn a_description_is_made_once_and_travels() {
    let description = NOW.describe();
    assert!(Arc::ptr_eq(&description, &NOW.describe()));
    assert!(!Arc::ptr_eq(&description, &LATER.describe()));
    let bytes = postcard::to_stdvec(&*description).unwrap();
    let back: Description = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(back, *description);
}

#[test]
fn a_changed_field_is_shown() {
    let (now, later) = (NOW.describe(), LATER.describe());
    compare(&now, &now).unwrap();
    let error = compare(&now, &later).unwrap_err();
    assert_eq!(
        error.to_string(),
        "client and server disagree about `Store`: method `push`, struct Options: the client has `depth: u32`, the \
         server has `depth: u64`; build both from the same version of the trait and its types"
    );
}

#[test]
fn signatures_and_missing_lines() {
    let now = NOW.describe();
    let change = |change: fn(&mut MethodDescription)| {
        let mut server = Description::clone(&now);
        change(&mut server.methods[0]);
        compare(&now, &server).map_err(|error| error.differences[0].to_string())
    };
    assert_eq!(
        change(|push| push.signature = "async fn push(&self)".into()).unwrap_err(),
        format!("method `push`: the client has `{PUSH}`, the server has `async fn push(&self)`")
    );
    let shorter = change(|push| push.structure = push.structure.replace("  name: str\n", ""));
    assert_eq!(
        shorter.unwrap_err(),
        "method `push`, struct Options: the client has `name: str`, the server has no further field"
    );
    // The line there belongs to the next type.
    let shorter = change(|push| {
        push.structure = push
            .structure
            .replace("  name: str\n", "enum Mode\n  0 Fast\n");
    });
    assert_eq!(
        shorter.unwrap_err(),
        "method `push`, struct Options: the client has `name: str`, the server has no further field"
    );
    let longer = change(|push| {
        push.structure = push
            .structure
            .replace("str\n", "str\n  mode: u8\nenum Mode\n")
    });
    assert_eq!(
        longer.unwrap_err(),
        "method `push`, struct Options: the client has no further field, the server has `mode: u8`"
    );
    let returns = change(|push| push.structure = push.structure.replace("u64", "u8"));
    assert_eq!(
        returns.unwrap_err(),
        "method `push`: the client has `returns: u64`, the server has `returns: u8`"
    );
    // A type that one end could not trace is not compared.
    let untraced = change(|push| {
        push.structure.clear();
        push.untraced.push("why".into());
    });
    assert_eq!(untraced, Ok(()));
    // A method that one end lacks is no disagreement.
    let mut server = Description::clone(&now);
    server.methods.remove(0);
    compare(&now, &server).unwrap();
    server.service = "Shop".into();
    assert!(
        compare(&now, &server)
            .unwrap_err()
            .to_string()
            .contains("`Shop`")
    );
}

/// A client retries what its own definition allows.
#[test]
fn a_client_may_not_retry_what_the_server_does_not_let_run_twice() {
    static RETRIED: Schema = Schema {
        service: "Store",
        methods: &[Method {
            idempotent: true,
            ..method("pull", "async fn pull(&self)", |tracer| {
                tracer.returns::<()>()
            })
        }],
    };
    let (once, retried) = (NOW.describe(), RETRIED.describe());
    compare(&retried, &retried).unwrap();
    compare(&once, &retried).unwrap();
    let error = compare(&retried, &once).unwrap_err();
    assert_eq!(
        error.differences[0].to_string(),
        "method `pull`: the client has `#[rpc(idempotent)] async fn pull(&self)`, the server has `async fn pull(&self)`"
    );
}

fn structure(visit: fn(&mut Tracer)) -> String {
    let mut tracer = Tracer::new();
    visit(&mut tracer);
    assert_eq!(tracer.unsuitable, None);
    tracer.finish().0
}

macro_rules! referent {
    ($ty:ty) => {
        structure(|tracer| Known::<$ty>::REFERENT(tracer, "returns"))
    };
}

#[test]
fn what_is_referred_to_is_described_if_it_travels() {
    struct Fixed;

    let options = "returns, fetched: Options\nstruct Options\n  depth: u32\n  name: str\n";
    assert_eq!(referent!(Remote<versions::Options>), options);
    assert_eq!(referent!(Vec<Remote<versions::Options>>), options);
    assert_eq!(
        referent!(Option<remote::Shared<versions::Options>>),
        options
    );
    assert_eq!(referent!(Remote<Fixed>), "");
    assert_eq!(referent!(versions::Options), "");
    // No call need carry these.
    assert_eq!(referent!(Remote<serde_json::Value>), "");
    let borrowed = referent!(Remote<&'static [u8]>);
    assert_eq!(borrowed, "returns, fetched: bytes\n");
}

#[test]
fn a_method_that_would_reach_another_one_is_a_difference() {
    let now = NOW.describe();
    let mut server = Description::clone(&now);
    server.methods[0].name = "drop_everything".into();
    let error = compare(&now, &server).unwrap_err();
    let shown = error.differences[0].to_string();
    assert!(shown.starts_with("the method with the id 0x"), "{shown}");
    assert!(
        shown.ends_with("the client has `push`, the server has `drop_everything`"),
        "{shown}"
    );
}

#[test]
fn a_peer_cannot_have_us_collect_more_differences_than_anybody_reads() {
    let now = NOW.describe();
    let mut hostile = Description::clone(&now);
    let push = hostile.methods[0].clone();
    let named = |i| {
        let mut method = push.clone();
        method.name = format!("push{i}");
        method
    };
    // All of them have the id of one of the server's methods.
    hostile.methods = (0..10_000).map(named).collect();
    let error = compare(&hostile, &now).unwrap_err();
    assert_eq!(error.differences.len(), 64);
}

proptest! {
    #[test]
    fn a_peers_description_is_only_text(
        texts in proptest::collection::vec(any::<(String, String)>(), 0..20),
        name in any::<String>(),
    ) {
        let now = NOW.describe();
        let methods = texts.into_iter().map(|(signature, structure)| MethodDescription {
            name: "push".into(),
            id: 0,
            signature: if signature.len() % 2 == 0 { PUSH.into() } else { signature },
            structure,
            untraced: Vec::new(),
        });
        let theirs = Description { service: name, methods: methods.collect(), unsuitable: None };
        let error = compare(&now, &theirs).unwrap_err().to_string();
        prop_assert!(!error.contains(char::is_control), "{error:?}");
        prop_assert!(error.len() < 20_000);
    }
}

#[test]
fn a_method_named_a_thousand_times_differs_once() {
    let now = NOW.describe();
    let mut client = Description::clone(&now);
    let mut push = client.methods[0].clone();
    push.signature = "async fn push(&self)".to_owned();
    client.methods = vec![push; 1000];
    let mismatch = compare(&client, &now).unwrap_err();
    assert_eq!(mismatch.differences.len(), 1);
}
