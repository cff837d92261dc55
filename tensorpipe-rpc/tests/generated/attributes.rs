//! Attributes, supertraits and visibility of the trait, and their effect on the generated code.

use std::fmt::Debug;

use tensorpipe_rpc::{CallError, Stream, tensor_service};

use super::connection;

/// Some of its methods are not there.
#[tensor_service]
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

#[tokio::test]
async fn a_method_that_cfg_removes_leaves_no_gap() {
    let connection = connection(PartialService::new(One)).await;
    let client = PartialClient::on(&connection).await.unwrap();
    let calls = [
        client.first(),
        client.second(),
        client.third(),
        client.fourth(),
    ];
    let answers = futures_util::future::try_join_all(calls).await;
    assert_eq!(answers.unwrap(), [1, 2, 3, 4]);
    let names: Vec<_> = PartialClient::SCHEMA
        .methods
        .iter()
        .map(|m| m.name)
        .collect();
    assert_eq!(names, ["first", "second", "third", "fourth"]);
}

/// Not compiled, and so are its client and its service.
#[tensor_service]
#[cfg(not(test))]
pub trait Absent {
    async fn absent(&self, missing: Missing) -> Missing;
}

#[tensor_service]
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

#[tokio::test]
async fn a_deprecated_method_is_deprecated_in_the_client() {
    let connection = connection(AgingService::new(One)).await;
    let client = AgingClient::on(&connection).await.unwrap();
    #[expect(
        deprecated,
        reason = "this is the test: without the attribute, the expectation fails"
    )]
    let old = client.old();
    assert_eq!(old.await.unwrap(), 1);
    assert_eq!(client.important().await.unwrap(), 2);
    assert_eq!(client.fresh().await.unwrap(), 3);
}

mod old {
    #![expect(deprecated, reason = "the implementation below names it")]

    use super::{One, tensor_service};

    /// A service that goes away.
    #[deprecated]
    #[tensor_service]
    pub(super) trait Leaving {
        async fn leave(&self);
    }

    impl Leaving for One {
        async fn leave(&self) {}
    }
}

#[tokio::test]
#[expect(deprecated, reason = "this is the test")]
async fn a_deprecated_trait_has_a_deprecated_client() {
    let connection = connection(old::LeavingService::new(One)).await;
    old::LeavingClient::on(&connection)
        .await
        .unwrap()
        .leave()
        .await
        .unwrap();
}

/// Has supertraits, and its default body uses them.
#[tensor_service]
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

#[tokio::test]
async fn supertraits_bind_the_implementation() {
    let connection = connection(NamedService::new(One)).await;
    let client = NamedClient::on(&connection).await.unwrap();
    assert_eq!(client.name("the ").await.unwrap(), "the One");
    assert_eq!(client.len("the").await.unwrap(), 3);
    assert!(matches!(client.len("").await, Err(CallError::Service(0))));
}

/// Default bodies of one expression. This crate denies warnings, and rustc looks for needless braces on one line.
#[tensor_service]
trait Short {
    #[rustfmt::skip]
    async fn ready(&self) -> bool { true }
    #[rustfmt::skip]
    async fn same(&self, number: u8) -> u8 { number }
    async fn never(&self) -> u8 {
        panic!("not yet")
    }
    async fn never_of(&self, _number: u8) -> u8 {
        panic!("not yet")
    }
    #[rustfmt::skip]
    async fn early(&self, number: u8) -> u8 { return number; }
    async fn nothing(&self, _numbers: Vec<u8>) -> () {}
}

impl Short for One {}

#[tokio::test]
async fn a_default_body_of_one_expression_is_no_warning() {
    let connection = connection(ShortService::new(One)).await;
    let client = ShortClient::on(&connection).await.unwrap();
    assert!(client.ready().await.unwrap());
    assert_eq!(client.same(7).await.unwrap(), 7);
    assert!(matches!(
        client.never().await,
        Err(CallError::Panicked { .. })
    ));
}

#[tensor_service]
pub(super) trait Inward {
    //! Documented from within.
    #![allow(unused_qualifications, reason = "the attribute stands within, too")]

    async fn half(&self, number: u8) -> u8 {
        //! Half of it.
        #![allow(deprecated, reason = "the method below is this trait's own")]
        let _ = Self::old;
        let half: std::primitive::u8 = number / 2;
        half
    }
    #[deprecated]
    fn old(&self) -> impl Stream<Item = u8> {
        //! None.
        #![allow(unused_variables, reason = "it stands within, too")]
        let unused = 1;
        futures_util::stream::empty()
    }
}

impl Inward for One {}

#[tokio::test]
async fn attributes_may_stand_within_what_they_are_about() {
    let connection = connection(InwardService::new(One)).await;
    let client = InwardClient::on(&connection).await.unwrap();
    assert_eq!(client.half(9).await.unwrap(), 4);
}

/// The runtime under another name, as a crate that builds on it re-exports it.
mod renamed {
    pub(super) use tensorpipe_rpc::*;
}

#[renamed::tensor_service(crate = "renamed")]
trait Moved {
    async fn next(&self, cx: &renamed::CallContext, number: u8) -> u8;
}

impl Moved for One {
    async fn next(&self, _: &renamed::CallContext, number: u8) -> u8 {
        number + 1
    }
}

#[tokio::test]
async fn the_runtime_may_have_another_name() {
    let connection = connection(MovedService::new(One)).await;
    let client = MovedClient::on(&connection).await.unwrap();
    assert_eq!(client.next(1).await.unwrap(), 2);
}
