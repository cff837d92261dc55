//! tarpc over a pipe: its request and response semantics, its messages one by one, and peers that make no sense.
#![cfg(feature = "tarpc")]
#![allow(missing_docs, reason = "a test")]

mod hostile;
mod messages;
mod semantics;
mod service;

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, ContextBuilder, Pipe};

/// A context that stays on tcp.
fn tcp_only() -> ContextBuilder {
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    Context::builder().transports(transports).channels(channels)
}

/// Two ends: the one that connected, and the one that accepted.
async fn pipes(context: &Context) -> (Pipe, Pipe) {
    let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
    let url = listener.urls()[0].to_string();
    let (connected, accepted) = tokio::join!(context.connect(&url), listener.accept());
    (connected.unwrap(), accepted.unwrap())
}

/// Over tcp, and within the process, where the negotiation moves the pipe to memory.
async fn over_each(test: impl AsyncFn(Pipe, Pipe)) {
    for (context, transport) in [
        (tcp_only().build().unwrap(), "tcp"),
        (Context::new(), "memory"),
    ] {
        let (client, server) = pipes(&context).await;
        assert!(
            client.route().to_string().contains(transport),
            "{}",
            client.route()
        );
        within(test(client, server)).await;
    }
}

async fn within<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), what)
        .await
        .expect("within 20 s")
}

async fn until(what: impl Fn() -> bool) {
    within(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}
