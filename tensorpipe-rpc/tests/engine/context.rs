//! What a handler can learn from its call's context.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tensorpipe::{Context, DType, Tensor};
use tensorpipe_rpc::codec::Arguments;
use tensorpipe_rpc::schema::Schema;
use tensorpipe_rpc::service::{HandlerFuture, Service};
use tensorpipe_rpc::{CallContext, tensor_service};

use super::lab::{serve, tcp, until};
use super::wrong_use::block_on;

#[tensor_service]
trait Curious {
    async fn peer(&self, cx: &CallContext) -> (String, bool);
    async fn pooled(&self, bytes: u64, cx: &CallContext) -> Tensor;
    async fn current(&self) -> (Option<Duration>, bool, bool);
    async fn owned(&self, cx: CallContext) -> bool;
    async fn route(&self, cx: &CallContext) -> (String, String, Vec<String>);
    /// Answers at once and leaves work behind, which waits until the call is cancelled.
    async fn leave(&self, cx: CallContext) -> ();
}

struct Cat;

static LEFT_BEHIND: AtomicUsize = AtomicUsize::new(0);

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

    async fn route(&self, cx: &CallContext) -> (String, String, Vec<String>) {
        let route = cx.route();
        let channels = route.channels.iter().map(|channel| channel.name.clone());
        (
            route.transport.clone(),
            route.to_string(),
            channels.collect(),
        )
    }

    async fn leave(&self, cx: CallContext) {
        LEFT_BEHIND.fetch_add(2, Ordering::SeqCst);
        let plain = cx.clone();
        tokio::spawn(async move {
            cx.cancelled().await;
            LEFT_BEHIND.fetch_sub(1, Ordering::SeqCst);
        });
        // On a thread that knows of no runtime.
        std::thread::spawn(move || {
            block_on(plain.cancelled());
            assert!(plain.is_cancelled());
            LEFT_BEHIND.fetch_sub(1, Ordering::SeqCst);
        });
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
    let server = serve(&far, CuriousService::new(Cat)).await;
    let client = CuriousClient::connect_with(&near, server.url())
        .await
        .unwrap();
    assert!(CallContext::current().is_none());
    assert_eq!(client.peer().await.unwrap(), ("Barbara".to_owned(), false));
    let taken = far.pool().stats().lendable.taken;
    assert_eq!(client.pooled(1 << 20).await.unwrap().byte_len(), 1 << 20);
    assert!(far.pool().stats().lendable.taken > taken);
    // First on a task of its own, then on the connection's.
    for _ in 0..5 {
        let (left, plain, scoped) = client.current().await.unwrap();
        assert!(left.unwrap() <= Duration::from_secs(60));
        assert!(!plain && scoped);
    }
    assert!(client.owned().await.unwrap());
    assert!(CallContext::current().is_none());
}

/// Looks who calls before it makes the future of the call.
struct Eager<S>(S);

impl<S: Service> Service for Eager<S> {
    fn schema(&self) -> &'static Schema {
        self.0.schema()
    }

    fn call(&self, method: usize, arguments: Arguments, context: &CallContext) -> HandlerFuture {
        let current = CallContext::current().expect("this is part of a call");
        assert_eq!(current.deadline(), context.deadline());
        self.0.call(method, arguments, context)
    }
}

#[tokio::test]
async fn a_service_by_hand_is_called_as_part_of_the_call() {
    let server = serve(&tcp().build().unwrap(), Eager(CuriousService::new(Cat))).await;
    let near = tcp().build().unwrap();
    let client = CuriousClient::connect_with(&near, server.url())
        .await
        .unwrap();
    client.owned().await.unwrap();
}

#[tokio::test]
async fn the_route_is_that_of_its_pipe() {
    for (context, transport, channel) in [
        (tcp as fn() -> _, "tcp", "basic"),
        (Context::builder, "memory", "xth"),
    ] {
        let server = serve(&context().build().unwrap(), CuriousService::new(Cat)).await;
        let near = context().build().unwrap();
        let client = CuriousClient::connect_with(&near, server.url())
            .await
            .unwrap();
        let (name, printed, channels) = client.route().await.unwrap();
        assert_eq!((name.as_str(), channels[0].as_str()), (transport, channel));
        assert_eq!(printed, server.pipes()[0].route().to_string());
        assert_eq!(client.connection().route().transport, name);
    }
}

#[tokio::test]
async fn work_that_a_handler_leaves_behind_is_told_at_the_deadline() {
    let context = tcp().build().unwrap();
    let server = serve(&context, CuriousService::new(Cat)).await;
    let client = CuriousClient::connect_with(&context, server.url())
        .await
        .unwrap();
    let hurried = client.with_deadline(Duration::from_millis(50));
    hurried.leave().await.unwrap();
    until(|| LEFT_BEHIND.load(Ordering::SeqCst) == 0).await;
}
