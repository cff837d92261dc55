//! The user's names and the generated names never collide.

use futures_util::{Stream, StreamExt as _, stream};
use tensorpipe_rpc::{CallContext, CallError, tensor_service};

use super::connection;

/// Every name that the expansion gives to a variable, as an argument.
#[tensor_service]
trait Arguments {
    async fn first(&self, self_: u8, handle: u8, arguments: u8, context: u8, method: u8)
    -> [u8; 5];
    async fn second(&self, cx: &CallContext, service: u8, value: u8, error: u8, url: u8)
    -> [u8; 4];
    async fn third(&self, tracer: u8, number: u8, connection: u8, deadline: u8) -> Result<u8, u8>;
}

struct Echo;

impl Arguments for Echo {
    async fn first(
        &self,
        self_: u8,
        handle: u8,
        arguments: u8,
        context: u8,
        method: u8,
    ) -> [u8; 5] {
        [self_, handle, arguments, context, method]
    }
    async fn second(&self, _: &CallContext, service: u8, value: u8, error: u8, url: u8) -> [u8; 4] {
        [service, value, error, url]
    }
    async fn third(&self, tracer: u8, number: u8, connection: u8, deadline: u8) -> Result<u8, u8> {
        Err(tracer + number + connection + deadline)
    }
}

#[tokio::test]
async fn arguments_may_have_the_names_of_generated_variables() {
    let connection = connection(ArgumentsService::new(Echo)).await;
    let client = ArgumentsClient::on(&connection).await.unwrap();
    assert_eq!(client.first(1, 2, 3, 4, 5).await.unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(client.second(1, 2, 3, 4).await.unwrap(), [1, 2, 3, 4]);
    let error = client.third(1, 2, 3, 4).await.unwrap_err();
    assert!(matches!(error, CallError::Service(10)));
}

/// Methods named like those of the types that the expansion handles.
#[tensor_service]
#[expect(
    non_snake_case,
    clippy::wrong_self_convention,
    reason = "unusual names are the test"
)]
trait Methods {
    async fn call(&self) -> u8;
    async fn new(&self) -> u8;
    async fn schema(&self) -> u8;
    async fn fmt(&self) -> u8;
    async fn self_(&self) -> u8;
    async fn r#match(&self, r#type: String) -> String;
    async fn add_one(&self) -> u8;
    async fn add__one(&self) -> u8;
}

impl Methods for Echo {
    async fn call(&self) -> u8 {
        1
    }
    async fn new(&self) -> u8 {
        2
    }
    async fn schema(&self) -> u8 {
        3
    }
    async fn fmt(&self) -> u8 {
        4
    }
    async fn self_(&self) -> u8 {
        5
    }
    async fn r#match(&self, r#type: String) -> String {
        r#type
    }
    async fn add_one(&self) -> u8 {
        6
    }
    async fn add__one(&self) -> u8 {
        7
    }
}

#[tokio::test]
async fn methods_may_have_the_names_of_generated_methods() {
    let connection = connection(MethodsService::new(Echo)).await;
    let client = MethodsClient::on(&connection).await.unwrap();
    let calls = [
        client.call(),
        client.new(),
        client.schema(),
        client.fmt(),
        client.self_(),
    ];
    let answers = futures_util::future::try_join_all(calls).await;
    assert_eq!(answers.unwrap(), [1, 2, 3, 4, 5]);
    assert_eq!(client.add_one().await.unwrap(), 6);
    assert_eq!(client.add__one().await.unwrap(), 7);
}

#[tokio::test]
async fn raw_identifiers_are_plain_on_the_wire() {
    let connection = connection(MethodsService::new(Echo)).await;
    let client = MethodsClient::on(&connection).await.unwrap();
    assert_eq!(client.r#match("a").await.unwrap(), "a");
    let method = &MethodsClient::SCHEMA.methods[5];
    assert_eq!(method.name, "match");
    assert_eq!(
        method.signature,
        "async fn match(&self, type: String) -> String"
    );
}

/// What is allowed on the trait is allowed in all that is generated from it, tarpc's requests too.
#[tensor_service]
#[expect(non_snake_case, reason = "unusual names are the test")]
trait Unusual {
    async fn add(&self, firstNumber: u8, SECOND: u8) -> u8;
    /// Parentheses around it change nothing.
    fn count(&self, upTo: u8) -> (impl Stream<Item = u8>);
}

impl Unusual for Echo {
    async fn add(&self, first: u8, second: u8) -> u8 {
        first + second
    }
    fn count(&self, up_to: u8) -> impl Stream<Item = u8> + Send {
        stream::iter(0..up_to)
    }
}

#[tokio::test]
async fn arguments_may_have_unusual_names_and_streams_parentheses() {
    let connection = connection(UnusualService::new(Echo)).await;
    let client = UnusualClient::on(&connection).await.unwrap();
    assert_eq!(client.add(1, 2).await.unwrap(), 3);
    let counted: Vec<_> = client.count(3).map(Result::unwrap).collect().await;
    assert_eq!(counted, [0, 1, 2]);
}

/// A module where every name of the prelude means something else.
mod shadowed {
    #![allow(dead_code, reason = "they are in the way, nothing more")]

    use tensorpipe_rpc::tensor_service;

    pub(super) struct Result;
    pub(super) struct Option;
    pub(super) struct String;
    pub(super) struct Box;
    pub(super) struct Arc;
    pub(super) struct Ok;
    pub(super) struct Err;
    pub(super) struct Send;
    pub(super) struct Sync;
    pub(super) struct Clone;
    pub(super) struct Future;
    pub(super) struct AsRef;
    pub(super) struct Service;
    pub(super) struct Schema;
    #[expect(non_camel_case_types, reason = "shadows the primitive")]
    pub(super) struct usize;
    #[expect(non_camel_case_types, reason = "shadows the primitive")]
    pub(super) struct str;

    /// Hides the implementation's type parameter, were it called so.
    #[derive(Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    pub(super) struct S(pub(super) u8);

    #[tensor_service]
    pub(super) trait Shadowed {
        async fn next(&self, s: S) -> std::result::Result<S, u8>;
        async fn nothing(&self);
    }
}

impl shadowed::Shadowed for Echo {
    async fn next(&self, s: shadowed::S) -> Result<shadowed::S, u8> {
        Ok(shadowed::S(s.0 + 1))
    }
    async fn nothing(&self) {}
}

#[tokio::test]
async fn nothing_depends_on_what_the_prelude_means() {
    let connection = connection(shadowed::ShadowedService::new(Echo)).await;
    let client = shadowed::ShadowedClient::on(&connection).await.unwrap();
    assert_eq!(client.next(shadowed::S(1)).await.unwrap(), shadowed::S(2));
    client.nothing().await.unwrap();
}

macro_rules! counter {
    ($name:ident, $method:ident, $argument:ident: $ty:ty => $output:ty) => {
        #[tensor_service]
        trait $name {
            async fn $method(&self, context: &CallContext, $argument: $ty) -> $output;
        }
    };
}

counter!(Counter, count, arguments: Vec<u8> => Result<usize, String>);

impl Counter for Echo {
    async fn count(&self, _: &CallContext, arguments: Vec<u8>) -> Result<usize, String> {
        Ok(arguments.len())
    }
}

#[tokio::test]
async fn a_trait_may_come_from_macro_rules() {
    let connection = connection(CounterService::new(Echo)).await;
    let client = CounterClient::on(&connection).await.unwrap();
    assert_eq!(client.count(vec![1, 2]).await.unwrap(), 2);
    let signature = "async fn count(&self, arguments: Vec<u8>) -> Result<usize, String>";
    assert_eq!(CounterClient::SCHEMA.methods[0].signature, signature);
}

#[tokio::test]
async fn a_trait_may_be_local_to_a_function() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Local(u8);

    #[tensor_service]
    trait Inner {
        async fn unwrap(&self, local: Local) -> u8;
    }

    impl Inner for Echo {
        async fn unwrap(&self, local: Local) -> u8 {
            local.0
        }
    }

    let connection = connection(InnerService::new(Echo)).await;
    let client = InnerClient::on(&connection).await.unwrap();
    assert_eq!(client.unwrap(Local(3)).await.unwrap(), 3);
}
