//! A plain `#[tarpc::service]`: the behaviour that its users rely on.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tarpc::client::stub::load_balance::RoundRobin;
use tarpc::client::stub::retry::Retry;
use tarpc::client::{self, RpcError};
use tarpc::context::{self, Context};
use tarpc::server::{BaseChannel, Channel};
use tensorpipe::{Limits, Pipe, Tensor};
use tensorpipe_rpc::tarpc::transport;
use tokio::task::JoinHandle;

use super::{over_each, pipes, soon, spawn, tcp, until, within_ms};

/// Nests as deep as one wishes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Nested(Option<Box<Self>>);

impl Nested {
    fn new(depth: usize) -> Self {
        (0..depth).fold(Self(None), |inner, _| Self(Some(Box::new(inner))))
    }
}

#[tarpc::service]
pub(crate) trait Work {
    async fn add(a: i32, b: i32) -> i32;
    async fn echo(text: String) -> String;
    async fn double(x: Tensor) -> Tensor;
    async fn named(tensors: HashMap<String, Tensor>) -> Result<Vec<(String, Tensor)>, String>;
    async fn sleep(ms: u64) -> u64;
    async fn time_left() -> Duration;
    async fn ones(len: u64) -> Tensor;
    async fn nested(depth: usize) -> Nested;
    async fn depth(nested: Nested) -> usize;
}

#[derive(Clone, Default)]
pub(crate) struct Worker {
    pub(crate) running: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Work for Worker {
    async fn add(self, _: Context, a: i32, b: i32) -> i32 {
        a + b
    }
    async fn echo(self, _: Context, text: String) -> String {
        text
    }
    async fn double(self, _: Context, x: Tensor) -> Tensor {
        let doubled = x.as_slice::<f32>().unwrap().iter().map(|x| x * 2.0);
        Tensor::from_vec(doubled.collect(), x.shape()).unwrap()
    }
    async fn named(
        self,
        _: Context,
        tensors: HashMap<String, Tensor>,
    ) -> Result<Vec<(String, Tensor)>, String> {
        if tensors.is_empty() {
            return Err("nothing to sort".to_owned());
        }
        let mut sorted: Vec<_> = tensors.into_iter().collect();
        sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(sorted)
    }
    async fn sleep(self, _: Context, ms: u64) -> u64 {
        self.running.fetch_add(1, Ordering::SeqCst);
        let _running = Running(self.running.clone());
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }
    async fn time_left(self, cx: Context) -> Duration {
        cx.deadline.saturating_duration_since(Instant::now())
    }
    async fn ones(self, _: Context, len: u64) -> Tensor {
        Tensor::from_vec(vec![1f32; len as usize], [len]).unwrap()
    }
    async fn nested(self, _: Context, depth: usize) -> Nested {
        Nested::new(depth)
    }
    async fn depth(self, _: Context, nested: Nested) -> usize {
        let mut depth = 0;
        let mut next = &nested;
        while let Some(inner) = &next.0 {
            (depth, next) = (depth + 1, inner);
        }
        depth
    }
}

fn serve(pipe: Pipe, worker: Worker) -> JoinHandle<()> {
    let channel = BaseChannel::with_defaults(transport(pipe));
    tokio::spawn(channel.execute(worker.serve()).for_each(spawn))
}

fn connect(pipe: Pipe) -> WorkClient {
    WorkClient::new(client::Config::default(), transport(pipe)).spawn()
}

#[tokio::test]
async fn values_and_tensors_of_every_size_come_back() {
    over_each(async |client, server| {
        serve(server, Worker::default());
        let client = connect(client);
        assert_eq!(client.add(context::current(), 1, 2).await.unwrap(), 3);
        for len in [0u64, 3, 20_000, 3_000_000] {
            let x = Tensor::from_vec((0..len).map(|i| i as f32).collect(), [len]).unwrap();
            let doubled = client.double(context::current(), x).await.unwrap();
            assert_eq!(doubled.shape(), [len]);
            let mut values = doubled.as_slice::<f32>().unwrap().iter().enumerate();
            assert!(values.all(|(i, x)| *x == i as f32 * 2.0));
        }
        let text = "long ".repeat(1_000_000);
        let echoed = client.echo(context::current(), text.clone()).await.unwrap();
        assert!(echoed == text);
        let tensors = [("b", 200_000u64), ("a", 1)].map(|(name, len)| {
            let tensor = Tensor::from_vec(vec![len as f32; len as usize], [len]).unwrap();
            (name.to_owned(), tensor)
        });
        let sorted = client.named(context::current(), HashMap::from(tensors));
        let sorted = sorted.await.unwrap().unwrap();
        assert_eq!((sorted[0].0.as_str(), sorted[1].0.as_str()), ("a", "b"));
        assert!(
            sorted[1]
                .1
                .as_slice::<f32>()
                .unwrap()
                .iter()
                .all(|x| *x == 200_000.0)
        );
        let refused = client.named(context::current(), HashMap::new()).await;
        assert_eq!(refused.unwrap().unwrap_err(), "nothing to sort");
    })
    .await;
}

/// Whose requests are shared, to be sent again.
#[tokio::test]
async fn tarpcs_stubs_stand_on_the_transport() {
    over_each(async |client, server| {
        serve(server, Worker::default());
        let channel = client::new(client::Config::default(), transport(client)).spawn();
        let balanced = RoundRobin::new(vec![channel]);
        let retried = Retry::new(balanced, |_: &Result<_, RpcError>, attempts| attempts < 3);
        let client = WorkClient::from(retried);
        assert_eq!(client.add(context::current(), 1, 2).await.unwrap(), 3);
    })
    .await;
}

#[tokio::test]
async fn many_requests_are_in_flight_at_once() {
    over_each(async |client, server| {
        serve(server, Worker::default());
        let client = connect(client);
        let begun = Instant::now();
        let calls = (0..300).map(|i| {
            let client = client.clone();
            async move { client.sleep(context::current(), 200 + i % 7).await.unwrap() }
        });
        let slept = futures_util::future::join_all(calls).await;
        assert!(
            slept
                .iter()
                .enumerate()
                .all(|(i, ms)| *ms == 200 + i as u64 % 7)
        );
        assert!(
            begun.elapsed() < Duration::from_secs(10),
            "300 × 200 ms side by side"
        );
    })
    .await;
}

#[tokio::test]
async fn a_deadline_ends_the_call_at_both_ends() {
    over_each(async |client, server| {
        let worker = Worker::default();
        serve(server, worker.clone());
        let client = connect(client);
        let error = client.sleep(within_ms(200), 60_000).await.unwrap_err();
        assert!(matches!(error, RpcError::DeadlineExceeded), "{error:?}");
        until(|| worker.running.load(Ordering::SeqCst) == 0).await;
        let left = client.time_left(within_ms(7_000)).await.unwrap();
        assert!(
            left <= Duration::from_secs(7) && left > Duration::from_secs(4),
            "{left:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn dropping_a_call_aborts_its_handler() {
    over_each(async |client, server| {
        let worker = Worker::default();
        serve(server, worker.clone());
        let client = connect(client);
        let caller = client.clone();
        let call = tokio::spawn(async move { caller.sleep(within_ms(60_000), 60_000).await });
        until(|| worker.running.load(Ordering::SeqCst) == 1).await;
        call.abort();
        until(|| worker.running.load(Ordering::SeqCst) == 0).await;
        assert_eq!(client.add(context::current(), 1, 1).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn the_server_turns_away_what_is_too_much() {
    over_each(async |client, server| {
        let worker = Worker::default();
        let channel = BaseChannel::with_defaults(transport(server)).max_concurrent_requests(1);
        tokio::spawn(channel.execute(worker.clone().serve()).for_each(spawn));
        let client = connect(client);
        let caller = client.clone();
        let first = tokio::spawn(async move { caller.sleep(context::current(), 500).await });
        until(|| worker.running.load(Ordering::SeqCst) == 1).await;
        match client.add(context::current(), 1, 1).await {
            Err(RpcError::Server(error)) => assert_eq!(error.kind, ErrorKind::WouldBlock),
            other => panic!("{other:?}"),
        }
        assert_eq!(first.await.unwrap().unwrap(), 500);
        assert_eq!(client.add(context::current(), 1, 1).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn the_client_keeps_to_its_own_bound() {
    over_each(async |client, server| {
        let worker = Worker::default();
        serve(server, worker.clone());
        let mut config = client::Config::default();
        config.max_in_flight_requests = 1;
        let client = WorkClient::new(config, transport(client)).spawn();
        let caller = client.clone();
        let first = tokio::spawn(async move { caller.sleep(context::current(), 300).await });
        until(|| worker.running.load(Ordering::SeqCst) == 1).await;
        let begun = Instant::now();
        assert_eq!(client.add(context::current(), 1, 1).await.unwrap(), 2);
        assert!(
            begun.elapsed() > Duration::from_millis(150),
            "it waited for the first"
        );
        first.await.unwrap().unwrap();
    })
    .await;
}

#[tokio::test]
async fn a_dropped_client_ends_its_channel() {
    over_each(async |client, server| {
        let worker = Worker::default();
        let channel = serve(server, worker.clone());
        let client = connect(client);
        let call = tokio::spawn(async move { client.sleep(within_ms(60_000), 60_000).await });
        until(|| worker.running.load(Ordering::SeqCst) == 1).await;
        call.abort();
        channel.await.unwrap();
        until(|| worker.running.load(Ordering::SeqCst) == 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_dropped_server_ends_its_calls() {
    over_each(async |client, server| {
        let worker = Worker::default();
        let channel = serve(server, worker.clone());
        let client = connect(client);
        let caller = client.clone();
        let call = tokio::spawn(async move { caller.sleep(within_ms(60_000), 60_000).await });
        until(|| worker.running.load(Ordering::SeqCst) == 1).await;
        channel.abort();
        let error = call.await.unwrap().unwrap_err();
        assert!(
            matches!(error, RpcError::Shutdown | RpcError::Channel(_)),
            "{error:?}"
        );
        until(|| worker.running.load(Ordering::SeqCst) == 0).await;
        assert!(client.add(context::current(), 1, 1).await.is_err());
    })
    .await;
}

#[tokio::test]
async fn what_cannot_be_sent_fails_its_request_alone() {
    over_each(async |client, server| {
        serve(server, Worker::default());
        let client = connect(client);
        let depth = client.depth(context::current(), Nested::new(20)).await;
        assert_eq!(depth.unwrap(), 20);
        match client.depth(context::current(), Nested::new(1000)).await {
            Err(RpcError::Send(error)) => {
                assert!(error.to_string().starts_with("the request"), "{error}")
            }
            other => panic!("{other:?}"),
        }
        match client.nested(context::current(), 1000).await {
            Err(RpcError::Server(error)) => {
                assert_eq!(error.kind, ErrorKind::InvalidData);
                assert!(error.detail.contains("deeper"), "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(client.add(context::current(), 1, 1).await.unwrap(), 2);
    })
    .await;
}

#[tokio::test]
async fn what_is_too_large_fails_its_request_alone() {
    let mut limits = Limits::default();
    limits.tensor = 1 << 20;
    let context = tcp().limits(limits).build().unwrap();
    let (client, server) = pipes(&context).await;
    serve(server, Worker::default());
    let client = connect(client);
    let large = Tensor::from_vec(vec![1f32; 1 << 20], [1 << 20]).unwrap();
    match soon(client.double(context::current(), large)).await {
        Err(RpcError::Send(error)) => assert!(error.to_string().contains("limit"), "{error}"),
        other => panic!("{other:?}"),
    }
    match soon(client.ones(context::current(), 1 << 20)).await {
        Err(RpcError::Server(error)) => assert!(error.detail.contains("limit"), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.add(context::current(), 1, 1).await.unwrap(), 2);
}
