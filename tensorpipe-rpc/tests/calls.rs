//! Calls over a pipe: what a user does first.
#![allow(missing_docs, reason = "a test")]

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, Tensor};
use tensorpipe_rpc::{CallContext, CallError, Server, tensor_service};

#[derive(Debug, Serialize, Deserialize, PartialEq, thiserror::Error)]
pub enum PushError {
    #[error("no parameter `{0}`")]
    Unknown(String),
}

#[tensor_service]
pub trait ParameterServer {
    /// Adds `gradient` and returns the new version.
    async fn push(&self, name: String, gradient: Tensor) -> Result<u64, PushError>;
    async fn pull(&self, names: Vec<String>) -> HashMap<String, Tensor>;
    async fn sleep(&self, ms: u64) -> u64;
    async fn panic(&self) -> ();
    async fn left(&self, cx: &CallContext) -> Duration;
    async fn echo(&self, text: String) -> String;
}

#[derive(Default)]
struct Store {
    parameters: Mutex<HashMap<String, (u64, Tensor)>>,
    sleeping: Arc<AtomicUsize>,
}

struct Sleeping(Arc<AtomicUsize>);

impl Drop for Sleeping {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl ParameterServer for Store {
    async fn push(&self, name: String, gradient: Tensor) -> Result<u64, PushError> {
        let mut parameters = self.parameters.lock().unwrap();
        if name == "missing" {
            return Err(PushError::Unknown(name));
        }
        let version = parameters.get(&name).map_or(0, |(version, _)| version + 1);
        parameters.insert(name, (version, gradient));
        Ok(version)
    }

    async fn pull(&self, names: Vec<String>) -> HashMap<String, Tensor> {
        let parameters = self.parameters.lock().unwrap();
        names
            .into_iter()
            .filter_map(|name| Some((name.clone(), parameters.get(&name)?.1.clone())))
            .collect()
    }

    async fn sleep(&self, ms: u64) -> u64 {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let _sleeping = Sleeping(self.sleeping.clone());
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    async fn panic(&self) {
        panic!("on purpose");
    }

    async fn left(&self, cx: &CallContext) -> Duration {
        cx.time_left().unwrap()
    }

    async fn echo(&self, text: String) -> String {
        text
    }
}

fn tcp_only() -> Context {
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    Context::builder()
        .transports(transports)
        .channels(channels)
        .build()
        .unwrap()
}

struct Both {
    client: ParameterServerClient,
    server: Server,
    sleeping: Arc<AtomicUsize>,
}

async fn both(context: &Context) -> Both {
    let store = Store::default();
    let sleeping = store.sleeping.clone();
    let server = Server::builder()
        .context(context)
        .service(ParameterServerService::new(store))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let client = ParameterServerClient::connect_with(context, server.url().to_string())
        .await
        .unwrap();
    Both {
        client,
        server,
        sleeping,
    }
}

async fn over_each(test: impl AsyncFn(Both)) {
    test(both(&tcp_only()).await).await;
    test(both(&Context::new()).await).await;
}

async fn until(what: impl Fn() -> bool) {
    tokio::time::timeout(Duration::from_secs(5), async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await
    .expect("within 5 s");
}

#[tokio::test]
async fn arguments_and_results_of_every_size_come_back() {
    over_each(async |Both { client, .. }| {
        for len in [0u64, 3, 20_000, 3_000_000] {
            let gradient = Tensor::from_vec((0..len).map(|i| i as f32).collect(), [len]).unwrap();
            let version = client.push("w", &gradient).await.unwrap();
            let again = client.push("w".to_owned(), gradient.clone()).await.unwrap();
            assert_eq!(again, version + 1);
            let pulled = client
                .pull(vec!["w".to_owned(), "x".to_owned()])
                .await
                .unwrap();
            assert_eq!(pulled.len(), 1);
            assert_eq!(
                pulled["w"].as_slice::<f32>().unwrap(),
                gradient.as_slice::<f32>().unwrap()
            );
        }
        let text = "long ".repeat(1_000_000);
        assert_eq!(client.echo(&text).await.unwrap(), text);
    })
    .await;
}

#[tokio::test]
async fn errors_are_one_level_and_a_panic_is_its_calls_alone() {
    over_each(async |Both { client, .. }| {
        let tensor = Tensor::scalar(1f32);
        match client.push("missing", &tensor).await {
            Err(CallError::Service(PushError::Unknown(name))) => assert_eq!(name, "missing"),
            other => panic!("{other:?}"),
        }
        for _ in 0..3 {
            match client.panic().await {
                Err(CallError::Panicked(text)) => assert_eq!(&*text, "on purpose"),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(client.echo("still here").await.unwrap(), "still here");
    })
    .await;
}

#[tokio::test]
async fn many_calls_are_under_way_at_once() {
    over_each(async |Both { client, .. }| {
        let slow: Vec<_> = (0..100).map(|i| client.sleep(50 + i % 7)).collect();
        let begun = std::time::Instant::now();
        for (i, call) in slow.into_iter().enumerate() {
            assert_eq!(call.await.unwrap(), 50 + i as u64 % 7);
        }
        assert!(begun.elapsed() < Duration::from_secs(3));
    })
    .await;
}

#[tokio::test]
async fn dropping_a_call_drops_its_handler() {
    over_each(
        async |Both {
                   client, sleeping, ..
               }| {
            let call = client.sleep(60_000);
            until(|| sleeping.load(Ordering::SeqCst) == 1).await;
            drop(call);
            until(|| sleeping.load(Ordering::SeqCst) == 0).await;
            assert_eq!(client.echo("x").await.unwrap(), "x");
        },
    )
    .await;
}

#[tokio::test]
async fn deadlines_hold_at_both_ends() {
    over_each(
        async |Both {
                   client, sleeping, ..
               }| {
            let hurried = client.with_deadline(Duration::from_millis(100));
            let begun = std::time::Instant::now();
            match hurried.sleep(60_000).await {
                Err(CallError::Deadline { after }) => assert_eq!(after, Duration::from_millis(100)),
                other => panic!("{other:?}"),
            }
            assert!(begun.elapsed() < Duration::from_secs(2));
            until(|| sleeping.load(Ordering::SeqCst) == 0).await;
            let left = client
                .with_deadline(Duration::from_secs(7))
                .left()
                .await
                .unwrap();
            assert!(left <= Duration::from_secs(7) && left > Duration::from_secs(5));
        },
    )
    .await;
}

#[tokio::test]
async fn a_shutdown_lets_calls_finish_and_turns_new_ones_away() {
    over_each(
        async |Both {
                   client,
                   server,
                   sleeping,
               }| {
            let running = client.sleep(200);
            until(|| sleeping.load(Ordering::SeqCst) == 1).await;
            let shutdown = tokio::spawn(server.shutdown());
            tokio::time::sleep(Duration::from_millis(50)).await;
            let late = client.echo("late").await.unwrap_err();
            assert!(matches!(late, CallError::ShuttingDown), "{late}");
            assert!(!late.may_have_run());
            assert_eq!(running.await.unwrap(), 200);
            assert_eq!(shutdown.await.unwrap(), 0);
        },
    )
    .await;
}

#[tokio::test]
async fn a_server_that_is_gone_is_an_error() {
    let Both { client, server, .. } = both(&tcp_only()).await;
    let call = client.sleep(60_000);
    drop(server);
    let error = tokio::time::timeout(Duration::from_secs(15), call)
        .await
        .unwrap()
        .unwrap_err();
    println!("{error}");
}

mod other {
    use super::*;

    #[tensor_service]
    pub(crate) trait ParameterServer {
        async fn push(&self, name: String, gradient: Tensor, scale: f32) -> u64;
        async fn brand_new(&self) -> u64;
    }

    #[tensor_service]
    pub(crate) trait Absent {
        async fn nothing(&self);
    }
}

#[tokio::test]
async fn another_definition_of_a_service_is_refused_with_the_difference() {
    let Both { client, server, .. } = both(&Context::new()).await;
    let error = other::ParameterServerClient::on(client.connection())
        .await
        .unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("push"), "{error}");
    let error = other::AbsentClient::on(client.connection())
        .await
        .unwrap_err();
    println!("{error}");
    assert!(error.to_string().contains("`Absent`"), "{error}");
    drop(server);
}

#[tensor_service]
trait Private {
    async fn twice(&self, number: u32) -> u32;
}

impl Private for Store {
    async fn twice(&self, number: u32) -> u32 {
        2 * number
    }
}

#[tokio::test]
async fn a_private_trait_is_served_beside_a_public_one() {
    let server = Server::builder()
        .service(ParameterServerService::new(Store::default()))
        .service(PrivateService::new(Store::default()))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let client = PrivateClient::connect(server.url()).await.unwrap();
    assert_eq!(client.twice(21).await.unwrap(), 42);
    let other = ParameterServerClient::on(client.connection())
        .await
        .unwrap();
    assert_eq!(other.echo("x").await.unwrap(), "x");
}
