//! tarpc over a pipe: request and response semantics, single messages, and hostile peers.
#![cfg(feature = "tarpc")]
#![allow(missing_docs, reason = "a test")]

#[path = "../common/mod.rs"]
mod common;
mod hostile;
mod incoming;
mod messages;
mod semantics;
mod service;
mod wrapped;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{soon, tcp, until};
use tensorpipe::transports::{ShmTransport, Transport};
use tensorpipe::{Context, ContextBuilder, Pipe};

async fn spawn(request: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(request);
}

/// tarpc's context of a call that has so much time.
fn within_ms(ms: u64) -> tarpc::context::Context {
    let mut context = tarpc::context::current();
    context.deadline = Instant::now() + Duration::from_millis(ms);
    context
}

/// Two ends: the one that connected, and the one that accepted.
async fn pipes(context: &Context) -> (Pipe, Pipe) {
    pipes_at(context, "tcp://127.0.0.1:0").await
}

async fn pipes_at(context: &Context, url: &str) -> (Pipe, Pipe) {
    let listener = context.listen([url]).await.unwrap();
    let url = listener.urls()[0].to_string();
    let (connected, accepted) = tokio::join!(context.connect(&url), listener.accept());
    (connected.unwrap(), accepted.unwrap())
}

/// A context that stays on shared memory.
fn shm_only() -> ContextBuilder {
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(ShmTransport::new())];
    Context::builder().transports(transports)
}

/// A name for a listener over shared memory, which no other test of this machine has.
fn shm_url() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("shm://tarpc-{}-{next}", std::process::id())
}

/// Over tcp, over shared memory, and within the process, where the negotiation moves the pipe to memory.
async fn over_each(test: impl AsyncFn(Pipe, Pipe)) {
    for (context, url, transport) in [
        (tcp().build().unwrap(), "tcp://127.0.0.1:0", "tcp"),
        (shm_only().build().unwrap(), &shm_url(), "shm"),
        (Context::new(), "tcp://127.0.0.1:0", "memory"),
    ] {
        let (client, server) = pipes_at(&context, url).await;
        assert!(
            client.route().to_string().contains(transport),
            "{}",
            client.route()
        );
        soon(test(client, server)).await;
    }
}
