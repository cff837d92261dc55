//! What a handler knows of its call.

use std::time::Duration;

use tensorpipe::{DType, Tensor};
use tensorpipe_rpc::{CallContext, Server, tensor_service};

use super::lab::tcp;

#[tensor_service]
trait Curious {
    async fn peer(&self, cx: &CallContext) -> (String, bool);
    async fn pooled(&self, bytes: u64, cx: &CallContext) -> Tensor;
    async fn current(&self) -> (Option<Duration>, bool, bool);
    async fn owned(&self, cx: CallContext) -> bool;
}

struct Cat;

impl Curious for Cat {
    async fn peer(&self, cx: &CallContext) -> (String, bool) {
        (cx.peer().to_owned(), cx.is_cancelled())
    }

    async fn pooled(&self, bytes: u64, cx: &CallContext) -> Tensor {
        cx.pool().tensor(DType::U8, [bytes]).unwrap()
    }

    async fn current(&self) -> (Option<Duration>, bool, bool) {
        let current = CallContext::current().unwrap();
        let plain = tokio::spawn(async { CallContext::current().is_some() });
        let scoped = current
            .clone()
            .scope(async { CallContext::current().is_some() });
        let scoped = tokio::spawn(scoped).await.unwrap();
        (current.time_left(), plain.await.unwrap(), scoped)
    }

    async fn owned(&self, cx: CallContext) -> bool {
        tokio::task::yield_now().await;
        cx.deadline().is_some() && format!("{cx:?}").contains("Barbara")
    }
}

#[tokio::test]
async fn peer_pool_time_and_scope() {
    let near = tcp().name("Barbara").build().unwrap();
    let far = tcp().build().unwrap();
    let server = Server::builder()
        .context(&far)
        .service(CuriousService::new(Cat))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let client = CuriousClient::connect_with(&near, server.url().to_string())
        .await
        .unwrap();
    assert!(CallContext::current().is_none());
    assert_eq!(client.peer().await.unwrap(), ("Barbara".to_owned(), false));
    let taken = far.pool().stats().taken;
    assert_eq!(client.pooled(1 << 20).await.unwrap().byte_len(), 1 << 20);
    assert!(far.pool().stats().taken > taken);
    // First on a task of its own, then on the connection's.
    for _ in 0..5 {
        let (left, plain, scoped) = client.current().await.unwrap();
        assert!(left.unwrap() <= Duration::from_secs(60));
        assert!(!plain && scoped);
    }
    assert!(client.owned().await.unwrap());
    assert!(CallContext::current().is_none());
}
