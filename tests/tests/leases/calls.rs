//! Calls whose arguments and results lie in pools: neither is copied.

use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::{CallContext, Server, tensor_service};
use tensorpipe_tests::{Child, say};

use super::scene::{alone, check, context, eventually, lendable, made, runtime, soon};

#[tensor_service]
pub(crate) trait Store {
    async fn keep(&self, tensor: Tensor) -> u64;
    async fn forget(&self) -> u64;
    async fn weights(&self, cx: &CallContext, len: u64, seed: u64) -> Tensor;
    async fn copied(&self, cx: &CallContext) -> u64;
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
}

pub(crate) fn play() {
    runtime().block_on(async {
        let server = Server::builder()
            .context(&Context::new())
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
