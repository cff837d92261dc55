//! Calls whose arguments and results lie in pools: neither is copied.

use futures_util::future::join_all;
use futures_util::stream;
use tensorpipe::{Context, DType, Limits, Tensor};
use tensorpipe_rpc::{CallContext, Server, ServerLimits, Streaming, tensor_service};
use tensorpipe_tests::{Child, say};

use super::scene::{alone, check, context, eventually, lendable, made, runtime, soon};

#[tensor_service]
pub(crate) trait Store {
    async fn keep(&self, tensor: Tensor) -> u64;
    async fn forget(&self) -> u64;
    async fn weights(&self, cx: &CallContext, len: u64, seed: u64) -> Tensor;
    async fn copied(&self, cx: &CallContext) -> u64;
    async fn ignores(&self, items: Streaming<Tensor>) -> u64;
}

#[derive(Default)]
struct Shelf(std::sync::Mutex<Vec<Tensor>>);

impl Store for Shelf {
    async fn keep(&self, tensor: Tensor) -> u64 {
        check(&tensor, 4);
        self.0.lock().unwrap().push(tensor);
        self.0.lock().unwrap().len() as u64
    }

    async fn forget(&self) -> u64 {
        self.0.lock().unwrap().drain(..).count() as u64
    }

    async fn weights(&self, cx: &CallContext, len: u64, seed: u64) -> Tensor {
        made(cx.pool(), len as usize, seed)
    }

    /// Ordinary memory that what comes in has been copied to.
    async fn copied(&self, cx: &CallContext) -> u64 {
        cx.pool().stats().taken
    }

    async fn ignores(&self, items: Streaming<Tensor>) -> u64 {
        std::future::pending::<()>().await;
        drop(items);
        0
    }
}

pub(crate) fn play() {
    runtime().block_on(async {
        let (mut context, mut limits) = (Context::builder(), ServerLimits::default());
        if std::env::var("TEST_LITTLE").is_ok() {
            limits.unread_items = 1 << 20;
            let mut few = Limits::default();
            few.window_messages = 16;
            context = context.limits(few);
        }
        let server = Server::builder()
            .context(&context.build().unwrap())
            .limits(limits)
            .service(StoreService::new(Shelf::default()))
            .listen("tcp://127.0.0.1:0")
            .await
            .unwrap();
        say("url", server.url());
        server.wait().await;
    });
}

#[test]
fn arguments_and_results_in_pools_are_lent() {
    alone(async || {
        let mut child = Child::start("server", &[]);
        let context = context("caller", 64 << 20);
        let client = StoreClient::connect_with(&context, child.hear("url"));
        let client = soon("a client", client).await.unwrap();
        let len = 3 << 20;
        let ours = made(context.pool(), len, 4);
        for kept in 1..=3 {
            let answer = soon("a call", client.keep(&ours)).await;
            assert_eq!(answer.unwrap(), kept);
        }
        for seed in 0..5 {
            let weights = soon("a call", client.weights(len as u64, seed)).await;
            let weights = weights.unwrap();
            assert_eq!((weights.dtype(), weights.byte_len()), (DType::U8, len));
            check(&weights, seed);
        }
        let stats = client.connection().pipe().stats();
        assert_eq!(stats.bytes_lent, 3 * len as u64);
        assert_eq!(stats.bytes_borrowed, 5 * len as u64);
        assert_eq!(stats.bytes_copied, 0);
        assert_eq!(context.pool().stats().taken, 0, "nothing was received");
        assert_eq!(soon("a call", client.copied()).await.unwrap(), 0);
        drop(ours);
        assert_eq!(lendable(context.pool()).lent_bytes, 4 << 20);
        assert_eq!(soon("a call", client.forget()).await.unwrap(), 3);
        assert_eq!(lendable(context.pool()).lent_bytes, 0);
        // With the server gone, what it was lent is back.
        let again = made(context.pool(), len, 4);
        soon("a call", client.keep(&again)).await.unwrap();
        drop(again);
        child.kill();
        eventually("memory back", || lendable(context.pool()).lent_bytes == 0).await;
    });
}

/// Items that are lent lie at their sender: they wait there while there is no room for them, and of those that wait some are
/// too many.
#[test]
fn lent_items_that_nobody_reads_count_as_unread() {
    const STREAMS: usize = 12;
    alone(async || {
        let child = Child::start("server", &[("TEST_LITTLE", "")]);
        let context = context("caller", 64 << 20);
        let client = StoreClient::connect_with(&context, child.hear("url"));
        let client = soon("a client", client).await.unwrap();
        let item = made(context.pool(), 2 << 20, 4);
        // Its memory is known there from then on.
        assert_eq!(soon("a call", client.keep(&item)).await.unwrap(), 1);
        let items = || stream::iter(vec![item.clone(); 2]);
        let calls = (0..STREAMS).map(|_| client.ignores(items()));
        let mut calls: Vec<_> = calls.map(|call| tokio::spawn(call)).collect();
        // One is read, four wait.
        eventually("all but those have failed", || {
            calls.iter().filter(|call| call.is_finished()).count() == STREAMS - 5
        })
        .await;
        let over = calls.extract_if(.., |call| call.is_finished());
        for error in join_all(over).await {
            let error = error.unwrap().unwrap_err();
            assert!(error.to_string().contains("too many streams"), "{error}");
        }
        assert_eq!(soon("a call", client.copied()).await.unwrap(), 0);
        calls.iter().for_each(|call| call.abort());
        join_all(calls).await;
    });
}
