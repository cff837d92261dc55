//! A service with one method for each thing that a handler can do, and a client of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorpipe::transports::ShmTransport;
use tensorpipe::{Context, ContextBuilder, DType, Tensor};
use tensorpipe_rpc::{CallContext, Connection, Server, ServerLimits, tensor_service};
use tokio::sync::Notify;

pub(crate) use super::common::{serve, tcp, until};

#[tensor_service]
pub(crate) trait Lab {
    async fn echo(&self, text: String) -> String;
    async fn bounce(&self, tensor: Tensor) -> Tensor;
    async fn length(&self, tensor: Tensor) -> u64;
    async fn zeros(&self, bytes: u64) -> Tensor;
    async fn sleep(&self, ms: u64) -> u64;
    /// Runs until the bench is told to `go_on`.
    async fn hold(&self) -> ();
    /// Works on a thread of its own until the call is cancelled.
    async fn work(&self, cx: &CallContext) -> ();
    /// Blocks its task until the call is cancelled.
    async fn block(&self, cx: &CallContext) -> ();
    /// Works on a task of its own until the call is cancelled.
    async fn delegate(&self, cx: &CallContext) -> ();
    async fn left(&self, cx: &CallContext) -> Duration;
    async fn panic(&self, tensor: Tensor) -> ();
    async fn panic_when_dropped(&self, wait: bool) -> ();
    /// Panics with these words.
    async fn refuse(&self, words: String) -> ();
}

#[derive(Clone, Default)]
pub(crate) struct Bench {
    /// Handlers of `sleep` and `hold`, and work of `work` and `delegate`, that are at it.
    pub(crate) at_it: Arc<AtomicUsize>,
    /// Handlers that have begun.
    pub(crate) begun: Arc<AtomicUsize>,
    /// Lets one handler of `hold` return.
    pub(crate) go_on: Arc<Notify>,
}

pub(crate) struct AtIt(Arc<AtomicUsize>);

impl AtIt {
    pub(crate) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for AtIt {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("while it was dropped");
        }
    }
}

impl Lab for Bench {
    async fn echo(&self, text: String) -> String {
        self.begun.fetch_add(1, Ordering::SeqCst);
        text
    }

    async fn bounce(&self, tensor: Tensor) -> Tensor {
        tensor
    }

    async fn length(&self, tensor: Tensor) -> u64 {
        self.begun.fetch_add(1, Ordering::SeqCst);
        tensor.byte_len() as u64
    }

    async fn zeros(&self, bytes: u64) -> Tensor {
        Tensor::zeros(DType::U8, [bytes]).unwrap()
    }

    async fn sleep(&self, ms: u64) -> u64 {
        let _at_it = AtIt::new(&self.at_it);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        ms
    }

    async fn hold(&self) {
        let _at_it = AtIt::new(&self.at_it);
        self.go_on.notified().await;
    }

    async fn work(&self, cx: &CallContext) {
        let (cx, at_it) = (cx.clone(), AtIt::new(&self.at_it));
        let work = tokio::task::spawn_blocking(move || {
            let _at_it = at_it;
            let begun = Instant::now();
            while !cx.is_cancelled() {
                assert!(begun.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        work.await.unwrap();
    }

    async fn block(&self, cx: &CallContext) {
        while !cx.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    async fn delegate(&self, cx: &CallContext) {
        let (cx, at_it) = (cx.clone(), AtIt::new(&self.at_it));
        let work = tokio::spawn(async move {
            let _at_it = at_it;
            cx.cancelled().await;
        });
        work.await.unwrap();
    }

    async fn left(&self, cx: &CallContext) -> Duration {
        cx.time_left().unwrap()
    }

    async fn panic(&self, tensor: Tensor) {
        panic!("with {} bytes", tensor.byte_len());
    }

    async fn refuse(&self, words: String) {
        panic!("{words}");
    }

    async fn panic_when_dropped(&self, wait: bool) {
        let _at_it = AtIt::new(&self.at_it);
        let _panics = PanicsWhenDropped;
        if wait {
            std::future::pending().await
        }
    }
}

pub(crate) struct Both {
    pub(crate) client: LabClient,
    pub(crate) server: Server,
    pub(crate) bench: Bench,
    pub(crate) near: Context,
    pub(crate) far: Context,
}

/// A client and a server, each with a context of its own.
pub(crate) async fn both(near: ContextBuilder, far: ContextBuilder, limits: ServerLimits) -> Both {
    let (near, far) = (near.build().unwrap(), far.build().unwrap());
    let bench = Bench::default();
    let server = Server::builder()
        .context(&far)
        .limits(limits)
        .service(LabService::new(bench.clone()))
        .listen("tcp://127.0.0.1:0")
        .await
        .unwrap();
    let client = LabClient::connect_with(&near, server.url()).await.unwrap();
    Both {
        client,
        server,
        bench,
        near,
        far,
    }
}

/// As between two processes of one machine.
pub(crate) fn shm() -> ContextBuilder {
    tcp().prefer_transport(ShmTransport::new())
}

/// Runs a test over what goes through the kernel, through rings in shared memory, and inside the process.
pub(crate) async fn in_each(test: impl AsyncFn(fn() -> ContextBuilder)) {
    for context in [tcp, shm, Context::builder] {
        in_time(test(context)).await;
    }
}

pub(crate) async fn over_each_with(limits: ServerLimits, test: impl AsyncFn(Both)) {
    in_each(async |context| {
        let (near, far) = (context().name("near"), context().name("far"));
        test(both(near, far, limits.clone()).await).await;
    })
    .await;
}

pub(crate) async fn over_each(test: impl AsyncFn(Both)) {
    over_each_with(ServerLimits::default(), test).await;
}

/// Within a minute, on the slowest machine.
pub(crate) async fn in_time(story: impl Future<Output = ()>) {
    let told = tokio::time::timeout(Duration::from_secs(60), story).await;
    told.expect("within a minute");
}

impl Both {
    pub(crate) fn at_it(&self) -> usize {
        self.bench.at_it.load(Ordering::SeqCst)
    }

    pub(crate) fn begun(&self) -> usize {
        self.bench.begun.load(Ordering::SeqCst)
    }

    /// Nothing is under way, nothing is held, and the connection goes on.
    pub(crate) async fn is_clean(&self) {
        until(|| self.at_it() == 0).await;
        is_at_rest(&self.server, self.client.connection()).await;
        holds_nothing([&self.near, &self.far]).await;
        assert_eq!(self.client.echo("still here").await.unwrap(), "still here");
    }
}

/// No call is under way, at either end.
pub(crate) async fn is_at_rest(server: &Server, connection: &Connection) {
    until(|| server.calls_in_flight() == 0).await;
    until(|| connection.calls_in_flight() == 0).await;
}

/// No tensor is kept.
pub(crate) async fn holds_nothing(contexts: [&Context; 2]) {
    let held = |context: &&Context| context.pool().stats().outstanding_bytes;
    until(|| contexts.iter().map(held).all(|held| held == 0)).await;
}

/// 1 MiB, as postcard writes it.
pub(crate) const MIB: [u8; 3] = [0x80, 0x80, 0x40];

/// Bytes that tell one place from another: their period is a prime.
pub(crate) fn tensor(len: usize, seed: u8) -> Tensor {
    let byte = |i: usize| (i as u8).wrapping_mul(31).wrapping_add(seed) ^ (i >> 8) as u8;
    let pattern: Vec<u8> = (0..1021.min(len)).map(byte).collect();
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend_from_slice(&pattern[..pattern.len().min(len - bytes.len())]);
    }
    Tensor::from_vec(bytes, [len as u64]).unwrap()
}
