//! Code that all suites share: a context that stays on tcp, a server, and bounded waits.
#![allow(dead_code, reason = "not every suite asks for everything")]

use std::sync::Arc;
use std::time::Duration;

use tensorpipe::channels::{BasicChannel, Channel};
use tensorpipe::transports::{TcpTransport, Transport};
use tensorpipe::{Context, ContextBuilder};
use tensorpipe_rpc::{Server, service::Service};

/// A context whose bytes go through sockets alone.
pub(crate) fn tcp() -> ContextBuilder {
    let transports: [Arc<dyn Transport>; 1] = [Arc::new(TcpTransport::new())];
    let channels: [Arc<dyn Channel>; 1] = [Arc::new(BasicChannel::new())];
    Context::builder().transports(transports).channels(channels)
}

/// A server of one service.
pub(crate) async fn serve(context: &Context, service: impl Service) -> Server {
    let server = Server::builder().context(context).service(service);
    server.listen("tcp://127.0.0.1:0").await.unwrap()
}

/// Awaits `work` within a generous bound, for busy machines. No test measures anything by it.
pub(crate) async fn soon<T>(work: impl Future<Output = T>) -> T {
    let bounded = tokio::time::timeout(Duration::from_secs(30), work).await;
    bounded.expect("within 30 s")
}

/// Polls the condition until it is true.
pub(crate) async fn until(what: impl Fn() -> bool) {
    let at_last = async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    soon(at_last).await;
}
