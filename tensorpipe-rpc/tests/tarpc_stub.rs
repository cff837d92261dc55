//! Generated clients under tarpc's own stubs.

#![cfg(feature = "tarpc")]
#![deny(warnings, missing_docs, missing_debug_implementations)]

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tarpc::RequestName;
use tarpc::client::RpcError;
use tarpc::client::stub::Stub;
use tarpc::client::stub::load_balance::{ConsistentHash, RoundRobin};
use tarpc::client::stub::retry::Retry;
use tarpc::context;
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{CallContext, Replicas, Server, ServerLimits, tensor_service};

/// Counts the calls that it gets.
#[tensor_service]
pub trait Counter {
    /// Fails, as the service wishes, until the third call.
    async fn third(&self, r#type: String) -> Result<u32, String>;
    /// How many calls came.
    async fn count(&self) -> u32;
    /// The time left.
    async fn left(&self, cx: &CallContext) -> Duration;
    /// Twice as much.
    async fn double(&self, x: Tensor) -> Tensor;
    /// On a device that nobody here has.
    async fn far(&self, #[tensor(device = "cuda:7")] x: Tensor);
    /// Takes its time.
    async fn sleep(&self, ms: u64);
    /// Fails in another way.
    async fn panic(&self) -> u32;
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
        cx.time_left().unwrap()
    }

    async fn far(&self, x: Tensor) {
        panic!("it came to {}", x.device());
    }

    async fn double(&self, x: Tensor) -> Tensor {
        let doubled = x.as_slice::<f32>().unwrap().iter().map(|x| x * 2.0);
        Tensor::from(doubled.collect::<Vec<_>>())
    }

    async fn sleep(&self, ms: u64) {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }

    async fn panic(&self) -> u32 {
        panic!("on purpose")
    }
}

impl std::hash::Hash for CounterClientRequest {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

/// A client of a server of its own, which is there as long as the test.
async fn client() -> CounterClient {
    let (client, server) = client_of(ServerLimits::default()).await;
    tokio::spawn(async move { server.wait().await });
    client
}

async fn client_of(limits: ServerLimits) -> (CounterClient, Server) {
    let context = Context::new();
    let server = Server::builder().context(&context).limits(limits);
    let server = server.service(CounterService::new(Calls::default()));
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let url = server.url().to_string();
    let client = CounterClient::connect_with(&context, url).await.unwrap();
    (client, server)
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

#[tokio::test]
async fn a_client_is_a_stub() {
    let client = client().await;
    let answer = client.call(in_seconds(5), Arc::new(third())).await.unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Err(error)) if error == "not yet"));
    assert_eq!(third().name(), "Counter.third");
    assert_eq!(format!("{:?}", third()), "Counter.third");
    let x = Tensor::from(vec![1f32; 100_000]);
    let request = CounterClientRequest::Double { x };
    let answer = client.call(in_seconds(5), Arc::new(request)).await;
    let Ok(CounterClientResponse::Double(doubled)) = answer else {
        panic!("{answer:?}");
    };
    let doubled = doubled.as_slice::<f32>().unwrap();
    assert!(doubled.len() == 100_000 && doubled.iter().all(|x| *x == 2.0));
}

#[tokio::test]
async fn the_deadline_of_tarpcs_context_holds() {
    let client = client().await;
    let request = Arc::new(CounterClientRequest::Left {});
    let answer = client.call(in_seconds(5), request).await.unwrap();
    let CounterClientResponse::Left(left) = answer else {
        panic!("another method's answer");
    };
    assert!(
        left > Duration::from_secs(2) && left <= Duration::from_secs(5),
        "{left:?}"
    );
    let request = Arc::new(CounterClientRequest::Sleep { ms: 60_000 });
    let error = client.call(in_seconds(1), request).await.unwrap_err();
    assert!(matches!(error, RpcError::DeadlineExceeded), "{error:?}");
}

#[tokio::test]
async fn what_kept_a_call_from_being_answered_is_tarpcs_error() {
    let request = Arc::new(CounterClientRequest::Panic {});
    match client().await.call(in_seconds(5), request).await {
        Err(RpcError::Server(error)) => assert!(error.detail.contains("on purpose"), "{error}"),
        other => panic!("{other:?}"),
    }

    // Not the server's fault, which has not heard of it.
    let x = Tensor::from(vec![1f32; 10]);
    let request = Arc::new(CounterClientRequest::Far { x });
    match client().await.call(in_seconds(5), request).await {
        Err(RpcError::Send(error)) => assert!(error.to_string().contains("cuda:7"), "{error}"),
        other => panic!("{other:?}"),
    }

    let mut limits = ServerLimits::default();
    limits.calls = 1;
    let (client, server) = client_of(limits).await;
    let running = client.sleep(60_000);
    match client.call(in_seconds(5), Arc::new(third())).await {
        Err(RpcError::Server(error)) => assert_eq!(error.kind, ErrorKind::WouldBlock),
        other => panic!("{other:?}"),
    }
    drop(running);

    drop(server);
    let gone = client.call(in_seconds(5), Arc::new(third()));
    let gone = tokio::time::timeout(Duration::from_secs(4), gone).await;
    let error = gone.expect("before its deadline").unwrap_err();
    assert!(!matches!(error, RpcError::DeadlineExceeded), "{error:?}");
}

/// Again, as long as the service says no.
fn on_refusal(answer: &Result<CounterClientResponse, RpcError>, _: u32) -> bool {
    matches!(answer, Ok(CounterClientResponse::Third(Err(_))))
}

#[tokio::test]
async fn retry_stands_on_a_client() {
    let retried = Retry::new(client().await, on_refusal);
    let answer = retried.call(in_seconds(5), third()).await.unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));
}

#[tokio::test]
async fn retry_and_load_balancing_stack_both_ways() {
    let both = [client().await, client().await];
    let balanced = RoundRobin::new(both.to_vec());
    let retried = Retry::new(balanced, on_refusal);
    let answer = retried.call(in_seconds(5), third()).await.unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));
    // Five calls in turn: three here, two there.
    let counts = both.map(|client| async move { client.count().await.unwrap() });
    assert_eq!(futures_util::future::join_all(counts).await, [3, 2]);

    let retried = vec![
        Retry::new(client().await, on_refusal),
        Retry::new(client().await, on_refusal),
    ];
    let balanced = RoundRobin::new(retried);
    let answer = balanced.call(in_seconds(5), third()).await.unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));
}

#[tokio::test]
async fn consistent_hashing_asks_only_for_hash() {
    let both = [client().await, client().await];
    let hashed = ConsistentHash::new(both.to_vec()).unwrap();
    for _ in 0..2 {
        let request = Arc::new(third());
        hashed.call(in_seconds(5), request).await.unwrap();
    }
    let counts = both.map(|client| async move { client.count().await.unwrap() });
    let mut counts = futures_util::future::join_all(counts).await;
    counts.sort_unstable();
    assert_eq!(counts, [0, 2]);
}

#[tokio::test]
async fn tarpcs_stubs_stand_on_replicas() {
    let context = Context::new();
    let serve = async || {
        let server = Server::builder().context(&context);
        let server = server.service(CounterService::new(Calls::default()));
        server.listen("tcp://127.0.0.1:0").await.unwrap()
    };
    let (one, other) = (serve().await, serve().await);
    let replicas = Replicas::builder().context(&context);
    let replicas = replicas.urls([one.url().to_string(), other.url().to_string()]);
    let replicas = replicas.connect().await.unwrap();
    let client = CounterClient::on(&replicas).await.unwrap();
    let retried = Retry::new(client.clone(), on_refusal);
    let balanced = RoundRobin::new(vec![retried]);
    let answer = balanced.call(in_seconds(5), third()).await.unwrap();
    assert!(matches!(answer, CounterClientResponse::Third(Ok(2))));

    drop((one, other));
    let gone = client.call(in_seconds(1), Arc::new(third()));
    let error = gone.await.unwrap_err();
    assert!(matches!(error, RpcError::Send(_)), "{error:?}");
}
