//! Attributes, supertraits and visibility of the trait, and what becomes of them.

#![deny(warnings, missing_docs, unreachable_pub)]

mod mock;

use mock::{Connection, run};
use std::fmt::Debug;
use std::sync::Arc;
use tensorpipe_macros::tensor_service;

/// Some of its methods are not there.
#[tensor_service(crate = "crate::mock")]
trait Partial {
    /// Not compiled.
    #[cfg(not(test))]
    async fn absent(&self, missing: Missing) -> Missing;
    async fn first(&self) -> u8;
    #[cfg(test)]
    #[cfg(not(doc))]
    async fn second(&self) -> u8;
    /// One of two.
    #[cfg(test)]
    async fn third(&self) -> u8;
    /// The other, of the same name.
    #[cfg(not(test))]
    async fn third(&self, missing: Missing) -> u8;
    async fn fourth(&self) -> u8;
}

#[derive(Debug)]
struct One;

impl Partial for One {
    async fn first(&self) -> u8 {
        1
    }
    async fn second(&self) -> u8 {
        2
    }
    async fn third(&self) -> u8 {
        3
    }
    async fn fourth(&self) -> u8 {
        4
    }
}

#[test]
fn a_method_that_cfg_removes_leaves_no_gap() {
    let connection = Connection(Arc::new(PartialService::new(One)));
    let client = run(PartialClient::on(&connection)).unwrap();
    let calls = [
        client.first(),
        client.second(),
        client.third(),
        client.fourth(),
    ];
    assert_eq!(calls.map(|call| run(call).unwrap()), [1, 2, 3, 4]);
    let names: Vec<_> = PartialClient::SCHEMA
        .methods
        .iter()
        .map(|m| m.name)
        .collect();
    assert_eq!(names, ["first", "second", "third", "fourth"]);
}

/// Not compiled, and so are its client and its service.
#[tensor_service(crate = "crate::mock")]
#[cfg(not(test))]
pub trait Absent {
    async fn absent(&self, missing: Missing) -> Missing;
}

#[tensor_service(crate = "crate::mock")]
trait Aging {
    #[deprecated = "too old"]
    async fn old(&self) -> u8;
    #[must_use]
    async fn important(&self) -> u8;
    async fn fresh(&self) -> u8;
}

impl Aging for One {
    async fn old(&self) -> u8 {
        1
    }
    async fn important(&self) -> u8 {
        2
    }
    async fn fresh(&self) -> u8 {
        3
    }
}

#[test]
fn a_deprecated_method_is_deprecated_in_the_client() {
    let connection = Connection(Arc::new(AgingService::new(One)));
    let client = run(AgingClient::on(&connection)).unwrap();
    #[expect(
        deprecated,
        reason = "this is the test: without the attribute, the expectation fails"
    )]
    let old = client.old();
    assert_eq!(run(old), Ok(1));
    assert_eq!(run(client.important()), Ok(2));
    assert_eq!(run(client.fresh()), Ok(3));
}

mod old {
    #![expect(deprecated, reason = "the implementation below names it")]

    use super::{One, tensor_service};

    /// A service that goes away.
    #[deprecated]
    #[tensor_service(crate = "crate::mock")]
    pub(super) trait Leaving {
        async fn leave(&self);
    }

    impl Leaving for One {
        async fn leave(&self) {}
    }
}

#[test]
#[expect(deprecated, reason = "this is the test")]
fn a_deprecated_trait_has_a_deprecated_client() {
    let connection = Connection(Arc::new(old::LeavingService::new(One)));
    run(run(old::LeavingClient::on(&connection)).unwrap().leave()).unwrap();
}

/// Has supertraits, and its default body uses them.
#[tensor_service(crate = "crate::mock")]
trait Named: Debug + Sized {
    async fn name(&self, prefix: String) -> String {
        format!("{prefix}{self:?}")
    }
    async fn len(&self, text: String) -> Result<usize, u8> {
        if text.is_empty() {
            return Err(0);
        }
        Ok(text.len())
    }
}

impl Named for One {}

#[test]
fn supertraits_bind_the_implementation() {
    let connection = Connection(Arc::new(NamedService::new(One)));
    let client = run(NamedClient::on(&connection)).unwrap();
    assert_eq!(run(client.name("the ")).unwrap(), "the One");
    assert_eq!(run(client.len("the")), Ok(3));
    assert_eq!(run(client.len("")), Err(mock::CallError::Service(0)));
}
