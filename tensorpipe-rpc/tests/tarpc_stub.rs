//! Generated clients under tarpc's own stubs.
//!
//! The runtime in memory is that of the macro's tests; `tarpc_stub!` is the real one.

#![cfg(feature = "tarpc")]
#![deny(warnings, missing_docs, missing_debug_implementations)]

#[path = "../../tensorpipe-macros/tests/mock/mod.rs"]
mod mock;
#[path = "../src/tarpc/stub.rs"]
mod stub;

use mock::{CallContext, Connection, run};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tarpc::RequestName;
use tarpc::client::RpcError;
use tarpc::client::stub::Stub;
use tarpc::client::stub::load_balance::{ConsistentHash, RoundRobin};
use tarpc::client::stub::retry::Retry;
use tarpc::context;
use tensorpipe_macros::tensor_service;

/// Where `tarpc_stub!` looks for the runtime.
mod __private {
    pub(crate) mod tarpc {
        use crate::mock::__private::ClientHandle;
        use crate::mock::CallError;
        use ::tarpc::ServerError;
        use std::io::ErrorKind;
        use std::time::Instant;

        pub(crate) use ::tarpc::RequestName;
        pub(crate) use ::tarpc::client::RpcError;
        pub(crate) use ::tarpc::client::stub::Stub;
        pub(crate) use ::tarpc::context::Context;

        pub(crate) fn under(handle: &ClientHandle, context: &Context) -> ClientHandle {
            handle.with_deadline(context.deadline.saturating_duration_since(Instant::now()))
        }

        pub(crate) fn value<T>(
            answer: Result<T, CallError<std::convert::Infallible>>,
        ) -> Result<T, RpcError> {
            result(answer).map(|Ok(value)| value)
        }

        pub(crate) fn result<T, E>(
            answer: Result<T, CallError<E>>,
        ) -> Result<Result<T, E>, RpcError> {
            match answer {
                Ok(value) => Ok(Ok(value)),
                Err(CallError::Service(error)) => Ok(Err(error)),
                Err(CallError::Refused(reason)) => {
                    Err(ServerError::new(ErrorKind::Other, reason).into())
                }
            }
        }
    }
}

mod runtime {
    pub(crate) mod __private {
        pub(crate) use crate::__tarpc_stub as tarpc_stub;
        pub(crate) use crate::mock::__private::*;
    }
}

/// Counts the calls that it gets.
#[tensor_service(crate = "crate::runtime")]
pub trait Counter {
    /// Fails, as the service wishes, until the third call.
    async fn third(&self, r#type: String) -> Result<u32, String>;
    /// How many calls came.
    async fn count(&self) -> u32;
    /// The time left.
    async fn left(&self, cx: &CallContext) -> Duration;
    /// Not compiled.
    #[cfg(not(test))]
    async fn absent(&self, missing: Missing) -> Missing;
}

#[derive(Default)]
struct Calls(AtomicU32);

impl Counter for Calls {
    async fn third(&self, r#type: String) -> Result<u32, String> {
        match self.0.fetch_add(1, Ordering::Relaxed) {
            count @ 2.. => Ok(count),
            _ => Err(r#type),
        }
    }

    async fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    async fn left(&self, cx: &CallContext) -> Duration {
        cx.deadline
    }
}

impl std::hash::Hash for CounterClientRequest {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

fn client() -> CounterClient {
    let connection = Connection(Arc::new(CounterService::new(Calls::default())));
    run(CounterClient::on(&connection)).unwrap()
}

fn third() -> CounterClientRequest {
    CounterClientRequest::Third {
        r#type: "not yet".to_owned(),
    }
}

fn in_seconds(seconds: u64) -> context::Context {
    let mut context = context::current();
    context.deadline = Instant::now() + Duration::from_secs(seconds);
    context
}

#[test]
fn a_client_is_a_stub() {
    let answer = run(client().call(in_seconds(5), Arc::new(third()))).unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Err(error)) if error == "not yet"));
    assert_eq!(third().name(), "Counter.third");
    assert_eq!(format!("{:?}", third()), "Counter.third");
}

#[test]
fn the_deadline_of_tarpcs_context_holds() {
    let answer =
        run(client().call(in_seconds(5), Arc::new(CounterClientRequest::Left {}))).unwrap();
    let CounterClientResponse::Left(left) = answer else {
        panic!("another method's answer");
    };
    assert!(
        left > Duration::from_secs(4) && left <= Duration::from_secs(5),
        "{left:?}"
    );
}

/// Again, as long as the service says no.
fn on_refusal(answer: &Result<CounterClientResponse, RpcError>, _: u32) -> bool {
    matches!(answer, Ok(CounterClientResponse::Third(Err(_))))
}

#[test]
fn retry_stands_on_a_client() {
    let answer = run(Retry::new(client(), on_refusal).call(in_seconds(5), third())).unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));
}

#[test]
fn retry_and_load_balancing_stack_both_ways() {
    let both = [client(), client()];
    let balanced = RoundRobin::new(both.to_vec());
    let answer = run(Retry::new(balanced, on_refusal).call(in_seconds(5), third())).unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));
    // Five calls in turn: three here, two there.
    assert_eq!(both.map(|client| run(client.count()).unwrap()), [3, 2]);

    let retried = vec![
        Retry::new(client(), on_refusal),
        Retry::new(client(), on_refusal),
    ];
    let answer = run(RoundRobin::new(retried).call(in_seconds(5), third())).unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));
}

#[test]
fn consistent_hashing_asks_only_for_hash() {
    let both = [client(), client()];
    let hashed = ConsistentHash::new(both.to_vec()).unwrap();
    for _ in 0..2 {
        run(hashed.call(in_seconds(5), Arc::new(third()))).unwrap();
    }
    let mut counts = both.map(|client| run(client.count()).unwrap());
    counts.sort_unstable();
    assert_eq!(counts, [0, 2]);
}
