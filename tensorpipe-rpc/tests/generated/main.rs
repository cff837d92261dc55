//! What `#[tensor_service]` generates, over the real runtime.

#![deny(
    warnings,
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    elided_lifetimes_in_paths
)]

mod attributes;
mod batches;
mod hygiene;
mod service;

use tensorpipe::{Context, Pipe};
use tensorpipe_rpc::{Connection, Server, service::Service};

/// A connection, within this process, to a server of this one service.
async fn connection(service: impl Service) -> Connection {
    Connection::over(pipe(service).await).unwrap()
}

/// The same without what makes calls of messages.
async fn pipe(service: impl Service) -> Pipe {
    let context = Context::new();
    let server = Server::builder().context(&context).service(service);
    let server = server.listen("tcp://127.0.0.1:0").await.unwrap();
    let pipe = context.connect(server.url()).await.unwrap();
    // Until the end of the test.
    tokio::spawn(async move { server.wait().await });
    pipe
}
